"""`compat: datatrove` against datatrove's own verdicts, and against datatrove itself where it is installed.

Data: see `tests.real.documents`. `make bench` compares all documents; here are fewer, so that it takes seconds.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pyarrow as pa
import pytest

from manifests.rules import decide
from stages import registry
from tests.real.documents import DATA, sample

pytestmark = [
    pytest.mark.skipif(not DATA.is_dir(), reason=f"no test data at {DATA}; set CORPUSMILL_TEST_DATA"),
    pytest.mark.skipif(importlib.util.find_spec("spacy") is None, reason="spaCy is not installed (extra `compat`)"),
]
needs_datatrove = pytest.mark.skipif(
    importlib.util.find_spec("datatrove") is None, reason="datatrove is not installed (extra `bench`)"
)
FEW, MANY = 120, 2000

REASONS = {
    "gopher_repetition": {
        "empty": "max_duplicate_paragraphs",
        "dup_para_frac": "max_duplicate_paragraphs",
        "dup_para_char_frac": "max_duplicate_paragraph_characters",
        "dup_line_frac": "max_duplicate_lines",
        "dup_line_char_frac": "max_duplicate_line_characters",
        **{f"top_{n}_gram": f"max_top_{n}_gram" for n in (2, 3, 4)},
        **{f"duplicated_{n}_n_grams": f"max_duplicate_{n}_gram" for n in range(5, 11)},
    },
    "fineweb": {
        "empty": "min_lines",
        "line_punct_ratio": "min_terminal_lines",
        "short_line_ratio": "max_short_lines",
        "char_dup_ratio": "max_duplicate_line_characters",
        "list_ratio": "max_newlines_per_word",
    },
}
"""datatrove's reasons, by the first rule of ours that fails."""


VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gopher_repetition": ("gopher_repetition", {}, {}),
    "gopher_repetition, n-grams": (
        "gopher_repetition",
        {f"max_duplicate_{piece}": None for piece in ("lines", "paragraphs", "line_characters", "paragraph_characters")},
        dict.fromkeys(("dup_line_frac", "dup_para_frac", "dup_line_char_frac", "dup_para_char_frac")),
    ),
    "gopher_repetition, duplicate n-grams": (
        "gopher_repetition",
        {
            **{f"max_duplicate_{piece}": None for piece in ("lines", "paragraphs", "line_characters", "paragraph_characters")},
            **{f"max_top_{n}_gram": None for n in (2, 3, 4)},
            **{f"max_duplicate_{n}_gram": 0.005 for n in range(5, 11)},
        },
        {
            **dict.fromkeys(("dup_line_frac", "dup_para_frac", "dup_line_char_frac", "dup_para_char_frac")),
            "top_n_grams": (),
            "dup_n_grams": tuple((n, 0.005) for n in range(5, 11)),
        },
    ),
    "fineweb": ("fineweb", {}, {}),
    "fineweb, all lines ended": ("fineweb", {"min_terminal_lines": None}, {"line_punct_thr": 0.0}),
    "fineweb, newlines": (
        "fineweb",
        {"min_terminal_lines": None, "max_short_lines": None, "max_newlines_per_word": 0.1},
        {"line_punct_thr": 0.0, "short_line_thr": 1.0, "new_line_ratio": 0.1},
    ),
}
"""Name → filter, our options, datatrove's. Few of the data's documents come as far as the last rules without them."""


def first_rules(name: str, texts: list[str], language: str = "en", **options: Any) -> list[str | None]:
    """The rule that removes each text in this mode, without the filter's name."""
    found = registry.find(name)
    stage = found(found.options_type(compat="datatrove", **options))
    batch = pa.record_batch(
        {"text": pa.array(texts, pa.large_string()), "language": pa.array([language] * len(texts), pa.string())}
    )
    rules = [rule.name.removeprefix(f"{name}.") for rule in stage.rules()]
    first = decide(stage.rules(), pa.table(stage.measure(batch).signals)).first
    return [rules[index] if index >= 0 else None for index in first]


def reasons(name: str, texts: list[str], language: str = "en", **options: Any) -> list[str | None]:
    """What datatrove itself says."""
    from datatrove.data import Document
    from datatrove.pipeline.filters import FineWebQualityFilter, GopherRepetitionFilter

    theirs = {"gopher_repetition": GopherRepetitionFilter, "fineweb": FineWebQualityFilter}[name](language=language, **options)
    said = [theirs.filter(Document(text=text, id="")) for text in texts]
    return [None if answer is True else answer[1] for answer in said]


def differences(name: str, ours: list[str | None], theirs: list[str | None]) -> Counter[tuple]:
    """Counts (their reason, our rule) where they are not the same."""
    same = {None: None, **REASONS[name]}
    return Counter((reason, rule) for reason, rule in zip(theirs, ours, strict=True) if same[reason] != rule)


@needs_datatrove
@pytest.mark.parametrize("variant", VARIANTS)
def test_verdicts_and_reasons_are_datatroves(variant: str) -> None:
    name, options, their_options = VARIANTS[variant]
    texts = sample(FEW)
    ours = first_rules(name, texts, **options)
    assert differences(name, ours, reasons(name, texts, **their_options)) == Counter()
    assert 0 < sum(rule is not None for rule in ours) < FEW


@needs_datatrove
@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_verdicts_and_reasons_are_datatroves_on_thousands(variant: str) -> None:
    name, options, their_options = VARIANTS[variant]
    texts = sample(MANY) + [text for text, _ in wcxb() if text]  # TRAPS has an empty one; the rules on pieces remove it
    assert differences(name, first_rules(name, texts, **options), reasons(name, texts, **their_options)) == Counter()


def test_datatroves_own_cases_have_its_verdicts_and_reasons() -> None:
    with gzip.open(DATA / "peer_cases" / "datatrove_filters.jsonl.gz", "rt", encoding="utf-8", newline="\n") as file:
        rows = [json.loads(line) for line in file]
    cases = [row for row in rows if row["op"] == "GopherRepetitionFilter"]
    texts = [row["input"] for row in cases]
    theirs = [row["reason"] if row["expected"] == "remove" else None for row in cases]
    assert differences("gopher_repetition", first_rules("gopher_repetition", texts), theirs) == Counter()
    assert len(cases) > 5


TRAPS = [
    "",
    "\n",
    " \n \n ",
    "word",
    "a b",
    "\u2028\x85x\x1cy",
    "IS_ALPHA IS_ALPHA",
    "ha " * 40,
    "1.2.3 http://example.org/a?b=c#d e-mail@example.org :-) don't U.S.A. 10km",
    "a\r\nb\r\na\r\nb\r\n",
    "x" * 5000,
    "图书馆在上个月重新开放了。 " * 3,
    "no end\n" * 3 + "an end.\n" * 2,
    "\ufeffa\x00b \u200bc\u00adD 😀😀 e\u0301",
    "line one.\n\nline one.\n\nline two.",
    ". " * 30,
]


@needs_datatrove
@pytest.mark.parametrize("name", REASONS)
def test_odd_texts_have_datatroves_verdicts_too(name: str) -> None:
    assert differences(name, first_rules(name, TRAPS), reasons(name, TRAPS)) == Counter()


UDHR = {
    "de": ("German_Deutsch-Latin1", "latin-1"),
    "it": ("Italian_Italiano-Latin1", "latin-1"),
    "pt": ("Portuguese_Portugues-Latin1", "latin-1"),
    "sv": ("Swedish_Svenska-Latin1", "latin-1"),
    "pl": ("Polish-Latin2", "iso8859-2"),
    "el": ("Greek_Ellinika-UTF8", "utf-8"),
    "ru": ("Russian-UTF8", "utf-8"),
}


@needs_datatrove
@pytest.mark.parametrize("language", UDHR)
def test_other_spaced_languages_have_datatroves_words(language: str) -> None:
    from datatrove.utils.text import split_into_words

    from stages.datatrove_definitions import words

    name, encoding = UDHR[language]
    with gzip.open(DATA / "langid" / "udhr" / f"{name}.gz", "rt", encoding=encoding) as file:
        text = file.read()
    assert words(text, language) == split_into_words(text, language)
    assert len(text) > 3000
    for stage in REASONS:
        assert differences(stage, first_rules(stage, [text], language), reasons(stage, [text], language)) == Counter()


@needs_datatrove
def test_the_marks_that_end_lines_are_datatroves() -> None:
    from datatrove.utils.text import TERMINAL_PUNCTUATION

    from stages.datatrove_definitions import TERMINALS

    assert set(TERMINALS) == set(TERMINAL_PUNCTUATION)


@cache
def wcxb() -> list[tuple[str, dict]]:
    """Main texts of the pages that datatrove's stored verdicts are about, with the verdicts, as far as the pages are here."""
    return list(_wcxb())


def _wcxb() -> Iterator[tuple[str, dict]]:
    with gzip.open(DATA / "peer_cases" / "datatrove_verdicts_wcxb_gold.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    for row in rows:
        path = DATA / row["file"]
        path = path if path.exists() else path.with_name(path.name + ".gz")
        if not path.exists():
            continue
        raw = path.read_bytes()
        value = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
        for key in row["field"].split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, str) and len(value) == row["chars"]:
            yield value, row["verdicts"]


@pytest.mark.parametrize("name, key", [("gopher_repetition", "gopher_repetition"), ("fineweb", "fineweb_quality")])
@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_stored_verdicts_of_datatrove_are_given_again(name: str, key: str, every: int) -> None:
    if not wcxb():
        pytest.skip("the pages of html_gold/wcxb are not in the test data")
    pages = wcxb()[::every]
    theirs = [verdict[key].get("reason") for _, verdict in pages]
    assert differences(name, first_rules(name, [text for text, _ in pages]), theirs) == Counter()
    assert [reason is None for reason in theirs] == [verdict[key]["keep"] for _, verdict in pages]
    assert len(pages) > 500 // every
