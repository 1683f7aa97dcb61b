"""Every kind of file of a corpus with every stage is damaged, dropped, edited and exchanged, one at a time; verify names the file.

Edits are made as one who knows the format would: digests, lengths and counts in the manifest follow, and the receipts, which know the
files too, are deleted. Columns that nothing else vouches for are listed here, and in docs/auditing.md.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from manifests.manifest import Manifest, ManifestError
from manifests.schemas import DOCUMENT_LOG, EDITS, REMOVALS, SHARD_INDEX
from manifests.storage import Folder
from manifests.verification.verify import verify
from pipeline import steps
from stages.commands import app
from tests.manifests.test_verify import Corpus, named, swap
from tests.pipeline.crawl import ONE_FILE_A_PART, article, build, lines_of, write_crawl
from tests.stages.quality_texts import FAST, texts, write

Row = dict[str, Any]
LOG_ROWS = 40
"""So few that `books` has several files of every kind of log."""
FILTERS = ("gopher_quality", "gopher_repetition", "c4", "fineweb")


def build_every_stage(folder: Path) -> Path:
    """The crawl of other tests, with all stages that there are, without work files."""
    crawl = write_crawl(folder)
    good, spam = write(folder / "good.jsonl", texts("good", 60)), write(folder / "spam.jsonl", texts("spam", 60))
    samples = ["--good", str(good), "--random", str(spam), "--output", str(folder / "model.bin")]
    assert CliRunner().invoke(app, ["quality", "train", *samples, *map(str, FAST)]).exit_code == 0
    line = "Subscribe to the letter of this house and read it in the evening."
    letters = [{"text": f"{article(f'letter {n}')}\n{line}", "url": f"https://letters.example/{n}?a=1"} for n in range(5)]
    (folder / "books" / "repeats.jsonl").write_bytes(lines_of(letters))

    def every(written: dict[str, Any]) -> None:
        for name, component in written["components"].items():
            stages = component["stages"]
            at = stages.index("fineweb") + 1
            component["stages"] = [*stages[:at], {"quality_classifier": {"model": "model.bin", "threshold": 0.0}}, *stages[at:]]
            if name == "web":
                component["stages"].insert(0, {"pre_check": {"keep": ["en"], "domains": ["slots.example"]}})
        cuts = [{"line_dedup": {"max_documents": 4}}, "paragraph_dedup", {"substring_dedup": {"min_tokens": 1000}}]
        written["stages"] = [*cuts, *written["stages"]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "LOG_ROWS", LOG_ROWS)
        build(crawl.load(every), folder / "corpus", ONE_FILE_A_PART)
    shutil.rmtree(folder / "corpus" / "steps")
    return folder / "corpus"


@pytest.fixture(scope="module")
def every_stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_every_stage(tmp_path_factory.mktemp("everywhere"))


@pytest.fixture
def corpus(every_stage: Path, tmp_path: Path) -> Corpus:
    shutil.copytree(every_stage, tmp_path / "broken")
    return Corpus(tmp_path / "broken")


def test_a_corpus_of_every_stage_is_whole(corpus: Corpus) -> None:
    ran = {one["stage"] for one in corpus.content["stages"]}
    ran |= {one["stage"] for component in corpus.content["components"].values() for one in component["stages"]}
    known = {
        *("read", "url_filter", "pre_check", "extraction", "repair", "language", *FILTERS, "quality_classifier", "personal_data"),
        *("line_dedup", "paragraph_dedup", "substring_dedup", "exact_dedup", "minhash", "decontamination"),
        *("split", "tokenizer", "shards"),
    }
    assert ran == known
    assert corpus.findings() == []
    assert list(verify(Folder(corpus.folder), Manifest.load(Folder(corpus.folder)), texts=True)) == []


def kinds(corpus: Corpus) -> dict[str, list[str]]:
    """Kind → the files of it, those with most rows first."""
    content, found = corpus.content, dict[str, list[str]]()
    for kind in ("removals", "edits", "documents", "signals"):
        logs = [one for one in content["logs"] if one["kind"] == kind and "/books/" in one["path"]]
        found[kind] = [one["path"] for one in sorted(logs, key=lambda one: -one["rows"])]
    shards = sorted(content["shards"], key=lambda one: -one["documents"])
    found["shard"], found["index"] = [one["path"] for one in shards], [one["index"] for one in shards]
    found["tokenizer"], found["recipe"], found["manifest"] = ["tokenizer.json"], ["recipe.yaml"], ["manifest.json"]
    if (corpus.folder / "receipts").exists():
        found["receipt"] = [path for path in corpus.receipts() if "/books.1.measure/" in path]
        found["list of receipts"] = ["receipts/list.jsonl"]
    return found


KINDS = (
    *("removals", "edits", "documents", "signals", "shard", "index", "tokenizer", "recipe", "manifest", "receipt"),
    "list of receipts",
)


def findings_of(folder: Path) -> list[str]:
    try:
        return list(verify(Folder(folder), Manifest.load(Folder(folder))))
    except ManifestError as error:
        return [str(error)]


@pytest.mark.parametrize("place", ["middle", *(pytest.param(one, marks=pytest.mark.slow) for one in ("first", "last"))])
@pytest.mark.parametrize("kind", KINDS)
def test_one_flipped_byte_is_found_and_its_file_is_named(corpus: Corpus, kind: str, place: str) -> None:
    path = corpus.folder / kinds(corpus)[kind][0]
    data = bytearray(path.read_bytes())
    data[{"first": 0, "middle": len(data) // 2, "last": len(data) - 1}[place]] ^= 1
    path.write_bytes(data)
    assert named(findings_of(corpus.folder), path.relative_to(corpus.folder).as_posix()), findings_of(corpus.folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_dropped_file_is_found_and_named(corpus: Corpus, kind: str) -> None:
    path = corpus.folder / kinds(corpus)[kind][0]
    path.unlink()
    where = "receipts: the list" if kind == "list of receipts" else path.relative_to(corpus.folder).as_posix()
    assert named(findings_of(corpus.folder), where), findings_of(corpus.folder)


@pytest.mark.parametrize(
    "receipts", [pytest.param(True, id="with receipts", marks=pytest.mark.slow), pytest.param(False, id="without receipts")]
)
@pytest.mark.parametrize("kind", ["removals", "documents", "signals", "edits", "shard", "index"])
def test_two_files_that_changed_places_are_found_and_one_is_named(corpus: Corpus, kind: str, receipts: bool) -> None:
    """Digests, lengths and rows in the manifest follow."""
    one, other = kinds(corpus)[kind][:2]
    swap(corpus.folder / one, corpus.folder / other)
    for path in (one, other):
        corpus.reseal(path, pq.read_metadata(corpus.folder / path).num_rows if path.endswith(".parquet") else None)
    findings = (corpus if receipts else corpus.without_receipts()).findings()
    assert named(findings, one) or named(findings, other), findings


LOGS = {"removals": REMOVALS, "edits": EDITS, "documents": DOCUMENT_LOG, "index": SHARD_INDEX}
QUICK = [
    *(("documents kept", one) for one in ("domain", "text_bytes", "split_cluster")),
    *(("documents removed", one) for one in ("split_cluster", "tokens", "text_sha256")),
    *(("edits", one) for one in ("stage", "rule", "bytes_before")),
    *(("signals kept", one) for one in ("gopher.rule_set", "fineweb.lines", "text_bytes")),
    *(("removals", one) for one in ("rule", "failed_rules")),
    ("index", "start"),
]


def columns(kind: str) -> list[str]:
    if kind.startswith("signals"):
        return []
    return list(LOGS[kind.partition(" ")[0]].names)


def changed(value: Any, column: str) -> Any:
    """Another value of the same type; null becomes one, in the commonest type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value + 0.125 if value < 0.5 else value - 0.125
    if isinstance(value, str):
        return (
            ("f" if value[0] != "f" else "e") + value[1:]
            if column in ("sha256_before", "sha256_after", "text_sha256", "url_key")
            else f"{value}x"
        )
    if isinstance(value, list):
        return [*value, "invented"]
    if isinstance(value, dict):
        return {**value, "numerator": value["numerator"] + 1}
    return None


def edit(corpus: Corpus, kind: str, column: str) -> tuple[str, str]:
    """(path, id) of the row that was changed: the first of its kind that has a value there, or that could have one."""
    base, _, which = kind.partition(" ")
    fates: dict[str, bool] = {}
    for path in kinds(corpus)["documents"]:
        fates |= {row["id"]: row["removed_by"] is None for row in pq.read_table(corpus.folder / path).to_pylist()}
    for path in kinds(corpus)[base]:
        table = pq.read_table(corpus.folder / path)
        for at, row in enumerate(table.to_pylist()):
            if which and fates[row["id"]] != (which == "kept"):
                continue
            if row[column] is None and (base != "documents" or which != "removed"):
                continue
            value = changed(row[column], column)
            if value is None:
                kind_of = str(table.schema.field(column).type)
                value = {"string": "books/north/0.jsonl#0", "int64": 1, "double": 0.5}[kind_of]
            identity = row["id"]

            def change(rows: list[Row], at: int = at, value: Any = value) -> None:
                rows[at][column] = value

            corpus.edit(path, change)
            return path, identity
    pytest.skip(f"no row of {kind} has a {column}")


@pytest.mark.parametrize(("kind", "column"), QUICK[::2], ids=[f"{kind} {column}" for kind, column in QUICK[::2]])
def test_an_edited_row_is_found_though_digests_follow(corpus: Corpus, kind: str, column: str) -> None:
    path, identity = edit(corpus.without_receipts(), kind, column)
    findings = corpus.findings()
    assert named(findings, path) or named(findings, identity) or named(findings, f"component {path.split('/')[2]}"), findings


UNVOUCHED: dict[str, frozenset[str]] = {
    "documents": frozenset({"url", "url_key", "date", "language_score"}),
    "removals": frozenset({"detail", "evidence"}),
    "edits": frozenset({"count", "sha256_before", "detail"}),
    "signals": frozenset({"gopher.stop_words", "c4.sentences"}),
}
"""What nothing vouches for once the receipts are gone (docs/auditing.md says in which cases), beside numerators of ratios and what the
quality classifier measured."""
SIGNALS = (
    *("id", "component", "file", "position", "text_bytes", "text_bytes_after", "gopher.rule_set", "gopher.words"),
    *(f"gopher.{one}" for one in ("mean_word_length", "hashes_per_word", "ellipses_per_word", "bullet_lines", "ellipsis_lines")),
    *("gopher.alphabetic_words", "gopher.stop_words"),
    *(f"gopher_repetition.duplicate_{one}" for one in ("lines", "paragraphs", "line_characters", "paragraph_characters")),
    *(f"gopher_repetition.top_{n}_gram" for n in (2, 3, 4)),
    *(f"gopher_repetition.duplicate_{n}_gram" for n in (5, 6, 7, 8, 9, 10)),
    *(f"c4.{one}" for one in ("lorem_ipsum_lines", "curly_brace_lines", "sentences", "characters")),
    *(f"fineweb.{one}" for one in ("lines", "terminal_lines", "short_lines", "duplicate_line_characters", "newlines_per_word")),
)
EVERY = [
    *((kind, one) for kind in ("documents kept", "documents removed", "removals", "edits", "index") for one in columns(kind)),
    *((kind, one) for kind in ("signals kept", "signals removed") for one in SIGNALS),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "column"), EVERY, ids=[f"{kind} {column}" for kind, column in EVERY])
def test_every_column_is_vouched_for_or_listed(corpus: Corpus, kind: str, column: str) -> None:
    """Of every kind of row, kept and removed; with the texts where the rest says nothing."""
    path, identity = edit(corpus.without_receipts(), kind, column)
    findings = corpus.findings()
    if not findings:
        findings = list(verify(Folder(corpus.folder), Manifest.load(Folder(corpus.folder)), texts=True))
    if findings:
        assert named(findings, path) or named(findings, identity) or named(findings, f"component {path.split('/')[2]}"), findings
        return
    value = next(row for row in pq.read_table(corpus.folder / path).to_pylist() if row["id"] == identity)[column]
    assert column in UNVOUCHED[kind.partition(" ")[0]] or isinstance(value, dict), column


@pytest.mark.parametrize("kind", ["documents kept", "removals", "edits", "signals kept"])
def test_what_nothing_else_vouches_for_is_known_to_the_receipts(corpus: Corpus, kind: str) -> None:
    column = {"documents kept": "url", "removals": "detail", "edits": "count", "signals kept": "gopher.hashes_per_word"}[kind]
    path, _ = edit(corpus, kind, column)
    assert named(corpus.findings(), path, "by receipts/logs/", "the part that wrote it")


NULLED = ("gopher.words", "gopher.stop_words", "c4.sentences", "fineweb.lines")


@pytest.mark.parametrize("column", NULLED)
def test_a_signal_that_was_taken_from_a_kept_document_is_missed(corpus: Corpus, column: str) -> None:
    """Its rules would keep what has no value."""
    path = kinds(corpus)["signals"][0]
    kept: list[str] = []
    for log in kinds(corpus)["documents"]:
        kept += [row["id"] for row in pq.read_table(corpus.folder / log).to_pylist() if row["removed_by"] is None]

    def take(rows: list[Row]) -> None:
        next(row for row in rows if row["id"] == kept[1]).update({column: None})

    corpus.without_receipts().edit(path, take)
    assert named(corpus.findings(), path, kept[1], f"has no {column}"), corpus.findings()


def test_all_signals_of_all_kept_documents_cannot_be_taken_away(corpus: Corpus) -> None:
    """Not even together with the summary that counts them."""
    for path in kinds(corpus)["signals"]:

        def take(rows: list[Row]) -> None:
            for row in rows:
                row.update({name: None for name in row if "." in name})

        corpus.edit(path, take)
    for one in corpus.content["summaries"]:
        if one["component"] == "books" and "rule_sets" in one:
            one["rule_sets"] = {}
    findings = corpus.without_receipts().findings()
    assert named(findings, "logs/signals/books/", "has no gopher.rule_set, which every text has"), findings


def test_clusters_of_the_split_cannot_be_taken_apart(corpus: Corpus) -> None:
    """Every document is said to be alone in its cluster, and pairs were found alike."""
    for log in [one["path"] for one in corpus.content["logs"] if one["kind"] == "documents"]:

        def alone(rows: list[Row]) -> None:
            for row in rows:
                row["split_cluster"] = row["id"] if row["split_cluster"] else None

        corpus.edit(log, alone)
    findings = corpus.without_receipts().findings()
    assert named(findings, "logs/documents: clusters of the split need 0 to 0 pairs by split_cluster"), findings


def test_two_urls_of_one_key_are_found(corpus: Corpus) -> None:
    path = kinds(corpus)["documents"][0]

    def one_key(rows: list[Row]) -> None:
        for row in rows:
            row["url_key"] = "0" * 16 if row["url_key"] else None

    corpus.edit(path, one_key)
    assert named(corpus.without_receipts().findings(), path, "both have the url_key 0000000000000000, which is of one URL")


@pytest.mark.parametrize("change", ["no document", "train", "one split"])
def test_a_closest_pair_that_cannot_be_is_found(corpus: Corpus, change: str) -> None:
    rows = [row for log in kinds(corpus)["documents"] for row in pq.read_table(corpus.folder / log).to_pylist()]
    by_split: dict[str, list[str]] = {}
    for row in rows:
        by_split.setdefault(str(row["split"]), []).append(row["id"])
    held_out, other, said = {
        "no document": ("books/none#1", by_split["train"][0], "held_out is books/none#1, which is no document of the corpus"),
        "train": (by_split["train"][0], by_split["test"][0], "which is in train"),
        "one split": (by_split["test"][0], by_split["test"][1], "are both in test"),
    }[change]
    corpus.content["split"]["closest"].update(held_out=held_out, other=other)
    assert named(corpus.without_receipts().findings(), "split, closest: ", said), corpus.findings()
