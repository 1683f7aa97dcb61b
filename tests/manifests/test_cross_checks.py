"""verify finds one changed row though every digest and every count was made to agree with it, and names the file and the document."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.manifests.test_verify import DOCUMENTS, REMOVALS, Corpus
from tests.pipeline.crawl import Crawl

EDITS, SIGNALS = "logs/edits/books/00000.parquet", "logs/signals/books/filters1/00000.parquet"
Rows = list[dict[str, Any]]


@pytest.fixture
def corpus(copied: Path) -> Corpus:
    return Corpus(copied)


def removed(rows: Rows, rule: str) -> dict[str, Any]:
    return next(row for row in rows if row["rule"] == rule)


def first_kept(rows: Rows) -> dict[str, Any]:
    return next(row for row in rows if row["removed_by"] is None)


CHANGES: dict[str, tuple[str, Callable[[Rows], Any], str]] = {
    "a measured value": (REMOVALS, lambda rows: removed(rows, "gopher.min_words").update(value=33.0), "value is 32.0"),
    "a threshold": (REMOVALS, lambda rows: removed(rows, "gopher.min_words").update(threshold=40.0), "threshold is 50.0"),
    "the failed rules": (
        REMOVALS,
        lambda rows: removed(rows, "gopher.max_hashes_per_word").update(failed_rules=["gopher.max_hashes_per_word"]),
        "by its signals it fails",
    ),
    "the length that was judged": (REMOVALS, lambda rows: removed(rows, "c4.curly_brace").update(text_bytes=9), "text_bytes is"),
    "the address of a removed document": (
        REMOVALS,
        lambda rows: removed(rows, "minhash.near_duplicate").update(domain="other.example"),
        "domain is other.example",
    ),
    "the language of a removed document": (
        REMOVALS,
        lambda rows: removed(rows, "c4.curly_brace").update(language=None),
        "language is None",
    ),
    "the twin": (
        REMOVALS,
        lambda rows: removed(rows, "exact_dedup.duplicate").update(kept_id="books/north/9.jsonl#0"),
        "kept_id books/north/9.jsonl#0 is no document",
    ),
    "a signal of a kept document": (SIGNALS, lambda rows: rows[0].update({"gopher.words": 3}), "fail a rule of filters1"),
    "a signal of a removed document": (
        SIGNALS,
        lambda rows: next(row for row in rows if row["c4.curly_brace_lines"]).update({"c4.curly_brace_lines": 0}),
        "rule is None",
    ),
    "the digest after an edit": (EDITS, lambda rows: rows[-1].update(sha256_after="0" * 64), "the document log has"),
    "the digest of a text": (DOCUMENTS, lambda rows: rows[-1].update(text_sha256="0" * 64), "the last edit left"),
    "the language of a kept document": (DOCUMENTS, lambda rows: first_kept(rows).update(language="fr"), "language fr"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_one_changed_value_is_found_and_its_document_named(corpus: Corpus, crawl: Crawl, what: str) -> None:
    path, change, said = CHANGES[what]
    before: Rows = []

    def changed(rows: Rows) -> None:
        before.extend(dict(row) for row in rows)
        if what in ("the digest of a text", "the digest after an edit"):
            wanted = crawl.planted.personal
            rows[:] = [row for row in rows if row["id"] != wanted] + [row for row in rows if row["id"] == wanted]
            change(rows)
            rows.sort(key=lambda row: (row["file"], row["position"]))
        else:
            change(rows)

    corpus.edit(path, changed)
    findings = corpus.findings()
    assert any(said in finding for finding in findings), findings
    if what != "the language of a kept document":
        document = next(
            after["id"]
            for after, row in zip(corpus_rows(corpus, path), before, strict=True)
            if after != row and after["id"] == row["id"]
        )
        assert any(said in finding and document in finding and "/books/" in finding for finding in findings), findings


def corpus_rows(corpus: Corpus, path: str) -> Rows:
    import pyarrow.parquet as pq

    rows: Rows = pq.read_table(corpus.folder / path).to_pylist()
    return rows


@pytest.mark.parametrize("path", [EDITS, SIGNALS])
def test_a_row_of_a_document_that_did_not_come_in_is_found(corpus: Corpus, path: str) -> None:
    corpus.edit(path, lambda rows: rows[-1].update(id="books/south/2.jsonl#99", position=99))
    said = "did not come in"
    assert any(
        f"{path}: row " in finding and "books/south/2.jsonl#99" in finding and said in finding for finding in corpus.findings()
    )


def test_a_document_of_a_file_that_is_no_input_is_found(corpus: Corpus) -> None:
    inputs = corpus.content["components"]["books"]["inputs"]
    inputs[:] = [one for one in inputs if one["path"] != "south/2.jsonl"]
    assert any("books/south/2.jsonl#0 is of a file that is no input of books" in finding for finding in corpus.findings())


def test_signals_that_the_manifest_no_longer_lists_are_missed(corpus: Corpus) -> None:
    corpus.content["logs"] = [log for log in corpus.content["logs"] if log["path"] != SIGNALS]
    assert "component books: the manifest lists no signals of filters1, by which its rules decided" in corpus.findings()


def test_an_edit_that_leaves_a_gap_in_the_chain_is_found(corpus: Corpus, crawl: Crawl) -> None:
    def cut(rows: Rows) -> None:
        mine = [row for row in rows if row["id"] == crawl.planted.personal]
        assert len(mine) >= 2
        mine[0].update(sha256_before="0" * 64)

    corpus.edit(EDITS, cut)
    assert any(f"{crawl.planted.personal}: stage personal_data did not edit" in finding for finding in corpus.findings())


def test_one_text_in_two_splits_is_found(corpus: Corpus) -> None:
    def copy(rows: Rows) -> None:
        train, test = (next(row for row in rows if row["split"] == split) for split in ("train", "test"))
        test["text_sha256"] = train["text_sha256"]

    corpus.edit(DOCUMENTS, copy)
    assert any("have the same text and its copies stand in two splits" in finding for finding in corpus.findings())


def test_a_part_that_does_not_conserve_is_named_with_its_stage(corpus: Corpus) -> None:
    """Two parts whose mistakes cancel out: the sums agree with the manifest."""
    import json

    paths = [corpus.folder / path for path in corpus.receipts() if "/books.1.measure/" in path][:2]
    receipts = [json.loads(path.read_text()) for path in paths]
    for receipt, difference in zip(receipts, (1, -1), strict=True):
        count = next(one for one in receipt["counts"] if one["stage"] == "language")
        count["documents_kept"] += difference
    for path, receipt in zip(paths, receipts, strict=True):
        path.write_text(json.dumps(receipt))
    findings = corpus.findings()
    for path, receipt in zip(paths, receipts, strict=True):
        assert any(path.name in one and receipt["part"] in one and "stage language" in one for one in findings), findings
