"""The quality filters on other projects' test cases and on real text.

Data: the folder that CORPUSMILL_TEST_DATA names, by default ../shared/data beside the checkout.
"""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import trafilatura

from manifests.rules import Rule, decide
from stages.c4 import C4, C4Options
from stages.fineweb import FineWeb, FineWebOptions
from stages.gopher_quality import GopherQuality, GopherQualityOptions
from stages.gopher_repetition import GopherRepetition, GopherRepetitionOptions
from stages.stage import Filter

DATA = Path(os.environ.get("CORPUSMILL_TEST_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no test data at {DATA}; set CORPUSMILL_TEST_DATA")

ALL = (
    GopherQuality(GopherQualityOptions()),
    GopherRepetition(GopherRepetitionOptions()),
    C4(C4Options()),
    FineWeb(FineWebOptions()),
)


def rows(name: str) -> Iterator[dict]:
    with gzip.open(DATA / "peer_cases" / f"{name}.jsonl.gz", "rt", encoding="utf-8", newline="\n") as file:
        for line in file:
            yield json.loads(line)


def measure(stage: Filter, texts: list[str], language: str | None = "en") -> pa.Table:
    batch = pa.record_batch(
        {
            "text": pa.array(texts, pa.large_string()),
            "language": pa.array([language] * len(texts), pa.string()),
        }
    )
    return pa.table(stage.measure(batch).signals)


def failed(text: str, language: str | None = "en") -> list[str]:
    """All rules of all four filters that fail, with their default options."""
    names: list[str] = []
    for stage in ALL:
        names += decide(stage.rules(), measure(stage, [text], language)).failed[0].as_py()
    return names


def wcxb(limit: int) -> tuple[list[str], list[dict]]:
    """Main texts of the pages that datatrove's verdicts are about, as far as they are in the data."""
    texts, verdicts = [], []
    for row in rows("datatrove_verdicts_wcxb_gold"):
        path = DATA / row["file"]
        if not path.exists():
            path = path.with_name(path.name + ".gz")
        if not path.exists():
            continue
        raw = path.read_bytes()
        value = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
        for key in row["field"].split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, str) and value:
            texts.append(value)
            verdicts.append(row["verdicts"])
        if len(texts) == limit:
            break
    return texts, verdicts


PAGES = 250


@pytest.fixture(scope="module")
def pages() -> tuple[list[str], list[dict]]:
    texts, verdicts = wcxb(PAGES)
    if len(texts) < PAGES:
        pytest.skip("the pages of html_gold/wcxb are not in the test data")
    return texts, verdicts


def differences(stage: Filter, key: str, pages: tuple[list[str], list[dict]]) -> Counter[tuple]:
    """Counts (datatrove's reason or None, our failing rules) where only one of us keeps a page."""
    texts, verdicts = pages
    names = decide(stage.rules(), measure(stage, texts)).failed.to_pylist()
    return Counter(
        (verdict[key].get("reason"), tuple(rules))
        for verdict, rules in zip(verdicts, names, strict=True)
        if verdict[key]["keep"] is not (not rules)
    )


def test_c4_with_datatroves_numbers_gives_datatroves_verdicts(pages: tuple[list[str], list[dict]]) -> None:
    stage = C4(C4Options(min_words=3, min_sentences=5))
    assert differences(stage, "c4_quality_default", pages) == Counter()
    left = measure(stage, pages[0])["c4.characters"].to_pylist()
    theirs = [verdict["c4_quality_default"].get("chars_after") for verdict in pages[1]]
    same = [ours == count for ours, count in zip(left, theirs, strict=True) if count is not None]
    assert sum(same) >= 0.97 * len(same)  # datatrove lets a line end in an apostrophe


def test_quality_differs_from_datatrove_only_where_punctuation_counts_as_words(
    pages: tuple[list[str], list[dict]],
) -> None:
    found = differences(GopherQuality(GopherQualityOptions()), "gopher_quality", pages)
    assert {reason for reason, _ in found} <= {"gopher_below_alpha_threshold"}
    assert all(rules == () for _, rules in found)


def test_repetition_differs_from_datatrove_only_by_counting_every_occurrence(
    pages: tuple[list[str], list[dict]],
) -> None:
    found = differences(GopherRepetition(GopherRepetitionOptions()), "gopher_repetition", pages)
    for reason, rules in found:
        assert reason is None
        assert all(name.startswith("gopher_repetition.max_duplicate_") and name.endswith("_gram") for name in rules)
    assert found.total() <= 0.05 * PAGES


def test_fineweb_with_datatroves_bound_differs_only_by_quotes_and_stripped_lines(
    pages: tuple[list[str], list[dict]],
) -> None:
    found = differences(FineWeb(FineWebOptions(max_duplicate_line_characters=0.01)), "fineweb_quality", pages)
    assert {reason for reason, _ in found} <= {"line_punct_ratio"}
    assert found.total() <= 0.02 * PAGES


def read(path: str, encoding: str) -> str:
    """A text of the data; of a web page its main text. Some texts are cut in the middle of a character."""
    if not (DATA / path).exists():
        path += ".gz"
    raw = (DATA / path).read_bytes()
    text = (gzip.decompress(raw) if path.endswith(".gz") else raw).decode(encoding, "ignore")
    return (trafilatura.extract(text) or "") if ".html" in path else text


CHINESE = [
    ("langid/udhr/Chinese_Mandarin-UTF8.gz", "utf-8"),
    ("charset/char-dataset/gb2312/_ude_1.txt", "gb18030"),
    ("charset/char-dataset/big5/_ude_2.txt", "big5"),
    ("html_gold/trafilatura/eval/banyuetan.org.1000200033136171577956287380194268_1.html.gz", "utf-8"),
    ("html_gold/trafilatura/eval/xinhuanet.com.c_1125597921.html.gz", "utf-8"),
    ("debian/debian-handbook/html/zh-CN/preface.html.gz", "utf-8"),
    ("debian/debian-handbook/html/zh-CN/sect.foundation-documents.html.gz", "utf-8"),
]


@pytest.mark.parametrize("path, encoding", CHINESE)
@pytest.mark.parametrize("language", ["zh", None])
def test_a_real_chinese_text_passes_all_four_filters(path: str, encoding: str, language: str | None) -> None:
    text = read(path, encoding)
    assert len(text) > 400
    assert failed(text, language) == []


def test_real_thai_and_japanese_texts_pass_gopher() -> None:
    for language, path in (
        ("ja", "langid/udhr/Japanese_Nihongo-UTF8.gz"),
        ("th", "langid/udhr_html/declaration/tha2.html.gz"),
    ):
        text = read(path, "utf-8")
        assert len(text) > 3000
        assert [name for name in failed(text, language) if name.startswith("gopher")] == []


SPAM = {
    "keywords": "、".join(["手机壳批发", "手机壳厂家", "手机壳价格", "手机壳定制", "手机壳图片"] * 20),
    "links": "\n".join(f"新闻{number} http://www.example.com/news/{number}.html" for number in range(60)),
    "menu": "\n".join(["首页", "新闻", "体育", "财经", "娱乐", "科技", "汽车", "房产", "教育", "健康", "旅游", "军事"] * 3),
    "repeated lines": "\n".join(["本站所有的内容都是由网友提供的，我们不承担责任。"] * 20),
    "repeated slogan": "我们的产品是最好的，欢迎你来电话咨询！" * 30,
    "call": "加微信领取优惠券，" * 50,
}


@pytest.mark.parametrize("kind", SPAM)
@pytest.mark.parametrize("language", ["zh", None])
def test_chinese_spam_does_not_pass(kind: str, language: str | None) -> None:
    assert failed(SPAM[kind], language) != []


def test_every_rule_of_every_filter_is_a_rule_on_a_declared_signal() -> None:
    for stage in ALL:
        assert all(isinstance(rule, Rule) and rule.signal in stage.signals for rule in stage.rules())
