"""Tokenizers side by side: what a team reads before it decides."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from typer.testing import CliRunner

from manifests.manifest import Manifest
from stages.commands import app
from stages.tokenizer import Encoder
from tests.pipeline.crawl import article

Report = Callable[..., Result]
CHINESE = "今天天气很好，我们去公园散步。孩子们在草地上玩耍，老人们坐在树下聊天。"


@pytest.fixture
def report(tmp_path: Path) -> Report:
    def run(*words: str | Path) -> Result:
        result = CliRunner().invoke(app, ["tokenizer", "report", *map(str, words)])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    records = [{"text": CHINESE}, {"text": article(1)}, {"none": 1}, {"text": "12345 67"}]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


def save(path: Path, tokenizer: Tokenizer, trainer: trainers.Trainer) -> Path:
    tokenizer.train_from_iterator([article(number) for number in range(30)], trainer)
    tokenizer.save(str(path))
    return path


def byte_level(path: Path, special: list[str]) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    return save(path, tokenizer, trainer)


def word_pieces(path: Path) -> Path:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return save(path, tokenizer, trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[UNK]"], show_progress=False))


def test_a_corpus_is_reported_by_component_and_language_with_its_own_tokenizer(
    report: Report, finished: Path, manifest: Manifest
) -> None:
    found = json.loads(report(finished, "--json").output)
    tokens = {row["source"]: row["tokens"] for row in found["tokenizers"][0]["rows"]}
    documents = {f"{finished}: {name}": 0 for name in manifest.content.components}
    wanted = dict.fromkeys(documents, 0)
    for shard in manifest.content.shards:
        if shard.split == "train":
            documents[f"{finished}: {shard.component}"] += shard.documents
            wanted[f"{finished}: {shard.component}"] += shard.tokens - shard.documents  # without BOS
    assert tokens == wanted
    assert {one["source"]: one["documents"] for one in found["sources"]} == documents
    assert all(one["complete"] and not one["without_text"] for one in found["sources"])
    assert {row["language"] for row in found["tokenizers"][0]["rows"]} == {"en"}


def test_figures_are_those_of_the_encoded_text(report: Report, finished: Path, texts: Path) -> None:
    (found,) = json.loads(report(finished, "--texts", texts, "--json").output)["tokenizers"]
    encoder = Encoder((finished / "tokenizer.json").read_text())
    assert found["vocabulary"] == encoder.vocabulary and found["unfit"] is None
    rows = {row["language"]: row for row in found["rows"]}
    assert set(rows) == {"zh", "en", "und"}
    tokenizer = Tokenizer.from_file(str(finished / "tokenizer.json"))
    for language, text in (("zh", CHINESE), ("en", article(1)), ("und", "12345 67")):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        words = len(CHINESE) if language == "zh" else len(text.split())
        row = rows[language]
        assert (row["tokens"], row["words"], row["unspaced"]) == (len(ids), words, language == "zh")
        assert row["bytes_per_token"] == len(text.encode()) / len(ids)
        assert row["vocabulary_used"] == len(set(ids)) / encoder.vocabulary


def test_any_tokenizer_json_can_be_compared_and_it_is_said_what_it_is_not_fit_for(
    report: Report, finished: Path, texts: Path, tmp_path: Path
) -> None:
    theirs, nameless = byte_level(tmp_path / "gpt2.json", ["<|endoftext|>"]), byte_level(tmp_path / "nameless.json", [])
    pieces = word_pieces(tmp_path / "pieces.json")
    found = json.loads(report(finished, theirs, nameless, pieces, "--texts", texts, "--json").output)["tokenizers"]
    assert [one["tokenizer"] for one in found] == [str(one) for one in (finished, theirs, nameless, pieces)]
    assert [bool(one["unfit"]) for one in found] == [False, False, True, True]
    assert "no special token begins a document" in found[2]["unfit"]
    ids = Tokenizer.from_file(str(pieces)).encode(CHINESE, add_special_tokens=False).ids
    chinese = next(row for row in found[3]["rows"] if row["language"] == "zh")
    assert chinese["tokens"] == len(ids) and found[3]["total"]["unknown_tokens"] >= len(ids) > 0
    shown = report(finished, pieces, "--texts", texts).output
    assert "no corpus can be made with it" in shown.replace("\n", " ")
    assert "stand for text it does not know" in shown.replace("\n", " ")


def test_the_table_has_the_tokenizers_of_a_language_beneath_each_other_and_says_what_was_left_out(
    report: Report, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one.json", "other.json"):
        byte_level(tmp_path / name, ["<s>"])
    lines = report("one.json", "other.json", "--texts", texts.name).output.splitlines()
    at = next(number for number, line in enumerate(lines) if " zh " in line)
    assert "one.json" in lines[at] and "3.00*" in lines[at] and "other.json" in lines[at + 1]
    assert "* a character: its script has no spaces" in lines
    assert f"note: {texts.name}: records without a text: missing_text 1" in lines


def test_a_source_that_is_longer_than_what_is_asked_is_read_in_part_and_says_so(report: Report, tmp_path: Path) -> None:
    (tmp_path / "long.txt.jsonl").write_text("".join(json.dumps({"text": article(number)}) + "\n" for number in range(3000)))
    theirs = byte_level(tmp_path / "theirs.json", ["<s>"])
    result = report(theirs, "--texts", tmp_path / "long.txt.jsonl", "--mib", "1")
    (source,) = json.loads(report(theirs, "--texts", tmp_path / "long.txt.jsonl", "--mib", "1", "--json").output)["sources"]
    assert not source["complete"] and 1 << 20 <= source["bytes"] < 3 << 20 and source["documents"] < 3000
    assert "its first" in result.output and "--mib says how much" in result.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("gone.json", "there is no such file"),
        ("empty", "no file tokenizer.json is in it"),
        ("broken.json", "not a tokenizer.json"),
        ("bytes.json", "cannot be read"),
    ],
)
def test_what_is_no_tokenizer_is_one_line_and_code_1(
    report: Report, texts: Path, tmp_path: Path, name: str, complaint: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    result = report(tmp_path / name, "--texts", texts)
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr.startswith(f"error: {tmp_path / name}: {complaint}") and len(result.stderr.splitlines()) == 1


def test_texts_are_asked_for_where_no_corpus_is_named(report: Report, tmp_path: Path) -> None:
    result = report(byte_level(tmp_path / "theirs.json", ["<s>"]))
    assert result.exit_code == 2 and "--texts" in result.stderr


def test_a_corpus_may_be_named_by_its_manifest(report: Report, finished: Path, texts: Path) -> None:
    by_manifest = json.loads(report(finished / "manifest.json", "--texts", texts, "--json").output)
    by_folder = json.loads(report(finished, "--texts", texts, "--json").output)
    assert by_manifest["tokenizers"][0]["rows"] == by_folder["tokenizers"][0]["rows"]
