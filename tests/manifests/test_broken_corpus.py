"""A corpus is broken in one way after another, each time so that every digest and length in the manifest follows; verify finds
each, and names the file and the document."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifests.manifest import Manifest
from manifests.storage import Folder
from manifests.tokenizer_file import TokenizerFile, TokenizerFileError
from manifests.verification.verify import verify
from pipeline import steps
from tests.manifests.test_verify import Corpus, named, swap
from tests.pipeline.crawl import ONE_FILE_A_PART, Crawl, build

Rows = list[dict[str, Any]]
LOG_ROWS = 12
"""So few that every kind of log of `books` has several files."""


@pytest.fixture(scope="module")
def many_logs(crawl: Crawl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many") / "corpus"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "LOG_ROWS", LOG_ROWS)
        build(crawl.load(), folder, ONE_FILE_A_PART)
    return folder


@pytest.fixture
def corpus(many_logs: Path, tmp_path: Path) -> Corpus:
    shutil.copytree(many_logs, tmp_path / "broken", ignore=shutil.ignore_patterns("steps"))
    return Corpus(tmp_path / "broken")


def log(kind: str, number: int = 0, component: str = "books") -> str:
    return f"logs/{kind}/{component}{'/filters1' if kind == 'signals' else ''}/{number:05d}.parquet"


def with_texts(corpus: Corpus) -> list[str]:
    assert corpus.findings() == []  # which writes the manifest
    return list(verify(Folder(corpus.folder), Manifest.load(Folder(corpus.folder)), texts=True))


def test_a_whole_corpus_of_several_log_files_has_no_finding(corpus: Corpus) -> None:
    for kind in ("removals", "edits", "documents", "signals"):
        assert sum(one["path"].startswith(f"logs/{kind}/books/") for one in corpus.content["logs"]) > 2
    assert with_texts(corpus) == []


def first_kept(rows: Rows) -> dict[str, Any]:
    return next(row for row in rows if row["removed_by"] is None)


def lose_place(rows: Rows) -> None:
    first_kept(rows).update(shard=None, start=None, tokens=None)


def elsewhere(rows: Rows) -> None:
    row = first_kept(rows)
    row["start"] += 1


EDITED: dict[str, tuple[str, Callable[[Rows], Any], str]] = {
    "a document twice": (log("documents", 1), lambda rows: rows.insert(1, dict(rows[1])), "stands twice"),
    "a removal twice": (log("removals", 1), lambda rows: rows.insert(0, dict(rows[0])), "stands twice"),
    "signals twice": (log("signals", 1), lambda rows: rows.insert(0, dict(rows[0])), "stands twice"),
    "two documents in another order": (log("documents", 1), lambda rows: rows.insert(0, rows.pop(1)), "is out of order"),
    "an edit in another order": (log("edits", 6), lambda rows: rows.insert(0, rows.pop()), "is out of order"),
    "the first document of a file before the last of the file before": (
        log("documents", 1),
        lambda rows: rows[0].update(file="aaa.jsonl", id=f"books/aaa.jsonl#{rows[0]['position']}"),
        "is out of order",
    ),
    "a removal row less": (log("removals", 1), lambda rows: rows.pop(0), "its removal row says None"),
    "a document less": (log("documents", 1), lambda rows: rows.pop(0), "by its log, the manifest says"),
    "an edit less": (log("edits", 6), lambda rows: rows.pop(0), "rows in edits, the manifest says"),
    "signals of a removed document less": (
        log("signals", 2),
        lambda rows: rows.remove(next(row for row in rows if row["gopher.words"] < 50)),
        "has no signals there",
    ),
    "signals of a document that the block kept less": (
        log("signals"),
        lambda rows: rows.remove(max(rows, key=lambda row: row["gopher.words"])),
        "came in and has no signals there",
    ),
    "another stage removed it": (log("removals"), lambda rows: rows[0].update(stage="invented"), "its removal row says invented"),
    "another step removed it": (log("removals"), lambda rows: rows[0].update(step="books.9"), "rows in removals"),
    "another rule edited it": (log("edits", 6), lambda rows: rows[0].update(rule="c4.invented"), "rows in edits"),
    "an id of another file": (log("edits", 6), lambda rows: rows[0].update(id="books/x#1"), "is not that of its component"),
    "a component that is not this one": (
        log("documents"),
        lambda rows: rows[0].update(component="web", id=rows[0]["id"].replace("books/", "web/")),
        "has rows of another component than books",
    ),
    "the text of a kept document is not on record": (
        log("documents"),
        lambda rows: first_kept(rows).update(text_sha256=None),
        "has no digest of its text",
    ),
    "a kept document in no shard": (log("documents"), lambda rows: lose_place(rows), "is kept and stands in no shard"),
    "a kept document in no split": (
        log("documents"),
        lambda rows: first_kept(rows).update(split=None),
        "is kept and in no split",
    ),
    "a removed document in a shard": (
        log("documents"),
        lambda rows: next(row for row in rows if row["removed_by"]).update(shard="tokens/books/train/00000.bin"),
        "was removed and has a place",
    ),
    "a document at another token": (log("documents"), elsewhere, "does not stand there by the document log"),
    "a document in a shard that is not listed": (
        log("documents"),
        lambda rows: first_kept(rows).update(shard="tokens/books/train/00077.bin"),
        "the manifest does not list it",
    ),
    "a document of another length": (
        log("documents"),
        lambda rows: first_kept(rows).update(text_bytes=first_kept(rows)["text_bytes"] + 1),
        "does not stand there by the document log",
    ),
    "the one that joined the cluster": (
        log("removals", 1, "web"),
        lambda rows: next(row for row in rows if row["linked_id"]).update(linked_id="books/north/0.jsonl#999"),
        "its linked_id books/north/0.jsonl#999 is no document of the corpus",
    ),
}


@pytest.mark.parametrize(
    "what", [one if n % 2 == 0 else pytest.param(one, marks=pytest.mark.slow) for n, one in enumerate(EDITED)]
)
def test_an_edited_row_is_found_though_every_digest_follows(corpus: Corpus, what: str) -> None:
    path, change, said = EDITED[what]
    corpus.edit(path, change)
    findings = corpus.findings()
    assert named(findings, said), findings
    component = path.split("/")[2]
    where = [finding for finding in findings if said in finding]
    assert all(component in finding for finding in where), where
    if "by its log" not in said and "rows in" not in said and "another component" not in said:
        assert all((f"{component}/" in finding and "#" in finding) or "00077" in finding for finding in where), where


@pytest.mark.parametrize("kind", ["documents", "removals", "edits", "signals"])
def test_two_log_files_that_changed_places_are_found(corpus: Corpus, kind: str) -> None:
    """One of the two is not empty."""
    one, other = (log(kind, 5), log(kind, 6)) if kind == "edits" else (log(kind, 0), log(kind, 1))
    swap(corpus.folder / one, corpus.folder / other)
    rows = {path: pq.read_metadata(corpus.folder / path).num_rows for path in (one, other)}
    for path in (one, other):
        corpus.reseal(path, rows[path])
    findings = corpus.findings()
    assert named(findings, one, "did not come in") if kind == "edits" else named(findings, other, "is out of order"), findings


def test_a_log_file_of_another_component_is_found(corpus: Corpus) -> None:
    shutil.copy(corpus.folder / log("removals", 0, "web"), corpus.folder / log("removals"))
    corpus.reseal(log("removals"), pq.read_metadata(corpus.folder / log("removals")).num_rows)
    assert named(corpus.findings(), log("removals"), "has rows of another component than books")


def test_a_log_file_more_is_found(corpus: Corpus) -> None:
    """Listed, with the right digest, and of no document: the other kinds have no file of these records."""
    for kind in ("documents", "edits"):
        last = max(one["path"] for one in corpus.content["logs"] if one["path"].startswith(f"logs/{kind}/books/"))
        more = log(kind, int(last[-13:-8]) + 1)
        table = pq.read_table(corpus.folder / last)
        pq.write_table(table.slice(0, 0), corpus.folder / more)
        entry = next(dict(one) for one in corpus.content["logs"] if one["path"] == last)
        corpus.content["logs"].append({**entry, "path": more, "rows": 0})
        corpus.reseal(more, 0)
        assert named(corpus.findings(), "component books", "which cover the same records")
        corpus.content["logs"].pop()


def numbers(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where whole numbers stand in a part of the manifest."""
    if isinstance(value, bool):
        return []
    if isinstance(value, int):
        return [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [one for key, inner in items for one in numbers(inner, (*path, key))]


@pytest.mark.slow
def test_one_count_more_is_found_wherever_it_stands_in_the_manifest(corpus: Corpus) -> None:
    """Counts of stages, components, splits, shards, logs and languages; only what nothing else tells of is left out."""
    content = corpus.content
    places: list[tuple[Any, ...]] = []
    for number, count in enumerate(content["counts"]):
        places += [("counts", number, *one) for one in numbers(count)][:: 1 if number < 3 else 5]
    for name, component in content["components"].items():
        places += [("components", name, key) for key in ("documents_in", "documents_kept")]
        places += [("components", name, "tokens", split) for split in component["tokens"]]
    places += [("split", "documents", one) for one in content["split"]["documents"]]
    places += [("shards", 0, key) for key in ("tokens", "documents", "text_bytes")]
    places += [("logs", 0, "rows"), ("logs", 0, "bytes")]
    places += [("token_usage", 0, key) for key in ("documents", "bytes", "tokens")]
    places += [("tokenizer", "bos_id"), ("tokenizer", "vocabulary"), ("tokenizer", "special_tokens", "<|bos|>")]
    for place in places:
        holder = content
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] += 1
        assert corpus.findings(), place
        holder[place[-1]] -= 1
    assert corpus.findings() == []


def test_figures_of_languages_that_are_left_out_are_missed(corpus: Corpus) -> None:
    corpus.content["token_usage"].clear()
    assert any("documents, bytes and tokens are" in one for one in corpus.findings())


def other_tokenizer(corpus: Corpus, change: Callable[[dict[str, Any]], Any]) -> None:
    path = corpus.folder / "tokenizer.json"
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw, ensure_ascii=False))
    corpus.content["tokenizer"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()


def exchange(*pairs: tuple[str, str]) -> Callable[[dict[str, Any]], None]:
    def change(raw: dict[str, Any]) -> None:
        vocabulary = raw["model"]["vocab"]
        for one, other in pairs:
            vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]

    return change


def test_a_tokenizer_of_the_same_size_is_found_by_the_bytes_of_its_tokens(corpus: Corpus) -> None:
    other_tokenizer(corpus, exchange(("Ġthe", "a")))
    findings = corpus.findings()
    assert named(findings, "tokens/", "the tokens of", "stand for", "bytes, "), findings


def test_a_tokenizer_whose_tokens_are_as_long_is_found_by_the_texts(corpus: Corpus) -> None:
    """`e` and `a` changed places: the same vocabulary, the same number of bytes in every document."""
    other_tokenizer(corpus.without_receipts(), exchange(("e", "a"), ("i", "o")))
    assert named(corpus.findings(), "tokens/", "the tokenizer encodes its text otherwise")
    findings = list(verify(Folder(corpus.folder), Manifest.load(Folder(corpus.folder)), texts=True))
    assert named(findings, "tokens/", "its tokens spell a text with the SHA-256", "the document log says"), findings


def rename_special(raw: dict[str, Any]) -> None:
    added = raw["added_tokens"][1]
    raw["model"]["vocab"] = {("<|other|>" if one == added["content"] else one): n for one, n in raw["model"]["vocab"].items()}
    added["content"] = "<|other|>"


SETTINGS: dict[str, tuple[Callable[[dict[str, Any]], Any], str, str]] = {
    "its merges in another order": (
        lambda raw: raw["model"]["merges"].reverse(),
        "tokens/",
        "the tokenizer encodes its text otherwise",
    ),
    "other pieces": (
        lambda raw: raw["pre_tokenizer"]["pretokenizers"].pop(0),
        "tokenizer.json: ",
        "cuts texts by ByteLevel, and one that is trained here by Split, ByteLevel",
    ),
    "a normaliser that was added": (
        lambda raw: raw.update(normalizer={"type": "Lowercase"}),
        "tokenizer.json: ",
        "has the normaliser Lowercase",
    ),
    "a decoder that was dropped": (lambda raw: raw.update(decoder=None), "tokenizer.json: ", "has the decoder none"),
    "another decoder": (lambda raw: raw.update(decoder={"type": "Fuse"}), "tokenizer.json: ", "has the decoder Fuse"),
    "dropout": (lambda raw: raw["model"].update(dropout=0.5), "tokenizer.json: ", "its model is no plain BPE"),
    "a regular expression that is none": (
        lambda raw: raw["pre_tokenizer"]["pretokenizers"][0].update(pattern={"Regex": "("}),
        "tokenizer.json: ",
        "the library tokenizers does not take it",
    ),
}


@pytest.mark.parametrize("what", SETTINGS)
def test_a_tokenizer_that_would_encode_or_decode_otherwise_is_found(corpus: Corpus, what: str) -> None:
    """The same ids for the same bytes, so every token spells what it spelt."""
    change, where, said = SETTINGS[what]
    other_tokenizer(corpus.without_receipts(), change)
    findings = corpus.findings()
    assert named(findings, where, said), findings


TOKENIZERS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "one token more": (
        lambda raw: raw["model"]["vocab"].update({"Ġinvented": max(one["id"] for one in raw["added_tokens"]) + 1}),
        "vocabulary of",
    ),
    "another special token": (rename_special, "its special tokens are not those"),
    "no special token": (lambda raw: raw["added_tokens"][0].update(special=False), "is no special token of it"),
    "no bytes": (lambda raw: raw["model"]["vocab"].update({"日本": raw["model"]["vocab"].pop("Ġthe")}), "is not made of bytes"),
    "no vocabulary": (lambda raw: raw.pop("model"), "no tokenizer.json of BPE"),
    "an id twice": (lambda raw: raw["model"]["vocab"].update({"e": raw["model"]["vocab"]["a"]}), "two tokens have the id"),
    "ids beyond all reason": (lambda raw: raw["model"]["vocab"].update({"e": 1 << 40}), "its ids are not"),
}


@pytest.mark.parametrize(
    "what", [one if n % 2 == 0 else pytest.param(one, marks=pytest.mark.slow) for n, one in enumerate(TOKENIZERS)]
)
def test_a_tokenizer_that_is_not_the_one_on_record_is_found(corpus: Corpus, what: str) -> None:
    change, said = TOKENIZERS[what]
    other_tokenizer(corpus, change)
    assert named(corpus.findings(), "tokenizer.json: ", said), corpus.findings()


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"model": {"vocab": [["a", 0.5]]}}', b"[" * 100_000, b"\xff", b'{"model": 1}']
)
def test_what_is_no_tokenizer_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(TokenizerFileError):
        TokenizerFile.parse(data)


def test_one_other_token_of_the_same_length_is_found_by_the_texts_alone(corpus: Corpus) -> None:
    shard = next(one for one in corpus.content["shards"] if one["documents"] > 3)
    tokenizer = TokenizerFile.parse((corpus.folder / "tokenizer.json").read_bytes())
    tokens = np.fromfile(corpus.folder / shard["path"], corpus.content["tokenizer"]["dtype"])
    index = pq.read_table(corpus.folder / shard["index"])
    place = index["start"][2].as_py() + 3
    same = np.flatnonzero(tokenizer.lengths == tokenizer.lengths[tokens[place]])
    tokens[place] = next(one for one in same.tolist() if one != tokens[place])
    tokens.tofile(corpus.folder / shard["path"])
    corpus.reseal(shard["path"])
    findings = with_texts(corpus.without_receipts())
    assert len(findings) == 1 and named(findings, shard["path"], index["id"][2].as_py(), "its tokens spell a text"), findings


def test_a_special_token_inside_a_document_is_found(corpus: Corpus) -> None:
    shard = next(one for one in corpus.content["shards"] if one["documents"] > 3)
    for number in (0, 3):  # BOS, and a reserved one
        tokens = np.fromfile(corpus.folder / shard["path"], corpus.content["tokenizer"]["dtype"])
        index = pq.read_table(corpus.folder / shard["index"])
        tokens[index["start"][1].as_py() + 2] = number
        tokens.tofile(corpus.folder / shard["path"])
        corpus.reseal(shard["path"])
        said = f"the id {number} stands inside documents"
        assert named(corpus.findings(), shard["path"], index["id"][1].as_py(), said), corpus.findings()


def test_a_document_of_a_cluster_that_moved_to_another_split_is_found(corpus: Corpus) -> None:
    """In the document log alone, and for a cluster that has its other documents in another log file."""
    clusters: dict[str, list[str]] = {}
    for number in range(2):
        for row in pq.read_table(corpus.folder / log("documents", number)).to_pylist():
            if row["split"] == "train":
                clusters.setdefault(f"{number}", []).append(row["id"])
    one, other = clusters["0"][0], clusters["1"][0]
    for number, id_, split in ((0, one, "train"), (1, other, "test")):

        def change(rows: Rows, id_: str = id_, split: str = split) -> None:
            next(row for row in rows if row["id"] == id_).update(split=split, split_cluster=one)

        corpus.edit(log("documents", number), change)
    findings = corpus.findings()
    assert named(findings, "others of its cluster", one, "is in t"), findings
    assert named(findings, "documents by split are")


def test_signals_without_a_column_that_a_rule_needs_are_found(corpus: Corpus) -> None:
    path = corpus.folder / log("signals")
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["gopher.words"]), path)
    corpus.reseal(log("signals"))
    assert named(corpus.findings(), log("signals"), "its rules cannot be applied", "gopher.words")
    pq.write_table(table.drop_columns(["position"]), path)
    corpus.reseal(log("signals"))
    assert named(corpus.findings(), log("signals"), "its columns are not those")


def test_a_column_of_signals_of_another_type_is_no_crash(corpus: Corpus) -> None:
    path = corpus.folder / log("signals")
    table = pq.read_table(path)
    at = table.schema.get_field_index("gopher.words")
    words = pa.array([[1]] * table.num_rows, pa.list_(pa.int64()))
    pq.write_table(table.set_column(at, "gopher.words", words), path)
    corpus.reseal(log("signals"))
    assert named(corpus.findings(), log("signals"))
