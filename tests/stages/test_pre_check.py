"""What later stages would remove is removed before extraction, and how often that is wrong is measured."""

from __future__ import annotations

import gzip
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from manifests.identity import keyed_hash
from manifests.schemas import RECORDS, empty_rows
from stages.extraction import ExtractionOptions
from stages.language import Language, LanguageOptions
from stages.pre_check import SAMPLE_KEY, PreCheck, PreCheckOptions, upper_bound
from stages.stage import Verdict

ENGLISH = "The harbour was quiet that morning, and the boats lay still under a pale sky while the keeper walked his round. "
GERMAN = "Der Hafen war still an diesem Morgen, und die Boote lagen ruhig unter einem blassen Himmel, während der Wärter ging. "
MENU = "".join(
    f'<li><a href="/{word}">{word}</a></li>' for word in "Startseite Über uns Impressum Datenschutz Kontakt Anmelden".split()
)


def page(text: str, around: str = "") -> bytes:
    body = "".join(f"<p>{text} {number}</p>" for number in range(6))
    return f"<html><head><title>x</title></head><body><ul>{around}</ul><article>{body}</article></body></html>".encode()


def records(
    payloads: list[bytes | None],
    *,
    first: int = 0,
    urls: list[str | None] | None = None,
    media_type: str | None = "text/html",
    charset: str | None = None,
    texts: list[str | None] | None = None,
) -> pa.RecordBatch:
    rows = len(payloads)
    table = empty_rows(
        RECORDS,
        rows,
        component=pa.array(["web"] * rows),
        file=pa.array(["a.warc"] * rows),
        position=pa.array(range(first, first + rows), pa.int64()),
        url=pa.array(urls or [None] * rows, pa.string()),
        payload=pa.array(payloads, pa.large_binary()),
        media_type=pa.array([media_type] * rows, pa.string()),
        charset=pa.array([charset] * rows, pa.string()),
        text=pa.array(texts or [None] * rows, pa.large_string()),
    )
    return table.combine_chunks().to_batches()[0] if rows else pa.RecordBatch.from_pylist([], RECORDS)


def rules(verdict: Verdict) -> list[str | None]:
    return [None if index < 0 else PreCheck.removal_rules[index] for index in verdict.rule]


def decided(options: PreCheckOptions, batch: pa.RecordBatch) -> Verdict:
    stage = PreCheck(options)
    try:
        return stage.decide(batch)
    finally:
        stage.close()


@pytest.fixture(scope="module")
def english() -> Iterator[PreCheck]:
    stage = PreCheck(PreCheckOptions(keep=("en",), min_characters=200, sample=0))
    yield stage
    stage.close()


def test_a_page_in_another_language_is_removed_with_its_label_and_score(english: PreCheck) -> None:
    verdict = english.decide(records([page(ENGLISH), page(GERMAN)]))
    assert rules(verdict) == [None, "pre_check.language"]
    assert verdict.value is not None and verdict.threshold is not None and verdict.detail is not None
    assert 0.9 < verdict.value[1] <= 1 and verdict.threshold[1] == 0.9
    assert (
        verdict.detail[1] is not None and verdict.detail[1].startswith("de in ") and verdict.detail[1].endswith(" running text")
    )
    assert np.isnan(verdict.value[0]) and verdict.detail[0] is None and verdict.columns == {}


def test_menus_in_another_language_do_not_speak_against_a_page(english: PreCheck) -> None:
    assert rules(english.decide(records([page(ENGLISH, MENU * 40)]))) == [None]


def test_running_text_hidden_in_scripts_and_comments_is_not_judged(english: PreCheck) -> None:
    hidden = page(ENGLISH).replace(b"<article>", f"<script>'{GERMAN * 50}'</script><!-- {GERMAN * 50} --><article>".encode())
    assert rules(english.decide(records([hidden]))) == [None]


def test_encodings_and_references_are_undone_before_a_page_is_judged(english: PreCheck) -> None:
    russian = "Гавань была тиха в то утро, и лодки стояли неподвижно под бледным небом. " * 3
    references = "".join(f"&#{ord(character)};" for character in russian)
    assert rules(english.decide(records([page(references), page(ENGLISH)]))) == ["pre_check.language", None]
    cyrillic = page(russian).decode().encode("cp1251")
    assert rules(english.decide(records([cyrillic], charset="windows-1251"))) == ["pre_check.language"]


def test_length_is_decided_at_its_bound_on_what_is_shown() -> None:
    shown = "<p>wörter &amp; wörter</p>\n <p>&nbsp; ende</p>"  # "wörter & wörter ende": 20 characters
    html = f"<html><head><title>a long title is not counted</title></head><body>{shown}<script>nor is this</script></body></html>".encode()
    for least, rule in [(20, None), (21, "pre_check.too_short")]:
        verdict = decided(PreCheckOptions(min_characters=least, sample=0), records([html]))
        assert rules(verdict) == [rule]
    assert verdict.value is not None and verdict.threshold is not None
    assert (verdict.value[0], verdict.threshold[0]) == (20, 21)


def test_by_default_only_pages_that_show_nothing_are_removed() -> None:
    pages: list[bytes | None] = [
        b"",
        b" \n",
        b"<html><body><script>x()</script></body></html>",
        b"<p>&nbsp;&#32;</p>",
        b"<p>x</p>",
    ]
    assert rules(decided(PreCheckOptions(sample=0), records(pages))) == ["pre_check.too_short"] * 4 + [None]


def test_text_that_only_search_engines_are_given_is_not_called_short() -> None:
    data = f'<html><head><script type="application/ld+json">{{"@type": "Article", "articleBody": "{ENGLISH * 4}"}}</script></head><body><p>x</p></body></html>'
    assert rules(decided(PreCheckOptions(min_characters=200, sample=0), records([data.encode()]))) == [None]


def test_urls_are_judged_by_the_lists_of_url_filter(tmp_path: Path) -> None:
    (tmp_path / "domains.txt").write_text("bad.example\n")
    options = PreCheckOptions(domain_list=str(tmp_path / "domains.txt"), words=("casino",), subwords=("jackpot",), sample=1)
    urls: list[str | None] = [
        "http://www.bad.example/x",
        "http://ok.example/casino/",
        "http://ok.example/bigjackpots",
        "http://ok.example/",
        None,
    ]
    verdict = decided(options, records([page(ENGLISH)] * 5, urls=urls))
    assert rules(verdict) == ["pre_check.domain", "pre_check.word", "pre_check.subword", None, None]
    assert verdict.detail == ["bad.example", "casino", "jackpot", None, None]


def test_rows_with_a_text_and_pages_that_extraction_removes_by_name_pass() -> None:
    options = PreCheckOptions(keep=("en",), min_characters=200, extraction=ExtractionOptions(max_bytes=5_000), sample=0)
    batch = records([None, bytes(range(256)) * 10, page(GERMAN * 50)], texts=["kurz", None, None])
    assert rules(decided(options, batch)) == [None, None, None]
    assert rules(decided(options, records([]))) == []


def test_plain_text_is_judged_as_it_stands(english: PreCheck) -> None:
    texts: list[bytes | None] = [GERMAN.encode() * 3, ENGLISH.encode() * 3, b"<p>short</p>"]
    assert rules(english.decide(records(texts, media_type="text/plain"))) == ["pre_check.language", None, "pre_check.too_short"]


def test_a_pair_of_languages_keeps_both_and_an_unknown_label_is_refused() -> None:
    russian = "Гавань была тиха в то утро, и лодки стояли неподвижно под бледным небом. " * 3
    verdict = decided(PreCheckOptions(keep=("de+en",), sample=0), records([page(ENGLISH), page(GERMAN), page(russian)]))
    assert rules(verdict) == [None, None, "pre_check.language"]
    with pytest.raises(ValueError, match="'english' is no label"):
        PreCheck(PreCheckOptions(keep=("english",)))


def disguised(number: int) -> bytes:
    """Shows German running text that extraction leaves out, and an English article of shorter paragraphs that it takes."""
    comments = "".join(f'<div class="comment"><p>{GERMAN} {number} {line}</p></div>' for line in range(40))
    article = "".join(f"<p>{ENGLISH} {number} {line}</p>" for line in range(8))
    return f'<html><body><div id="comments" class="comments">{comments}</div><article>{article}</article></body></html>'.encode()


def test_every_sampled_page_that_later_stages_would_keep_stays_and_is_counted() -> None:
    stage = PreCheck(PreCheckOptions(keep=("en",), sample=1))
    verdict = stage.decide(records([page(GERMAN), disguised(1), page(ENGLISH), disguised(2), b"<html></html>"]))
    summary = stage.summary([stage.report()])
    stage.close()
    assert rules(verdict) == ["pre_check.language", None, None, None, "pre_check.too_short"]
    assert verdict.detail is not None and verdict.value is not None
    assert str(verdict.detail[0]).endswith("; language.unwanted agrees") and verdict.detail[4] == "extraction.empty agrees"
    assert verdict.detail[1] is None and np.isnan(verdict.value[1])
    assert [(row["rule"], row["found"], row["sampled"], row["stayed"]) for row in summary["rules"]] == [
        ("pre_check.too_short", 1, 1, 0),
        ("pre_check.language", 3, 3, 2),
    ]
    assert sorted(summary["stayed"]) == ["web/a.warc#1", "web/a.warc#3"]


def test_a_short_extraction_of_a_sampled_page_agrees_that_it_is_short() -> None:
    stage = PreCheck(PreCheckOptions(min_characters=500, sample=1))
    verdict = stage.decide(records([f"<p>{ENGLISH * 3}</p>".encode()]))
    stage.close()
    assert rules(verdict) == ["pre_check.too_short"] and verdict.detail == ["min_characters agrees"]


def test_the_sample_depends_on_ids_alone_and_not_on_batches() -> None:
    pages: list[bytes | None] = [disguised(number) for number in range(60)]
    options = PreCheckOptions(keep=("en",), sample=0.2)
    sampled = {row for row in range(60) if keyed_hash(SAMPLE_KEY, f"web/a.warc#{row}") < 0.2 * 2**64}
    assert 4 < len(sampled) < 24
    whole = PreCheck(options)
    at_once = rules(whole.decide(records(pages)))
    whole.close()
    assert [row for row in range(60) if at_once[row] is None] == sorted(sampled)
    parts, singly, reports = [PreCheck(options) for _ in range(3)], [], []
    for row in range(60):
        singly += rules(parts[row % 3].decide(records(pages[row : row + 1], first=row)))
    for part in parts:
        reports.append(part.report())
        part.close()
    assert singly == at_once
    expected = whole.summary([whole.report()])
    assert whole.summary(reports) == whole.summary(reports[::-1]) == expected
    assert expected["rules"][1] | {"wrong_at_most": None} == {
        "rule": "pre_check.language",
        "found": 60,
        "sampled": len(sampled),
        "stayed": len(sampled),
        "wrong_at_most": None,
    }


def test_a_summary_without_any_report_says_zero() -> None:
    stage = PreCheck(PreCheckOptions())
    assert stage.report() == {}
    assert stage.summary([])["rules"][0] == {
        "rule": "pre_check.too_short",
        "found": 0,
        "sampled": 0,
        "stayed": 0,
        "wrong_at_most": None,
    }


@pytest.mark.parametrize(
    ("hits", "trials", "bound"),
    # Solutions in p of p - hits/trials = 1.64485 * sqrt(p * (1 - p) / trials), by hand: z²/(n + z²) where there is no hit.
    [(0, 100, 0.026343), (0, 1, 0.730122), (1, 1, 1.0), (5, 100, 0.099161)],
)
def test_the_bound_on_wrong_removals_is_wilsons(hits: int, trials: int, bound: float) -> None:
    found = upper_bound(hits, trials)
    assert found == pytest.approx(bound, abs=5e-4)
    assert found - hits / trials == pytest.approx(1.6448536 * (found * (1 - found) / trials) ** 0.5, abs=1e-6)


def test_what_decides_is_part_of_the_identity() -> None:
    plain, with_language = PreCheck(PreCheckOptions()).identity(), PreCheck(PreCheckOptions(keep=("en",))).identity()
    assert set(plain) == {"url_filter", "extraction"}
    assert with_language == {**plain, "language": f"version {Language.version}", **Language(LanguageOptions()).identity()}
    if importlib.util.find_spec("resiliparse") is not None:
        assert "resiliparse" in PreCheck(PreCheckOptions(extraction=ExtractionOptions(engine="resiliparse"))).identity()


def test_a_large_page_of_markup_is_judged_in_little_time_and_the_right_way(english: PreCheck) -> None:
    huge = b"<div>" * 1_000_000 + page(GERMAN)
    assert rules(english.decide(records([huge, gzip.compress(b"x" * 10_000)]))) == ["pre_check.language", None]
