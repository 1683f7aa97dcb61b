"""verify finds one changed row though every digest and every count was made to agree with it, and names the file and the document."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.manifests.test_verify import DOCUMENTS, REMOVALS, Corpus
from tests.pipeline.crawl import Crawl

WEB_DOCUMENTS, WEB_REMOVALS = "logs/documents/web/00000.parquet", "logs/removals/web/00000.parquet"
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


def near(rows: Rows, chained: bool = False) -> dict[str, Any]:
    """A near-duplicate that was linked to the kept document itself, or through another one."""
    return next(row for row in rows if row["stage"] == "minhash" and (row["linked_id"] != row["kept_id"]) is chained)


def alone(rows: Rows) -> dict[str, Any]:
    """A near-duplicate whose cluster has no third document, and the name of the one that stayed."""
    return next(row for row in rows if row["stage"] == "minhash" and row["cluster_size"] == 2)


def exact(rows: Rows) -> dict[str, Any]:
    return removed(rows, "exact_dedup.duplicate")


def wrong_language(rows: Rows) -> dict[str, Any]:
    return removed(rows, "language.unwanted")


def longer(rows: Rows) -> None:
    wrong_language(rows)["text_bytes"] += 1


def smaller_cluster(rows: Rows) -> None:
    """Its cluster's name, as if it had been the smallest of two; who stayed is another document, of shorter text."""
    alone(rows).update(kept_id="web/crawl-0.warc.gz#2214", linked_id="web/crawl-0.warc.gz#2214", cluster=alone(rows)["id"])


EVIDENCE: dict[str, tuple[str, Callable[[Rows], Any], str]] = {
    "another document was kept": (
        REMOVALS,
        lambda rows: near(rows, chained=True).update(kept_id="books/north/0.jsonl#4"),
        "others of its cluster have another kept_id",
    ),
    "another one of two was kept": (
        REMOVALS,
        lambda rows: alone(rows).update(kept_id="books/north/0.jsonl#4", linked_id="books/north/0.jsonl#4"),
        "its cluster is not the smallest id in it",
    ),
    "one of a component that gives way was kept": (REMOVALS, smaller_cluster, "would not have stayed, by priority"),
    "it was kept itself": (REMOVALS, lambda rows: near(rows).update(kept_id=near(rows)["id"]), "its kept_id is its own id"),
    "it is linked to itself": (
        REMOVALS,
        lambda rows: near(rows, chained=True).update(linked_id=near(rows, chained=True)["id"]),
        "its linked_id is its own id",
    ),
    "one that was removed by a filter was kept": (
        REMOVALS,
        lambda rows: near(rows).update(kept_id=removed(rows, "gopher.min_words")["id"]),
        "its kept_id had been removed before",
    ),
    "one that was removed at read is linked": (
        WEB_REMOVALS,
        lambda rows: alone(rows).update(linked_id=next(row for row in rows if row["stage"] == "read")["id"]),
        "its linked_id had been removed before",
    ),
    "none was kept": (REMOVALS, lambda rows: near(rows).update(kept_id=None), "has no kept_id"),
    "a Jaccard with the kept one": (
        REMOVALS,
        lambda rows: near(rows).update(kept_jaccard=0.1),
        "its kept_jaccard is not its linked_jaccard",
    ),
    "a Jaccard with the kept one of a chain": (
        REMOVALS,
        lambda rows: near(rows, chained=True).update(kept_jaccard=0.1),
        "its kept_jaccard cannot be",
    ),
    "a higher Jaccard with the kept one of a chain": (
        REMOVALS,
        lambda rows: near(rows, chained=True).update(kept_jaccard=0.99),
        "its kept_jaccard cannot be",
    ),
    "a Jaccard with the linked one": (
        REMOVALS,
        lambda rows: near(rows, chained=True).update(linked_jaccard=0.1),
        "its value is not its linked_jaccard",
    ),
    "all that is said of a Jaccard": (
        REMOVALS,
        lambda rows: near(rows).update(linked_jaccard=0.1, kept_jaccard=0.1, value=0.1),
        "removes at a value >= the threshold 0.7",
    ),
    "a Jaccard that is none": (
        REMOVALS,
        lambda rows: near(rows).update(linked_jaccard=1.5, kept_jaccard=1.5, value=1.5),
        "its linked_jaccard is no Jaccard",
    ),
    "the Jaccard of an exact copy": (REMOVALS, lambda rows: exact(rows).update(kept_jaccard=0.99), "a Jaccard of it is not 1"),
    "a value of an exact copy": (REMOVALS, lambda rows: exact(rows).update(value=0.99), "compares no value with a threshold"),
    "an exact copy of two": (
        REMOVALS,
        lambda rows: exact(rows).update(linked_id="books/south/2.jsonl#9"),
        "linked to another document than the one that was kept",
    ),
    "the threshold of near-duplicates": (REMOVALS, lambda rows: near(rows).update(threshold=0.6), "the threshold 0.7"),
    "the cluster": (REMOVALS, lambda rows: near(rows).update(cluster="none"), "its cluster is not the smallest id in it"),
    "the cluster of one of three": (
        REMOVALS,
        lambda rows: exact(rows).update(cluster=exact(rows)["id"]),
        "its kept_id was kept for another cluster too",
    ),
    "the size of a cluster of two": (
        REMOVALS,
        lambda rows: alone(rows).update(cluster_size=3),
        "its cluster_size is not one more than the documents",
    ),
    "the size of a cluster by one of its rows": (
        REMOVALS,
        lambda rows: exact(rows).update(cluster_size=4),
        "others of its cluster have another kept_id or cluster_size",
    ),
    "a cluster of a document that is no copy": (
        REMOVALS,
        lambda rows: removed(rows, "gopher.min_words").update(cluster="books/north/0.jsonl#0"),
        "tells cluster, and the evidence of gopher.min_words is not another document",
    ),
    "the score of a language": (WEB_REMOVALS, lambda rows: wrong_language(rows).update(value=None), "value None"),
    "the threshold of a language": (
        WEB_REMOVALS,
        lambda rows: wrong_language(rows).update(threshold=0.9),
        "language.unwanted removes at a value beside the threshold 0.65",
    ),
    "the failed rules of a language": (
        WEB_REMOVALS,
        lambda rows: wrong_language(rows).update(failed_rules=["language.unwanted", "language.uncertain"]),
        "language.unwanted removed it, which is alone in its stage",
    ),
    "no failed rules": (
        WEB_REMOVALS,
        lambda rows: next(row for row in rows if row["stage"] == "read").update(failed_rules=None),
        "failed_rules is None",
    ),
    "the length of a near-duplicate": (
        REMOVALS,
        lambda rows: near(rows).update(text_bytes=9),
        "text_bytes is 9, by its edits and signals the text had",
    ),
    "evidence of a rule that has none": (
        REMOVALS,
        lambda rows: near(rows).update(evidence="said so"),
        "tells evidence, and the evidence of minhash.near_duplicate is not an item",
    ),
    "no evidence of a contaminated document": (
        REMOVALS,
        lambda rows: removed(rows, "decontamination.ngram").update(evidence=None),
        "has no evidence, and the evidence of decontamination.ngram is an item",
    ),
    "an item of a benchmark that was not found": (
        REMOVALS,
        lambda rows: removed(rows, "decontamination.ngram").update(item="99"),
        "was removed for trains/99, and the manifest does not say that it was found",
    ),
    "fewer n-grams than the threshold": (
        REMOVALS,
        lambda rows: removed(rows, "decontamination.ngram").update(value=0.0),
        "decontamination.ngram removes at a value >= the threshold 1",
    ),
    "fewer n-grams than its detail says": (
        REMOVALS,
        lambda rows: removed(rows, "decontamination.ngram").update(value=9.0),
        "9 of the 11 n-grams of trains/17, and detail says '11 of 11 n-grams",
    ),
    "more n-grams than were found": (
        REMOVALS,
        lambda rows: removed(rows, "decontamination.ngram").update(value=12.0),
        "value 12.0 for trains/17; by the manifest 11 of its 11 n-grams were found at most",
    ),
    "the key of a URL": (WEB_DOCUMENTS, lambda rows: first_kept(rows).update(url_key="example"), "has a url_key that is none"),
    "no key of a URL": (WEB_DOCUMENTS, lambda rows: first_kept(rows).update(url_key=None), "has a url or a url_key without"),
    "the media type of a line": (
        DOCUMENTS,
        lambda rows: first_kept(rows).update(media_type="text/html"),
        "has a media type, and its reader gives none",
    ),
    "a cluster of the split that is none": (
        DOCUMENTS,
        lambda rows: first_kept(rows).update(split_cluster="none"),
        "is named after none, which is no document of the corpus",
    ),
    "no cluster of the split": (
        DOCUMENTS,
        lambda rows: first_kept(rows).update(split_cluster=None),
        "is kept and in no cluster of the split",
    ),
    "a cluster of the split that is not its own": (
        DOCUMENTS,
        lambda rows: next(row for row in rows if row["split_cluster"] not in (None, row["id"])).update(
            split_cluster="books/south/1.jsonl#9"
        ),
        "is named after books/south/1.jsonl#9, which is not in it",
    ),
    "a cluster of the split of a larger id": (
        DOCUMENTS,
        lambda rows: first_kept(rows).update(split_cluster=[row["id"] for row in rows if row["removed_by"] is None][-1]),
        "which is not its smallest",
    ),
}


@pytest.mark.parametrize(
    "what", [one if n % 2 == 0 else pytest.param(one, marks=pytest.mark.slow) for n, one in enumerate(EVIDENCE)]
)
def test_evidence_that_cannot_be_is_found_with_its_file_and_document(corpus: Corpus, what: str) -> None:
    path, change, said = EVIDENCE[what]
    before = corpus_rows(corpus, path)
    corpus.edit(path, change)
    ids = [after["id"] for after, row in zip(corpus_rows(corpus, path), before, strict=True) if after != row]
    assert len(ids) == 1
    findings = corpus.findings()
    found = [finding for finding in findings if said in finding]
    assert found, findings
    if "others of its cluster" not in said and "for another cluster too" not in said:  # there any of them is named
        assert any(path in finding and ids[0] in finding for finding in found), found


def test_a_split_that_does_not_follow_from_its_cluster_is_found(corpus: Corpus) -> None:
    """The only document of its cluster in another split: no other one contradicts it."""
    changed: list[str] = []

    def move(rows: Rows) -> None:
        row = next(row for row in rows if row["split"] == "test" and row["split_cluster"] == row["id"])
        row["split"] = "train"
        changed.append(row["id"])

    corpus.edit(DOCUMENTS, move)
    said = f"{DOCUMENTS}: {changed[0]} is in train, and its cluster {changed[0]} belongs into test"
    assert said in corpus.findings()


def test_a_length_that_no_edit_and_no_signal_knows_is_found_by_the_bytes_of_its_stage(corpus: Corpus) -> None:
    corpus.edit(WEB_REMOVALS, longer)
    findings = corpus.findings()
    assert any("component web, stage language" in one and "bytes came in" in one for one in findings), findings


def test_links_that_lead_in_a_circle_are_found(corpus: Corpus) -> None:
    """Two of one cluster, each linked to the other; all Jaccards fit."""

    def circle(rows: Rows) -> None:
        through = near(rows, chained=True)
        other = next(row for row in rows if row["id"] == through["linked_id"])
        other.update(linked_id=through["id"], linked_jaccard=through["linked_jaccard"], value=through["linked_jaccard"])

    corpus.edit(REMOVALS, circle)
    findings = corpus.findings()
    assert any("its linked_ids lead in a circle, and not to its kept_id" in one for one in findings), findings


def test_bytes_that_a_stage_cannot_have_kept_are_found(corpus: Corpus) -> None:
    count = corpus.count("books", "filters1")
    for name, by in (("bytes_in", 1), ("bytes_kept", -1)):
        count[name] += by
        assert any("component books, stage filters1" in one and "bytes came in" in one for one in corpus.findings())
        count[name] -= by


UNVOUCHED: dict[str, tuple[str, Callable[[Rows], Any]]] = {
    "the date and score of a kept document": (WEB_DOCUMENTS, lambda rows: first_kept(rows).update(date=None, language_score=0.9)),
    "a key that another query could have": (WEB_DOCUMENTS, lambda rows: first_kept(rows).update(url_key="0" * 16)),
    "the media type of a page": (WEB_DOCUMENTS, lambda rows: first_kept(rows).update(media_type="text/plain")),
    "the score of an unwanted language": (WEB_REMOVALS, lambda rows: wrong_language(rows).update(value=0.9, detail="other")),
    "the words of evidence": (
        REMOVALS,
        lambda rows: removed(rows, "decontamination.ngram").update(
            evidence="a train", value=9.0, detail="9 of 11 n-grams, first at character 1"
        ),
    ),
    "a Jaccard, in all columns": (
        REMOVALS,
        lambda rows: alone(rows).update(linked_jaccard=0.9, kept_jaccard=0.9, value=0.9),
    ),
}


@pytest.mark.parametrize("what", UNVOUCHED)
def test_what_nothing_vouches_for_is_as_documented(corpus: Corpus, what: str) -> None:
    """docs/auditing.md says so; whoever finds a way to see one of these changes both. The receipts, while they are there, know the
    file."""
    path, change = UNVOUCHED[what]
    corpus.edit(path, change)
    findings = corpus.findings()
    assert len(findings) == 1 and path in findings[0] and "the part that wrote it" in findings[0], findings
    assert corpus.without_receipts().findings() == []
