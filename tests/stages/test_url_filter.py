"""URLs are filtered by domain, word and address, however they are written."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from manifests.domains import host_of
from stages import url_filter
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
        ("http://bad.org./", True),
        ("HTTP:bad.org", True),
        ("http:/bad.org/x", True),
        ("http:\\\\bad.org\\x", True),
        ("http://b%61d.org/", True),
        ("http://bad%2eorg/", True),
        ("ht\ttp://ba\nd.org/", True),
        (" http://bad.org", True),
        ("//bad.org", True),
        ("http://good.org\\@bad.org/", False),
        ("http://0xC0.0.519/", True),
        ("http://[2001:DB8:0::1]:80/", True),
        ("http://[2001:db8::2]/", False),
        ("http://bad.org:8080?x", True),
        ("http://bad.org#x", True),
        ("http://xn--mller-kva.de./x", True),
        ("ftp://bad.org/" + "x" * 100_000, True),
        ("http://" + "a." * 50_000 + "bad.org/", False),
    ],
)
def test_a_domain_covers_its_subdomains_and_nothing_else(url: str, removed: bool) -> None:
    options = UrlFilterOptions(domains=("Bad.org", "müller.de", "*.ads.example", "192.0.2.7", "[2001:db8::1]"))
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


def test_soft_words_remove_when_several_different_ones_are_in_the_url() -> None:
    options = UrlFilterOptions(soft_words=("hot", "live cam", "girls", "HOT"))
    assert decide(
        options, "http://a.org/hot/x", "http://hot.org/girls", "http://a.org/live-cam/hot", "http://a.org/hot/hot"
    ).detail == [
        None,
        "girls, hot",
        "hot, live cam",
        None,
    ]
    assert rule(options, "http://hot.org/girls") == "url_filter.soft_words"
    three = UrlFilterOptions(soft_words=("hot", "live cam", "girls"), soft_word_threshold=3)
    assert rule(three, "http://hot.org/girls") is None
    assert rule(three, "http://hot.org/girls?live&x=cam") is None
    assert rule(three, "http://hot.org/girls?live_cam") == "url_filter.soft_words"


def test_subwords_remove_wherever_they_are_in_the_letters_and_digits() -> None:
    options = UrlFilterOptions(subwords=("porn", "Sex-Shop", "über"))
    for url in ("http://freeporn4u.org/", "http://a.org/p-o/r.n", "http://a.org/?q=MYSEXSHOP", "http://a.org/%C3%9CBERALL"):
        assert rule(options, url) == "url_filter.subword"
    assert decide(options, "http://a.org/p-o/r.n").detail == ["porn"]
    for url in ("http://a.org/por", "http://a.org/n/porno"[:16], "http://sex.org/", "http://porn:porn@a.org/"):
        assert rule(options, url) is None


def test_rules_are_tried_in_their_order() -> None:
    everything = UrlFilterOptions(
        domains=("bad.org",), urls=("http://a.org/x",), words=("x",), soft_words=("y", "z"), subwords=("yz",)
    )
    urls = (
        "http://bad.org/x/y/z",
        "http://a.org/x",
        "http://b.org/x/y/z",
        "http://b.org/y/z",
        "http://b.org/ayza",
        "http://b.org/",
    )
    found = decide(everything, *urls)
    assert [None if index < 0 else UrlFilter.removal_rules[index] for index in found.rule] == [*UrlFilter.removal_rules, None]


def test_a_listed_subdomain_can_stand_for_itself_alone() -> None:
    options = UrlFilterOptions(domains=("blocked.com", "bad.nice.com", "x.co.uk", "192.0.2.7"), subdomains=False)
    for url in (
        "https://blocked.com/a",
        "http://hey.blocked.com/",
        "https://bad.nice.com/",
        "http://www.x.co.uk",
        "http://192.0.2.7",
    ):
        assert rule(options, url) == "url_filter.domain"
    for url in ("https://nice.com/", "https://very.bad.nice.com/", "http://co.uk/"):
        assert rule(options, url) is None


_HOST = st.sampled_from(
    ["a.org", "bad.org", "www.bad.org", "BAD.org", "xn--bcher-kva.example", "192.0.2.7", "a..org", "-a.org", "a"]
)
_URL = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["http://", "https://", "HTTP://", "http:", "//", "", "ftp://u:p@", "x://", "http://\t"]),
        st.one_of(_HOST, st.text("ab.-%:[]@0", max_size=12)),
        st.sampled_from(["", ":80", ":", ":x", "."]),
        st.text(st.sampled_from("ab.%/?#&=-_\\ @é😀porn\n"), max_size=20),
    ),
)


@given(_URL)
@example("http://" + "a" * 64 + ".org")
@example("http://" + "a." * 127 + "org")
@example("http://a.org:80")
@example("http://a.org\n")
def test_a_url_read_at_a_glance_is_read_as_any_other(url: str) -> None:
    parts = url_filter._PLAIN.match(url)
    if parts is not None:
        assert parts[1] == host_of(url)
        assert url_filter._page_of(parts[1], parts[2]) == url_filter._page(url)
        if url.isascii() and "%" not in url:
            glance = url_filter._ASCII_WORD.findall(parts[1] + parts[2].lower())
            assert glance == url_filter._WORD.findall(url_filter._spoken(url, parts[1]))


LISTS = {"words": ("bad", "porn"), "soft_words": ("a", "b"), "subwords": ("ab", "orn")}


@given(st.text(st.sampled_from("abporn/-?=."), max_size=30))
def test_words_soft_words_and_subwords_are_fineweb_s(path: str) -> None:
    """datatrove's definitions, on URLs whose case, encoding and scheme say nothing."""
    url = f"http://x.net/{path}"
    words = set(re.split("[^a-zA-Z0-9]+", url))
    theirs = None
    if words & set(LISTS["words"]):
        theirs = "url_filter.word"
    elif len(words & set(LISTS["soft_words"])) >= 2:
        theirs = "url_filter.soft_words"
    elif any(subword in re.sub("[^a-zA-Z0-9]+", "", url) for subword in LISTS["subwords"]):
        theirs = "url_filter.subword"
    assert rule(UrlFilterOptions(**LISTS), url) == theirs


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
    verdict = decide(options, None, "", "http://", "not a url", "%%%", "http://[/", "http:", "x" * 100_000, "%" * 100_000, "\0")
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


def test_a_line_of_a_hosts_file_may_hold_names_and_a_comment(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("0.0.0.0 one.example two.example # news\n::1 three.example\t#x\nfour.example # site\n! see org\n", "utf-8")
    options = UrlFilterOptions(domain_list=str(path))
    for host in ("one.example", "two.example", "three.example", "four.example"):
        assert rule(options, f"http://{host}/") == "url_filter.domain"
    for host in ("a.news", "good.site", "good.org"):
        assert rule(options, f"http://{host}/") is None


def test_a_list_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "list.bin").write_bytes(b"good.org\n\xff\xfe\n")
    with pytest.raises(ValueError, match=r"list\.bin: not UTF-8 text, at byte 9"):
        UrlFilter(UrlFilterOptions(domain_list=str(tmp_path / "list.bin")))
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"good.org\n" * 9)[:-9])
    with pytest.raises(ValueError, match=r"cut\.gz: cannot be unpacked"):
        UrlFilter(UrlFilterOptions(domain_list=str(tmp_path / "cut.gz")))


def test_a_list_in_a_form_that_names_no_domain_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "adblock.txt"
    path.write_text("! a list for browsers\n||bad.org^\n||worse.org^\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"adblock\.txt: no line of it is a domain"):
        UrlFilter(UrlFilterOptions(domain_list=str(path)))
    path.write_text("# nothing yet\n", encoding="utf-8")
    assert rule(UrlFilterOptions(domain_list=str(path)), "http://bad.org/") is None


@pytest.mark.parametrize("option", ["words", "soft_words", "subwords"])
def test_a_word_that_can_never_be_found_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}: '--' has neither letter nor digit"):
        UrlFilter(UrlFilterOptions(**{option: ("good", "--")}))


def test_a_domain_in_the_recipe_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="is no domain"):
        UrlFilter(UrlFilterOptions(domains=("good.org", "not a domain!")))


def test_a_list_is_looked_up_and_not_searched(tmp_path: Path) -> None:
    """Two hundred thousand domains, some in other forms; each is found, and nothing else."""
    lines = [f"site-{number}.example" for number in range(200_000)] + ["*.wild.example", "BIG.example", "192.0.2.1", "bad entry!"]
    (tmp_path / "list.txt").write_text("\n".join(lines), encoding="utf-8")
    stage = UrlFilter(UrlFilterOptions(domain_list=str(tmp_path / "list.txt")))
    assert len(stage.domains) == 200_003
    for host in ("site-0.example", "a.site-199999.example", "a.wild.example", "big.example", "192.0.2.1"):
        assert stage.match(f"http://{host}/") is not None
    for host in ("site-200000.example", "example", "entry", "site-0.example.org"):
        assert stage.match(f"http://{host}/") is None
