"""The cheap text of a page: what a browser shows, and what of it is running text."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stages.visible_text import KINDS, visible_text
from tests.stages import plain_visible_text as plain

SENTENCE = "The harbour was quiet that morning, and the boats lay still under a pale sky."


def shown(page: str) -> str:
    return visible_text(page.encode())[0].decode()


def running(page: str) -> str:
    return visible_text(page.encode())[1].decode()


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("", ""),
        ("plain", "plain"),
        ("  two \n words ", "two words"),
        ("<p>one</p><p>two", "one\ntwo"),
        ("a<b>b</b>c <i> d </i>e", "abc d e"),
        ("<P CLASS=x>Shouted</P >", "Shouted\n"),
        ("<script>if (a < b) document.write('</p>')</script>after", "after"),
        ("<STYLE>p > a { }</style><title>T</TITLE>after", "after"),
        ("<script>never closed", ""),
        ("<!-- a > b -->after<!---->and<!-->so<!--->on", "afterandsoon"),
        ("<!-- never closed > shown", "shown"),
        ("<!doctype html><?xml version='1.0'?>after", "after"),
        ("<a title='x > y' href=\"a>b\">link</a>", "link"),
        ("<a title='never closed>shown", "shown"),
        ("<a href=a>b'c>link</a>", "b'c>link"),
        ("1 < 2, 3 <4, a <", "1 < 2, 3 <4, a <"),
        ("</ no tag>after</>and", "afterand"),
        ("&amp; &lt;p&gt;", "&amp; &lt;p&gt;"),
        ("<noscript>shown</noscript><template>too</template>", "shown\ntoo"),
        ("<scripts>shown</scripts>", "shown"),
        ("Grüße <b>aus</b> 東京", "Grüße aus 東京"),
    ],
)
def test_what_is_shown(page: str, text: str) -> None:
    assert shown(page) == text


def test_running_text_is_long_blocks_outside_links_and_navigation() -> None:
    assert running(f"<p>{SENTENCE}</p><p>Short.</p>") == f"{SENTENCE}\n"
    assert running(f"<li><a href=x>{SENTENCE}</a></li>") == ""
    assert running(f"<p>{SENTENCE} <a href=x>{SENTENCE[:40]}</a></p>") != ""
    for name in ("nav", "footer", "aside", "select", "button"):
        page = f"<{name}><div>{SENTENCE}</div></{name}><p>After: {SENTENCE}</p>"
        assert running(page) == f"After: {SENTENCE}\n"
        assert shown(page) == f"{SENTENCE}\nAfter: {SENTENCE}\n"
    assert running(SENTENCE) == SENTENCE


PIECES = st.one_of(
    st.sampled_from(sorted(KINDS)).map(lambda name: f"<{name}>"),
    st.sampled_from(sorted(KINDS)).map(lambda name: f"</{name}>"),
    st.sampled_from(sorted(KINDS)).map(lambda name: f"<{name.upper()} a = 'x>' b=\"'\" c=d/>"),
    st.sampled_from(
        [
            "<",
            ">",
            "</",
            "<!--",
            "-->",
            "<!",
            "<?",
            "'",
            '"',
            "=",
            "/",
            "-",
            " ",
            "\n",
            "&amp;",
            "<script",
            "<a b=",
            "x" * 70,
            "</scr",
        ]
    ),
    st.text(max_size=30),
)


@given(st.lists(PIECES, max_size=30).map("".join))
@example("<a b=")
@example("<!--" * 3 + ">" + "-->")
@example("<!-")
@example("<p " + "'" * 3 + "=" * 3 + "''>x")
def test_the_compiled_loop_and_its_plain_twin_agree(page: str) -> None:
    assert visible_text(page.encode("utf-8", "replace")) == plain.visible_text(page.encode("utf-8", "replace"))


@given(st.binary(max_size=200))
def test_they_agree_on_any_bytes(page: bytes) -> None:
    assert visible_text(page) == plain.visible_text(page)


@pytest.mark.parametrize("piece", [b"<!--", b"<a b='", b'<a b="', b"<script>", b"<svg>", b"</", b"<", b"<p", b"<a b="])
def test_a_million_of_anything_unclosed_takes_no_square_of_it(piece: bytes) -> None:
    """Twenty megabytes; with the square of it this test would not end."""
    visible_text(piece * (20_000_000 // len(piece)))
