"""Page bytes become text once, and the letters are the right ones.

`decode` tries, in this order: byte order mark; the transport's label (HTTP); the page's own label (`<meta charset>`, `<meta
http-equiv>`, an XML declaration); detection. A label is a claim and is checked against the bytes:

1. A label *fits* when its encoding decodes every byte, or all but a few (`DAMAGE_*`): a page in UTF-8 with one broken character
   is a page in UTF-8. What cannot be decoded is then U+FFFD, as in a browser.
2. Bytes that are valid UTF-8 throughout, with at least one character beyond ASCII, are UTF-8 whatever single-byte encoding is
   claimed; against the claim of a multi-byte encoding it takes ten such characters, since a few can fit both by chance.
3. `iso-8859-1` from the transport is what servers send when nobody told them; a multi-byte label in the page that fits beats it.
4. A label that does not fit is passed over.

Labels mean what the Encoding Standard of WHATWG says: `iso-8859-1` is windows-1252, `gb2312` is gb18030, `shift_jis` is
windows-31j, `ks_c_5601-1987` is windows-949. Encodings that it leaves out (IBM855, Johab, EBCDIC …) are known by Python's names;
UTF-7 and codecs that are no encodings of text are not.

Detection is chardet 7, chosen by measurement (docs/text-stages.md), and before it a look for MacRoman's apostrophe within a
word of small letters, where every other encoding would have a capital. Text from here never holds a lone surrogate.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import Literal

import chardet

Source = Literal["bom", "transport", "page", "detection"]

DAMAGE_UTF8 = 0.1
"""Broken sequences per valid multi-byte one that a claim of UTF-8 survives: so much structure is no accident."""
DAMAGE_MULTIBYTE = 0.02
"""The same for other multi-byte encodings, in which random bytes often are valid."""
ACCIDENTAL_CHARACTERS = 10
"""So many characters of valid UTF-8 are no accident in a page that claims another multi-byte encoding."""
PAGE_LABEL_BYTES = 16_384
"""Where a page's own label is looked for. The standard says 1,024, browsers read on to the end of the head."""
DETECTION_BYTES = 200_000
BINARY_SHARE = 0.1
"""More control characters than this in the first BINARY_WINDOW bytes are not text."""
BINARY_WINDOW = 4_096


@dataclass(frozen=True)
class Decoded:
    """A page's text, the Python codec that read it, and who named that codec."""

    text: str
    codec: str
    source: Source


def decode(data: bytes, transport: str | None = None) -> Decoded | None:
    """`data` as text, without byte order mark; None when it is text in no known encoding. `transport`: the HTTP charset."""
    for mark, codec in _MARKS:
        if data.startswith(mark):
            text = _fitting(data[len(mark) :], (codec,))
            if text is not None:
                return Decoded(text, codec, "bom")
    if data.isascii():
        return _ascii(data, transport)
    page = page_label(data)
    claims: list[tuple[Source, tuple[str, ...]]] = []
    for source, label in (("transport", transport), ("page", page)):
        found = codecs_of(label) if label else ()
        if found and found[0] not in _EBCDIC and not (found[0] in _WIDE and b"\0" not in data):
            claims.append((source, found))  # type: ignore[arg-type]
    if len(claims) == 2 and claims[0][1] == ("cp1252",) and claims[1][1][0] in _MULTIBYTE:
        claims.reverse()
    utf8 = _utf8(data)
    if utf8 is not None:
        claimed_multibyte = bool(claims) and claims[0][1] != ("utf-8",) and claims[0][1][0] in _MULTIBYTE
        if not claimed_multibyte or len(utf8) - _ascii_count(utf8) >= ACCIDENTAL_CHARACTERS:
            agreeing = next((source for source, names in claims if names == ("utf-8",)), None)
            return Decoded(utf8, "utf-8", agreeing or "detection")
    for source, names in claims:
        for codec in names:
            text = _fitting(data, (codec,))
            if text is not None:
                return Decoded(text, codec, source)
    detected = _detect(data, claims[-1][1] if claims else ())
    return detected


def codecs_of(label: str) -> tuple[str, ...]:
    """The Python codecs to try, in turn, for a charset label as it stands in a header or a page; () when unknown."""
    plain = label.strip(" \t\r\n\f\"';").lower().replace(" ", "-")
    plain = _ALIASES.get(plain) or _ISO_8859.sub(r"iso-8859-\1", plain)
    if plain in _LABELS:
        return _LABELS[plain]
    windows = re.fullmatch(r"(?:x-)?(?:win(?:dows)?|cp|ms)[-_]?(125[0-8])", plain)
    if windows:
        return (f"cp{windows[1]}",)
    for candidate in (plain, plain.removeprefix("x-")):
        try:
            info = codecs.lookup(candidate)
        except (LookupError, ValueError):
            continue
        if info._is_text_encoding and info.name.replace("-", "_") not in _NO_ENCODINGS:
            return _WHATWG.get(info.name, (info.name,))
    return ()


def page_label(data: bytes) -> str | None:
    """The charset a page claims for itself near its start, comments and scripts aside; None when it claims none."""
    head = data[:PAGE_LABEL_BYTES]
    if b"\0" in head[:64]:
        return None
    declaration = _XML_DECLARATION.match(head)
    if declaration and not _HTML.search(head):
        return declaration[1].decode("ascii")
    for tag in _META_OR_ASIDE.finditer(head):
        found = _CHARSET.search(tag[1]) if tag[1] else None
        if found:
            return found[1].decode("ascii")
    return declaration[1].decode("ascii") if declaration else None


def is_binary(data: bytes) -> bool:
    """Is this no text at all? Looks at the start only: control characters, or the marks of a known binary format."""
    window = data[:BINARY_WINDOW]
    controls = len(window.translate(None, _NOT_CONTROLS))
    return controls > BINARY_SHARE * len(window)


def _ascii(data: bytes, transport: str | None) -> Decoded | None:
    """Seven-bit bytes are ASCII unless escape sequences, tildes with a label, or NULs say otherwise."""
    names = codecs_of(transport) if transport else ()
    label = page_label(data) if not names else None
    names = names or (codecs_of(label) if label else ())
    source: Source = "transport" if transport and label is None else "page"
    if b"\0" in data and (detected := _detect(data, ())) is not None:
        return detected
    if is_binary(data) and not _is_padded_page(data):
        return None
    if b"\x1b" in data and not (names and names[0].startswith("iso2022")):
        names = (*names, *(name for name in ("iso2022_jp", "iso2022_kr") if _ESCAPES[name].search(data)))
    for codec in names:
        if codec.startswith("iso2022") or codec == "hz":
            text = _fitting(data, (codec,))
            if text is not None:
                return Decoded(text, codec, source if source == "page" or transport else "detection")
    return Decoded(data.decode("ascii"), "utf-8", "detection")


def _is_padded_page(data: bytes) -> bool:
    """Markup among NULs, as a server leaves it that fills blocks up; a browser passes over the NULs."""
    rest = data.replace(b"\0", b"")
    return _TAG.search(rest) is not None and not is_binary(rest)


def _fitting(data: bytes, names: tuple[str, ...]) -> str | None:
    """`data` in the first of the codecs that it fits, or None."""
    for codec in names:
        if codec in _WIDE and len(data) % _WIDE[codec]:
            data = data[: -(len(data) % _WIDE[codec])]
        try:
            return _clean(data.decode(codec))
        except (UnicodeError, ValueError):
            pass
        if codec not in _MULTIBYTE:
            continue
        text = data.decode(codec, "replace")
        broken = text.count("\ufffd") - (data.count(b"\xef\xbf\xbd") if codec == "utf-8" else 0)
        sound = len(text) - _ascii_count(text) - broken
        # A page cut off in the middle of its last character is whole but for that.
        if text.endswith("\ufffd"):
            broken -= 1
        if broken <= (DAMAGE_UTF8 if codec == "utf-8" else DAMAGE_MULTIBYTE) * sound and sound:
            return _clean(text)
    return None


def _utf8(data: bytes) -> str | None:
    try:
        return _clean(data.decode("utf-8"))
    except UnicodeDecodeError:
        return None


def _detect(data: bytes, claimed: tuple[str, ...]) -> Decoded | None:
    if not data.translate(None, _MAC_PUNCTUATION) and _MAC_APOSTROPHE.search(data):
        return Decoded(data.decode("mac-roman"), "mac-roman", "detection")
    window = data
    if len(data) > DETECTION_BYTES:
        beyond = _BEYOND_ASCII.search(data)
        start = max(0, beyond.start() - DETECTION_BYTES // 10) & ~3 if beyond else 0
        window = data[start : start + DETECTION_BYTES]
    name = chardet.detect(window, compat_names=False, max_bytes=DETECTION_BYTES)["encoding"]
    for codec in codecs_of(name) if name else ():
        text = _fitting(data, (codec,))
        if text is not None and "\0" not in text[:BINARY_WINDOW]:
            return Decoded(text, codec, "detection")
    if name is None or is_binary(data):
        return None
    # Code pages of Windows leave a few bytes undefined; the standard maps them to C1 controls, so every byte has a character.
    for codec in (*claimed, *codecs_of(name), "cp1252"):
        if codec in _HOLED:
            return Decoded(data.decode(codec, "corpusmill-c1"), codec, "detection")
    return None


def _clean(text: str) -> str:
    return text.removeprefix("\ufeff")


def _ascii_count(text: str) -> int:
    return len(text.encode("ascii", "ignore"))


def _c1(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return error.object[error.start : error.end].decode("latin-1"), error.end


codecs.register_error("corpusmill-c1", _c1)

_MARKS = (
    (b"\xff\xfe\0\0", "utf-32-le"),
    (b"\0\0\xfe\xff", "utf-32-be"),
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
_WIDE = {"utf-16-le": 2, "utf-16-be": 2, "utf-32-le": 4, "utf-32-be": 4}
_EBCDIC = frozenset(["cp037", "cp273", "cp424", "cp500", "cp1026", "cp1140"])
"""A label that can be read as ASCII does not stand in a page of these; detection may find them all the same."""
_CHINESE = ("gb18030", "hz", "cp950", "big5hkscs")
_JAPANESE = ("cp932", "euc_jp", "euc_jis_2004", "iso2022_jp")
_KOREAN = ("cp949", "johab", "iso2022_kr")
_MULTIBYTE = frozenset(["utf-8", *_WIDE, *_CHINESE, *_JAPANESE, *_KOREAN])
_HOLED = frozenset(["cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp874"])
_NO_ENCODINGS = frozenset(["utf_7", "idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "mbcs", "oem"])

_WHATWG: dict[str, tuple[str, ...]] = {
    "utf-8-sig": ("utf-8",),
    "utf-16": ("utf-16-le",),
    "utf-32": ("utf-32-le",),
    "ascii": ("cp1252",),
    "iso8859-1": ("cp1252",),
    "iso8859-9": ("cp1254",),
    "iso8859-11": ("cp874",),
    "tis-620": ("cp874",),
    "gb2312": ("gb18030",),
    "gbk": ("gb18030",),
    "shift_jis": ("cp932",),
    "euc_kr": ("cp949",),
    "cp949": ("cp949",),
    # The standard's Big5 is the union of these two, its EUC-JP that of JIS X 0208 and NEC's row 13.
    "big5": ("cp950", "big5hkscs"),
    "cp950": ("cp950", "big5hkscs"),
    "euc_jp": ("euc_jp", "euc_jis_2004"),
}
"""What the Encoding Standard reads where Python's codec of that name is narrower."""

_ISO_8859 = re.compile(r"^(?:cs)?iso8859(\d{1,2})[ei]?$")
_ALIASES = {
    "csisolatin9": "iso-8859-15",
    "csmacintosh": "macintosh",
    "mac": "macintosh",
    "csgb2312": "gb2312",
    "cseuckr": "euc-kr",
    "csksc56011987": "euc-kr",
    "iso-ir-149": "euc-kr",
    "ksc_5601": "euc-kr",
    "unicodefffe": "utf-16be",
    "unicodefeff": "utf-16le",
}
"""Labels of the Encoding Standard that Python does not know, beside those below."""
_LABELS: dict[str, tuple[str, ...]] = {
    "unicode": ("utf-16-le",),
    "csunicode": ("utf-16-le",),
    "iso-10646-ucs-2": ("utf-16-le",),
    "ucs-2": ("utf-16-le",),
    "utf8mb4": ("utf-8",),
    "unicode-1-1-utf-8": ("utf-8",),
    "unicode11utf8": ("utf-8",),
    "unicode20utf8": ("utf-8",),
    "x-unicode20utf8": ("utf-8",),
    "x-user-defined": ("cp1252",),
    "ansi_x3.4-1968": ("cp1252",),
    "iso-8859-8-i": ("iso8859-8",),
    "iso-8859-8-e": ("iso8859-8",),
    "logical": ("iso8859-8",),
    "visual": ("iso8859-8",),
    "iso-8859-6-i": ("iso8859-6",),
    "iso-8859-6-e": ("iso8859-6",),
    "sun_eu_greek": ("iso8859-7",),
    "koi": ("koi8-r",),
    "koi8": ("koi8-r",),
    "koi8-ru": ("koi8-u",),
    "dos-874": ("cp874",),
    "windows-874": ("cp874",),
    "macintosh": ("mac-roman",),
    "x-mac-roman": ("mac-roman",),
    "x-mac-cyrillic": ("mac-cyrillic",),
    "x-mac-ukrainian": ("mac-cyrillic",),
    "ks_c_5601-1989": ("cp949",),
    "korean": ("cp949",),
    "windows-949": ("cp949",),
    "x-sjis": ("cp932",),
    "windows-31j": ("cp932",),
    "x-euc-jp": ("euc_jp", "euc_jis_2004"),
    "cseucpkdfmtjapanese": ("euc_jp", "euc_jis_2004"),
    "chinese": ("gb18030",),
    "gb_2312": ("gb18030",),
    "gb_2312-80": ("gb18030",),
    "x-gbk": ("gb18030",),
    "hz-gb-2312": ("hz",),
    "x-x-big5": ("cp950", "big5hkscs"),
    "cn-big5": ("cp950", "big5hkscs"),
}
"""Labels of the standard (and a few that pages use) that Python does not know, or reads otherwise."""

_XML_DECLARATION = re.compile(rb"""\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']\s*([A-Za-z0-9_:.\-]+)""", re.I)
_HTML = re.compile(rb"<html|<!doctype\s+html", re.I)
_META_OR_ASIDE = re.compile(rb"(<meta\b[^>]*>)|<!--.*?-->|<script\b.*?</script\s*>|<style\b.*?</style\s*>", re.I | re.S)
_CHARSET = re.compile(rb"""charset\s*=\s*["']?\s*([A-Za-z0-9_:.\-]+)""", re.I)
_TAG = re.compile(rb"<[A-Za-z!/][^<>]*>")
_MAC_PUNCTUATION = bytes([*range(0x80), 0xA5, 0xC9, *range(0xD0, 0xD6)])
"""ASCII, and the bullet, ellipsis, dashes and curly quotes of MacRoman: capital letters and signs everywhere else."""
_MAC_APOSTROPHE = re.compile(rb"[a-z]\xd5(?:s|t|d|m|re|ve|ll)\b")
_BEYOND_ASCII = re.compile(rb"[\x80-\xff]")
_ESCAPES = {"iso2022_jp": re.compile(rb"\x1b\$[@B]|\x1b\([IJ]"), "iso2022_kr": re.compile(rb"\x1b\$\)C")}
_NOT_CONTROLS = bytes([0x09, 0x0A, 0x0C, 0x0D, 0x1B, *range(0x20, 0x7F), *range(0x80, 0x100)])
