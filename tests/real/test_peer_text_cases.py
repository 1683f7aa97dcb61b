"""Peers' own cases for URLs, languages, repair and personal data; where we decide otherwise on purpose, the case is named."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stages.language import Language, LanguageOptions
from stages.personal_data import scrub
from stages.repair import repair
from stages.url_filter import UrlFilter, UrlFilterOptions

DATA = Path(os.environ.get("CORPUSMILL_TEST_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
CASES = DATA / "peer_cases"
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason=f"the real data is not there: CORPUSMILL_TEST_DATA ({DATA})")


def cases(name: str, *operations: str) -> list[dict[str, Any]]:
    with gzip.open(CASES / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        found = [case for case in map(json.loads, file) if case["op"] in operations]
    assert found
    return found


def kept(verdict_rule: int) -> str:
    return "keep" if verdict_rule < 0 else "remove"


def test_datatroves_urls() -> None:
    """A listed subdomain covers its own subdomains here, unless the recipe says that it does not."""
    for case in cases("datatrove_filters", "URLFilter"):
        domains = tuple(case["params"]["extra_domains"])
        found = UrlFilter(UrlFilterOptions(domains=domains, subdomains=False)).match(case["input"]["url"])
        assert kept(-1 if found is None else found[0]) == case["expected"], case["input"]["url"]


def language(text: str, options: LanguageOptions) -> tuple[str, str]:
    verdict = Language(options).decide(pa.record_batch({"text": pa.array([text], pa.large_string())}))
    return verdict.columns["language"][0].as_py(), kept(verdict.rule[0])


def test_datatroves_and_dolmas_languages() -> None:
    for case in cases("datatrove_filters", "LanguageFilter"):
        assert language(case["input"], LanguageOptions(keep=tuple(case["params"]["languages"]))) == (
            case["language"],
            case["expected"],
        )
    names = {"ENGLISH": "en", "ITALIAN": "it", "JAPANESE": "ja"}
    for case in cases("dolma", "language taggers (cld2/fasttext/langdetect/lingua)"):
        assert language(case["input"], LanguageOptions()) == (names[case["test"].split("_")[0]], "keep")


PUNCTUATION = "，。、„”“«»１」「《》´∶：？！（）；–—"
"""data-juicer takes this for Chinese; a text without a letter has no language here."""


def test_data_juicers_languages() -> None:
    for case in cases("data_juicer", "LanguageIDScoreFilter"):
        wanted, least = case["params"]["lang"], case["params"]["min_score"]
        if case["input"] == PUNCTUATION:
            assert language(case["input"], LanguageOptions(keep=(wanted,), threshold=least)) == ("und", "remove")
        else:
            assert language(case["input"], LanguageOptions(keep=(wanted,), threshold=least))[1] == case["expected"], case["input"]


def test_repairs() -> None:
    for case in [*cases("datatrove_filters", "FTFYFormatter"), *cases("data_juicer", "FixUnicodeMapper")]:
        repaired = repair(case["input"])[0]
        if case["kind"] == "transform":
            # Quotes stay curly here.
            assert repaired.replace("’", "'") == case["expected"], case["input"]
        elif "text_must_not_contain" in case["expected"]:
            assert case["expected"]["text_must_not_contain"] not in repaired
        else:
            # Entities are left: after extraction they are what the page shows.
            assert case["params"] == {"unescape_html": True} and repaired == case["input"]


def test_masks_of_emails() -> None:
    for case in cases("cs336_assignment4", "mask_emails"):
        assert scrub(case["input"]).replace("<EMAIL>", "|||EMAIL_ADDRESS|||") == case["expected"]["text"]
        assert scrub(case["input"]).count("<EMAIL>") == case["expected"]["count"]


NOT_PUBLIC = {"You can access the server at 192.0.2.146.", "test of ip 234.128.124.123"}
"""Addresses for documentation and for multicast are nobody's."""
TOUCHING = {"ftp://example.com/188.46.244.216my-page.html"}


def test_masks_of_addresses() -> None:
    for case in [*cases("cs336_assignment4", "mask_ips"), *cases("data_juicer", "CleanIpMapper")]:
        text, parameters = case["input"], case.get("params") or {}
        wanted = text if text in NOT_PUBLIC | TOUCHING else case["expected"]
        assert scrub(text).replace("<IP>", parameters.get("repl", "")) == wanted, text
