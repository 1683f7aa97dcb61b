"""From a token of a shard back to its document and the record it came from."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from manifests.manifest import SPLITS, Manifest
from manifests.storage import Folder
from stages.commands import app
from stages.tokenizer import Encoder


def tell(*arguments: str) -> dict:
    result = CliRunner().invoke(app, ["tokens", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_any_token_is_found_in_the_text_of_its_document(finished: Path, manifest: Manifest) -> None:
    encoder = Encoder((finished / "tokenizer.json").read_text())
    chance = random.Random(1)
    for shard in manifest.content.shards:
        tokens = np.fromfile(finished / shard.path, f"<{np.dtype(encoder.dtype).str[1:]}")
        index = pq.read_table(finished / shard.index).to_pylist()
        for offset in {0, shard.tokens - 1, *(chance.randrange(shard.tokens) for _ in range(4))}:
            place = tell(str(finished), shard.path, str(offset), "--shown", "5")
            document = next(row for row in index if row["start"] <= offset < row["start"] + row["tokens"])
            assert place["document"]["id"] == document["id"]
            assert place["document"]["shard"] == shard.path
            assert (place["number"], place["tokens"]) == (offset - document["start"], document["tokens"])
            assert place["token"] == tokens[offset]
            first, last = max(document["start"], offset - 5), min(document["start"] + document["tokens"], offset + 5)
            pieces = [
                encoder.decode(tokens[one:other]).decode(errors="replace")
                for one, other in ((first, offset), (offset, offset + 1), (offset + 1, last))
            ]
            assert [place["before"], place["text"], place["after"]] == pieces
            component = manifest.content.components[document["id"].split("/")[0]]
            assert (place["source"], place["licence"]) == (component.source, component.licence)


def test_the_whole_document_is_shown_when_asked_for(finished: Path, manifest: Manifest) -> None:
    shard = manifest.content.shards[0]
    place = tell(str(finished), shard.path, "0", "--shown", "100000")
    assert len((place["before"] + place["text"] + place["after"]).encode()) == place["document"]["text_bytes"]


def test_a_person_sees_document_url_file_and_text(finished: Path, manifest: Manifest) -> None:
    shard = next(shard for shard in manifest.content.shards if shard.component == "web")
    place = tell(str(finished), shard.path, "3")
    shown = CliRunner().invoke(app, ["tokens", str(finished), shard.path, "3"], env={"COLUMNS": "200"}).output
    for part in (
        place["document"]["id"],
        place["document"]["url"],
        place["document"]["file"],
        place["licence"],
        place["after"][:20],
    ):
        assert part in shown


@pytest.mark.parametrize(
    "shard, offset, complaint",
    [
        ("tokens/nowhere.bin", "0", "there is no shard"),
        ("00000.bin", "0", "is the end of"),
        ("tokens/web/train/00000.bin", "999999999", "there is no token 999,999,999"),
        ("../manifest.json", "0", "there is no shard"),
    ],
)
def test_what_is_not_there_is_an_error_with_its_name(finished: Path, shard: str, offset: str, complaint: str) -> None:
    result = CliRunner().invoke(app, ["tokens", str(finished), shard, offset])
    assert result.exit_code == 1
    assert complaint in result.output


def test_a_shard_that_is_cut_short_is_an_error(copied: Path) -> None:
    shard = Manifest.load(Folder(copied)).content.shards[0]
    data = (copied / shard.path).read_bytes()
    (copied / shard.path).write_bytes(data[: len(data) // 2])
    result = CliRunner().invoke(app, ["tokens", str(copied), shard.path, str(shard.tokens - 1)])
    assert result.exit_code == 1
    assert "shorter than its manifest says" in result.output


@pytest.mark.parametrize("offset", ["-1", "a", "1.5", ""])
def test_what_is_no_offset_is_bad_usage(finished: Path, offset: str) -> None:
    assert CliRunner().invoke(app, ["tokens", str(finished), "tokens/web/train/00000.bin", "--", offset]).exit_code == 2


def test_an_index_that_is_not_the_manifest_s_is_an_error_and_no_other_document_is_shown(copied: Path) -> None:
    shards = Manifest.load(Folder(copied)).content.shards
    first, second = (next(shard for shard in shards if (shard.component, shard.split) == ("web", split)) for split in SPLITS[:2])
    ask = ["tokens", str(copied), first.path, "5"]
    (copied / first.index).write_bytes((copied / second.index).read_bytes())
    result = CliRunner().invoke(app, ask)
    assert (result.exit_code, f"{first.index}: not the file that the manifest lists" in result.output) == (1, True)
    (copied / first.index).unlink()
    result = CliRunner().invoke(app, ask)
    assert (result.exit_code, first.index in result.output) == (1, True)


def test_a_changed_tokenizer_is_an_error(copied: Path) -> None:
    shard = Manifest.load(Folder(copied)).content.shards[0]
    (copied / "tokenizer.json").write_text("{}")
    result = CliRunner().invoke(app, ["tokens", str(copied), shard.path, "5"])
    assert (result.exit_code, "tokenizer.json: not the file that the manifest lists" in result.output) == (1, True)
