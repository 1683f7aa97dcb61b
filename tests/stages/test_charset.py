"""Bytes become the right letters, whoever says what about them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.charset import codecs_of, decode, page_label

GERMAN = "Grüße aus Köln: schöne Häuser, große Straßen, fünf Türme."
RUSSIAN = "Привет из Москвы. Это обычная страница на русском языке, и в ней нет ничего особенного."
JAPANESE = "日本語のページです。文字が正しく読めることを確かめます。カタカナも漢字もあります。"
CHINESE = "这是一个普通的中文网页，用来检查文字是否正确。今天天气很好，我们去公园散步。"
TAIWANESE = "這是一個普通的中文網頁，用來檢查文字是否正確。今天天氣很好，我們去公園散步。"
KOREAN = "이것은 보통의 한국어 페이지입니다. 글자가 올바른지 확인합니다."
GREEK = "Αυτή είναι μια συνηθισμένη σελίδα στα ελληνικά, για να δούμε αν διαβάζονται σωστά τα γράμματα."


def page(text: str, label: str | None = None) -> str:
    meta = f'<meta charset="{label}">' if label else ""
    return f"<html><head>{meta}<title>x</title></head><body><p>{text}</p></body></html>"


@pytest.mark.parametrize(
    ("text", "label", "written"),
    [
        (GERMAN, "ISO-8859-1", "latin-1"),
        ("„Grüße“ – 5 €", "iso-8859-1", "cp1252"),
        (RUSSIAN, "windows-1251", "cp1251"),
        (RUSSIAN, "KOI8-R", "koi8-r"),
        (JAPANESE, "Shift_JIS", "cp932"),
        ("①髙﨑～", "shift_jis", "cp932"),
        (JAPANESE, "EUC-JP", "euc_jp"),
        (JAPANESE, "iso-2022-jp", "iso2022_jp"),
        (CHINESE, "gb2312", "gb2312"),
        ("朱镕基 € 㐀", "gb2312", "gb18030"),
        (CHINESE, "GB18030", "gb18030"),
        (TAIWANESE, "Big5", "big5"),
        (KOREAN, "ks_c_5601-1987", "cp949"),
        ("뷁 똠방각하", "euc-kr", "cp949"),
        (GREEK, "windows-1253", "cp1253"),
        (GERMAN, "utf-8", "utf-8"),
    ],
)
def test_letters_are_exact_by_meta_by_transport_and_with_both(text: str, label: str, written: str) -> None:
    for data, transport in [
        (page(text, label).encode(written), None),
        (page(text).encode(written), label),
        (page(text, "utf-8").encode(written), label),
    ]:
        decoded = decode(data, transport)
        assert decoded is not None
        assert text in decoded.text
        assert "\ufffd" not in decoded.text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (GERMAN, "latin-1"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "koi8-r"),
        (JAPANESE, "cp932"),
        (JAPANESE, "euc_jp"),
        (CHINESE, "gb18030"),
        (TAIWANESE, "big5"),
        (KOREAN, "cp949"),
        (GREEK, "cp1253"),
        (GERMAN, "utf-8"),
        (CHINESE, "utf-16-le"),
    ],
)
def test_an_undeclared_page_is_detected(text: str, written: str) -> None:
    decoded = decode(page(text * 3).encode(written))
    assert decoded is not None
    assert text in decoded.text
    assert decoded.source == "detection"


def test_every_order_of_claims_follows_the_rules() -> None:
    # The transport comes first where it fits …
    decoded = decode(page(RUSSIAN, "iso-8859-5").encode("cp1251"), "windows-1251")
    assert decoded is not None and (decoded.codec, decoded.source) == ("cp1251", "transport")
    # … a byte order mark before it …
    decoded = decode(page(GERMAN, "windows-1252").encode("utf-8-sig"), "windows-1252")
    assert decoded is not None and (decoded.codec, decoded.source) == ("utf-8", "bom")
    assert decoded.text.startswith("<html>")
    # … and the server's default gives way to a multi-byte label in the page that fits.
    decoded = decode(page(JAPANESE, "euc-jp").encode("euc_jp"), "iso-8859-1")
    assert decoded is not None and (decoded.codec, decoded.source) == ("euc_jp", "page")


def test_valid_utf8_is_utf8_whatever_single_byte_label_stands_there() -> None:
    decoded = decode(page(GERMAN, "iso-8859-1").encode("utf-8"), "windows-1252")
    assert decoded is not None and decoded.codec == "utf-8" and GERMAN in decoded.text


def test_a_false_claim_of_utf8_is_passed_over() -> None:
    decoded = decode(page(GERMAN, "utf-8").encode("cp1252"), "utf-8")
    assert decoded is not None and GERMAN in decoded.text and decoded.source == "detection"


def test_a_short_text_that_fits_both_keeps_its_multibyte_label() -> None:
    # The four bytes that once made an editor show four boxes: valid GBK and valid UTF-8.
    decoded = decode("联通".encode("gbk"), "gbk")
    assert decoded is not None and decoded.text == "联通"


def test_one_broken_character_does_not_change_the_encoding_of_a_page() -> None:
    data = page(GERMAN * 5, "utf-8").encode().replace("ö".encode(), b"\xc3", 1)
    decoded = decode(data)
    assert decoded is not None and decoded.codec == "utf-8"
    assert decoded.text.count("\ufffd") == 1


def test_a_page_cut_off_within_a_character_keeps_the_rest() -> None:
    for text, codec in [(GERMAN + "ü", "utf-8"), (JAPANESE, "cp932"), (CHINESE, "gb18030")]:
        decoded = decode(text.encode(codec)[:-1], codec)
        assert decoded is not None and decoded.text.startswith(text[:-2])


def test_bytes_that_windows_leaves_undefined_are_no_replacement_characters() -> None:
    decoded = decode(page("It\x92s \x93quoted\x94 caf\xe9 \x9d na\xefve", "iso-8859-1").encode("latin-1"))
    assert decoded is not None
    assert "It’s “quoted” café" in decoded.text and "\ufffd" not in decoded.text


def test_what_is_no_text_is_not_decoded() -> None:
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\1\0\0\0\1\0\x08\x06\0\0\0" + bytes(range(256)) * 4
    assert decode(png) is None
    assert decode(b"\0\1\2\3" * 500) is None
    assert decode(bytes(2_000)) is None


def test_a_page_among_nuls_is_read_and_nuls_among_bytes_are_not() -> None:
    decoded = decode(b"\0" * 600 + b"a" + b"\0" * 400 + page("Plain words.").encode())
    assert decoded is not None and "Plain words." in decoded.text
    assert decode(b"\0" * 600 + b"plain words" + b"\0" * 400) is None
    assert decode((b"\0\1\2\3<p>" + b"\4" * 40) * 20) is None


def test_the_apostrophe_of_a_macintosh_is_told_from_a_capital() -> None:
    decoded = decode(b"Daniel\xd5s Trackpad, \xd2quoted\xd3 \xd1 it\xd5s here")
    assert decoded is not None and decoded.text == "Daniel’s Trackpad, “quoted” — it’s here"
    decoded = decode("NÕES e AÇÕES são palavras; as estações também.".encode("cp1252"))
    assert decoded is not None and decoded.codec == "cp1252"
    # A label that fits is believed.
    decoded = decode(b"<meta charset=iso-8859-1><p>Daniel\xd5s Trackpad")
    assert decoded is not None and "DanielÕs" in decoded.text


def test_nothing_is_an_empty_text() -> None:
    decoded = decode(b"")
    assert decoded is not None and decoded.text == ""


@pytest.mark.parametrize(
    ("label", "same"),
    [
        ("csISOLatin9", "iso-8859-15"),
        ("iso88591", "iso-8859-1"),
        ("iso885910", "iso-8859-10"),
        ("csiso88598i", "iso-8859-8"),
        ("mac", "x-mac-roman"),
        ("csgb2312", "gb2312"),
        ("ksc_5601", "euc-kr"),
        ("unicodefffe", "utf-16be"),
        ("unicodefeff", "utf-16le"),
    ],
)
def test_old_labels_of_the_encoding_standard_are_known(label: str, same: str) -> None:
    assert codecs_of(label) == codecs_of(same)
    assert codecs_of(label)


def test_an_unknown_or_dangerous_label_is_no_claim() -> None:
    for label in ("utf-7", "none", "rot13", "hex", "unicode_escape", "idna", "", "x" * 300, "utf-8\0"):
        assert codecs_of(label) == ()
        decoded = decode(page(GERMAN).encode("utf-8"), label)
        assert decoded is not None and GERMAN in decoded.text


def test_utf16_claimed_for_plain_bytes_is_a_lie() -> None:
    decoded = decode(page(GERMAN, "utf-16").encode("cp1252"), "utf-16")
    assert decoded is not None and GERMAN in decoded.text


@pytest.mark.parametrize(
    ("head", "label"),
    [
        (b"<meta charset=windows-1251>", "windows-1251"),
        (b'<META HTTP-EQUIV="Content-Type" CONTENT="text/html; charset=Shift_JIS">', "Shift_JIS"),
        (b'<?xml version="1.0" encoding="EUC-JP"?><rss>', "EUC-JP"),
        (b"<?xml version='1.0' encoding='utf-8'?><html><meta charset='gb2312'>", "gb2312"),
        (b'<!-- <meta charset="big5"> --><meta charset="utf-8">', "utf-8"),
        (b"<script>var a = '<meta charset=\"big5\">';</script>", None),
        (b"<p>the charset=utf-8 of this page</p>", None),
        (b" " * 20_000 + b"<meta charset=big5>", None),
    ],
)
def test_the_label_of_a_page(head: bytes, label: str | None) -> None:
    assert page_label(head) == label


@given(st.binary(max_size=400), st.sampled_from([None, "utf-8", "gbk", "latin-1", "utf-16", "shift_jis", "iso-2022-jp", "utf-7"]))
def test_any_bytes_give_text_without_surrogates_or_nothing(data: bytes, label: str | None) -> None:
    decoded = decode(data, label)
    if decoded is not None:
        decoded.text.encode("utf-8")


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
def test_utf8_always_comes_back_as_it_was(text: str) -> None:
    decoded = decode(text.encode(), "utf-8")
    assert decoded is not None
    assert decoded.text == text.removeprefix("\ufeff")
