"""The tokenizer learns from what the run will read: by the mixture, from training documents alone, the same however parts are cut."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from manifests.logs import Logs
from manifests.manifest import Manifest, TokenizerTraining
from manifests.storage import Folder
from pipeline.execution import RayExecutor
from pipeline.recipe import Recipe, RecipeError
from pipeline.run import RunFailed
from pipeline.summary import remarks
from stages.tokenizer import sample_key, train_tokenizer
from tests.pipeline.crawl import article, build, lines_of

CAP = 2000
"""Bytes of a document that are used; books have forty times as many."""
CHANCE = random.Random(3)
LETTERS = {"web": "abcdefgh", "books": "ijklmnop", "notes": "qrstuvwx"}
WORDS = {
    name: ["".join(CHANCE.choices(letters, k=CHANCE.randint(3, 7))) for _ in range(2000)] for name, letters in LETTERS.items()
}


def text(component: str, number: int, words: int) -> str:
    chance = random.Random(f"{component} {number}")
    return " ".join(chance.choices(WORDS[component], k=words))


DOCUMENTS = {
    "web": [text("web", number, 80) for number in range(400)],
    "books": [text("books", number, 16_000) for number in range(40)],
    "notes": [text("notes", number, 20) for number in range(30)],
}
MIXTURE = {"phases": [{"share": 0.8, "weights": {"web": 3, "books": 1}}, {"weights": {"books": 1, "notes": 1}}]}
WANTED = {"web": 0.6, "books": 0.3, "notes": 0.1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixed")
    for name, texts in DOCUMENTS.items():
        (folder / name).mkdir()
        for number in range(4):
            (folder / name / f"{number}.jsonl").write_bytes(lines_of({"text": one} for one in texts[number::4]))
    return folder


def recipe(folder: Path, name: str = "recipe.yaml", mixture: Any = MIXTURE, split: Any = None, **options: Any) -> Recipe:
    components = {name: {"source": name, "format": "jsonl", "licence": "PD"} for name in DOCUMENTS}
    tokenizer = {"vocabulary": 700, "document_cap_bytes": CAP, "sample_bytes": 20_000, "engine": "tokenizers", **options}
    if mixture is not None:
        (folder / f"{name}.mixture").write_text(yaml.safe_dump(mixture))
        tokenizer["mixture"] = f"{name}.mixture"
    stages: list[Any] = [{"split": split or {"validation": 0.1, "test": 0.1, "check_sample": 0}}, {"tokenizer": tokenizer}]
    path = folder / name
    path.write_text(yaml.safe_dump({"corpus": "mixed", "components": components, "stages": stages}))
    return Recipe.load(path)


def training_of(manifest: Manifest) -> TokenizerTraining:
    assert manifest.content.tokenizer is not None and manifest.content.tokenizer.training is not None
    return manifest.content.tokenizer.training


@pytest.fixture(scope="module")
def mixed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    corpus = tmp_path_factory.mktemp("corpora") / "mixed"
    build(recipe(folder), corpus)
    return corpus


def offered_texts(corpus: Path) -> list[str]:
    found = []
    for path in sorted(corpus.glob("steps/corpus.*tokenizer.sample/*/sample.arrow")):
        found += pa.ipc.open_file(path).read_all()["text"].to_pylist()
    return found


def test_each_component_has_its_share_of_the_sample_summed_over_the_phases(mixed: Path) -> None:
    training = training_of(Manifest.load(Folder(mixed)))
    assert {name: one.share_wanted for name, one in training.components.items()} == pytest.approx(WANTED)
    for name, one in training.components.items():
        assert one.share_got == pytest.approx(WANTED[name], abs=1e-3)
        assert one.bytes == pytest.approx(WANTED[name] * 20_000, abs=4)
        assert one.offered_bytes >= one.bytes
    assert training.wanted_bytes == 20_000 and 20_000 - 12 < training.bytes <= 20_000
    assert training.documents == sum(one.documents for one in training.components.values())
    assert training.components["books"].documents == 3  # of CAP bytes each: exactly its share


def test_long_documents_are_cut_to_the_cap_and_the_sample_is_full_all_the_same(folder: Path, tmp_path: Path) -> None:
    """Books are forty times the cap: a share reckoned from their whole bytes would offer a fortieth of what is wanted."""
    options = {"mixture": {"phases": [{"weights": {"books": 1}}]}, "sample_bytes": 40_000}
    training = training_of(build(recipe(folder, "books.yaml", **options), tmp_path / "corpus").manifest)
    assert training.bytes == 40_000 and training.components["books"].documents == 20
    assert {len(one) for one in offered_texts(tmp_path / "corpus")} == {CAP}


def test_held_out_documents_are_never_offered(mixed: Path) -> None:
    with Logs(Folder(mixed), Manifest.load(Folder(mixed))) as logs:
        split = {row["id"]: row["split"] for row in logs.sql("select id, split from documents")}
    assert set(split.values()) == {"train", "validation", "test"}
    of = {
        "".join(texts[number % 4 :: 4][number // 4][:CAP]): f"{name}/{number % 4}.jsonl#{number // 4}"
        for name, texts in DOCUMENTS.items()
        for number in range(len(texts))
    }
    offered = offered_texts(mixed)
    assert len(offered) > 50 and {split[of[one]] for one in offered} == {"train"}


def test_the_sample_is_the_documents_with_the_smallest_keys_and_trains_the_tokenizer(mixed: Path, folder: Path) -> None:
    """Chosen again from the log alone, and cut by hand."""
    with Logs(Folder(mixed), Manifest.load(Folder(mixed))) as logs:
        train = [row["id"] for row in logs.sql("select id from documents where split = 'train'")]
    sample = []
    for name, share in WANTED.items():
        left = round(share * 20_000)
        ids = sorted((one for one in train if one.startswith(f"{name}/")), key=lambda one: sample_key(0, one))
        for one in ids:
            file, row = int(one[len(name) + 1]), int(one.rpartition("#")[2])
            sample.append(DOCUMENTS[name][file + 4 * row][: min(left, CAP)])
            left -= len(sample[-1])
    assert train_tokenizer(sample, recipe(folder).stages[1].options) == (mixed / "tokenizer.json").read_text()


def published(corpus: Path) -> tuple[str, TokenizerTraining]:
    return (corpus / "tokenizer.json").read_text(), training_of(Manifest.load(Folder(corpus)))


@pytest.mark.parametrize("part_bytes", [1 << 27, 30_000, 1])
def test_parts_of_any_size_give_the_same_tokenizer_and_record(mixed: Path, folder: Path, tmp_path: Path, part_bytes: int) -> None:
    parts = build(recipe(folder), tmp_path / "corpus", part_bytes).ran["corpus.2.tokenizer.sample"]
    assert parts == {1 << 27: 3, 30_000: 9, 1: 12}[part_bytes]
    assert published(tmp_path / "corpus") == published(mixed)


@pytest.mark.slow
def test_two_workers_give_the_same_tokenizer_as_this_process(mixed: Path, folder: Path, tmp_path: Path) -> None:
    executor = RayExecutor(workers=2)
    try:
        build(recipe(folder), tmp_path / "corpus", 1, executor)
    finally:
        executor.close()
    assert published(tmp_path / "corpus") == published(mixed)


def test_another_option_of_the_tokenizer_runs_no_earlier_step_again(folder: Path, tmp_path: Path) -> None:
    def ran(name: str, **options: Any) -> list[str]:
        result = build(recipe(folder, name, **options), tmp_path / "corpus")
        return [step.split(".", 2)[-1] for step, parts in result.ran.items() if parts]

    ran("first.yaml")
    assert ran("first.yaml", vocabulary=600, digits="pairs", distinct_bytes=1 << 20) == ["tokenizer.make"]
    assert ran("first.yaml", mixture={"phases": [{"weights": {"web": 1}}]}) == ["tokenizer.sample", "tokenizer.make"]
    assert ran("first.yaml", sample_bytes=30_000) == ["tokenizer.sample", "tokenizer.make"]


def test_a_component_smaller_than_its_share_is_used_whole_and_the_others_get_the_rest(folder: Path, tmp_path: Path) -> None:
    mixture = {"phases": [{"weights": {"web": 2, "books": 1, "notes": 1}}]}
    manifest = build(recipe(folder, "small.yaml", mixture), tmp_path / "corpus").manifest
    training = training_of(manifest)
    notes, web, books = (training.components[name] for name in ("notes", "web", "books"))
    assert notes.bytes == notes.offered_bytes < 5000 and notes.share_got < notes.share_wanted == 0.25
    assert web.bytes == pytest.approx(2 * books.bytes, abs=4)
    assert training.bytes == pytest.approx(20_000, abs=8)
    assert [said for said in remarks(manifest.content) if "notes is" in said and "the mixture asked for 25.0%" in said]


def test_a_sample_that_takes_all_there_is_is_recorded_as_short(folder: Path, tmp_path: Path) -> None:
    manifest = build(recipe(folder, "short.yaml", mixture=None, sample_bytes=1 << 20), tmp_path / "corpus").manifest
    training = training_of(manifest)
    assert training.bytes < 300_000 and all(one.bytes == one.offered_bytes for one in training.components.values())
    assert training.wanted_bytes == 1 << 20 and training.reduced_to == 1
    assert not [said for said in remarks(manifest.content) if "reduced" in said]


def test_without_a_mixture_shares_are_those_of_the_training_bytes(folder: Path, tmp_path: Path) -> None:
    training = training_of(build(recipe(folder, "natural.yaml", mixture=None), tmp_path / "corpus").manifest)
    shares = {name: one.share_wanted for name, one in training.components.items()}
    sizes = {name: sum(map(len, texts)) for name, texts in DOCUMENTS.items()}
    assert shares == pytest.approx({name: size / sum(sizes.values()) for name, size in sizes.items()}, rel=0.4)
    assert training.components["books"].share_got == pytest.approx(shares["books"], abs=1e-3)


def test_a_sample_of_too_many_distinct_words_is_made_smaller_in_the_same_proportions(tmp_path: Path) -> None:
    """Each document of web has words of its own, and books repeat a few: half of the distinct words are in half of the sample."""
    for name, texts in (
        ("web", [" ".join(f"{name}x{word}" for word in range(100)) for name in range(1000, 1300)]),
        ("books", [f"book {number} of a few words " * 40 for number in range(300)]),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jsonl").write_bytes(lines_of({"text": one} for one in texts))
    components = {name: {"source": name, "format": "jsonl", "licence": "PD"} for name in ("web", "books")}

    def training(**options: Any) -> TokenizerTraining:
        tokenizer = {"vocabulary": 600, "sample_bytes": 300_000, **options}
        stages = [{"split": {"validation": 0, "test": 0}}, {"tokenizer": tokenizer}]
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"corpus": "x", "components": components, "stages": stages}))
        return training_of(build(Recipe.load(tmp_path / "recipe.yaml"), tmp_path / "corpus").manifest)

    whole = training()
    assert whole.bytes == pytest.approx(300_000, abs=8) and whole.distinct_bytes is not None
    assert 100_000 < whole.distinct_bytes < whole.components["web"].bytes + 5000
    less = training(distinct_bytes=65_536)
    assert less.distinct_bytes is not None and 64_000 < less.distinct_bytes <= 65_536
    part = 65_536 / whole.distinct_bytes
    assert less.bytes == pytest.approx(part * whole.bytes, rel=0.05)
    assert less.reduced_to == pytest.approx(part, abs=2 / 256) and whole.reduced_to == 1
    assert less.components["web"].share_got == pytest.approx(whole.components["web"].share_got, abs=1e-3)


@pytest.mark.parametrize(
    ("mixture", "complaint"),
    [
        ({"phases": [{"weights": {"wbe": 1}}]}, r"there is no component 'wbe'; did you mean 'web'\?"),
        ({"phases": [{"weights": {"zzzzz": 1}}]}, "there is no component 'zzzzz'; there are books, notes, web"),
        ({"phases": [{"share": 2}]}, "phases.0.share: Input should be less than or equal to 1"),
    ],
)
def test_a_mixture_of_other_components_is_refused_with_its_line_before_anything_runs(
    folder: Path, mixture: Any, complaint: str
) -> None:
    with pytest.raises(RecipeError, match=rf"bad\.yaml:\d+: stages\[1\]\.tokenizer\.mixture: bad\.yaml\.mixture: {complaint}"):
        recipe(folder, "bad.yaml", mixture)


def test_a_mixture_of_what_has_no_training_documents_fails_and_names_it(folder: Path, tmp_path: Path) -> None:
    (folder / "empty").mkdir(exist_ok=True)
    (folder / "empty" / "0.jsonl").write_bytes(b"")
    (folder / "only.mixture").write_text("phases: [{weights: {empty: 1}}]")
    components = {name: {"source": name, "format": "jsonl", "licence": "PD"} for name in ("notes", "empty")}
    stages = [{"split": {"validation": 0, "test": 0}}, {"tokenizer": {"mixture": "only.mixture"}}]
    (folder / "only.yaml").write_text(yaml.safe_dump({"corpus": "x", "components": components, "stages": stages}))
    with pytest.raises(RunFailed, match="its sample is of empty, without training documents"):
        build(Recipe.load(folder / "only.yaml"), tmp_path / "corpus")


def test_languages_are_evened_out_by_a_temperature(tmp_path: Path) -> None:
    """English has nine times the documents of German; with alpha 0 each has half of the sample."""
    german = "Der alte Müller trug jeden Morgen einen Korb voller Äpfel über die schmale Brücke in das Dorf, in dem er wohnte. "
    for name, texts in (("en", [article(number) for number in range(90)]), ("de", [german * 8] * 10)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jsonl").write_bytes(lines_of({"text": one} for one in texts))
    components = {
        name: {"source": name, "format": "jsonl", "licence": "PD", "stages": [{"language": {"keep": ["en", "de"]}}]}
        for name in ("en", "de")
    }
    tokenizer = {"vocabulary": 600, "sample_bytes": 8000, "mixture": "mixture.yaml"}
    stages = [{"split": {"validation": 0, "test": 0}}, {"tokenizer": tokenizer}]
    (tmp_path / "mixture.yaml").write_text("phases: [{temperature: 0}]")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"corpus": "x", "components": components, "stages": stages}))
    training = training_of(build(Recipe.load(tmp_path / "recipe.yaml"), tmp_path / "corpus").manifest)
    assert {name: (one.share_wanted, one.bytes) for name, one in training.components.items()} == {
        "en": (0.5, 4000),
        "de": (0.5, pytest.approx(4000, abs=3)),
    }


def test_one_document_of_distinct_words_alone_is_cut_and_not_left_out(tmp_path: Path) -> None:
    """It begins the sample and is all of it: what fits is as much of it as has `distinct_bytes`."""
    (tmp_path / "docs").mkdir()
    run = "".join(random.Random(1).choices("abcdefgh", k=1_000_000))
    (tmp_path / "docs" / "0.jsonl").write_bytes(lines_of([{"text": run}]))
    components = {"docs": {"source": "docs", "format": "jsonl", "licence": "PD"}}
    tokenizer = {"vocabulary": 600, "distinct_bytes": 100_000}
    stages = [{"split": {"validation": 0, "test": 0}}, {"tokenizer": tokenizer}]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"corpus": "x", "components": components, "stages": stages}))
    manifest = build(Recipe.load(tmp_path / "recipe.yaml"), tmp_path / "corpus").manifest
    training = training_of(manifest)
    assert 90_000 < training.bytes < 100_000 and training.reduced_to == 25 / 256
    assert [said for said in remarks(manifest.content) if "sample was reduced to 9.8%" in said]
