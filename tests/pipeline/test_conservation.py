"""Nothing is lost silently: every document that came in is in the logs, and in = kept + removed, counted here anew."""

from __future__ import annotations

import hashlib
import itertools
import json
import unicodedata
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer
from warcio.archiveiterator import ArchiveIterator

from manifests.manifest import Manifest, receipt_list
from manifests.storage import Folder
from tests.pipeline.crawl import BENCHMARK, SHORT_BENCHMARK, Crawl


@pytest.fixture(scope="module")
def logs(finished: Path, manifest: Manifest) -> dict[str, list[dict[str, Any]]]:
    """Every row of every log, by kind."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for log in manifest.content.logs:
        rows.setdefault(log.kind, []).extend(pq.read_table(finished / log.path).to_pylist())
    return rows


def test_every_document_of_every_input_file_has_one_row_in_the_documents_log(crawl: Crawl, logs: dict[str, Any]) -> None:
    assert sorted(row["id"] for row in logs["documents"]) == sorted(input_ids(crawl.folder))
    assert len(logs["documents"]) == crawl.documents


def test_what_is_no_document_is_counted_by_kind(manifest: Manifest) -> None:
    assert manifest.content.components["books"].skipped_records == {"blank": 1}
    assert manifest.content.components["web"].skipped_records == {"warcinfo": 3}


def test_every_removed_document_has_one_removal_row_and_no_kept_one_has_any(logs: dict[str, Any]) -> None:
    removed = {row["id"]: row["removed_by"] for row in logs["documents"] if row["removed_by"]}
    assert len(logs["removals"]) == len(removed)
    assert {row["id"]: row["stage"] for row in logs["removals"]} == removed
    assert all(row["rule"] in row["failed_rules"] for row in logs["removals"])


def test_at_each_stage_what_came_in_was_kept_or_has_a_row(manifest: Manifest, logs: dict[str, Any]) -> None:
    rows = Counter((row["component"], row["step"], row["stage"], row["rule"]) for row in logs["removals"])
    left = Counter(row["component"] for row in logs["documents"])
    stages = set()
    for count in manifest.content.counts:
        mine = {rule: number for (*key, rule), number in rows.items() if key == [count.component, count.step, count.stage]}
        assert count.removed == mine
        assert count.documents_in == left[count.component] == count.documents_kept + sum(mine.values())
        left[count.component] -= sum(mine.values())
        stages.add((count.component, count.step, count.stage))
    assert {key[:3] for key in rows} <= stages
    kept = Counter(row["component"] for row in logs["documents"] if row["removed_by"] is None)
    assert left == kept
    assert {name: one.documents_kept for name, one in manifest.content.components.items()} == kept


def test_the_receipts_of_all_parts_add_up_to_the_manifest(finished: Path, manifest: Manifest) -> None:
    summed: Counter[tuple[str, str, str]] = Counter()
    for path in (one["path"] for one in receipt_list(Folder(finished), manifest) or []):
        receipt = json.loads((finished / path).read_text())
        for count in receipt["counts"]:
            assert count["documents_in"] == count["documents_kept"] + sum(count["removed"].values())
            for key in ("documents_in", "documents_kept", "bytes_in", "bytes_kept"):
                summed[receipt["step"], count["stage"], key] += count[key]
    stated: Counter[tuple[str, str, str]] = Counter()
    for count in manifest.content.counts:
        for key in ("documents_in", "documents_kept", "bytes_in", "bytes_kept"):
            stated[count.step, count.stage, key] += getattr(count, key)
    assert summed == stated


def test_a_near_duplicate_names_a_kept_document_and_the_jaccard_that_brute_force_finds(
    crawl: Crawl, logs: dict[str, Any], texts: dict[str, str]
) -> None:
    removed_by = {row["id"]: row["removed_by"] for row in logs["documents"]}
    rows = [row for row in logs["removals"] if row["stage"] == "minhash"]
    assert len(rows) >= len(crawl.planted.near)
    for row in rows:
        assert removed_by[row["kept_id"]] is None or removed_by[row["kept_id"]] == "decontamination"
        for other, stated in ((row["kept_id"], row["kept_jaccard"]), (row["linked_id"], row["linked_jaccard"])):
            assert stated == pytest.approx(jaccard(texts[row["id"]], texts[other]), abs=1e-12)
        assert row["value"] == row["linked_jaccard"] >= row["threshold"] == 0.7
        assert row["cluster_size"] == 1 + sum(one["kept_id"] == row["kept_id"] for one in rows)


def test_a_chain_is_removed_as_a_whole_and_says_who_linked_it_and_how_far_the_kept_one_is(
    crawl: Crawl, logs: dict[str, Any]
) -> None:
    rows = {row["id"]: row for row in logs["removals"] if row["id"] in crawl.planted.chain}
    first, middle, last = crawl.planted.chain
    assert sorted(rows) == sorted({first, middle, last} - {rows[middle]["kept_id"]})
    (far,) = set(rows) - {middle}
    assert rows[far]["linked_id"] == middle
    assert rows[far]["kept_jaccard"] < 0.7 <= rows[far]["linked_jaccard"]
    assert {row["cluster_size"] for row in rows.values()} == {3}
    assert {row["cluster"] for row in rows.values()} == {min(first, middle, last)}


def test_no_pair_of_kept_documents_is_a_near_duplicate(logs: dict[str, Any], texts: dict[str, str]) -> None:
    kept = [row["id"] for row in logs["documents"] if row["removed_by"] is None]
    closest = max(jaccard(texts[one], texts[other]) for one, other in itertools.combinations(kept, 2))
    assert 0.5 < closest < 0.7, "one planted pair is below the threshold of minhash and above that of the split"


def test_documents_that_resemble_each_other_are_in_one_split(logs: dict[str, Any], texts: dict[str, str]) -> None:
    kept = {row["id"]: row for row in logs["documents"] if row["removed_by"] is None}
    pairs = [pair for pair in itertools.combinations(kept, 2) if jaccard(texts[pair[0]], texts[pair[1]]) >= 0.5]
    assert pairs
    for one, other in pairs:
        assert kept[one]["split"] == kept[other]["split"]
        assert kept[one]["split_cluster"] == kept[other]["split_cluster"] == min(one, other)


def test_an_exact_duplicate_names_a_document_of_the_same_text(crawl: Crawl, logs: dict[str, Any], texts: dict[str, str]) -> None:
    rows = {row["id"]: row for row in logs["removals"] if row["stage"] == "exact_dedup"}
    for copy, row in rows.items():
        assert " ".join(texts[copy].lower().split()) == " ".join(texts[row["kept_id"]].lower().split())
    copies = [one for one in crawl.planted.exact if one in rows]
    assert len(copies) == len(crawl.planted.exact) - (rows[copies[0]]["kept_id"] in crawl.planted.exact)
    assert any(row["component"] == "web" and row["kept_id"].startswith("books/") for row in rows.values()), "books have priority"


def test_a_contaminated_document_names_the_benchmark_item(crawl: Crawl, logs: dict[str, Any]) -> None:
    rows = {row["id"]: row for row in logs["removals"] if row["stage"] == "decontamination"}
    assert sorted(rows) == sorted(crawl.planted.contaminated)
    long, short = (rows[one] for one in crawl.planted.contaminated)
    assert (long["benchmark"], long["item"], short["benchmark"], short["item"]) == ("trains", "17", "trains", "18")
    assert long["value"] == len(BENCHMARK.split()) - 12
    assert long["evidence"].split()[0].lower() in BENCHMARK.lower().split()
    assert SHORT_BENCHMARK.lower() in short["evidence"].lower()


def test_the_manifest_says_which_items_were_found_and_which_were_too_short_to_look_for(manifest: Manifest) -> None:
    (record,) = manifest.content.decontamination
    assert record["stage"] == "decontamination"
    text = json.dumps(record)
    assert all(f'"{item}"' in text for item in ("trains", "17", "18", "19"))


def test_what_a_reader_could_not_use_is_a_removal_with_its_rule(crawl: Crawl, logs: dict[str, Any]) -> None:
    rows = {row["id"]: row["rule"] for row in logs["removals"] if row["stage"] == "read"}
    books = {one: rule for one, rule in rows.items() if one.startswith("books/")}
    assert {one: rule for one, rule in rows.items() if one.startswith("web/")} == crawl.planted.losses
    assert sorted(books.values()) == ["read.bad_json", "read.bad_json", "read.empty_text", "read.missing_text"]


def test_every_edit_is_a_row_and_the_chain_of_digests_ends_at_the_kept_text(
    crawl: Crawl, manifest: Manifest, logs: dict[str, Any], texts: dict[str, str]
) -> None:
    order = [count.step for count in manifest.content.counts]
    document = {row["id"]: row for row in logs["documents"]}
    edits: dict[str, list[dict[str, Any]]] = {}
    for row in logs["edits"]:
        edits.setdefault(row["id"], []).append(row)
    assert {row["rule"] for row in edits[crawl.planted.mojibake]} == {"repair.mojibake"}
    personal = {row["rule"]: row["count"] for row in edits[crawl.planted.personal]}
    assert personal == {"personal_data.email": 1, "personal_data.ip": 1, "personal_data.phone": 1}
    for one, rows in edits.items():
        steps = sorted(
            {
                (order.index(row["step"]), row["sha256_before"], row["sha256_after"], row["bytes_before"], row["bytes_after"])
                for row in rows
            }
        )
        assert all(earlier[2] == later[1] and earlier[4] == later[3] for earlier, later in itertools.pairwise(steps))
        if document[one]["removed_by"] is None:
            assert document[one]["text_sha256"] == steps[-1][2]
            assert document[one]["text_bytes"] == steps[-1][4]


def test_kept_documents_are_in_the_shards_token_for_token(
    finished: Path, manifest: Manifest, logs: dict[str, Any], texts: dict[str, str]
) -> None:
    tokenizer = Tokenizer.from_file(str(finished / "tokenizer.json"))
    record = manifest.content.tokenizer
    assert record is not None
    shards = {
        shard.path: np.fromfile(finished / shard.path, dtype=f"<u{np.dtype(record.dtype).itemsize}")
        for shard in manifest.content.shards
    }
    placed = Counter[str]()
    for row in (row for row in logs["documents"] if row["removed_by"] is None):
        tokens = shards[row["shard"]][row["start"] : row["start"] + row["tokens"]]
        assert tokens[0] == record.bos_id
        assert tokenizer.decode(tokens[1:].tolist(), skip_special_tokens=False) == texts[row["id"]]
        assert hashlib.sha256(texts[row["id"]].encode()).hexdigest() == row["text_sha256"]
        placed[row["shard"]] += row["tokens"]
    assert placed == {path: len(tokens) for path, tokens in shards.items()}
    assert not any(row["shard"] or row["split"] for row in logs["documents"] if row["removed_by"])


def test_no_log_shows_credentials_or_queries_of_a_url_or_personal_data(finished: Path, manifest: Manifest) -> None:
    for log in manifest.content.logs:
        for row in pq.read_table(finished / log.path).to_pylist():
            shown = json.dumps(row, ensure_ascii=False)
            assert not any(
                secret in shown for secret in ("secret", "token=1234", "?q=", "jane.roe@example.org", "555 0143", "8.8.4.4")
            ), shown


def test_every_log_is_in_id_order_with_the_published_columns(finished: Path, manifest: Manifest) -> None:
    from manifests.schemas import LOG_SCHEMAS

    for log in manifest.content.logs:
        table = pq.read_table(finished / log.path)
        keys = list(zip(table["file"].to_pylist(), table["position"].to_pylist(), strict=True))
        assert keys == sorted(keys)
        if log.kind in LOG_SCHEMAS:
            assert table.schema.equals(LOG_SCHEMAS[log.kind])
        assert log.rows == table.num_rows


@pytest.fixture(scope="module")
def texts(finished: Path) -> dict[str, str]:
    """Id → the text as it stood before the corpus-wide stages, from the work files of the last row-local step."""
    found: dict[str, str] = {}
    for path in sorted((finished / "steps").glob("*.personal_data/*/documents.arrow")):
        with pa.OSFile(str(path)) as file:
            for row in pa.ipc.open_file(file).read_all().to_pylist():
                found[f"{row['component']}/{row['file']}#{row['position']}"] = row["text"]
    return found


def input_ids(folder: Path) -> Iterator[str]:
    """Ids by reading the inputs again, with other code than the readers'."""
    for path in sorted((folder / "books").rglob("*.jsonl")):
        for number, line in enumerate(path.read_bytes().split(b"\n")):
            if line.strip():
                yield f"books/{path.relative_to(folder / 'books')}#{number}"
    for path in sorted((folder / "tables").rglob("*.parquet")):
        yield from (f"tables/{path.name}#{row}" for row in range(pq.ParquetFile(path).metadata.num_rows))
    for path in sorted((folder / "web").rglob("*.warc.gz")):
        with path.open("rb") as file:
            records = ArchiveIterator(file)
            for record in records:
                if record.rec_type == "response":
                    yield f"web/{path.name}#{records.get_record_offset()}"


def jaccard(one: str, other: str) -> float:
    """Of the sets of word 5-grams, lower-cased and in NFC."""
    sets = []
    for text in (one, other):
        words = unicodedata.normalize("NFC", text).lower().split()
        sets.append({tuple(words[i : i + 5]) for i in range(len(words) - 4)})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def test_bytes_chain_from_stage_to_stage(manifest: Manifest) -> None:
    """What one stage leaves is what the next one gets; where there are pages still, there is no text to count."""
    for name in manifest.content.components:
        counts = [count for count in manifest.content.counts if count.component == name]
        chained = [(one, other) for one, other in pairwise(counts) if one.bytes_kept]
        assert len(chained) > 3
        for one, other in chained:
            assert (other.step, other.bytes_in) == (other.step, one.bytes_kept)
