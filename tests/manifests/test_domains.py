"""One host and one domain for a URL, however it is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.domains import _normal_host, domain_of, host_of, normal_host, parents_of


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://example.org/", "example.org"),
        ("HTTPS://User:p@ss@WWW.Example.ORG:8080/x?y#z", "www.example.org"),
        ("http://example.org.", "example.org"),
        ("//cdn.example.org/a", "cdn.example.org"),
        ("example.org/path", "example.org"),
        ("example.org:8080/", "example.org"),
        ("localhost:9000/x", "localhost"),
        ("http:\\\\example.org\\path", "example.org"),
        ("http://ex%61mple.org", "example.org"),
        ("http://good.org@evil.org/", "evil.org"),
        ("http://evil.org#@good.org/", "evil.org"),
        ("http://evil.org?@good.org/", "evil.org"),
        ("http://münchen.de/", "xn--mnchen-3ya.de"),
        ("http://XN--MNCHEN-3YA.de/", "xn--mnchen-3ya.de"),
        ("http://straße.de", "xn--strae-oqa.de"),
        ("http://例え。テスト/", "xn--r8jz45g.xn--zckzah"),
        ("http://[2001:DB8::1]:80/", "2001:db8::1"),
        ("http://192.0.2.1:80/", "192.0.2.1"),
        ("  http://example.org \n", "example.org"),
        ("http://under_score.example.org", "under_score.example.org"),
        ("http:example.org/x", "example.org"),
        ("https:/example.org", "example.org"),
        ("http:///example.org", "example.org"),
        ("http:\\\\user@example.org", "example.org"),
        ("ht\ttp://exam\nple.o\rrg/\n", "example.org"),
        ("\x00\x1fhttp://example.org", "example.org"),
        ("http://example.org..", "example.org"),
        ("http://example%2Eorg", "example.org"),
        ("http://ｅｘａｍｐｌｅ．ｏｒｇ", "example.org"),
        ("http://example.org:/x", "example.org"),
        ("http://example.org:port/x", "example.org"),
        ("gopher://example.org/x", "example.org"),
        ("http://[2001:0DB8:0:0::0001%25eth0]/", "2001:db8::1"),
        ("http://[::FFFF:192.0.2.1]/", "::ffff:c000:201"),
        ("http://0xC0.0.513/", "192.0.2.1"),
        ("http://3221225985/", "192.0.2.1"),
        ("http://0300.0.02.01/", "192.0.2.1"),
        ("http://192.0.2.1./", "192.0.2.1"),
        ("http://1.0x/", "1.0.0.0"),
        ("http://256.0.0.1/", None),
        ("http://1.2.3.4.5/", None),
        ("http://a.b.09/", None),
        ("http://09/", None),
        ("http://4294967296/", None),
        ("file:///etc/passwd", None),
        ("http:", None),
        ("http:///", None),
        ("http://user@", None),
        ("http://[", None),
        (None, None),
        ("", None),
        ("http://", None),
        ("/only/a/path", None),
        ("word", None),
        ("mailto:a@example.org", None),
        ("javascript:alert(1)", None),
        ("urn:isbn:123", None),
        ("http://a b/", None),
        ("http://[nonsense]/", None),
        ("http://" + "a" * 300 + ".org", None),
    ],
)
def test_the_host_of_a_url(url: str | None, host: str | None) -> None:
    assert host_of(url) == host


@pytest.mark.parametrize(
    ("url", "domain"),
    [
        ("https://www.example.org/", "example.org"),
        ("https://a.b.example.org/", "example.org"),
        ("https://example.co.uk/", "example.co.uk"),
        ("https://www.example.co.uk/", "example.co.uk"),
        ("https://www.example.com.au/", "example.com.au"),
        ("https://com.de/", "com.de"),
        ("https://localhost/", "localhost"),
        ("https://192.0.2.1/", "192.0.2.1"),
        ("https://[2001:db8::1]/", "2001:db8::1"),
        ("nothing", None),
        (None, None),
    ],
)
def test_the_registered_domain_of_a_url(url: str | None, domain: str | None) -> None:
    assert domain_of(url) == domain


def test_a_host_of_a_hundred_thousand_characters_is_none_and_is_not_remembered() -> None:
    before = _normal_host.cache_info().currsize
    assert host_of("http://" + "a." * 50_000 + "org/") is None
    assert host_of("http://example.org/" + "x" * 100_000) == "example.org"
    assert _normal_host.cache_info().currsize <= before + 1


def test_the_parents_of_a_host_end_with_its_last_label() -> None:
    assert list(parents_of("a.b.org")) == ["a.b.org", "b.org", "org"]
    assert list(parents_of("192.0.2.1")) == ["192.0.2.1"]
    assert list(parents_of("2001:db8::1")) == ["2001:db8::1"]


@given(st.text(max_size=60))
def test_any_string_has_a_host_in_normal_form_or_none(url: str) -> None:
    for candidate in (url, f"http://{url}", f"http://{url}/x"):
        host = host_of(candidate)
        if host is not None and ":" not in host:
            assert host.isascii() and normal_host(host) == host
        domain = domain_of(candidate)
        assert (host is None) == (domain is None)
