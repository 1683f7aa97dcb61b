"""Mojibake becomes the letters it was; clean text stays byte for byte what it is.

The repair is ftfy's, with every option off that rewrites clean text: quotes stay curly, letters full-width, ligatures and
HTML entities as they are, and no Unicode normal form is imposed unless `normalization` asks for one. What remains is text in
the wrong encoding, including C1 controls, which are windows-1252 gone wrong. Other characters that no page shows (terminal
escapes, control characters other than tab, line and form feed, byte order marks, interlinear annotation) are a rule of their
own, `control_characters`, and off: a text that holds one is not wrong, and HTML has lost them in extraction.

ftfy's own test for bad text costs more than many repairs. `SUSPECT` is a looser and faster one that holds wherever ftfy could
change a line, so that clean lines never reach ftfy, and the output is the same as that of `ftfy.fix_text` with the same
configuration.
"""

from __future__ import annotations

import re
import unicodedata
from typing import ClassVar, Literal

import ftfy
import pyarrow as pa
from ftfy.chardata import CHARMAP_ENCODINGS
from pydantic import Field

from stages.stage import Options, Stage, Verdict

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
    if not _is_suspect(text):
        return text, 0, 0
    pieces: list[str] = []
    mojibake = controls = 0
    position = 0
    while position < len(text):
        # The same segments as ftfy's: lines, and at most a million characters.
        end = text.find("\n", position) + 1 or len(text)
        end = min(end, position + config.max_decode_length)
        line = text[position:end]
        position = end
        if _is_suspect(line):
            fixed = ftfy.fix_and_explain(line, config).text
            if fixed != line:
                if fixed == _INVISIBLE.sub("", line):
                    controls += 1
                else:
                    mojibake += 1
                line = fixed
        pieces.append(line)
    return "".join(pieces), mojibake, controls


class RepairOptions(Options):
    control_characters: bool = Field(False, description="remove control characters and terminal escapes")
    normalization: Literal["NFC", "NFD", "NFKC", "NFKD"] | None = Field(None, description="Unicode normal form of the output")


class Repair(Stage[RepairOptions]):
    """Removes nothing. An edit's count is the number of lines changed."""

    name = "repair"
    version = 1
    options_type: ClassVar[type[Options]] = RepairOptions
    libraries = ("ftfy",)
    columns = ("text",)

    def decide(self, batch: pa.RecordBatch) -> Verdict:
        verdict = Verdict.keep_all(batch.num_rows)
        config = CONFIG if self.options.control_characters else ENCODING_ONLY
        texts: list[str] = batch["text"].to_pylist()
        for row, text in enumerate(texts):
            fixed, mojibake, controls = repair(text, config)
            verdict.edits.add(row, "repair.mojibake", mojibake)
            verdict.edits.add(row, "repair.control_characters", controls)
            if self.options.normalization is not None:
                normal = unicodedata.normalize(self.options.normalization, fixed)
                if normal != fixed:
                    changed = sum(a != b for a, b in zip(fixed.split("\n"), normal.split("\n"), strict=True))
                    verdict.edits.add(row, "repair.normalization", changed)
                    fixed = normal
            texts[row] = fixed
        if verdict.edits.rows:
            verdict.columns["text"] = pa.array(texts, pa.large_string())
        return verdict


def _characters(first: int, last: int, *, macroman: bool = True) -> str:
    """A regular expression's class of everything that these bytes are in one of the encodings that ftfy knows."""
    encodings = [name for name in CHARMAP_ENCODINGS if macroman or name != "macroman"]
    found = {character for name in encodings for character in bytes(range(first, last + 1)).decode(name)}
    return "".join(re.escape(character) for character in sorted(found))


_CONTROLS = "\x00-\x08\x0b\x0e-\x1f\x7f\u206a-\u206f\ufeff\ufff9-\ufffc"
_INVISIBLE = re.compile(rf"\x1b\[(?:(?:\d+;)*\d+)?[A-Za-z]|[{_CONTROLS}]")
_LEADING = _characters(0xC0, 0xF4)
_CONTINUING = _characters(0x80, 0xBF)
_BEFORE_LOST_BLANK = "".join(_characters(byte, byte, macroman=False) for byte in (0xC2, 0xC3, 0xC5, 0xCE, 0xD0, 0xD9))

_BY_ITSELF = f"\x80-\x9f\ufffd\ud800-\udfff{_CONTROLS}"

SUSPECT = re.compile(
    # One class of first characters lets the engine skip clean text quickly; what must follow is looked at after it.
    f"[{_BY_ITSELF}{_LEADING}](?:"
    # What ftfy changes by itself: C1, control and replacement characters, surrogates …
    f"(?<=[{_BY_ITSELF}])"
    # … and UTF-8 read in another encoding: a first byte followed by a continuation byte, by a blank that was byte A0, or by a `?`
    # for a byte that was lost. (ftfy.chardata: UTF8_DETECTOR_RE, ALTERED_UTF8_RE, LOSSY_UTF8_RE; ftfy.bad_codecs.)
    f"|[ ?]?[{_CONTINUING}]"
    f"|(?<=[{_BEFORE_LOST_BLANK}]) "
    f"|(?<=[{_characters(0xC2, 0xC3)}])\\?)"
)
"""Wherever this finds nothing, ftfy changes nothing."""
_SUSPECT_IN_ASCII = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f]")


def _is_suspect(text: str) -> bool:
    return (_SUSPECT_IN_ASCII if text.isascii() else SUSPECT).search(text) is not None
