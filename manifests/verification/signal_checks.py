"""Do the signals of a filter block agree with each other, with the lengths beside them, and with what was counted of them?

What a filter of this package measures is null for reasons that can be told: words are counted where a language writes spaces,
characters where it does not, and one language is measured in one way. Shares of one thing have one denominator. Of other filters
nothing is known but their rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from manifests.manifest import Content, StageRecord
from manifests.verification.findings import MOST_FINDINGS, Booleans, first_of, flags

Int64 = npt.NDArray[np.int64]

RULE_SET = "gopher.rule_set"
"""`words` or `characters`, and the language file that was used: `words:en`."""
OF_WORDS = (
    *("gopher.words", "gopher.mean_word_length", "gopher.hashes_per_word", "gopher.ellipses_per_word", "gopher.alphabetic_words"),
    *(f"gopher_repetition.top_{n}_gram" for n in (2, 3, 4)),
    *(f"gopher_repetition.duplicate_{n}_gram" for n in (5, 6, 7, 8, 9, 10)),
    *("fineweb.short_lines", "fineweb.newlines_per_word"),
)
"""Measured where spaces are written, and there alone."""
OF_CHARACTERS = (
    *("gopher.characters_unspaced", "gopher.script_share_unspaced", "gopher.symbols_unspaced"),
    *(f"gopher_repetition.top_{n}_gram_unspaced" for n in (2, 3, 4)),
    *(f"gopher_repetition.duplicate_{n}_gram_unspaced" for n in (5, 6, 7, 8, 9, 10)),
    *("fineweb.short_lines_unspaced", "fineweb.newlines_per_character_unspaced"),
)
"""Measured where they are not."""
ALWAYS = (
    *(RULE_SET, "gopher.bullet_lines", "gopher.ellipsis_lines"),
    *(f"gopher_repetition.duplicate_{one}" for one in ("lines", "paragraphs", "line_characters", "paragraph_characters")),
    *("c4.lorem_ipsum_lines", "c4.curly_brace_lines", "c4.characters", "fineweb.lines", "fineweb.duplicate_line_characters"),
)
"""Measured of every text."""
BY_LANGUAGE = (
    "gopher.stop_words",
    "gopher.stop_characters_unspaced",
    "c4.sentences",
    "fineweb.terminal_lines",
    "c4.blocklist_words",
)
"""Measured, or not, of all texts of a language: its file has function words, or marks that end sentences, or there is a list."""
PART = ":numerator"
ONE_NUMBER = (
    (
        *("gopher.words", "gopher.mean_word_length", "gopher.hashes_per_word", "gopher.ellipses_per_word"),
        *("gopher.alphabetic_words", "fineweb.newlines_per_word"),
    ),
    (f"gopher.mean_word_length{PART}", *(one for one in OF_WORDS if one.startswith("gopher_repetition."))),
    ("gopher.characters_unspaced", "gopher.script_share_unspaced", "gopher.symbols_unspaced"),
    tuple(one for one in OF_CHARACTERS if one.startswith("gopher_repetition.")),
    (
        *(
            "fineweb.lines",
            "fineweb.terminal_lines",
            "fineweb.short_lines",
            "fineweb.short_lines_unspaced",
            "gopher.bullet_lines",
        ),
        *("gopher.ellipsis_lines", "gopher_repetition.duplicate_lines"),
    ),
)
"""Of each group the denominators, or the numbers themselves, are equal where both are there: words, letters in words, characters,
lines."""
SHARES = (
    *("gopher.bullet_lines", "gopher.ellipsis_lines", "gopher.alphabetic_words", "gopher.script_share_unspaced"),
    *("gopher.symbols_unspaced", "fineweb.terminal_lines", "fineweb.short_lines", "fineweb.short_lines_unspaced"),
    *("fineweb.duplicate_line_characters",),
    *(one for one in (*OF_WORDS, *OF_CHARACTERS, *ALWAYS) if one.startswith("gopher_repetition.duplicate_")),
)
"""Ratios whose numerator is a part of the denominator."""
WITHIN_TEXT = (
    *(
        "gopher.words",
        "gopher.stop_words",
        "gopher.characters_unspaced",
        "gopher.stop_characters_unspaced",
        "c4.lorem_ipsum_lines",
    ),
    *("c4.curly_brace_lines", "c4.sentences", "c4.characters", "fineweb.lines", "gopher.mean_word_length"),
    *("fineweb.duplicate_line_characters", "gopher_repetition.duplicate_line_characters"),
)
"""Counts, or numerators, that are no larger than the bytes of the text."""
_COMPAT = ("gopher_repetition.", "fineweb.")
"""What these measure with the option `compat` is defined by others, and left out."""


class SignalChecks:
    """The signals of one component's block, range by range; `totals` after the last one."""

    def __init__(self, content: Content, component: str, block: str, records: list[StageRecord]) -> None:
        self.content, self.component, self.block = content, component, block
        self._quality = next((one for one in records if one.stage == "gopher_quality"), None)
        own = self._quality.options.get("languages") if self._quality is not None else None
        others = [one.stage for one in records if one.options.get("languages") != own and one is not self._quality]
        self._left_out = (*(one for one in _COMPAT if _compatible(records, one[:-1])), *(f"{one}." for one in others))
        self._has: dict[tuple[str, str], tuple[bool, str]] = {}
        """(signal, rule set) → whether the first document of it has a value, and which that is."""
        self._sets: Counter[str] = Counter()
        default = self._quality.options.get("default_language") if self._quality is not None else None
        self._by_language = BY_LANGUAGE if default in (None, "en") else BY_LANGUAGE[:2]
        """Texts without a language are measured by `default` in one filter alone."""

    def findings(self, path: str, signals: pa.Table) -> Iterator[str]:
        """Values that are missing where they were measured, or are there where they could not be, and that contradict another."""
        rows = signals.num_rows
        if not rows:
            return
        names = {name for name in signals.schema.names if "." in name and not name.startswith(self._left_out)}
        valid = {name: _valid(signals[name]) for name in names}
        odd: dict[str, Booleans] = {}
        for name in sorted(names):
            odd.update(_of_itself(name, signals[name]))
        for name in ALWAYS:
            if name in names:
                odd[f"has no {name}, which every text has"] = ~valid[name]
        yield from self._by_rule_set(path, signals, valid, odd)
        numbers = {name: _numbers(signals[name]) for name in names if not pa.types.is_string(signals.schema.field(name).type)}
        for group in ONE_NUMBER:
            mine = [one for one in group if one.removesuffix(PART) in names]
            for other in mine[1:]:
                first, one = (numbers[name.removesuffix(PART)][name.endswith(PART)] for name in (mine[0], other))
                both = valid[mine[0].removesuffix(PART)] & valid[other]
                odd[f"{mine[0]} and {other} are not of the same number"] = both & (first != one)
        for name in SHARES:
            if name in names:
                whole, part = numbers[name]
                odd[f"{name} is no share"] = valid[name] & (part > whole)
        length = signals["text_bytes"].to_numpy()
        after = signals["text_bytes_after"].to_numpy()
        for name in WITHIN_TEXT:
            if name in names:
                _, part = numbers[name]
                odd[f"{name} is more than the bytes of the text"] = valid[name] & (part > length)
        if "c4.characters" in names:
            characters, _ = numbers["c4.characters"]
            fits = (characters <= after) & (after <= characters * LONGEST_CHARACTER)
            odd["c4.characters are not the bytes that were left"] = valid["c4.characters"] & ~fits
        twice = "gopher_repetition.duplicate_line_characters", "fineweb.duplicate_line_characters"
        if names.issuperset(twice):
            (whole, part), (all_, share) = numbers[twice[0]], numbers[twice[1]]
            differ = (whole != all_) | (part != share)
            odd[f"{twice[0]} and {twice[1]} are not the same"] = valid[twice[0]] & valid[twice[1]] & differ
        for said, wrong in odd.items():
            for row in first_of(wrong):
                yield f"{path}: {signals['id'][row]}: {said}"

    def totals(self) -> Iterator[str]:
        """The summary says how many documents each rule set measured."""
        counts = [one for one in self.content.counts if one.component == self.component]
        broken = any(rule == f"{self.block}.error" for one in counts for rule in one.removed)
        if self._quality is None or broken:  # who broke another filter was counted too
            return
        told = self._told()
        if told is not None and told != dict(self._sets):
            found = dict(sorted(self._sets.items()))
            yield f"component {self.component}, {self.block}: rule sets are {found}, the manifest says {told}"

    def _told(self) -> dict[str, int] | None:
        """Rule set → documents that it measured, by the manifest; None where it does not say."""
        if self._quality is None:
            return None
        place = self.component, self._quality.step, self._quality.stage
        mine = [one for one in self.content.summaries if (one.get("component"), one.get("step"), one.get("stage")) == place]
        sets = mine[0].get("rule_sets") if len(mine) == 1 else None
        return sets if isinstance(sets, dict) else None

    def _by_rule_set(self, path: str, signals: pa.Table, valid: dict[str, Booleans], odd: dict[str, Booleans]) -> Iterator[str]:
        """Who writes spaces, and what is measured of a language."""
        anchors = [(name, f"{name}_unspaced") for name in ("fineweb.short_lines", "gopher_repetition.top_2_gram")]
        if RULE_SET in valid:
            sets = signals[RULE_SET]
            if (told := self._told()) is not None:
                known_ = pc.is_in(sets, value_set=pa.array(sorted(told), pa.string()))
                odd[f"has a {RULE_SET} of which the manifest says that nothing was measured by it"] = ~flags(known_)
            self._sets.update(
                {one["values"]: one["counts"] for one in pc.value_counts(sets).to_pylist() if one["values"] is not None}
            )
            spaced = flags(pc.starts_with(sets, "words"))
            known = valid[RULE_SET]
        elif anchor := next((one for one in anchors if one[0] in valid and one[1] in valid), None):
            sets, spaced = None, valid[anchor[0]]
            known = np.ones(signals.num_rows, bool)
            odd[f"has both or neither of {anchor[0]} and {anchor[1]}"] = valid[anchor[0]] == valid[anchor[1]]
        else:
            return
        for names, here, what in ((OF_WORDS, spaced, "written with spaces"), (OF_CHARACTERS, ~spaced, "written without spaces")):
            for name in names:
                if name in valid:
                    odd[f"has no {name}, which texts {what} have"] = known & here & ~valid[name]
                    odd[f"has {name}, which only texts {what} have"] = known & ~here & valid[name]
        if sets is None:
            return
        coded = sets.combine_chunks().dictionary_encode()
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        for name in self._by_language:
            if name not in valid:
                continue
            has = valid[name]
            measured = np.ones(len(has), bool)
            if name == "c4.sentences":  # a text of nothing has none, whatever its language
                measured = _numbers(signals["c4.characters"])[0] > 0 if "c4.characters" in valid else ~measured
            for code, of in enumerate(coded.dictionary.to_pylist()):
                mine = np.flatnonzero((codes == code) & measured)
                if not mine.size:
                    continue
                first = int(mine[0])
                said, whose = self._has.setdefault((name, of), (bool(has[first]), str(signals["id"][first])))
                for row in mine[has[mine] != said][:MOST_FINDINGS].tolist():
                    mine_, other = ("has", "has none") if has[row] else ("has no", "has one")
                    yield f"{path}: {signals['id'][row]}: {mine_} {name}, and {whose}, measured as {of} too, {other}"


LONGEST_CHARACTER = 4
"""Bytes of UTF-8."""


def _compatible(records: list[StageRecord], stage: str) -> bool:
    return any(one.stage == stage and one.options.get("compat") is not None for one in records)


def _of_itself(name: str, column: pa.ChunkedArray) -> dict[str, Booleans]:
    """Numbers below zero and ratios with half of them missing."""
    if pa.types.is_struct(column.type):
        whole, part = _numbers(column)
        values = column.combine_chunks()
        halves = np.zeros(len(values), bool)
        for child in ("numerator", "denominator"):
            halves |= ~_valid(values.field(child)) & _valid(values)
        below = (whole < 0) | (part < 0)
        return {f"{name} has no numerator or no denominator": halves, f"{name} is of less than nothing": below & _valid(column)}
    if pa.types.is_integer(column.type) and name in {*WITHIN_TEXT, *BY_LANGUAGE}:
        return {f"{name} is less than nothing": flags(pc.less(column, 0))}
    return {}


def _numbers(column: pa.ChunkedArray) -> tuple[Int64, Int64]:
    """(denominator, numerator) of a ratio, or a number twice; 0 where there is none."""
    values: Any = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_struct(values.type):
        whole, part = (_filled(values.field(name)) for name in ("denominator", "numerator"))
        return whole, part
    number = _filled(values)
    return number, number


def _filled(values: pa.Array) -> Int64:
    if not pa.types.is_integer(values.type):
        return np.zeros(len(values), np.int64)
    return np.asarray(values.fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def _valid(column: pa.ChunkedArray | pa.Array) -> Booleans:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), bool)
