"""Charset, repair, language, extraction and personal data on real pages and texts."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fasttext
import ftfy
import pyarrow as pa
import pytest

from stages.charset import decode
from stages.extraction import Extraction, ExtractionOptions, _page
from stages.language import Language, LanguageOptions, shipped_model
from stages.personal_data import scrub
from stages.repair import ENCODING_ONLY, Repair, RepairOptions, repair

DATA = Path(os.environ.get("CORPUSMILL_TEST_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"the real data is not there: CORPUSMILL_TEST_DATA ({DATA})")


def rows(name: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / name, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def letters(text: str) -> str:
    return "".join(filter(str.isalpha, text))


def charset_cases() -> list[tuple[dict[str, Any], bytes]]:
    return [(row, (DATA / "charset" / row["path"]).read_bytes()) for row in rows("charset/labels.jsonl.gz")]


def test_pages_in_legacy_encodings_have_exact_letters() -> None:
    """Labels are Python's; the Encoding Standard reads some punctuation of the same bytes otherwise, but no letter."""
    wrong = []
    for row, data in charset_cases():
        decoded = decode(data)
        if row["label"] is None:
            assert decoded is None, row["path"]
            continue
        if decoded is None or letters(decoded.text) != letters(data.decode(row["label"])):
            wrong.append(row["path"])
        if decoded is not None:
            assert "\ufffd" not in decoded.text, row["path"]
    assert wrong == []


def test_the_transports_label_gives_exact_letters_without_detection() -> None:
    for row, data in charset_cases():
        if row["label"] and not data.isascii():
            decoded = decode(data, row["label"])
            assert decoded is not None
            assert letters(decoded.text) == letters(data.decode(row["label"])) or decoded.codec == "utf-8", row["path"]


def test_short_undeclared_sentences_are_detected() -> None:
    encodings = {
        "ru": "cp1251",
        "uk": "koi8-u",
        "de": "cp1252",
        "pl": "iso8859-2",
        "cs": "cp1250",
        "el": "iso8859-7",
        "he": "cp1255",
    }
    encodings |= {"ar": "cp1256", "tr": "cp1254", "th": "cp874", "ja": "euc_jp", "zh": "gb18030", "ko": "cp949"}
    right: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for row in rows("langid/lingua_sentences.jsonl.gz"):
        encoding = encodings.get(row["label"])
        if encoding is None or seen[encoding] == 40:
            continue
        try:
            data = row["text"].encode(encoding)
        except UnicodeEncodeError:
            continue
        if not data.isascii():
            seen[encoding] += 1
            decoded = decode(data)
            right[encoding] += decoded is not None and decoded.text == row["text"]
    assert set(seen.values()) == {40}
    assert sum(right.values()) >= 0.95 * sum(seen.values()), right


def test_ftfys_cases_are_repaired_as_its_authors_expect() -> None:
    for name in ("in-the-wild", "language-names", "negative", "synthetic"):
        for row in rows(f"mojibake/ftfy_{name}.jsonl.gz"):
            right = row.get("fixed-encoding", row["fixed"])
            assert (repair(row["original"])[0] == right) == (row["expect"] == "pass"), row["label"]


def test_the_gate_misses_nothing_on_real_mojibake() -> None:
    for row in rows("mojibake/in_the_wild.jsonl.gz"):
        assert repair(row["text"])[0] == ftfy.fix_text(row["text"], ENCODING_ONLY)


def clean_texts() -> Iterator[tuple[str, str]]:
    """Books, news, reviews, web pages and sentences; `garbage` is bytes that a crawler took for text."""
    for folder in ("text", "langid"):
        for path in sorted((DATA / folder).rglob("*")):
            if path.is_file() and "garbage" not in path.parts and "NOTICE" not in path.name:
                try:
                    text = read(path).decode("utf-8-sig")
                except UnicodeDecodeError:
                    continue
                if folder == "langid" and path.name.endswith(".jsonl.gz"):
                    records = [json.loads(line) for line in text.split("\n") if line]
                    yield from ((path.name, value) for record in records for value in record.values() if isinstance(value, str))
                else:
                    yield path.name, text


def test_clean_texts_stay_byte_for_byte() -> None:
    names, texts = zip(*clean_texts(), strict=True)
    column = pa.array(texts, pa.large_string())
    verdict = Repair(RepairOptions()).decide(pa.record_batch({"text": column}))
    repaired = verdict.columns["text"].to_pylist()
    changed = [row for row, (before, after) in enumerate(zip(texts, repaired, strict=True)) if before != after]
    assert changed == verdict.edits.rows
    # Some hundred of lingua's sentences come from pages that were decoded wrongly, and the repair is right: each holds a C1
    # control, or becomes shorter by UTF-8 that is read as such.
    for row in changed:
        assert names[row] == "lingua_sentences.jsonl.gz"
        assert re.search("[\x80-\x9f]", texts[row]) or len(repaired[row]) < len(texts[row])
    assert len(changed) <= 329
    assert sum(map(len, texts)) > 50_000_000


def test_the_language_of_sentences() -> None:
    stage = Language(LanguageOptions())
    right: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for row in rows("langid/lingua_sentences.jsonl.gz")[::10]:
        seen[row["label"]] += 1
        right[row["label"]] += stage.predict(row["text"])[0][0] == row["label"]
    for label in ("en", "de", "fr", "es", "ru", "zh", "ja", "ko", "ar", "hi", "th", "el", "he", "pl", "it", "nl"):
        assert right[label] >= 0.9 * seen[label], (label, right[label], seen[label])


def test_labels_and_scores_are_those_of_fasttext() -> None:
    library = fasttext.load_model(shipped_model())
    stage = Language(LanguageOptions(threshold=0))
    texts = [row["text"] for kind in ("sentences", "word-pairs") for row in rows(f"langid/lingua_{kind}.jsonl.gz")[::20]]
    for path in sorted((DATA / "text" / "gutenberg").rglob("*-0.txt*"))[:8]:
        book = read(path).decode("utf-8-sig")
        texts += [book[start : start + 4300] for start in range(0, len(book), 43_000)]
    verdict = stage.decide(pa.record_batch({"text": pa.array(texts, pa.large_string())}))
    labels, scores = verdict.columns["language"].to_pylist(), verdict.columns["language_score"].to_pylist()
    judged = 0
    for text, label, score in zip(texts, labels, scores, strict=True):
        if any(map(str.isalpha, text)):
            [(theirs, name)] = library.f.predict(text.replace("\n", " ") + "\n", 1, 0.0, "strict")
            assert name == f"__label__{label}" and score == pytest.approx(min(theirs, 1.0), rel=5e-7), text
            judged += 1
    assert judged > 4000


def test_a_sample_of_a_text_has_the_language_of_the_text() -> None:
    generator = random.Random(0)
    by_language: dict[str, list[str]] = {}
    for row in rows("langid/lingua_sentences.jsonl.gz"):
        by_language.setdefault(row["label"], []).append(row["text"])
    texts = ["\n".join(generator.choices(sentences, k=30)) for sentences in by_language.values() for _ in range(3)]
    batch = pa.record_batch(
        {
            "component": pa.array(["langid"] * len(texts)),
            "file": pa.array(["lingua"] * len(texts)),
            "position": pa.array(range(len(texts)), pa.int64()),
            "text": pa.array(texts, pa.large_string()),
        }
    )
    stage = Language(LanguageOptions(sample_characters=1000, compare=1))
    stage.decide(batch)
    counts = stage.report()
    assert counts["documents"] == len(texts) and counts["compared"] == counts["sampled"] > 0.9 * len(texts)
    assert counts["other_label"] <= 0.06 * len(texts) and counts["other_verdict"] <= 0.06 * len(texts), counts


def test_chinese_with_english_terms_is_chinese() -> None:
    mixed = [row["code_mixed"] for row in rows("langid/codemix_zh_en/chiengmix_sentences.jsonl.gz")]
    verdict = Language(LanguageOptions(keep=("zh", "zh+en"))).decide(
        pa.record_batch({"text": pa.array(mixed, pa.large_string())})
    )
    assert (verdict.rule == -1).mean() > 0.99


def gold_pages(step: int) -> list[Path]:
    return [path for path in sorted((DATA / "html_gold").rglob("*.htm*")) if path.is_file()][::step]


def test_real_pages_are_extracted_without_an_error() -> None:
    stage = Extraction(ExtractionOptions(fast=True))
    pages = [_page(read(path), "text/html", None) for path in gold_pages(20)]
    outcomes = stage.sandbox.run(pages)
    stage.close()
    assert [outcome.detail for outcome in outcomes if outcome.result is None] == []
    extracted = [outcome.result for outcome in outcomes if outcome.result is not None and outcome.result[:1] == b"t"]
    assert len(extracted) > 0.9 * len(pages)


def test_order_and_company_do_not_change_a_pages_text() -> None:
    stage = Extraction(ExtractionOptions())
    pages = [_page(read(path), "text/html", None) for path in gold_pages(150)]
    once = stage.sandbox.run(pages)
    again = stage.sandbox.run(pages[::-1] + pages)
    stage.close()
    assert again == once[::-1] + once


def test_books_hold_no_phone_numbers_and_addresses() -> None:
    """Novels of the nineteenth century: all that is personal in them is their publisher's address on the last pages."""
    for path in sorted((DATA / "text" / "gutenberg").rglob("*-0.txt*"))[:8]:
        scrubbed = scrub(read(path).decode("utf-8-sig"))
        assert scrubbed.count("<PHONE>") == scrubbed.count("UT 84116, <PHONE>"), path
        assert "<IP>" not in scrubbed, path
