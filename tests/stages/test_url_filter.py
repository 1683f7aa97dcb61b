"""URLs are filtered by domain, word and address, however they are written."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from stages.stage import Verdict
from stages.url_filter import UrlFilter, UrlFilterOptions


def decide(options: UrlFilterOptions, *urls: str | None) -> Verdict:
    return UrlFilter(options).decide(pa.record_batch({"url": pa.array(urls, pa.string())}))


def rule(options: UrlFilterOptions, url: str | None) -> str | None:
    index = int(decide(options, url).rule[0])
    return None if index < 0 else UrlFilter.removal_rules[index]


@pytest.mark.parametrize(
    ("url", "removed"),
    [
        ("http://bad.org/", True),
        ("http://www.bad.org/x", True),
        ("https://a.b.bad.org:8443/x", True),
        ("https://user:secret@BAD.org/", True),
        ("bad.org/x", True),
        ("http://notbad.org/", False),
        ("http://bad.org.example.com/", False),
        ("http://example.com/bad.org", False),
        ("http://example.com/?u=bad.org", False),
        ("http://bad.org@example.com/", False),
        ("http://müller.de/", True),
        ("http://www.xn--mller-kva.de/", True),
        ("http://a.ads.example/", True),
        ("http://other.example/", False),
        ("http://192.0.2.7/x", True),
        ("http://192.0.2.70/x", False),
    ],
)
def test_a_domain_covers_its_subdomains_and_nothing_else(url: str, removed: bool) -> None:
    options = UrlFilterOptions(domains=("Bad.org", "müller.de", "*.ads.example", "192.0.2.7"))
    assert rule(options, url) == ("url_filter.domain" if removed else None)


def test_the_detail_is_the_entry_that_matched() -> None:
    verdict = decide(
        UrlFilterOptions(domains=("bad.org",), words=("casino",)), "http://x.bad.org/", "http://a.org/Casino", "http://a.org/"
    )
    assert verdict.detail == ["bad.org", "casino", None]


@pytest.mark.parametrize(
    ("url", "removed"),
    [
        ("http://a.org/sex/", True),
        ("http://a.org/SEX.html", True),
        ("http://sex.org/", True),
        ("http://a.org/x?q=sex", True),
        ("http://a.org/%73ex", True),
        ("http://a.org/essex/", False),
        ("http://sussex.org/", False),
        ("http://a.org/live-cam-4", True),
        ("http://a.org/live_cam", True),
        ("http://a.org/live/x/cam", False),
        ("http://a.org/glücksspiel", True),
        ("http://a.org/gl%C3%BCcksspiel", True),
        ("http://sex:cam@a.org/", False),
    ],
)
def test_words_are_matched_between_boundaries(url: str, removed: bool) -> None:
    options = UrlFilterOptions(words=("sex", "Live Cam", "Glücksspiel"))
    assert rule(options, url) == ("url_filter.word" if removed else None)


def test_exact_urls_ignore_what_does_not_name_a_page() -> None:
    options = UrlFilterOptions(urls=("https://www.example.org/page/",))
    for url in ("http://example.org/page", "https://EXAMPLE.org:443/page#top", "https://u:p@www.example.org/page/"):
        assert rule(options, url) == "url_filter.url"
    for url in ("http://example.org/page/2", "http://example.org/Page", "http://example.org/page?x=1", "http://example.org/"):
        assert rule(options, url) is None


def test_the_detail_of_an_exact_url_shows_no_query() -> None:
    verdict = decide(UrlFilterOptions(urls=("http://example.org/p?token=secret",)), "http://example.org/p?token=secret")
    assert verdict.detail == ["example.org/p"]


def test_a_missing_or_broken_url_is_kept() -> None:
    options = UrlFilterOptions(domains=("bad.org",), words=("casino",), urls=("http://a.org/",))
    verdict = decide(options, None, "", "http://", "not a url", "%%%", "http://[/")
    assert (verdict.rule == -1).all()
    assert rule(options, "file casino.html") == "url_filter.word"


def test_no_list_removes_nothing() -> None:
    assert rule(UrlFilterOptions(), "http://bad.org/") is None


def test_lists_come_from_files_plain_and_packed(tmp_path: Path) -> None:
    lines = "# a comment\n\nbad.org\r\n0.0.0.0 hosts.example\nhttps://url.example/path\nbücher.example\n"
    (tmp_path / "plain.txt").write_text(lines, encoding="utf-8-sig")
    (tmp_path / "packed.gz").write_bytes(gzip.compress(lines.encode()))
    for name in ("plain.txt", "packed.gz"):
        options = UrlFilterOptions(domain_list=str(tmp_path / name))
        for url in ("http://bad.org", "http://a.hosts.example", "http://url.example", "http://xn--bcher-kva.example"):
            assert rule(options, url) == "url_filter.domain"
        assert rule(options, "http://comment/") is None


def test_a_list_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "list.bin").write_bytes(b"good.org\n\xff\xfe\n")
    with pytest.raises(ValueError, match=r"list\.bin: not UTF-8 text, at byte 9"):
        UrlFilter(UrlFilterOptions(domain_list=str(tmp_path / "list.bin")))


def test_a_domain_in_the_recipe_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="is no domain"):
        UrlFilter(UrlFilterOptions(domains=("good.org", "not a domain!")))
