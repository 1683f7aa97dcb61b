"""What names of texts stand for, and what of it is no text. Corpora as sources: tests/pipeline/test_quality.py."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.text_sources import SourceError, find_texts


def read(*names: str | Path, text_field: str = "text") -> list[str]:
    return [text for file in find_texts([str(name) for name in names], text_field).files for text in file.texts()]


def test_a_folder_gives_every_text_below_it_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (tmp_path / "b" / "c.txt.gz").write_bytes(gzip.compress("\ufefffive\nlines".encode()))
    pq.write_table(pa.table({"text": ["three", "four"]}), tmp_path / "b" / "a.parquet")
    (tmp_path / "b" / "page.html").write_text("<p>no")
    (tmp_path / "README").write_text("no")
    assert read(tmp_path) == ["one", "two", "three", "four", "five\nlines"]
    assert find_texts([str(tmp_path)]).unread == {".html": 1, "no ending": 1}


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    assert read(tmp_path / "a.jsonl", tmp_path, tmp_path / "*.jsonl") == ["one"]


def test_documents_without_a_text_are_counted_by_reason(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n\n{"text": null}\n{\n{"text": " "}\n')
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\xfa")
    first, second = find_texts([str(tmp_path)]).files
    assert list(first.texts()) == ["one"]
    assert (first.read, first.blank, first.lost) == (4, 1, {"missing_text": 1, "bad_json": 1, "empty_text": 1})
    assert first.record()["without_text"] == {"bad_json": 1, "empty_text": 1, "missing_text": 1}
    assert list(second.texts()) == []
    assert second.lost == {"bad_utf8": 1}


def test_another_field_holds_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "one", "text": 3}\n')
    pq.write_table(pa.table({"body": ["two"], "text": [3]}), tmp_path / "b.parquet")
    assert read(tmp_path, text_field="body") == ["one", "two"]


def test_a_folder_without_texts_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<p>no")
    with pytest.raises(SourceError, match="no file in it holds texts"):
        find_texts([str(tmp_path)])


def test_a_broken_link_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "gone")
    with pytest.raises(SourceError, match="broken link"):
        find_texts([str(tmp_path)])


@pytest.mark.parametrize("name", ["", "\0", "s4://x/y"])
def test_a_name_that_is_none_is_an_error(name: str) -> None:
    with pytest.raises(SourceError):
        find_texts([name])
