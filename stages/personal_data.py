"""Personal data in texts becomes a placeholder: `<EMAIL>`, `<PHONE>`, `<IP>`. Nothing is removed.

- E-mail addresses: a local part of at most 64 characters, a dotted domain that ends in letters; `logo@2x.png` is a file. A word
  of a script without blanks that touches an address is not part of it.
- IP addresses: public IPv4 and global unicast IPv6 (2000::/3), by Python's `ipaddress`; private, reserved, multicast and
  documentation ranges stay, and so do version and section numbers (`Chrome/91.0.1.2`, `version 4.2.1.7`).
- Phone numbers: international ones (`+` or `00`, a calling code in use, 7 to 12 digits after it), the national forms that
  `_NATIONAL` lists, and any number of 7 to 15 digits right after a word such as `Tel.`, `phone`, `电话`. Numbers that
  `order no.`, `ISBN`, `DOI` or the like stands before are no phones. Precision comes first: a bare run of digits stays.

A match is replaced whatever it says, so equal texts stay equal. Applying `scrub` twice changes nothing more, but where two of a
kind touch, or stand in a row with a blank between: there the second may be found by the second look alone. A compiled look
at the bytes of a batch (`signs_of`) finds the texts that can hold any of these; the others never become strings.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numba import njit
from pydantic import Field

from stages import code_points, text_buffers
from stages.kernels.reading import DIGIT as DECIMAL
from stages.stage import EXAMPLE, Options, Stage, Verdict

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
    version = 2
    options_type: ClassVar[type[Options]] = PersonalDataOptions
    columns = ("text",)

    def __init__(self, options: PersonalDataOptions) -> None:
        super().__init__(options)
        chosen: list[tuple[bool, int, str, Callable[[str], tuple[str, int]]]] = [
            (options.emails, AT, "personal_data.email", replace_emails),
            (options.addresses, DOTTED | COLONS, "personal_data.ip", replace_addresses),
            (options.phones, NUMBER, "personal_data.phone", replace_phones),
        ]
        self.replacements = [(signs, rule, replace) for wanted, signs, rule, replace in chosen if wanted]

    def identity(self) -> dict[str, str]:
        return code_points.identity()

    def compile(self) -> None:
        self.decide(EXAMPLE)

    def decide(self, batch: pa.RecordBatch) -> Verdict:
        verdict = Verdict.keep_all(batch.num_rows)
        data, offsets = text_buffers.of(batch["text"])
        signs = signs_of(data, offsets, code_points.classes())
        changed: dict[int, bytes] = {}
        for row in np.flatnonzero(signs).tolist():
            text = data[offsets[row] : offsets[row + 1]].tobytes().decode()
            found = 0
            for needed, rule, replace in self.replacements:
                if signs[row] & needed:
                    text, count = replace(text)
                    verdict.edits.add(row, rule, count)
                    found += count
            if found:
                changed[row] = text.encode()
        if changed:
            verdict.columns["text"] = text_buffers.with_rows(batch["text"], changed)
        return verdict


AT, DOTTED, COLONS, NUMBER = 1, 2, 4, 8
FEWEST_DIGITS = 7
"""Of a phone number, in any form."""
BLOCK = 32
"""Bytes that are looked at together, which compiles to vector instructions."""


@njit(cache=True, nogil=True)
def signs_of(data, offsets, classes):  # type: ignore[no-untyped-def]
    """uint8 (n,), what in each text could be personal data. AT: `@`; DOTTED: four numbers with dots; COLONS: the beginning of a
    global unicast IPv6 address; NUMBER: as many digits as a phone number has, and between them only what may stand in one.
    """
    signs = np.zeros(offsets.size - 1, np.uint8)
    for row in range(offsets.size - 1):
        index, end = offsets[row], offsets[row + 1]
        found = 0
        while index < end:
            while index + BLOCK <= end:
                calm = True
                for place in range(index, index + BLOCK):
                    byte = data[place]
                    calm &= (byte < 0x80) & ((byte < ZERO) | (byte > NINE)) & (byte != COMMERCIAL_AT)
                if not calm:
                    break
                index += BLOCK
            stop = min(index + BLOCK, end)
            while index < stop:
                byte = data[index]
                if byte == COMMERCIAL_AT:
                    found |= AT
                    index += 1
                elif byte < 0x80 and (byte < ZERO or byte > NINE):
                    index += 1
                else:
                    kind, size = _kind(data, index, classes)
                    index += size
                    if kind == DIGIT:
                        index, more = _number(data, index - size, end, classes)
                        found |= more
        signs[row] = found
    return signs


@njit(cache=True, nogil=True)
def _number(data, index, end, classes):  # type: ignore[no-untyped-def]
    """(where the run of digits and of what may stand between them ends, its signs)."""
    found = digits = 0
    while index < end:
        kind, size = _kind(data, index, classes)
        if kind == DIGIT:
            digits += 1
            if size == 1:
                if _is_dotted(data, index, end):
                    found |= DOTTED
                elif _has_colons(data, index, end):
                    found |= COLONS
        elif kind != SEPARATOR:
            break
        index += size
    return index, found | (NUMBER if digits >= FEWEST_DIGITS else 0)


@njit(cache=True, nogil=True)
def _kind(data, index, classes):  # type: ignore[no-untyped-def]
    """(DIGIT, SEPARATOR or OTHER, bytes) of the character at `index`."""
    byte = np.int64(data[index])
    if byte < 0x80:
        if ZERO <= byte <= NINE:
            return DIGIT, 1
        # Blank, parentheses, hyphen, dot and slash.
        separates = byte == 0x20 or byte == 0x28 or byte == 0x29 or (0x2D <= byte <= 0x2F)
        return SEPARATOR if separates else OTHER, 1
    if byte < 0xE0:
        point, size = (byte & 0x1F) << 6 | np.int64(data[index + 1] & 0x3F), 2
    elif byte < 0xF0:
        point = (byte & 0x0F) << 12 | np.int64(data[index + 1] & 0x3F) << 6 | np.int64(data[index + 2] & 0x3F)
        size = 3
    else:
        point = (byte & 0x07) << 18 | np.int64(data[index + 1] & 0x3F) << 12
        point |= np.int64(data[index + 2] & 0x3F) << 6 | np.int64(data[index + 3] & 0x3F)
        size = 4
    if point < classes.size and classes[point] & DECIMAL:
        return DIGIT, size
    return SEPARATOR if point == 0xA0 or point == 0x2010 or point == 0x2011 or point == 0x2013 else OTHER, size


@njit(cache=True, nogil=True)
def _is_dotted(data, index, end):  # type: ignore[no-untyped-def]
    """`1.22.333.4`, from the last digit of the first number to the first of the last."""
    for group in range(3):
        if index + 1 >= end or data[index + 1] != DOT:
            return False
        index += 2
        first = index
        while index < end and ZERO <= data[index] <= NINE:
            index += 1
        if index == first or (group < 2 and index - first > 3):
            return False
        index -= 1
    return True


@njit(cache=True, nogil=True)
def _has_colons(data, index, end):  # type: ignore[no-untyped-def]
    """`20fe:a:`: 2 or 3, three hexadecimal digits, a colon, and two more of either."""
    if index + 6 >= end or not 0x32 <= data[index] <= 0x33 or data[index + 4] != COLON:
        return False
    for place in (index + 1, index + 2, index + 3, index + 5, index + 6):
        lower = data[place] | 0x20
        if not (ZERO <= data[place] <= NINE or 0x61 <= lower <= 0x66 or (data[place] == COLON and place > index + 4)):
            return False
    return True


DIGIT, SEPARATOR, OTHER = 0, 1, 2
ZERO, NINE, COMMERCIAL_AT, DOT, COLON = 0x30, 0x39, 0x40, 0x2E, 0x3A


def replace_emails(text: str) -> tuple[str, int]:
    """`text` with e-mail addresses replaced, and how many there were."""
    pieces: list[str] = []
    done = 0
    at = text.find("@")
    while at >= 0:
        start, least = at, max(at - _LONGEST_LOCAL, done)
        while start > least and _LOCAL.match(text, start - 1):
            start -= 1
        tries = (_EMAIL.match(text, begin, at + _LONGEST_DOMAIN) for begin in range(start, at))
        match = next((match for match in tries if match is not None), None)
        if match is not None and _is_email(match):
            pieces += (text[done : match.start()], EMAIL)
            done = match.end()
        at = text.find("@", max(at + 1, done))
    if not pieces:
        return text, 0
    pieces.append(text[done:])
    return "".join(pieces), len(pieces) // 2


def _is_email(match: re.Match[str]) -> bool:
    return match["end"].lower() not in _FILE_ENDINGS and not match[0].startswith(_SHARED_ACCOUNT)


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
        for match in _phones(text, candidate.start(), candidate.end(), done):
            pieces += (text[done : match.start()], PHONE)
            done = match.end()
    if not pieces:
        return text, 0
    pieces.append(text[done:])
    return "".join(pieces), len(pieces) // 2


def _phones(text: str, first: int, end: int, done: int) -> Iterator[re.Match[str]]:
    """The phone numbers in text[first:end], which begins and ends with a digit; nothing before `done` belongs to one."""
    # Two characters more, so that what must not follow a number is seen.
    limit = min(end + 2, len(text))
    start = max(first - 3, done, 0)
    opening = first - 1 if first > done and text[first - 1] == "(" else first
    if first >= done and _ANNOUNCED.search(text, max(0, opening - _CONTEXT), opening):
        for form in (_FORM, _ANNOUNCED_NUMBER):
            match = form.match(text, opening, limit)
            if match is not None and _is_phone(match):
                yield match
                start = match.end()
                break
    # With the plus sign or parenthesis that may stand before the first digit.
    while start < end:
        match = _FORM.search(text, start, limit)
        if match is None:
            return
        if _is_phone(match):
            yield match
            start = match.end()
        else:
            start = match.start() + 1


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
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1100-\u11ff\u2e80-\ua4cf\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc"
)
"""Scripts in which words touch, or endings touch foreign words (Korean), as a regular expression's class: what stands before an
address or a number there does not belong to it."""
_WORD = rf"[^\W{_UNSPACED}]"
_ALNUM = rf"[^\W_{_UNSPACED}]"
_EMAIL = re.compile(
    rf"(?<!{_WORD})(?<![.%+\-])(?:{_WORD}|[%+\-])(?:(?:{_WORD}|[.%+\-']){{0,62}}(?:{_WORD}|[%+\-]))?"
    rf"@(?:{_ALNUM}(?:(?:{_WORD}|-){{0,61}}{_ALNUM})?\.){{1,8}}"
    rf"(?P<end>[^\W\d_{_UNSPACED}]{{2,24}}|xn--[a-z0-9\-]{{2,59}})(?!{_WORD}|[\-@]|\.{_ALNUM})"
)
_LOCAL = re.compile(rf"{_WORD}|[.%+\-']")
_LONGEST_LOCAL, _LONGEST_DOMAIN = 64, 253 + 2
"""Characters before and after the `@` that a match looks at (RFC 5321, 4.5.3.1), with two more that must not follow."""
_SHARED_ACCOUNT = "git@"
"""The account under which everybody reaches a repository (`git@github.com:team/project.git`)."""
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
_BEFORE = rf"(?<!{_WORD})(?<![+@#$€£¥%=])(?<!\d[(),:.\-/\u2010\u2011\u2013])"
_AFTER = rf"(?!{_WORD}|%)(?![.,\-/:]\d)"
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
_FORM = re.compile(
    _BEFORE
    + r"(?:(?P<international>(?:\+ ?|00 ?)[1-9](?:(?: ?\(0\) ?|[ .\-/\u00a0\u2010\u2011\u2013]?[()]? ?[()]?)\d){6,14})|"
    + "|".join(f"(?P<{name}>{form})" for name, form in _NATIONAL.items())
    + ")"
    + _AFTER
)
_ANNOUNCED_NUMBER = re.compile(rf"{_BEFORE}\(?\d(?:(?:{_GAP}|[()]){{0,2}}\d){{6,14}}{_AFTER}")
_ANNOUNCED = re.compile(
    r"(?:\b(?:tele?phones?|phones?|tel|ph|call(?:\s+(?:us|me))?(?:\s+(?:at|on))?|fax|telefax|mobiles?|cell(?:phone)?|whatsapp|hotline|helpline|sms|"
    r"toll[\s-]?free|free(?:phone|call)|switchboard|landline|llam(?:e|a|ar|ad)(?:nos)?(?:\s+al)?|appele[zr](?:\s+(?:le|au))?|tlf|"
    r"telefon(?:nummer|o|e)?|tél(?:éphone)?|teléfono|telefone|móvil|celular|cellulare|handy|rufnummer|mobil|ring|тел(?:ефон)?|"
    r"факс|телефону|τηλ|telefoon|telefonu|telefonnr)\b|电话|手机|热线|联系方式|致电|拨打|拨|電話は?|携帯|전화|휴대폰|هاتف|☎|📞|✆)"
    r"(?:\s?(?:no|nr|number|num|numéro|n°|号码|番号|번호)\b)?[\s.:：)(\-=]{0,4}$",
    re.I,
)
_OTHER_NUMBER = re.compile(
    r"(?:\b(?:orders?|order\s?id|invoices?|isbn(?:-1[03])?|issn|doi|ref(?:erence)?|serial|sku|parts?|items?|models?|cases?|tickets?|accounts?|acct|"
    r"tracking|customers?|members?(?:hip)?|articles?|patents?|iban|bic|ean|upc|gtin|asin|pmid|oclc|lccn|zip|vat|tax|ssn|policy|licen[cs]e|"
    r"bestell(?:ung|nummer|nr)|rechnung(?:snummer|snr)?|kundennummer|artikel(?:nummer|nr)?|commande|facture|pedido|factura|заказ\w*|счет\w*)"
    r"|订单号?|编号|货号|型号|注文番号|品番)(?:\s?(?:no|nr|number|num|id|code|n°|№))?[\s.:#：№\-]{0,4}$",
    re.I,
)
_ROW_OF_NUMBERS = re.compile(r"\d[ \u00a0]$")
_BLANK = re.compile(r"[ \u00a0]")
_DATE = re.compile(
    r"(?:19|20)\d\d[ .\-/]\d{1,2}[ .\-/]\d{1,2}|\d{1,2}[ .\-/]\d{1,2}[ .\-/](?:19|20)\d\d|"
    r"(?:19|20)\d\d ?[\-/\u2013] ?(?:19|20)\d\d"
)
_DOTTED_QUAD = re.compile(r"\d+(?:\.\d+){3}")
_ZIP_PLUS_4, _STATE = re.compile(r"\d{5}-\d{4}"), re.compile(r"\b[A-Z]{2}\s+$")
"""`Boston, MA 02111-1307`: an American post code after its state (or `AE`, `AP` of the forces)."""
_IDENTIFIER = re.compile(r"(?:^|\D)10\.\d{4,9}/|doi|://|www\.|[?&=]", re.I)
_LEAST_TRUNK, _MOST_TRUNK = 9, 12
_LEAST_NATIONAL, _MOST_NATIONAL = 7, 12


def _is_phone(match: re.Match[str]) -> bool:
    """Whether a match of `_FORM` or `_ANNOUNCED_NUMBER` stands where a phone number can, and has as many digits."""
    found = match[0]
    before = match.string[max(0, match.start() - _CONTEXT) : match.start()]
    # A number inside a DOI or the path of a URL is a number of something else.
    token = before[max(before.rfind(" "), before.rfind("\n")) + 1 :]
    if found.count("(") != found.count(")") or _IDENTIFIER.search(token) or _OTHER_NUMBER.search(before):
        return False
    # In a row of numbers, only one that shows where it begins or is written in one piece can be a phone.
    if found[0] not in "+(" and _ROW_OF_NUMBERS.search(before) and _BLANK.search(found):
        return False
    digits = "".join(character for character in found if character.isdigit())
    if match.re is _ANNOUNCED_NUMBER:
        return not _DATE.fullmatch(found) and not _DOTTED_QUAD.fullmatch(found) and not _goes_on(match)
    if match["international"] is not None:
        return _is_international(found, digits)
    if match["trunk"] is not None and (
        not _LEAST_TRUNK <= len(digits) <= _MOST_TRUNK
        or _DATE.match(found)
        or (_ZIP_PLUS_4.fullmatch(found) and _STATE.search(before))
    ):
        return False
    return not _goes_on(match)


def _goes_on(match: re.Match[str]) -> bool:
    """Whether a number of groups with blanks between them is followed by another such group: a row of numbers, no phone."""
    after = _NEXT_GROUP.match(match.string, match.end())
    last = _LAST_GROUP.search(match[0])
    return after is not None and last is not None and len(after[1]) == len(last[1])


_NEXT_GROUP = re.compile(r"[ \u00a0](\d+)(?!\w)")
_LAST_GROUP = re.compile(r"[ \u00a0](\d+)$")


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
