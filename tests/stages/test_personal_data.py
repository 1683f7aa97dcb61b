"""Personal data goes, and numbers that are something else stay."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stages import code_points, text_buffers
from stages import personal_data as module
from stages.personal_data import PersonalData, PersonalDataOptions, scrub, scrub_url, signs_of


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("mail a.b+c@mail.example.org now", "mail <EMAIL> now"),
        ("<b@example.de>, c_d@example.co.uk.", "<<EMAIL>>, <EMAIL>."),
        ("mailto:o'neil@example.org?subject=x", "mailto:<EMAIL>?subject=x"),
        ("mü@bücher.example und 邮箱user@example.com", "<EMAIL> und 邮箱<EMAIL>"),
        ("user@xn--bcher-kva.xn--p1ai", "<EMAIL>"),
    ],
)
def test_email_addresses_are_replaced(text: str, scrubbed: str) -> None:
    assert scrub(text) == scrubbed


@pytest.mark.parametrize(
    "text", ["logo@2x.png", "@user", "user@host", "a @ b.org", "price @ 5.00", "@font-face", "foo@1.2.3", "a@b..c"]
)
def test_what_only_looks_like_an_email_address_stays(text: str) -> None:
    assert scrub(text) == text


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("from 8.8.8.8.", "from <IP>."),
        ("http://93.184.216.34:80/x", "http://<IP>:80/x"),
        ("8.8.8.8, 8.8.4.4/32 (1.1.1.1)", "<IP>, <IP>/32 (<IP>)"),
        ("2001:4860:4860::8888", "<IP>"),
        ("[2606:4700:4700::1111]:443", "[<IP>]:443"),
        ("2A00:1450:4001:81B:0:0:0:200E up", "<IP> up"),
    ],
)
def test_public_addresses_are_replaced(text: str, scrubbed: str) -> None:
    assert scrub(text) == scrubbed


@pytest.mark.parametrize(
    "text",
    [
        "10.2.0.1",
        "192.168.1.1 and 172.16.0.9",
        "127.0.0.1",
        "169.254.1.1",
        "224.0.0.1",
        "192.0.2.1",
        "255.255.255.0",
        "0.0.0.0",
        "version 4.2.1.7",
        "Version: 8.8.8.8",
        'openjdk version "17.0.4.1" 2022',
        "v8.8.8.8",
        "Chrome/91.0.4.124 Safari",
        "upgraded to 8.0.1.2",
        "Section 12.1.3.4",
        "8.8.8.8.8",
        "256.8.8.8",
        "8.8.8.8-beta",
        "fe80::1",
        "::1",
        "2001:db8::1",
        "fd00::12",
        "12:34:56",
        "std::vector",
        "a::b",
        "MAC 00:1B:44:11:3A:B7",
    ],
)
def test_private_addresses_and_versions_stay(text: str) -> None:
    assert scrub(text) == text


PHONES = {
    "international": [
        "+49 30 1234567",
        "+49 (0)30 123456",
        "+44 20 7946 0958",
        "0049 30 123456",
        "+33123456789",
        "+91 98765 43210",
    ],
    "north america": [
        "(212) 555-2368",
        "212-555-2368",
        "212.555.2368",
        "212‑555‑2368",
        "1-800-555-2368",
        "+1 212 555 2368",
        "+1-212-555-2368",
    ],
    "france": ["01 23 45 67 89", "01.23.45.67.89", "06-12-34-56-78", "+33 1 23 45 67 89"],
    "united kingdom": ["020 7946 0958", "01632 960001", "07700 900123", "(020) 7946 0958"],
    "germany": ["030/1234567", "030 12345678", "0171-1234567", "(030) 1234567", "+49 171 1234567"],
    "china": ["010-12345678", "0755-12345678", "138-1234-5678", "138 1234 5678", "+86 138 1234 5678"],
    "japan": ["03-1234-5678", "090-1234-5678", "+81-3-1234-5678"],
    "russia": ["8 (495) 123-45-67", "8-800-555-35-35", "+7 (495) 123-45-67", "+7 495 123 45 67"],
    "brazil": ["(11) 91234-5678", "(21) 2345-6789", "+55 11 91234-5678"],
    "australia": ["(02) 9876 5432", "0412 345 678", "+61 2 9876 5432"],
    "spain": ["91 123 45 67", "+34 612 345 678"],
}


@pytest.mark.parametrize(("country", "number"), [(country, number) for country, numbers in PHONES.items() for number in numbers])
def test_phone_numbers_are_replaced(country: str, number: str) -> None:
    assert scrub(number) == "<PHONE>"
    assert (
        scrub(f"Reach me: {number}, or ({number}), since 2023: {number}.")
        == "Reach me: <PHONE>, or (<PHONE>), since 2023: <PHONE>."
    )


@pytest.mark.parametrize("number", ["+49 30 1234567", "(212) 555-2368", "212-555-2368", "01.23.45.67.89", "030/1234567"])
def test_a_number_after_a_number_is_found_where_it_shows_its_beginning(number: str) -> None:
    assert scrub(f"In 2023 {number}") == "In 2023 <PHONE>"


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("Tel.: 5551234", "Tel.: <PHONE>"),
        ("phone: 612 345 678", "phone: <PHONE>"),
        ("Call us at 98765 43210", "Call us at <PHONE>"),
        ("电话：13812345678", "电话：<PHONE>"),
        ("Fax (0 30) 12 34 56", "Fax <PHONE>"),
        ("☎ 1234567", "☎ <PHONE>"),
    ],
)
def test_a_number_that_is_called_a_phone_is_one(text: str, scrubbed: str) -> None:
    assert scrub(text) == scrubbed


@pytest.mark.parametrize(
    "text",
    [
        "ISBN 978-3-16-148410-0",
        "ISBN 0-306-40615-2",
        "978-3-16-148410-0",
        "ISBN-10: 030 640 6152",
        "doi:10.1000/182",
        "10.1016/j.cell.2009.01.042",
        "https://doi.org/10.1016/01.23.45.67.89",
        "Order number 212-555-2368",
        "order #0123 4567890",
        "Invoice no. 030/1234567",
        "订单号 138-1234-5678",
        "2023-01-15",
        "15.01.2023",
        "01.02.2023 03.04.2023",
        "2019-2023",
        "1 234 567",
        "12,345,678.90",
        "$1,234,567",
        "3.14159265358979",
        "100 000 000",
        "+100 000 000 users",
        "1234567890",
        "4111 1111 1111 1111",
        "12 345 678",
        "10:30-11:45",
        "2023/01/15 12:30",
        "call 2023-01-15",
        "phone at 10.2.0.1",
        "1-2-3-4-5-6-7-8",
        "0 1 2 3 4 5 6 7 8 9",
        "48.858222, 2.294500",
        "00 11 22 33 44 55",
        "ISO 8601-1:2019",
        "http://example.org/item/0412-345-678",
        "007 2000 2001",
        "12345-6789",
        "x = 0x0123 4567",
        "612 345 678",
        "2023 91 123 45 67",
    ],
)
def test_other_numbers_stay(text: str) -> None:
    assert scrub(text) == text


def test_edits_count_replacements_by_rule() -> None:
    texts = ["nothing here", "a@example.org b@example.org 8.8.8.8", "call +49 30 1234567"]
    verdict = PersonalData(PersonalDataOptions()).decide(pa.record_batch({"text": pa.array(texts, pa.large_string())}))
    assert verdict.columns["text"].to_pylist() == ["nothing here", "<EMAIL> <EMAIL> <IP>", "call <PHONE>"]
    assert list(zip(verdict.edits.rows, verdict.edits.rules, verdict.edits.counts, strict=True)) == [
        (1, "personal_data.email", 2),
        (1, "personal_data.ip", 1),
        (2, "personal_data.phone", 1),
    ]
    assert (verdict.rule == -1).all()


def test_each_kind_can_be_left_alone() -> None:
    text = "a@example.org 8.8.8.8 +49 30 1234567"
    batch = pa.record_batch({"text": pa.array([text], pa.large_string())})
    options = PersonalDataOptions(emails=False, addresses=False)
    assert PersonalData(options).decide(batch).columns["text"].to_pylist() == ["a@example.org 8.8.8.8 <PHONE>"]
    options = PersonalDataOptions(emails=False, addresses=False, phones=False)
    assert PersonalData(options).decide(batch).columns == {}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:secret@example.org:8080/a/b?q=1#f", "https://example.org:8080/a/b"),
        ("http://example.org/a%40example.org/x", "http://example.org/<EMAIL>/x"),
        ("http://example.org/~a@example.org", "http://example.org/~<EMAIL>"),
        ("//u@example.org/p;jsessionid=1", "//example.org/p"),
        ("example.org/a?token=x", "example.org/a"),
        ("http://example.org/a@b", "http://example.org/a@b"),
        (None, None),
        ("", ""),
    ],
)
def test_a_url_in_a_log_holds_no_secret(url: str | None, shown: str | None) -> None:
    assert scrub_url(url) == shown


@given(st.text(st.sampled_from("0123456789 +-./()@:abcxfetlTel.\n电话"), max_size=60))
def test_scrubbing_twice_changes_nothing_more(text: str) -> None:
    once = scrub(text)
    assert scrub(once) == once


@given(st.text(max_size=80))
def test_a_text_without_digits_and_at_signs_stays(text: str) -> None:
    plain = "".join(character for character in text if not character.isdigit() and character not in "@:")
    assert scrub(plain) == plain


SENTENCES = Path(__file__).with_name("personal_data_sentences.txt")
MARKED = re.compile(r"\[\[(email|phone|ip): (.*?)\]\]")
KINDS = {"<EMAIL>": "email", "<PHONE>": "phone", "<IP>": "ip"}
Spans = list[tuple[str, int, int]]


def written_sentences() -> list[tuple[str, Spans]]:
    """(sentence, the personal data that a person has marked in it)."""
    found = []
    for line in SENTENCES.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            text, spans, end = "", [], 0
            for mark in MARKED.finditer(line):
                text += line[end : mark.start()]
                spans.append((mark[1], len(text), len(text) + len(mark[2])))
                text, end = text + mark[2], mark.end()
            found.append((text + line[end:], spans))
    return found


def replaced(text: str) -> Spans:
    """What `scrub` has replaced in a text."""
    parts = re.split(f"({'|'.join(KINDS)})", scrub(text))
    matched = re.fullmatch("".join("(.+?)" if part in KINDS else re.escape(part) for part in parts), text)
    assert matched is not None
    return [(KINDS[kind], *matched.span(number)) for number, kind in enumerate(filter(KINDS.get, parts), 1)]


# kind: (data in the sentences, of these replaced, replaced wrongly). Fewer found or more wrong is a step back.
MEASURED = {"email": (22, 22, 0), "phone": (75, 75, 1), "ip": (12, 12, 0)}


def test_precision_and_recall_on_written_sentences() -> None:
    sentences = written_sentences()
    right: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for text, marked in sentences:
        found = replaced(text)
        for span in {*marked, *found}:
            counter = right if span in marked and span in found else missed if span in marked else wrong
            counter[span[0]] += 1
    assert {kind: (right[kind] + missed[kind], right[kind], wrong[kind]) for kind in MEASURED} == MEASURED
    assert len(sentences) > 200 and sum(not marked for _, marked in sentences) > 100


def signs(*texts: str) -> list[int]:
    column = pa.array(["@", *texts, "8.8.8.8"], pa.large_string()).slice(1, len(texts))
    found: list[int] = signs_of(*text_buffers.of(column), code_points.classes()).tolist()
    return found


def test_signs_say_what_a_text_can_hold() -> None:
    assert signs("", "a" * 100, "a" * 31 + "@" + "a" * 31, "12 34 56", "12 34 567", "1.2.3.4", "1.2.3", "1.2222.3.4") == [
        *(0, 0, module.AT, 0, module.NUMBER, module.DOTTED, 0, module.NUMBER)
    ]
    assert signs("2001:db8::1", "2001::1", "1001:db8::1", "2g01:db8::1", "12:34:56", "2001:d", "٠١٢٣٤٥٦") == [
        *(module.COLONS, module.COLONS, 0, 0, 0, 0, module.NUMBER)
    ]


@given(st.text(st.sampled_from("0123456789 +-./()@:abcdefTel.\n电话٣\xa0\u2011😀é<"), max_size=90), st.integers(0, 40))
@example("8.8.8.8", 29)
@example("2606:4700:4700::1111", 27)
@example("Tel. 5551234", 24)
@example("a@example.org", 31)
def test_whatever_is_replaced_has_its_sign(text: str, shift: int) -> None:
    text = "x" * shift + " " + text
    [found] = signs(text)
    for needed, replace in (
        (module.AT, module.replace_emails),
        (module.DOTTED | module.COLONS, module.replace_addresses),
        (module.NUMBER, module.replace_phones),
    ):
        assert found & needed or replace(text) == (text, 0)
    batch = pa.record_batch({"text": pa.array([None, text, "x"], pa.large_string())})
    columns = PersonalData(PersonalDataOptions()).decide(batch).columns
    assert columns["text"].to_pylist() == [None, scrub(text), "x"] if columns else scrub(text) == text


@pytest.mark.parametrize(
    "text", ["a@" * 50_000, "a.b@c.d@" * 20_000, "1 " * 50_000, "12-" * 50_000, "+49 30 " * 20_000, "((" * 30_000 + "1" * 30_000]
)
def test_a_long_row_of_beginnings_ends(text: str) -> None:
    assert scrub(scrub(text)) == scrub(text)


def test_a_repository_s_account_is_nobody_s_address() -> None:
    assert scrub("git@example.org:team/project.git and gitta@example.org") == "git@example.org:team/project.git and <EMAIL>"
