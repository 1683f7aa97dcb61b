"""Both engines and the look before them on real pages: the same text in any company, no page lost, few wrong removals."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import yaml

from bench.extraction_settings import SETS, four_gram_scores
from manifests.schemas import RECORDS, empty_rows
from manifests.storage import Folder
from manifests.verification.verify import verify
from pipeline.execution import InlineExecutor
from pipeline.progress import Progress
from pipeline.recipe import Recipe
from pipeline.run import run
from stages.extraction import Extraction, ExtractionOptions
from stages.pre_check import PreCheck, PreCheckOptions

DATA = Path(os.environ.get("CORPUSMILL_TEST_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"the real data is not there: CORPUSMILL_TEST_DATA ({DATA})")
Engine = Literal["trafilatura", "resiliparse"]
ENGINES = [
    "trafilatura",
    pytest.param(
        "resiliparse",
        marks=pytest.mark.skipif(importlib.util.find_spec("resiliparse") is None, reason="resiliparse is not installed"),
    ),
]


def gold_pages(step: int) -> list[bytes]:
    return [gzip.decompress(path.read_bytes()) for path in sorted((DATA / "html_gold").rglob("*.html.gz"))[::step]]


def records(payloads: list[bytes]) -> pa.RecordBatch:
    rows = len(payloads)
    identity = {"component": pa.array(["web"] * rows), "file": pa.array(["gold"] * rows), "position": pa.array(range(rows))}
    types = pa.array(["text/html"] * rows)
    table = empty_rows(RECORDS, rows, **identity, media_type=types, payload=pa.array(payloads, pa.large_binary()))
    return table.combine_chunks().to_batches()[0]


def extracted(stage: Extraction, pages: list[bytes]) -> list[str | None]:
    verdict = stage.decide(records(pages))
    rules = [Extraction.removal_rules[index] for index in verdict.rule if index >= 0]
    assert set(rules) <= {"extraction.empty", "extraction.too_many_elements"}, rules
    found: list[str | None] = verdict.columns["text"].to_pylist()
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_page_gives_the_same_text_whatever_came_before_it(engine: Engine) -> None:
    pages = gold_pages(60)
    stage = Extraction(ExtractionOptions(engine=engine, fast=engine == "trafilatura"))
    once = extracted(stage, pages)
    assert sum(text is not None for text in once) > 0.9 * len(pages)
    again = extracted(stage, [*pages[::-1], *pages[::2], *pages[::2], *pages])
    stage.close()
    half = once[::2]
    assert again == [*once[::-1], *half, *half, *once]
    fresh = Extraction(ExtractionOptions(engine=engine, fast=engine == "trafilatura"))
    last = extracted(fresh, pages[-1:])
    fresh.close()
    assert last == once[-1:]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("levels", [280, 1_500, 2_500])
def test_a_real_page_within_deep_nesting_keeps_its_text_or_has_a_row(engine: Engine, levels: int) -> None:
    cases = [page for page in SETS["scrapinghub_aeb"](DATA / "html_gold" / "scrapinghub_aeb")][:4]
    stage = Extraction(ExtractionOptions(engine=engine))
    for case in cases:
        opening = case.html.lower().index(b"<body")
        opening = case.html.index(b">", opening) + 1
        closing = case.html.lower().rindex(b"</body")
        nested = case.html[:opening] + b"<div>" * levels + case.html[opening:closing] + b"</div>" * levels + case.html[closing:]
        verdict = stage.decide(records([nested]))
        if levels > 2_000:
            assert [Extraction.removal_rules[index] for index in verdict.rule] == ["extraction.too_deep"]
            continue
        text, flat = verdict.columns["text"][0].as_py(), extracted(stage, [case.html])[0]
        assert text is not None and flat is not None
        assert four_gram_scores(flat, text)[1] > 0.95, (len(flat), len(text))
    stage.close()


def test_the_default_finds_the_marked_text_of_news_articles() -> None:
    """F1 of the means is 0.967 on all 79 (docs/text-stages.md)."""
    cases = list(SETS["scrapinghub_aeb"](DATA / "html_gold" / "scrapinghub_aeb"))[::4]
    stage = Extraction(ExtractionOptions())
    texts = extracted(stage, [case.html for case in cases])
    stage.close()
    scores = [four_gram_scores(case.text or "", text or "") for case, text in zip(cases, texts, strict=True)]
    precision = sum(score[0] or 0.0 for score in scores) / len(scores)
    recall = sum(score[1] for score in scores) / len(scores)
    assert 2 * precision * recall / (precision + recall) > 0.94


def test_the_look_before_extraction_is_seldom_wrong_on_real_pages() -> None:
    snippets = json.loads(gzip.decompress((DATA / "html_gold" / "trafilatura" / "evaldata.json.gz").read_bytes()))
    paths = [DATA / "html_gold" / "trafilatura" / "cache" / f"{case['file']}.gz" for _, case in sorted(snippets.items())][::5]
    pages = [gzip.decompress(path.read_bytes()) for path in paths if path.is_file()]
    stage = PreCheck(PreCheckOptions(keep=("en",), min_characters=200, sample=1, extraction=ExtractionOptions(fast=True)))
    stage.decide(records(pages))
    summary = stage.summary([stage.report()])
    stage.close()
    language = summary["rules"][1]
    assert language["found"] == language["sampled"] > 0.5 * len(pages)
    assert sum(rule["stayed"] for rule in summary["rules"]) <= 0.02 * len(pages)


@pytest.mark.slow
def test_a_corpus_with_every_page_sampled_keeps_what_it_keeps_without_the_look(tmp_path: Path) -> None:
    (tmp_path / "pages").symlink_to(DATA / "html_gold" / "trafilatura")
    kept: dict[bool, set[str]] = {}
    for look in (False, True):
        stages: list[object] = [{"extraction": {"fast": True}}, {"language": {"keep": ["en"]}}]
        if look:
            stages.insert(0, {"pre_check": {"keep": ["en"], "sample": 1, "extraction": {"fast": True}}})
        component = {
            "source": "pages",
            "format": "folder",
            "files": ["eval/*", "cache/c*"],
            "licence": "various",
            "stages": stages,
        }
        written = tmp_path / f"recipe{look}.yaml"
        written.write_text(yaml.safe_dump({"corpus": "checked", "components": {"web": component}, "stages": []}))
        corpus = tmp_path / f"corpus{look}"
        manifest = run(Recipe.load(str(written)), Folder(corpus), InlineExecutor(), Progress(quiet=True)).manifest
        assert list(verify(Folder(corpus), manifest)) == []
        kept[look] = set(ds.dataset(sorted(corpus.glob("logs/documents/*/*.parquet"))).to_table()["id"].to_pylist())
        removed = ds.dataset(sorted(corpus.glob("logs/removals/*/*.parquet"))).to_table().to_pylist()
        if look:
            early = [row for row in removed if row["stage"] == "pre_check"]
            assert len(early) > 10 and all(str(row["detail"]).endswith(" agrees") for row in early)
            [summary] = [one for one in manifest.content.summaries if one["stage"] == "pre_check"]
            assert sum(rule["sampled"] - rule["stayed"] for rule in summary["rules"]) == len(early)
    assert kept[True] == kept[False] and len(kept[True]) > 3
