"""What a person sees of a finished corpus: verify, why, funnel, schema."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import Result
from typer.testing import CliRunner

from manifests.commands import app
from manifests.manifest import Manifest
from tests.pipeline.crawl import BENCHMARK, Crawl


def call(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_verify_says_that_a_corpus_is_whole_with_its_digest(crawl: Crawl, finished: Path, manifest: Manifest) -> None:
    result = call("verify", finished)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == f"digest {manifest.digest}"
    assert f"{crawl.documents} documents in = kept + removed" in result.stdout


def test_verify_ends_with_code_1_and_names_what_is_wrong(copied: Path, manifest: Manifest) -> None:
    shard = manifest.content.shards[0].path
    (copied / shard).unlink()
    result = call("verify", copied)
    assert result.exit_code == 1
    assert f"{shard}: missing" in result.stdout


def test_verify_tells_programs_the_same(copied: Path, manifest: Manifest) -> None:
    whole = json.loads(call("verify", copied, "--json", "--texts").stdout)
    assert (whole["whole"], whole["findings"], whole["digest"]) == (True, [], manifest.digest)
    assert whole["texts"] == sum(shard.documents for shard in manifest.content.shards)
    nothing = call("verify", copied / "manifest.json", "--csv")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "where,what\n", "")
    shard = manifest.content.shards[0].path
    (copied / shard).unlink()
    result = call("verify", copied, "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["whole"]) == (1, False)
    assert {"where": shard, "what": "missing"} in told["findings"]
    listed = call("verify", copied, "--csv")
    assert listed.exit_code == 1
    assert f"{shard},missing" in listed.stdout.splitlines()
    assert call("verify", copied, "--csv", "--json").exit_code == 2


def test_one_finding_is_not_several(copied: Path, manifest: Manifest) -> None:
    raw = json.loads((copied / "manifest.json").read_text())
    receipts = raw["run"]["receipts"]["path"]
    (copied / receipts).write_bytes((copied / receipts).read_bytes() + b"\n")
    result = call("verify", copied)
    assert result.stderr == "1 finding: this corpus is not what its manifest says\n"


@pytest.mark.parametrize("command", ["verify", "funnel", "why"])
def test_a_folder_that_is_no_corpus_is_an_error_of_one_line(tmp_path: Path, command: str) -> None:
    result = call(command, tmp_path, *(["books/x#0"] if command == "why" else []))
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "there is no manifest" in result.stderr


def test_the_funnel_shows_every_stage_and_rule_that_removed_something(finished: Path, manifest: Manifest) -> None:
    shown = call("funnel", finished).stdout
    for count in manifest.content.counts:
        for rule, number in count.removed.items():
            assert f"{rule.removeprefix(count.stage + '.')} {number}" in shown
    assert f"digest {manifest.digest}" in shown
    assert "warcinfo 3" in shown


def test_the_funnel_as_json_and_csv_is_that_of_the_audit(finished: Path, manifest: Manifest) -> None:
    counts = json.loads(call("funnel", finished, "--json").stdout)
    kept = {(count.component, count.stage): count.documents_kept for count in manifest.content.counts}
    assert {(one["component"], one["stage"]): one["documents_kept"] for one in counts} == kept
    for form in ("--json", "--csv"):
        assert call("funnel", finished, form).stdout == call("audit", "funnel", finished, form).stdout != ""


def test_why_tells_of_a_contaminated_document_which_item_it_holds(crawl: Crawl, finished: Path) -> None:
    result = call("why", finished, crawl.planted.contaminated[0])
    assert result.exit_code == 0
    shown = " ".join(result.stdout.split())
    assert "decontamination.ngram" in shown
    assert "trains item 17" in shown
    assert BENCHMARK.split()[4] in shown


def test_why_tells_of_a_near_copy_what_was_kept_instead_and_of_the_kept_one_what_went(finished: Path) -> None:
    row = next(row for row in rows(finished, "removals", "books") if row["stage"] == "minhash")
    shown = call("why", finished, row["id"]).stdout
    assert row["kept_id"] in shown
    assert f"Jaccard {row['kept_jaccard']:.4f}" in shown
    assert row["id"] in call("why", finished, row["kept_id"]).stdout


def test_why_tells_of_a_filtered_document_the_value_and_the_bound(finished: Path) -> None:
    row = next(row for row in rows(finished, "removals", "books") if row["rule"] == "gopher.min_words")
    shown = call("why", finished, row["id"]).stdout
    assert f"{row['value']:.6g}, threshold 50" in shown
    assert "what the filters measured" in shown


def test_why_tells_of_a_kept_document_its_edits_split_and_shard(crawl: Crawl, finished: Path) -> None:
    document = next(row for row in rows(finished, "documents", "books") if row["id"] == crawl.planted.personal)
    assert document["removed_by"] is None
    shown = call("why", finished, crawl.planted.personal).stdout
    assert "personal_data: email 1×" in shown
    assert document["shard"] in shown
    assert document["split"] in shown


def test_why_of_a_file_tells_of_its_documents(finished: Path) -> None:
    told = json.loads(call("why", finished, "books/north/0.jsonl", "--json").stdout)
    mine = [row["id"] for row in rows(finished, "documents", "books") if row["file"] == "north/0.jsonl"]
    assert [life["document"]["id"] for life in told] == mine[:20]


def test_why_finds_a_url_with_its_query_and_every_document_that_has_it(finished: Path) -> None:
    found = json.loads(call("why", finished, "https://site0.example/page/0?q=0", "--json").stdout)
    assert len(found) == 2, "the page was crawled twice"
    assert all(life["document"]["url"] == "https://site0.example/page/0" for life in found)
    assert [life["document"]["file"] for life in found] == ["crawl-0.warc.gz", "crawl-1.warc.gz"]
    secret = json.loads(call("why", finished, "https://jane:secret@private.example/page?token=1234", "--json").stdout)
    assert [life["document"]["url"] for life in secret] == ["https://private.example/page"]


def test_why_as_json_parses_for_every_document(finished: Path) -> None:
    for document in rows(finished, "documents", "books")[::15]:
        (life,) = json.loads(call("why", finished, document["id"], "--json").stdout)
        assert life["document"]["id"] == document["id"]
        assert (life["removal"] is None) == (document["removed_by"] is None)


@pytest.mark.parametrize(
    "unknown",
    ["books/north/0.jsonl#999", "nonsense", "https://nowhere.example/", "books/north/9.jsonl", "' or 1=1 --", "[/red]#1"],
)
def test_why_of_an_unknown_document_is_an_error(finished: Path, unknown: str) -> None:
    result = call("why", finished, unknown)
    assert result.exit_code == 1
    assert repr(unknown) in result.stderr


def test_schema_prints_the_json_schema() -> None:
    assert json.loads(call("schema").stdout)["title"] == "Manifest"


def test_a_corpus_can_be_named_by_its_manifest_and_needs_neither_steps_nor_receipts(copied: Path) -> None:
    shutil.rmtree(copied / "receipts")
    assert call("verify", copied / "manifest.json").exit_code == 0
    assert call("why", f"{copied}/", "books/north/0.jsonl#0").exit_code == 0


def rows(corpus: Path, kind: str, component: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(corpus / "logs" / kind / component / "00000.parquet").to_pylist()
    return found
