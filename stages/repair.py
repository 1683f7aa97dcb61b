"""Mojibake becomes the letters it was; clean text stays byte for byte what it is.

The repair is ftfy's, with every option off that rewrites clean text: quotes stay curly, letters full-width, ligatures and
HTML entities as they are, and no Unicode normal form is imposed unless `normalization` asks for one. What remains is text in
the wrong encoding, including C1 controls, which are windows-1252 gone wrong. Other characters that no page shows (terminal
escapes, control characters other than tab, line and form feed, byte order marks, interlinear annotation) are a rule of their
own, `control_characters`, and off: a text that holds one is not wrong, and HTML has lost them in extraction.

ftfy is asked about a line only where `stages.mojibake` finds that it could change it, so clean texts pass at the speed of a look
at their bytes, and the output is that of `ftfy.fix_text` with the same configuration, but for one thing. A capital `Ã` before
a blank is what is left of `à` when its second byte became a blank, and ftfy always reads it so. It is also a letter that
stands by itself (Guanano `Ã jia Jesu tíre`). Where it is all that a line has against it, and the line holds other letters beyond
ASCII, which are right as they are, the line stays.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import ClassVar, Literal

import ftfy
import numpy as np
import pyarrow as pa
from pydantic import Field

from stages import text_buffers
from stages.mojibake import CONTROLS, Spans, suspicious_lines
from stages.stage import EXAMPLE, Options, Stage, Verdict

NormalForm = Literal["NFC", "NFD", "NFKC", "NFKD"]

CONFIG = ftfy.TextFixerConfig(
    unescape_html=False,
    remove_terminal_escapes=True,
    fix_encoding=True,
    restore_byte_a0=True,
    replace_lossy_sequences=True,
    decode_inconsistent_utf8=True,
    fix_c1_controls=True,
    fix_latin_ligatures=False,
    fix_character_width=False,
    uncurl_quotes=False,
    fix_line_breaks=False,
    fix_surrogates=True,
    remove_control_chars=True,
    normalization=None,
    explain=False,
)
ENCODING_ONLY = CONFIG._replace(remove_terminal_escapes=False, remove_control_chars=False)


def repair(text: str, config: ftfy.TextFixerConfig = ENCODING_ONLY) -> tuple[str, int, int]:
    """The repaired text, the lines in which an encoding was put right, and the lines that only lost control characters."""
    data = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    spans = suspicious_lines(data, np.array([0, len(data)]), config.remove_control_chars)
    pieces, mojibake, controls = _repaired(data, 0, len(data), spans, config)
    return (b"".join(pieces).decode("utf-8", "surrogatepass"), mojibake, controls) if pieces else (text, 0, 0)


class RepairOptions(Options):
    control_characters: bool = Field(False, description="remove control characters and terminal escapes")
    normalization: NormalForm | None = Field(None, description="Unicode normal form of the output")


class Repair(Stage[RepairOptions]):
    """Removes nothing. An edit's count is the number of lines changed."""

    name = "repair"
    version = 2
    options_type: ClassVar[type[Options]] = RepairOptions
    libraries = ("ftfy",)
    columns = ("text",)

    def compile(self) -> None:
        self.decide(EXAMPLE)

    def decide(self, batch: pa.RecordBatch) -> Verdict:
        verdict = Verdict.keep_all(batch.num_rows)
        config = CONFIG if self.options.control_characters else ENCODING_ONLY
        data, offsets = text_buffers.of(batch["text"])
        spans = suspicious_lines(data, offsets, config.remove_control_chars)
        changed: dict[int, bytes] = {}
        for row, first, last in _rows(spans):
            pieces, mojibake, controls = _repaired(data, offsets[row], offsets[row + 1], spans[first:last], config)
            verdict.edits.add(row, "repair.mojibake", mojibake)
            verdict.edits.add(row, "repair.control_characters", controls)
            if pieces:
                changed[row] = b"".join(pieces)
        if self.options.normalization is not None:
            self._normalize(self.options.normalization, data, offsets, changed, verdict)
        if changed:
            verdict.columns["text"] = text_buffers.with_rows(batch["text"], changed)
        return verdict

    def _normalize(
        self, form: NormalForm, data: np.ndarray, offsets: np.ndarray, changed: dict[int, bytes], verdict: Verdict
    ) -> None:
        for row in range(len(verdict.rule)):
            text = changed.get(row, data[offsets[row] : offsets[row + 1]].tobytes()).decode()
            if not unicodedata.is_normalized(form, text):
                normal = unicodedata.normalize(form, text)
                lines = sum(a != b for a, b in zip(text.split("\n"), normal.split("\n"), strict=True))
                verdict.edits.add(row, "repair.normalization", lines)
                changed[row] = normal.encode()


def _rows(spans: Spans) -> Iterator[tuple[int, int, int]]:
    """(row, first, last): the row's lines are spans[first:last]."""
    starts = np.flatnonzero(np.diff(spans[:, 0], prepend=-1)).tolist()
    for first, last in zip(starts, [*starts[1:], len(spans)], strict=False):
        yield int(spans[first, 0]), first, last


def _repaired(data: np.ndarray, begin: int, end: int, spans: Spans, config: ftfy.TextFixerConfig) -> tuple[list[bytes], int, int]:
    """data[begin:end] in pieces with the lines of `spans` repaired, and `repair`'s two counts; no piece where nothing changed."""
    pieces: list[bytes] = []
    mojibake = controls = 0
    for _, first, last in spans.tolist():
        line = data[first:last].tobytes().decode("utf-8", "surrogatepass")
        fixed, encoding, lost = _repaired_line(line, config)
        if fixed != line:
            pieces += (data[begin:first].tobytes(), fixed.encode("utf-8", "surrogatepass"))
            begin = last
            mojibake += encoding
            controls += lost
    if pieces:
        pieces.append(data[begin:end].tobytes())
    return pieces, mojibake, controls


def _repaired_line(line: str, config: ftfy.TextFixerConfig) -> tuple[str, int, int]:
    pieces = []
    mojibake = controls = 0
    # ftfy's segments have at most a million characters.
    for position in range(0, len(line), config.max_decode_length):
        segment = line[position : position + config.max_decode_length]
        fixed = ftfy.fix_and_explain(segment, config).text
        if fixed != segment and _is_a_letter_by_itself(segment, config):
            fixed = segment
        if fixed != segment:
            if fixed == _INVISIBLE.sub("", segment):
                controls += 1
            else:
                mojibake += 1
        pieces.append(fixed)
    return "".join(pieces), mojibake, controls


def _is_a_letter_by_itself(segment: str, config: ftfy.TextFixerConfig) -> bool:
    """Whether `Ã` before a blank is all that speaks for a repair, and other letters say that the line is in its encoding."""
    if _LOST_BLANK.search(segment) is None:
        return False
    rest = _LOST_BLANK.sub("A", segment)
    return _OTHER_LETTER.search(rest) is not None and ftfy.fix_and_explain(rest, config).text == rest


_INVISIBLE = re.compile(rf"\x1b\[(?:(?:\d+;)*\d+)?[A-Za-z]|[{CONTROLS}]")
_LOST_BLANK = re.compile(r"Ã(?= )")
_OTHER_LETTER = re.compile(r"[^\W\d_\x00-\x7f]")
