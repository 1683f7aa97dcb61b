"""A corpus that is compared with an older one: the older one's documents win and stay as they are."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import yaml

from manifests.manifest import Manifest
from manifests.storage import Folder
from manifests.verification.verify import verify
from pipeline.inputs import InputError
from pipeline.recipe import Recipe, RecipeError
from pipeline.run import RunFailed
from stages.text_sources import find_texts
from stages.tokenizer import BOS, TokenizerOptions, train_tokenizer
from tests.pipeline.crawl import article, build, prose

TOKENS: list[Any] = [
    {"split": {"validation": 0.1, "test": 0.1}},
    {"tokenizer": {"vocabulary": 512}},
    {"shards": {"target_tokens": 4000}},
]
COMPARE: list[Any] = ["exact_dedup", {"minhash": {"bands": 20, "rows": 4, "threshold": 0.7}}]
OLD = [article(f"old {number}") for number in range(30)]


def near(text: str) -> str:
    return text + "\nAnd that was all there was to say."


def new_texts() -> list[str]:
    """Five copies of old texts, five near copies, a near copy that is longer than its original by far, and others."""
    longer = "\n".join([*OLD[12].split("\n"), *prose("longer", 2)])
    return [*OLD[:5], *map(near, OLD[5:10]), longer, *(article(f"new {number}") for number in range(8)), near(article("new 3"))]


def write(folder: Path, name: str, components: dict[str, list[str]], stages: list[Any], **more: Any) -> Recipe:
    written = {}
    for component, texts in components.items():
        for number in range(0, len(texts), 5):
            path = folder / name / component / f"{number:03}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[number : number + 5]))
        written[component] = {"source": f"{name}/{component}", "format": "jsonl", "licence": "PD"}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"corpus": name, "components": written, "stages": stages, **more}))
    return Recipe.load(str(path))


def removals(corpus: Path, component: str) -> list[dict[str, Any]]:
    return ds.dataset(sorted(corpus.glob(f"logs/removals/{component}/*.parquet"))).to_table().to_pylist()


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished corpus, with nothing but what its manifest lists."""
    folder = tmp_path_factory.mktemp("references")
    build(write(folder, "old", {"web": OLD}, [*COMPARE, *TOKENS]), folder / "old-corpus")
    for name in ("steps", "receipts"):
        shutil.rmtree(folder / "old-corpus" / name)
    return folder / "old-corpus"


def test_old_documents_win_are_named_and_stay_as_they_are(old: Path, tmp_path: Path) -> None:
    before = digests(old)
    recipe = write(tmp_path, "new", {"web": new_texts()}, COMPARE, references={"snapshot-1": str(old)})
    outcomes = set()
    for part_bytes in (1 << 27, 1):
        corpus = tmp_path / f"corpus-{part_bytes}"
        manifest = build(recipe, corpus, part_bytes).manifest
        assert list(verify(Folder(corpus), manifest)) == []
        outcomes.add(manifest.digest)
    assert len(outcomes) == 1
    assert digests(old) == before
    rows = {row["file"][:3] + "#" + str(row["position"]): row for row in removals(corpus, "web")}
    for number in range(11):
        row = rows.pop(f"{number // 5 * 5:03}#{number % 5}")
        original = 12 if number == 10 else number
        assert row["kept_id"] == row["linked_id"] == f"@snapshot-1/web/{original // 5 * 5:03}.jsonl#{original % 5}"
        assert row["stage"] == ("exact_dedup" if number < 5 else "minhash")
        assert row["kept_jaccard"] >= 0.7
    assert [(row["kept_id"][0], row["stage"]) for row in rows.values()] == [("w", "minhash")]
    record = manifest.content.references["snapshot-1"]
    assert record.digest == Manifest.load(Folder(old)).digest
    assert record.documents == len(OLD)


def test_what_is_removed_is_what_one_corpus_of_both_would_remove(old: Path, tmp_path: Path) -> None:
    both = write(tmp_path, "both", {"old": OLD, "web": new_texts()}, COMPARE)
    text = (tmp_path / "both.yaml").read_text().replace("source: both/old", "priority: 1\n    source: both/old")
    (tmp_path / "both.yaml").write_text(text)
    both = Recipe.load(str(tmp_path / "both.yaml"))
    build(both, tmp_path / "both-corpus")
    new = write(tmp_path, "new", {"web": new_texts()}, COMPARE, references={"old": str(old)})
    build(new, tmp_path / "new-corpus")
    chosen = ("id", "rule", "linked_jaccard", "kept_jaccard", "cluster_size", "failed_rules", "text_bytes")
    expected = [{name: row[name] for name in chosen} for row in removals(tmp_path / "both-corpus", "web")]
    assert [{name: row[name] for name in chosen} for row in removals(tmp_path / "new-corpus", "web")] == expected
    assert not removals(tmp_path / "both-corpus", "old")


@pytest.mark.parametrize("chain", ["closure", "direct"])
def test_of_old_documents_that_resemble_each_other_each_still_stands_for_what_resembles_it(tmp_path: Path, chain: str) -> None:
    """The new document is like the second old one, and that like the first, but the new one is not like the first."""
    parts = [" ".join(prose(f"part {number}", 1)) for number in range(14)]
    texts = ["\n".join(parts[first : first + 10]) for first in range(3)]
    build(
        write(tmp_path, "old", {"web": texts[:2]}, [{"split": {"validation": 0, "test": 0}}, *TOKENS[1:]]),
        tmp_path / "old-corpus",
    )
    stages = [{"minhash": {"bands": 40, "rows": 3, "threshold": 0.7, "keep": "first", "chain": chain}}]
    new = write(tmp_path, "new", {"web": [texts[2], "\n".join(parts[10:])]}, stages, references={"old": "old-corpus"})
    build(new, tmp_path / "corpus")
    (row,) = removals(tmp_path / "corpus", "web")
    assert row["kept_id"] == row["linked_id"] == "@old/web/000.jsonl#1" and row["cluster_size"] == 2
    assert row["kept_jaccard"] == row["linked_jaccard"] > 0.7


def test_a_corpus_without_tokens_cannot_be_a_reference(tmp_path: Path) -> None:
    build(write(tmp_path, "bare", {"web": OLD[:5]}, ["exact_dedup"]), tmp_path / "bare-corpus")
    recipe = write(tmp_path, "new", {"web": OLD[:2]}, COMPARE, references={"bare": "bare-corpus"})
    with pytest.raises(InputError, match=r"reference bare: .*has no token shards"):
        build(recipe, tmp_path / "corpus")


@pytest.mark.parametrize(
    "references, stages, complaint",
    [
        ({"old": "nowhere"}, [{"exact_dedup": {"scope": "component"}}], "nothing compares with it"),
        ({"old": "nowhere"}, [], "nothing compares with it"),
        ({"Old!": "nowhere"}, ["exact_dedup"], "a reference's name"),
    ],
)
def test_a_recipe_whose_references_make_no_sense_is_refused(
    tmp_path: Path, references: dict[str, str], stages: list[Any], complaint: str
) -> None:
    with pytest.raises(RecipeError, match=complaint):
        write(tmp_path, "new", {"web": OLD[:2]}, stages, references=references)


def test_no_corpus_at_all_is_an_error_that_names_the_reference(tmp_path: Path) -> None:
    recipe = write(tmp_path, "new", {"web": OLD[:2]}, COMPARE, references={"old": "nowhere"})
    with pytest.raises(InputError, match=r"reference old: .*nowhere"):
        build(recipe, tmp_path / "corpus")


def test_a_tokenizer_whose_documents_begin_with_a_token_of_its_own_gives_texts_back(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(OLD, TokenizerOptions(vocabulary=600)).replace(BOS, "<start>")
    (tmp_path / "tokenizer.json").write_text(tokenizer)
    stages: list[Any] = [TOKENS[0], {"tokenizer": {"file": "tokenizer.json", "bos": "<start>"}}, "shards"]
    build(write(tmp_path, "old", {"web": OLD}, stages), tmp_path / "old-corpus")
    training = [text for file in find_texts([str(tmp_path / "old-corpus")]).files for text in file.texts()]
    assert 0 < len(training) < len(OLD) and set(training) < set(OLD)
    recipe = write(tmp_path, "new", {"web": [OLD[3], article("new")]}, ["exact_dedup"], references={"old": "old-corpus"})
    build(recipe, tmp_path / "corpus")
    assert [row["kept_id"] for row in removals(tmp_path / "corpus", "web")] == ["@old/web/000.jsonl#3"]


def test_a_reference_whose_tokenizer_is_another_file_is_refused_before_anything_runs(old: Path, tmp_path: Path) -> None:
    shutil.copytree(old, tmp_path / "old")
    (tmp_path / "old" / "tokenizer.json").write_text("{}")
    recipe = write(tmp_path, "new", {"web": OLD[:2]}, COMPARE, references={"old": "old"})
    with pytest.raises(InputError, match=r"reference old: .*tokenizer.json: not the file that the manifest lists"):
        build(recipe, tmp_path / "corpus")


def test_a_damaged_shard_of_a_reference_fails_the_run_and_is_named(old: Path, tmp_path: Path) -> None:
    shutil.copytree(old, tmp_path / "old")
    shard = Manifest.load(Folder(old)).content.shards[0].path
    data = bytearray((tmp_path / "old" / shard).read_bytes())
    data[40] ^= 1
    (tmp_path / "old" / shard).write_bytes(data)
    recipe = write(tmp_path, "new", {"web": OLD[:2]}, COMPARE, references={"old": "old"})
    with pytest.raises(RunFailed, match=f"{shard}: not the file that the manifest lists"):
        build(recipe, tmp_path / "corpus")


@pytest.mark.parametrize("where", ["old", "old/inner", "link"])
def test_a_run_does_not_write_over_its_own_reference(old: Path, tmp_path: Path, where: str) -> None:
    shutil.copytree(old, tmp_path / "old")
    (tmp_path / "link").symlink_to(tmp_path / "old")
    before = digests(tmp_path / "old")
    recipe = write(tmp_path, "new", {"web": OLD[:2]}, COMPARE, references={"old": "old"})
    with pytest.raises(InputError, match="its reference old"):
        build(recipe, tmp_path / where)
    assert digests(tmp_path / "old") == before
