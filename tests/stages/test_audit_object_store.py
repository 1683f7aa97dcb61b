"""Questions to a corpus on an object store are answered as on a disk: a real S3 server on this machine, spoken to over HTTP."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from manifests.commands import app
from manifests.manifest import open_corpus
from manifests.storage import Folder
from manifests.verification.verify import verify
from stages import audit_commands
from tests.object_store import object_store, uploaded
from tests.pipeline.crawl import Crawl

assert audit_commands


@pytest.fixture(scope="module")
def remote(finished: Path) -> Iterator[str]:
    """The finished corpus in a bucket."""
    with object_store("audited") as bucket:
        yield uploaded(finished, bucket)


def call(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, ["audit", *(str(one) for one in arguments)])
    assert result.exception is None, result.output
    return result


@pytest.mark.parametrize(
    "question",
    [
        ["funnel"],
        ["rules"],
        ["why", "books/north/2.jsonl#10"],
        ["why", "https://gone.example/"],
        ["domain", "site0.example"],
        ["whatif", "c4.curly_brace=off", "gopher.min_words=200"],
        ["takedown", "--domain", "site0.example"],
        ["sql", "select id, rule, failed_rules from removals order by component, file, position"],
        ["text", "books/north/0.jsonl#0"],
    ],
    ids=lambda question: question[0],
)
def test_the_answer_is_the_one_on_a_disk(remote: str, finished: Path, question: list[str]) -> None:
    assert (
        call(question[0], remote, *question[1:], "--json").stdout == call(question[0], finished, *question[1:], "--json").stdout
    )


def test_removed_texts_are_read_back_from_a_source_elsewhere(remote: str, crawl: Crawl) -> None:
    source = f"books={crawl.folder / 'books'}"
    (told,) = json.loads(call("sample", remote, "--rule", "c4.curly_brace", "--source", source, "--json").stdout)
    assert told["text"].count("{") == len(told["marks"]) == 1


@pytest.mark.slow
def test_a_corpus_is_signed_where_it_lies(remote: str, tmp_path: Path) -> None:
    minisign = pytest.importorskip("minisign", reason="py-minisign is not installed")
    pair = minisign.KeyPair.generate()
    (tmp_path / "key").write_bytes(bytes(pair.secret_key))
    (tmp_path / "pub").write_bytes(bytes(pair.public_key))
    try:
        for code, more in ((0, []), (1, []), (0, ["--force"])):
            words = ["manifest", "sign", remote, "--key", str(tmp_path / "key"), *more]
            assert CliRunner().invoke(app, words).exit_code == code
        told = json.loads(CliRunner().invoke(app, ["verify", remote, "--public-key", str(tmp_path / "pub"), "--json"]).stdout)
        assert (told["whole"], told["signature"]["file"]) == (True, f"{remote}/manifest.json.minisig")
    finally:
        Folder(remote).delete("manifest.json.minisig")


@pytest.mark.slow
@pytest.mark.parametrize("output", ["s3://audited/without", "without.json", "DISK"])
def test_a_takedown_leaves_a_corpus_that_verifies(remote: str, tmp_path: Path, output: str) -> None:
    output = str(tmp_path / "out") if output == "DISK" else output
    told = json.loads(
        call("takedown", remote, "--domain", "site0.example", "--output", output, "--reason", "order", "--json").stdout
    )
    assert list(verify(*open_corpus(told["act"]["where"]))) == []
    assert list(verify(*open_corpus(remote))) == []
    if output == "s3://audited/without":
        Folder("s3://audited").delete("without")
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
