"""Show, drop and diff: what a person learns of a corpus from its manifest."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow.dataset as ds
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from typer.testing import CliRunner

from manifests.commands import app
from manifests.difference import differences
from manifests.manifest import Content, Manifest, open_corpus
from manifests.overview import by_component, by_licence, by_source
from manifests.verification.verify import verify
from tests.manifests.many_shards import many_shards
from tests.pipeline.crawl import Crawl, build


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["manifest", *arguments], env={"COLUMNS": "220"})
    assert result.exit_code == code, result.output
    return result.output


def test_tokens_by_licence_and_source_add_up_to_all(finished: Path, manifest: Manifest) -> None:
    content = manifest.content
    shown = json.loads(run("show", str(finished), "--json"))
    total = sum(shard.tokens for shard in content.shards)
    for name in ("component", "licence", "source"):
        assert sum(row["all_tokens"] for row in shown[name]) == total
        assert sum(row["documents"] for row in shown[name]) == sum(one.documents_kept for one in content.components.values())
    assert {row["name"] for row in shown["licence"]} == {one.licence for one in content.components.values()}
    for row in by_component(content):
        assert row.tokens == content.components[row.name].tokens
    assert sorted(name for row in by_source(content) for name in row.components) == sorted(content.components)
    table = run("show", str(finished))
    for row in by_licence(content):
        assert row.name in table
    assert manifest.digest in table


def test_a_corpus_opens_by_folder_or_by_any_of_its_manifests(copied: Path, manifest: Manifest) -> None:
    shutil.copy(copied / "manifest.json", copied / "other.json")
    for path in (copied, copied / "manifest.json", copied / "other.json"):
        folder, found = open_corpus(str(path))
        assert found.digest == manifest.digest
        assert folder.exists("tokenizer.json")


def test_a_dropped_component_is_gone_and_the_rest_is_whole(copied: Path, manifest: Manifest) -> None:
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    told = run("drop", str(copied), "books", "--output", "without-books.json", "--reason", "a letter of 3 May")
    corpus, dropped = open_corpus(str(copied / "without-books.json"))
    content = dropped.content
    assert set(content.components) == set(manifest.content.components) - {"books"}
    assert all("/books/" not in path for path in [*(one.path for one in content.shards), *(one.path for one in content.logs)])
    assert list(verify(corpus, dropped)) == []
    assert {
        path: path.read_bytes() for path in copied.rglob("*") if path.is_file() and path.name != "without-books.json"
    } == before
    [record] = content.dropped
    assert (record["component"], record["reason"], record["of"]) == ("books", "a letter of 3 May", manifest.digest)
    assert record["documents"] == manifest.content.components["books"].documents_kept
    assert "trained on its documents" in told
    rows = ds.dataset(sorted(copied.glob("logs/removals/*/*.parquet"))).to_table().to_pylist()
    orphans = [row["id"] for row in rows if row["component"] != "books" and (row["kept_id"] or "").startswith("books/")]
    assert record["orphans"] == len(orphans)
    assert all(name in told for name in orphans)


def test_twins_of_a_dropped_component_are_listed(copied: Path, manifest: Manifest) -> None:
    """Whichever component has kept twins of another's documents."""
    rows = ds.dataset(sorted(copied.glob("logs/removals/*/*.parquet"))).to_table().to_pylist()
    across = [row for row in rows if row["kept_id"] and row["kept_id"].split("/")[0] != row["component"]]
    assert across, "the crawl plants a duplicate across components"
    component = across[0]["kept_id"].split("/")[0]
    found = json.loads(run("drop", str(copied), component, "--output", "less.json", "--json"))
    assert {row["id"] for row in found["orphans"]} == {row["id"] for row in across if row["kept_id"].startswith(f"{component}/")}


@pytest.mark.parametrize(
    "arguments, code, complaint",
    [
        (("nothing", "--output", "a.json"), 1, "there is no component 'nothing'"),
        (("books", "--output", "manifest.json"), 2, "manifest-2.json"),
        (("books", "--output", "../a.json"), 2, "manifest-2.json"),
        (("books", "--output", "tokenizer.json"), 1, "is there already"),
    ],
)
def test_what_cannot_be_dropped_is_refused(copied: Path, arguments: tuple[str, ...], code: int, complaint: str) -> None:
    before = sorted(path.name for path in copied.iterdir())
    assert complaint in run("drop", str(copied), *arguments, code=code)
    assert sorted(path.name for path in copied.iterdir()) == before


def test_the_same_corpus_does_not_differ(finished: Path, copied: Path, manifest: Manifest) -> None:
    assert differences(manifest.content, manifest.content) == []
    assert manifest.digest in run("diff", str(finished), str(copied))


def test_a_changed_threshold_is_the_cause_and_its_removals_the_effect(crawl: Crawl, finished: Path, tmp_path: Path) -> None:
    def stricter(recipe: dict[str, Any]) -> None:
        stages = recipe["components"]["books"]["stages"]
        recipe["components"]["books"]["stages"] = [
            {"gopher_quality": {"min_words": 200}} if one == "gopher_quality" else one for one in stages
        ]

    shutil.copytree(finished, tmp_path / "corpus")
    build(crawl.load(stricter, "stricter-books.yaml"), tmp_path / "corpus", 4000)
    changes = json.loads(run("diff", str(finished), str(tmp_path / "corpus"), "--json", code=1))
    assert [change for change in changes if change["kind"] == "cause"] == [
        {"kind": "cause", "where": "books: gopher_quality", "what": "option min_words", "before": 50, "after": 200}
    ]
    effects = {
        (change["where"], change["what"]): (change["before"], change["after"]) for change in changes if change["kind"] == "effect"
    }
    before, after = effects["books", "removed by gopher.min_words"]
    assert after > before
    assert "option min_words" in run("diff", str(finished), str(tmp_path / "corpus"), code=1)


def test_added_inputs_stages_and_components_are_causes(manifest: Manifest) -> None:
    raw = manifest.content.model_dump(mode="json")
    changed = json.loads(json.dumps(raw))
    books = changed["components"]["books"]
    books["inputs"][0]["sha256"] = "0" * 64
    books["stages"].pop()
    changed["components"]["more"] = {**books, "source": "elsewhere"}
    causes = {
        (one.where, one.what) for one in differences(manifest.content, Content.model_validate(changed)) if one.kind == "cause"
    }
    gone = raw["components"]["books"]["stages"][-1]["stage"]
    assert causes == {("books", "input files changed"), (f"books: {gone}", "stage"), ("more", "component")}


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 shards in ten components, with their logs; no test may change them."""
    folder = tmp_path_factory.mktemp("thousand") / "corpus"
    many_shards(folder)
    return folder


@pytest.fixture
def bare(thousand: Path, tmp_path: Path) -> Path:
    """The same without any file that show, drop and diff have no business with: there are a manifest and removal logs."""
    shutil.copytree(thousand / "logs" / "removals", tmp_path / "bare" / "logs" / "removals")
    shutil.copy(thousand / "manifest.json", tmp_path / "bare")
    return tmp_path / "bare"


class Counted(MemoryFileSystem):  # type: ignore[misc]
    """An object store that remembers which objects were opened, and how."""

    protocol = "counted"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    opened: ClassVar[list[tuple[str, str]]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("counted://", "memory://")))

    def cat_file(self, path: str, *rest: Any, **options: Any) -> Any:
        self.opened.append(("rb", path.partition("/corpus/")[2]))
        return super().cat_file(path, *rest, **options)

    def _open(self, path: str, mode: str = "rb", *rest: Any, **options: Any) -> Any:
        self.opened.append((mode, path.partition("/corpus/")[2]))
        return super()._open(path, mode, *rest, **options)

    @classmethod
    def told(cls) -> tuple[dict[str, int], set[str]]:
        """(times that each object was read, objects that were written) since the last call."""
        reads = Counter(path for mode, path in cls.opened if mode == "rb")
        written = {path for mode, path in cls.opened if mode != "rb"}
        cls.opened.clear()
        return dict(reads), written


def test_of_a_thousand_shards_none_is_read_to_show_drop_and_compare(bare: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in bare.rglob("*") if path.is_file()}
    shown = run("show", str(bare))
    assert re.search(r"^all +3,000 +0\.1 +60,000 +100\.0$", shown, re.MULTILINE)
    dropped = json.loads(run("drop", str(bare), "c3", "--output", "less.json", "--json"))
    assert [row["id"] for row in dropped["orphans"]] == ["c2/a.jsonl#300"]
    told = run("diff", str(bare), str(bare / "less.json"), code=1)
    assert "shards, 900 of which are the same" in told
    after = {path: path.stat().st_mtime_ns for path in bare.rglob("*") if path.is_file()}
    assert after.keys() - before.keys() == {bare / "less.json"}
    assert all(after[path] == stamp for path, stamp in before.items())


def test_files_read_and_written_do_not_grow_with_the_shards(thousand: Path) -> None:
    """1,000 shards and 2,031 files, in an object store."""
    fsspec.register_implementation("counted", Counted, clobber=True)
    store = fsspec.filesystem("counted")
    for path in thousand.rglob("*"):
        if path.is_file():
            store.pipe_file(f"/corpus/{path.relative_to(thousand)}", path.read_bytes())
    removals = {f"logs/removals/c{number}/00000.parquet" for number in range(10)}
    Counted.told()
    run("show", "counted://corpus")
    assert Counted.told() == ({"manifest.json": 1}, set())
    run("drop", "counted://corpus", "c3", "--output", "less.json")
    reads, written = Counted.told()
    assert written == {"less.json"}
    assert reads.keys() == {"manifest.json", *removals}
    run("diff", "counted://corpus", "counted://corpus/less.json", code=1)
    assert Counted.told() == ({"manifest.json": 1, "less.json": 1}, set())


@pytest.mark.slow
def test_a_corpus_of_a_thousand_shards_is_whole_after_a_drop(thousand: Path, tmp_path: Path) -> None:
    shutil.copytree(thousand, tmp_path / "corpus")
    run("drop", str(tmp_path / "corpus"), "c3", "c4", "--output", "less.json")
    for name in ("c3", "c4"):
        shutil.rmtree(tmp_path / "corpus" / "tokens" / name)
        for kind in ("documents", "removals", "edits"):
            shutil.rmtree(tmp_path / "corpus" / "logs" / kind / name)
    corpus, less = open_corpus(str(tmp_path / "corpus" / "less.json"))
    assert list(verify(corpus, less)) == []
    assert len(less.content.shards) == 800


def test_all_components_of_a_licence_or_a_source_are_dropped_together(bare: Path) -> None:
    """A document that was removed for another of the same licence has no twin that was left without reason."""
    told = run("drop", str(bare), "--licence", "CC-BY-4.0", "--output", "free.json", "--reason", "no attribution kept")
    _, free = open_corpus(str(bare / "free.json"))
    assert {one.licence for one in free.content.components.values()} == {"CC0-1.0"}
    assert [one["component"] for one in free.content.dropped] == ["c1", "c3", "c5", "c7", "c9"]
    assert "5 documents elsewhere were removed because a twin in them stayed" in told
    assert "their files are still there" in told
    assert "dropped: c9, 300 documents: no attribution kept" in run("show", str(bare / "free.json"))
    assert "dropped: no attribution kept" in run("diff", str(bare), str(bare / "free.json"), code=1)
    sources = json.loads(run("drop", str(bare), "c0", "--source", "source-1", "--output", "s.json", "--json"))
    assert sources["dropped"] == ["c0", "c2", "c3"]
    assert {row["id"].split("/")[0] for row in sources["orphans"]} == {"c1", "c9"}
    assert sum(one["orphans"] for one in open_corpus(str(bare / "s.json"))[1].content.dropped) == 2


@pytest.mark.parametrize(
    "arguments, code, complaint",
    [
        (["--licence", "MIT"], 1, "no component has the licence 'MIT'; there are CC0-1.0, CC-BY-4.0"),
        (["--source", "web"], 1, "no component has the source 'web'; there are source-0"),
        (["--licence", "CC0-1.0", "--licence", "CC-BY-4.0"], 1, "are all components: without them there is no corpus"),
        ([], 2, "name a component, or a --licence or --source"),
    ],
)
def test_a_licence_or_source_that_is_not_there_is_refused(bare: Path, arguments: list[str], code: int, complaint: str) -> None:
    assert complaint in run("drop", str(bare), *arguments, "--output", "less.json", code=code)
    assert not (bare / "less.json").exists()


def test_why_a_document_of_a_dropped_component_is_not_there(thousand: Path, tmp_path: Path) -> None:
    shutil.copytree(thousand, tmp_path / "corpus")
    run("drop", str(tmp_path / "corpus"), "c3", "--output", "less.json", "--reason", "a letter")
    asked = CliRunner().invoke(app, ["why", str(tmp_path / "corpus" / "less.json"), "c3/a.jsonl#0"])
    assert asked.exit_code == 1
    assert "component c3 was dropped: a letter" in asked.output
