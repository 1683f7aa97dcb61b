"""Personal data in texts becomes a placeholder: `<EMAIL>`, `<PHONE>`, `<IP>`. Nothing is removed.

- E-mail addresses: a local part of at most 64 characters, a dotted domain that ends in letters; `logo@2x.png` is a file.
- IP addresses: public IPv4 and global unicast IPv6 (2000::/3), by Python's `ipaddress`; private, reserved, multicast and
  documentation ranges stay, and so do version and section numbers (`Chrome/91.0.1.2`, `version 4.2.1.7`).
- Phone numbers: international ones (`+` or `00`, a calling code in use, 7 to 12 digits after it), the national forms that
  `_NATIONAL` lists, and any number of 7 to 15 digits right after a word such as `Tel.`, `phone`, `电话`. Numbers that
  `order no.`, `ISBN`, `DOI` or the like stands before are no phones. Precision comes first: a bare run of digits stays.

A match is replaced whatever it says, so equal texts stay equal, and applying `scrub` twice changes nothing more.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import ClassVar

import pyarrow as pa
from pydantic import Field

from stages.stage import Options, Stage, Verdict

EMAIL, PHONE, IP = "<EMAIL>", "<PHONE>", "<IP>"


def scrub(text: str) -> str:
    """`text` with every kind of personal data replaced."""
    for replace in (replace_emails, replace_addresses, replace_phones):
        text, _ = replace(text)
    return text


def scrub_url(url: str | None) -> str | None:
    """`url` as logs may show it: credentials, path parameters, query and fragment cut off, e-mail addresses replaced."""
    if url is None:
        return None
    bare = _URL_TAIL.sub("", url)
    bare = _CREDENTIALS.sub(r"\1", bare)
    return replace_emails(_ENCODED_AT.sub("@", bare))[0]


class PersonalDataOptions(Options):
    emails: bool = True
    phones: bool = True
    addresses: bool = Field(True, description="public IPv4 and IPv6 addresses")


class PersonalData(Stage[PersonalDataOptions]):
    name = "personal_data"
    version = 1
    options_type: ClassVar[type[Options]] = PersonalDataOptions
    columns = ("text",)

    def __init__(self, options: PersonalDataOptions) -> None:
        super().__init__(options)
        chosen: list[tuple[bool, str, Callable[[str], tuple[str, int]]]] = [
            (options.emails, "personal_data.email", replace_emails),
            (options.addresses, "personal_data.ip", replace_addresses),
            (options.phones, "personal_data.phone", replace_phones),
        ]
        self.replacements = [(rule, replace) for wanted, rule, replace in chosen if wanted]

    def decide(self, batch: pa.RecordBatch) -> Verdict:
        verdict = Verdict.keep_all(batch.num_rows)
        texts: list[str] = batch["text"].to_pylist()
        for row, text in enumerate(texts):
            for rule, replace in self.replacements:
                text, count = replace(text)
                verdict.edits.add(row, rule, count)
            texts[row] = text
        if verdict.edits.rows:
            verdict.columns["text"] = pa.array(texts, pa.large_string())
        return verdict


def replace_emails(text: str) -> tuple[str, int]:
    """`text` with e-mail addresses replaced, and how many there were."""
    if "@" not in text:
        return text, 0
    count = 0

    def placeholder(match: re.Match[str]) -> str:
        nonlocal count
        if match["end"].lower() in _FILE_ENDINGS:
            return match[0]
        count += 1
        return EMAIL

    return _EMAIL.sub(placeholder, text), count


def replace_addresses(text: str) -> tuple[str, int]:
    """`text` with public IP addresses replaced, and how many there were."""
    count = 0

    def placeholder(match: re.Match[str]) -> str:
        nonlocal count
        if not _is_public(match[0]) or _is_number_of_something(match):
            return match[0]
        count += 1
        return IP

    # The first expressions begin with a digit, which the engine finds quickly; the second ones look around every match.
    if _MAYBE_IPV4.search(text):
        text = _IPV4.sub(placeholder, text)
    if _MAYBE_IPV6.search(text):
        text = _IPV6.sub(placeholder, text)
    return text, count


def replace_phones(text: str) -> tuple[str, int]:
    """`text` with phone numbers replaced, and how many there were."""
    pieces: list[str] = []
    done = 0
    for candidate in _DIGITS.finditer(text):
        # With the plus sign or parenthesis that may stand before the first digit.
        start, end = max(candidate.start() - 3, done, 0), candidate.end()
        while start < end:
            # Two characters more, so that what must not follow a number is seen.
            match = _PHONE.search(text, start, min(end + 2, len(text)))
            if match is None:
                break
            start = match.end()
            if _is_phone(match):
                pieces += (text[done : match.start()], PHONE)
                done = match.end()
            else:
                start = match.start() + 1
    if not pieces:
        return text, 0
    pieces.append(text[done:])
    return "".join(pieces), len(pieces) // 2


_FILE_ENDINGS = frozenset(
    [
        "png",
        "jpg",
        "jpeg",
        "gif",
        "svg",
        "webp",
        "avif",
        "ico",
        "bmp",
        "css",
        "js",
        "map",
        "pdf",
        "html",
        "htm",
        "php",
        "mp3",
        "mp4",
    ]
)
_EMAIL = re.compile(
    r"(?<![\w.%+\-])[\w%+\-](?:[\w.%+\-']{0,62}[\w%+\-])?"
    r"@(?:[^\W_](?:[\w\-]{0,61}[^\W_])?\.){1,8}(?P<end>[^\W\d_]{2,24}|xn--[a-z0-9\-]{2,59})(?![\w\-@]|\.[^\W_])"
)
_URL_TAIL = re.compile(r"[?#;].*", re.S)
_CREDENTIALS = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]*:[/\\]*|[/\\]{2})[^/\\]*@")
_ENCODED_AT = re.compile("%40")

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = re.compile(rf"(?<![\w.\-])(?<![^/\s]/){_OCTET}(?:\.{_OCTET}){{3}}(?!\w|\.\d|-[^\W\d])")
_IPV6 = re.compile(
    r"(?<![\w:.])[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]{2,34}(?:\d\.\d{1,3}\.\d{1,3}\.\d{1,3})?(?<!:)(?![\w:])|"
    r"(?<![\w:.])[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]{0,34}::(?![\w:])"
)
_MAYBE_IPV4 = re.compile(r"\d\.\d{1,3}\.\d{1,3}\.\d")
_MAYBE_IPV6 = re.compile(r"[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]{2}")
_NUMBERED = re.compile(
    r"(?<![^\W\d_])(?:versions?|vers?|v|releases?|builds?|firmware|drivers?|kernel|revisions?|rev|updated?|upgraded?|patch|sections?|chapters?|"
    r"clauses?|articles?|paragraphs?|tables?|figures?|fig|appendix|§|chrome|firefox|safari|opera|android|windows|版本|版)"
    r"\b[\s:.#\x22“'=]{0,3}(?:(?:to|from|is|of|no|number|and|or|bis|auf)\s{1,2}){0,2}$",
    re.I,
)
_CONTEXT = 40


def _is_public(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return parsed.is_global and not parsed.is_multicast and not parsed.is_reserved


def _is_number_of_something(match: re.Match[str]) -> bool:
    return _NUMBERED.search(match.string[max(0, match.start() - _CONTEXT) : match.start()]) is not None


_DIGITS = re.compile(r"\d[\d ().\-/\u00a0\u2010\u2011\u2013]{5,40}\d")
"""Where a phone number can be. Everything else is passed over at the speed of the regular expression engine."""

_GAP = r"[ .\-/\u00a0\u2010\u2011\u2013]"
_BEFORE = r"(?<![\w+@#$€£¥%=])(?<!\d[(),:.\-/\u2010\u2011\u2013])"
_AFTER = r"(?![\w%])(?![.,\-/:]\d)"
_NATIONAL = {
    # North America: area and exchange codes do not begin with 0 or 1
    "north_america": r"(?:1[ .\-\u2010\u2011])?(?:\([2-9]\d\d\)[ .\-]?|[2-9]\d\d(?P<na>[.\-\u2010\u2011]))"
    r"[2-9]\d\d(?:(?P=na)|(?(na)(?!)|[ .\-]))\d{4}",
    "france": r"0[1-9](?P<fr>[ .\-\u00a0])\d\d(?:(?P=fr)\d\d){3}",
    # Russia and Kazakhstan, with the trunk prefix 8
    "russia": r"8[ \-]?(?:\([3-9]\d\d\)|[3-9]\d\d)[ \-]?\d{3}[ \-]\d\d[ \-]\d\d",
    "brazil": r"\([1-9]\d\) ?9?\d{4}-\d{4}",
    "china_mobile": r"1[3-9]\d[ \-]\d{4}[ \-]\d{4}",
    "spain": r"9[1-8] \d{3} \d\d \d\d",
    # Germany, the United Kingdom, Japan, Italy, Australia, Chinese land lines …: trunk prefix 0, then a gap or parentheses
    "trunk": r"(?:\(0[1-9]\d{0,4}\) ?|0[1-9]\d{0,4}(?: ?[\-/\u2013] ?| ))\d{2,8}(?:[ \-]\d{2,6}){0,3}",
}
_PHONE = re.compile(
    _BEFORE
    + r"(?:(?P<international>(?:\+ ?|00 ?)[1-9](?:(?: ?\(0\) ?|[ .\-/\u00a0\u2010\u2011\u2013]?[()]? ?[()]?)\d){6,14})|"
    + "|".join(f"(?P<{name}>{form})" for name, form in _NATIONAL.items())
    + rf"|(?P<announced>\(?\d(?:(?:{_GAP}|[()]){{0,2}}\d){{6,14}}))"
    + _AFTER
)
_ANNOUNCED = re.compile(
    r"(?:\b(?:tele?phones?|phones?|tel|ph|call(?:\s+(?:us|me))?(?:\s+(?:at|on))?|fax|telefax|mobiles?|cell(?:phone)?|whatsapp|hotline|sms|"
    r"telefon(?:nummer|o|e)?|tél(?:éphone)?|teléfono|telefone|móvil|celular|cellulare|handy|rufnummer|mobil|ring|тел(?:ефон)?|"
    r"факс|телефону|τηλ|telefoon|telefonu|telefonnr)\b|电话|手机|热线|联系方式|致电|電話|携帯|전화|휴대폰|هاتف|☎|📞|✆)"
    r"(?:\s?(?:no|nr|number|num|numéro|n°|号码|番号|번호)\b)?[\s.:：)(\-=]{0,4}$",
    re.I,
)
_OTHER_NUMBER = re.compile(
    r"(?:\b(?:orders?|order\s?id|invoices?|isbn(?:-1[03])?|issn|doi|ref(?:erence)?|serial|sku|parts?|items?|models?|cases?|tickets?|accounts?|acct|"
    r"tracking|customers?|members?(?:hip)?|articles?|patents?|iban|bic|ean|upc|gtin|asin|pmid|oclc|lccn|zip|vat|tax|ssn|policy|licen[cs]e|"
    r"bestell(?:ung|nummer|nr)|rechnung(?:snummer|snr)?|kundennummer|artikel(?:nummer|nr)?|commande|facture|pedido|factura|заказ\w*|счет\w*)"
    r"|订单号?|编号|注文番号)(?:\s?(?:no|nr|number|num|id|code|n°|№))?[\s.:#：№\-]{0,4}$",
    re.I,
)
_ROW_OF_NUMBERS = re.compile(r"\d[ \u00a0]$")
_BLANK = re.compile(r"[ \u00a0]")
_DATE = re.compile(
    r"(?:19|20)\d\d[ .\-/]\d{1,2}[ .\-/]\d{1,2}|\d{1,2}[ .\-/]\d{1,2}[ .\-/](?:19|20)\d\d|"
    r"(?:19|20)\d\d ?[\-/\u2013] ?(?:19|20)\d\d"
)
_DOTTED_QUAD = re.compile(r"\d+(?:\.\d+){3}")
_IDENTIFIER = re.compile(r"(?:^|\D)10\.\d{4,9}/|doi|://|www\.|[?&=]", re.I)
_LEAST_TRUNK, _MOST_TRUNK = 9, 12
_LEAST_NATIONAL, _MOST_NATIONAL = 7, 12


def _is_phone(match: re.Match[str]) -> bool:
    found = match[0]
    before = match.string[max(0, match.start() - _CONTEXT) : match.start()]
    if _OTHER_NUMBER.search(before):
        return False
    digits = "".join(character for character in found if character.isdigit())
    kind = match.lastgroup if match["international"] is None else "international"
    # A number inside a DOI or the path of a URL is a number of something else.
    token = before[max(before.rfind(" "), before.rfind("\n")) + 1 :]
    if _IDENTIFIER.search(token):
        return False
    if found.count("(") != found.count(")"):
        return False
    # In a row of numbers, only one that shows where it begins or is written in one piece can be a phone.
    if _ROW_OF_NUMBERS.search(before) and found[0] not in "+(" and _BLANK.search(found):
        return False
    if match["international"] is not None:
        return _is_international(found, digits)
    if match["announced"] is not None:
        return _ANNOUNCED.search(before) is not None and not _DATE.fullmatch(found) and not _DOTTED_QUAD.fullmatch(found)
    if match["trunk"] is not None:
        return _LEAST_TRUNK <= len(digits) <= _MOST_TRUNK and not _DATE.match(found)
    return kind is not None


def _is_international(found: str, digits: str) -> bool:
    """A calling code in use (ITU-T E.164) and as many digits after it as numbers have."""
    if not found.startswith("+"):
        if found.isdigit():
            return False
        digits = digits[2:]
    if digits.startswith("1"):
        return len(digits) == 11 and digits[1] in "23456789" and digits[4] in "23456789"
    if digits.startswith("7"):
        return len(digits) == 11
    for length in (2, 3):
        if digits[:length] in _CALLING_CODES:
            return _LEAST_NATIONAL <= len(digits) - length <= _MOST_NATIONAL
    return False


_CALLING_CODES = frozenset(
    str(code)
    for first, last in [
        *((20, 20), (27, 27), (30, 34), (36, 36), (39, 41), (43, 49), (51, 58), (60, 66), (81, 82), (84, 84), (86, 86)),
        *((90, 95), (98, 98), (211, 213), (216, 216), (218, 218), (220, 246), (248, 258), (260, 269), (290, 291), (297, 299)),
        *((350, 359), (370, 378), (380, 383), (385, 387), (389, 389), (420, 421), (423, 423), (500, 509), (590, 599)),
        *((670, 670), (672, 683), (685, 692), (800, 800), (808, 808), (850, 850), (852, 853), (855, 856), (870, 870)),
        *((880, 880), (886, 886), (960, 968), (970, 977), (992, 996), (998, 998)),
    ]
    for code in range(first, last + 1)
)
"""Calling codes in use besides 1 and 7 (ITU-T E.164, list of assigned codes)."""
