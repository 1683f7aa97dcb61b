"""What a tokenizer makes of texts, counted as one would by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from stages.commands import app
from stages.token_usage import Usage
from stages.tokenizer import Encoder, TokenizerOptions, train_tokenizer
from tests.pipeline.crawl import article

ENGLISH = [article(f"usage {number}") for number in range(20)]
CHINESE = ["图书馆在上个月重新开放了。馆长问：你们准备好了吗？", "港口 很安静。"]


@pytest.fixture(scope="module")
def tokenizer() -> str:
    return train_tokenizer([*ENGLISH, *CHINESE], TokenizerOptions(vocabulary=700))


def test_a_group_is_the_sum_of_its_texts(tokenizer: str) -> None:
    encoder = Encoder(tokenizer)
    texts = [*ENGLISH, *CHINESE, "", "more English words"]
    names = [*["en"] * 20, *["zh"] * 2, "none", "en"]
    usage = Usage(encoder.vocabulary)
    for start in range(0, len(texts), 7):  # batches make no difference
        column = pa.array(texts[start : start + 7], pa.large_string())
        usage.count(names[start : start + 7], column, *encoder.encode(column))
    rows = {(row["name"], row["unspaced"]): row for row in usage.rows()}
    english = [text for text, name in zip(texts, names, strict=True) if name == "en"]
    row = rows["en", False]
    assert row["documents"] == 21
    assert row["bytes"] == sum(len(text.encode()) for text in english)
    assert row["words"] == sum(len(text.split()) for text in english)
    ids = [encoder.encode(pa.array([text]))[1][1:].tolist() for text in english]
    assert row["tokens"] == sum(map(len, ids))
    assert row["vocabulary_used"] == len({token for tokens in ids for token in tokens}) / encoder.vocabulary
    assert row["bytes_per_token"] == row["bytes"] / row["tokens"]
    assert row["tokens_per_word"] == row["tokens"] / row["words"]
    assert rows["zh", True]["words"] == sum(len("".join(text.split())) for text in CHINESE)
    empty = rows["none", False]
    assert (empty["documents"], empty["tokens"], empty["bytes_per_token"], empty["tokens_per_word"]) == (1, 0, None, None)
    assert [row["bytes"] for row in usage.rows()] == sorted((row["bytes"] for row in rows.values()), reverse=True)
    assert usage.used(usage.groups) >= max(row["vocabulary_used"] * encoder.vocabulary for row in rows.values())


def test_the_command_compares_tokenizers_on_the_same_texts(tokenizer: str, tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(tokenizer)
    (tmp_path / "large.json").write_text(train_tokenizer(ENGLISH, TokenizerOptions(vocabulary=1500)))
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*ENGLISH, *CHINESE]))
    files = [str(tmp_path / "small.json"), str(tmp_path / "large.json"), "--texts", str(tmp_path / "texts.jsonl")]
    result = CliRunner().invoke(app, ["tokenizer", "report", *files, "--json"])
    assert result.exit_code == 0, result.output
    small, large = json.loads(result.stdout)
    assert (small["vocabulary"], large["vocabulary"]) == (704, 832)
    assert small["total"]["bytes"] == large["total"]["bytes"] == sum(len(text.encode()) for text in [*ENGLISH, *CHINESE])
    assert large["total"]["tokens"] < small["total"]["tokens"]
    assert {(row["language"], row["unspaced"]) for row in small["rows"]} == {("en", False), ("zh", True)}
    shown = CliRunner().invoke(app, ["tokenizer", "report", *files])
    assert shown.exit_code == 0
    assert "704" in shown.output and "en" in shown.output


@pytest.mark.parametrize(
    "content, complaint",
    [("{}", "not a tokenizer.json"), (None, "cannot be read"), ('{"model": {"type": "WordLevel"}}', "tokenizer")],
)
def test_what_is_no_tokenizer_is_an_error_with_its_name(tmp_path: Path, content: str | None, complaint: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n')
    result = CliRunner().invoke(
        app, ["tokenizer", "report", str(tmp_path / "tokenizer.json"), "--texts", str(tmp_path / "texts.jsonl")]
    )
    assert result.exit_code == 1
    assert complaint in result.output
    assert "tokenizer.json" in result.output
