"""The report: what it says is what manifest and logs hold, whatever strangers named things, and a browser shows it whole."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from typer.testing import CliRunner

from manifests.audit import flow
from manifests.commands import app
from manifests.logs import Logs
from manifests.manifest import MANIFEST, Manifest, open_corpus
from manifests.report import figures
from manifests.report.charts import Bar, Level, Piece, bars, funnel, number, share
from manifests.report.distributions import BINS, Distribution, distributions
from manifests.report.elements import element, written
from manifests.report.page import report
from manifests.rules import RATIO, Rule, decide
from manifests.storage import Folder
from manifests.trained_on import TrainedOn
from tests.html_page import Read
from tests.manifests.training_run import finish_run, write_run
from tests.pipeline.crawl import article, build, small_recipe, write_small
from trainer.data.loader import Phase

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = [
    "<script>document.title='taken'</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></style></svg><svg onload=alert(1)>",
    "\x1b[31m\u202eevil&lt;b&gt;",
    "'; drop table documents; --",
]


def call(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(scope="module")
def page(finished: Path) -> str:
    return report(*open_corpus(str(finished)))


# what it says


def rule_cells(page: str) -> dict[tuple[str, str], tuple[str, str]]:
    """(rule, stage) → (removed, by it alone), of the table of rules."""
    cells = re.sub(r"\s*<wbr>\s*", "", page)
    table = cells[cells.index("rules that removed documents, with components") :].partition("</table>")[0]
    rows = re.findall(r"<tr><td>([^<]+)</td><td[^>]*>([^<]+)</td><td>([\d,]+)</td><td>[^<]*</td><td>([\d,]+)</td>", table)
    return {(rule, stage): (removed, alone) for rule, stage, removed, alone in rows}


def test_every_rule_of_every_stage_is_in_the_page_with_what_it_removed_and_what_alone(page: str, finished: Path) -> None:
    with Logs(*open_corpus(str(finished))) as logs:
        rows = logs.sql("select rule, stage, failed_rules from removals")
    removed = Counter((row["rule"], row["stage"]) for row in rows)
    alone = Counter((row["rule"], row["stage"]) for row in rows if len(row["failed_rules"] or []) <= 1)
    assert rule_cells(page) == {key: (f"{removed[key]:,}", f"{alone[key]:,}") for key in removed}
    assert any(alone[key] < removed[key] for key in removed)


def test_a_rule_of_two_stages_is_told_of_each(tmp_path: Path) -> None:
    files = {"a.jsonl": [{"text": article(n, sentences)} for n, sentences in enumerate((2, 3, 12, 12, 1))]}
    files["a.jsonl"].append({"text": article(2)})
    written = small_recipe([{"gopher_quality": {"min_words": 20}}], ["exact_dedup", {"gopher_quality": {"min_words": 60}}])
    build(write_small(tmp_path, files, written), tmp_path / "corpus")
    folder, manifest = open_corpus(str(tmp_path / "corpus"))
    counted: dict[tuple[str, str], int] = {}
    for count in manifest.content.counts:
        counted.update({(rule, count.stage): number_ for rule, number_ in count.removed.items()})
    assert len([1 for rule, _ in counted if rule == "gopher.min_words"]) == 2, counted
    page = report(folder, manifest)
    assert {key: removed for key, (removed, _) in rule_cells(page).items()} == {key: f"{n:,}" for key, n in counted.items()}


def test_the_funnel_ends_with_the_documents_that_were_kept(page: str, manifest: Manifest) -> None:
    said = re.findall(r"<title>(\S+): ([\d,]+) in, ([\d,]+) left, ([\d,]+) removed</title>", page)
    assert said
    kept = sum(one.documents_kept for one in manifest.content.components.values())
    entered = sum(one.documents_in for one in manifest.content.components.values())
    stages = [(name, *(int(figure.replace(",", "")) for figure in figures_)) for name, *figures_ in said]
    assert stages[0][1] == entered
    assert stages[-1][2] == kept
    for (_, _, left, _), (_, before, _, _) in pairwise(stages):
        assert before == left
    assert all(before - left == gone for _, before, left, gone in stages)


def test_the_page_of_the_same_corpus_is_the_same_in_another_process(page: str, finished: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", "from manifests.commands import app; app()", "report", str(finished), "--output"]
    for seed, threads in (("1", "1"), ("2", "5")):
        told = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "OMP_NUM_THREADS": threads,
            "COLUMNS": "60",
            "TZ": "Asia/Tokyo",
            "LC_ALL": "C",
        }
        subprocess.run([*words, tmp_path / seed], env=told, check=True, capture_output=True)
        assert (tmp_path / seed).read_text(encoding="utf-8") == page


def test_what_a_recipe_does_not_check_is_said(page: str, finished: Path) -> None:
    said = Read(page).text
    assert "too short to be looked for" in said
    assert "warcinfo" in said
    folder, manifest = open_corpus(str(finished))
    bare = manifest.content.model_copy(update={"decontamination": [], "split": None, "stages": []})
    said = Read(report(folder, Manifest.seal(bare, manifest.run))).text
    for sentence in ("No benchmark was looked for.", "Near-duplicates were not looked for.", "Nothing was held out."):
        assert sentence in said


def test_of_what_was_not_checked_limits_come_first_and_items_are_folded_away(page: str, manifest: Manifest) -> None:
    part = page[page.index('id="unchecked"') :]
    before, _, folded = part.partition("<details>")
    items = [str(one) for record in manifest.content.decontamination for b in record["benchmarks"] for one in b["unchecked"]]
    assert items
    assert not any(one in before for one in items)
    assert all(one in folded for one in items)
    sentences = re.findall(r"<li>([^<]+)</li>", before)
    first = next(n for n, one in enumerate(sentences) if "too short to be looked for" in one)
    limits = [n for n, one in enumerate(sentences) if one.startswith("Decontamination: ")]
    assert limits and max(limits) < first


def test_of_the_check_of_the_split_it_is_said_what_was_compared_with_what(page: str, manifest: Manifest) -> None:
    split = manifest.content.split
    assert split is not None and split.closest is not None
    said = Read(page).text
    assert "of other splits:" not in said
    assert "was compared with every document of another split than its own" in said
    assert f"out of {split.closest.documents:,}:" in said


def test_epochs_of_a_run_are_those_of_what_was_served(finished: Path, tmp_path: Path) -> None:
    folder, manifest = open_corpus(str(finished))
    run = finish_run(write_run(tmp_path / "short", finished, [Phase()], steps=1, every=1, rows=1), finished, steps=1)
    page = report(folder, manifest, [run])
    passes = TrainedOn(run, folder, manifest).passes()
    training = {one: sum(row.tokens for row in manifest.shards("train", one)) for one in passes}
    assert {name for name, one in passes.items() if one} < set(training), "every component was served: it shows nothing"
    for name, one in passes.items():
        assert f"<title>{name}: {one:.3f} epochs</title>" in page
    (run / "ledger.jsonl").write_text("{}\n")
    with pytest.raises(figures.RunError, match=r"ledger\.jsonl"):
        report(folder, manifest, [run])


def test_clusters_are_counted_once_whatever_their_size(finished: Path) -> None:
    with Logs(*open_corpus(str(finished))) as logs:
        found = figures.clusters_of(logs)["minhash"]
        rows = logs.sql("select cluster, cluster_size from removals where stage = 'minhash'")
    sizes = {row["cluster"]: row["cluster_size"] for row in rows}
    assert sum(found.values()) == len(sizes)
    assert found == {size: list(sizes.values()).count(size) for size in set(sizes.values())}
    assert figures.grouped_sizes({2: 5, 7: 1, 20_000: 2}) == [
        ("2", 5), ("3", 0), ("4", 0), ("5", 0), ("6 to 10", 1), ("11 to 20", 0), ("21 to 50", 0), ("51 to 100", 0),
        ("101 to 1,000", 0), ("1,001 to 10,000", 0), ("10,001 and more", 2),
    ]  # fmt: skip


def test_stages_are_merged_in_an_order_that_suits_every_component() -> None:
    assert flow._merged([["read", "repair", "split"], ["read", "extraction", "repair", "split"]]) == [
        "read",
        "extraction",
        "repair",
        "split",
    ]
    assert sorted(flow._merged([["a", "b"], ["b", "a"]])) == ["a", "b"]


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [(0, 7, "0 %"), (7, 7, "100 %"), (1, 3, "33.3 %"), (1, 10**7, "< 0.1 %"), (10**7 - 1, 10**7, "> 99.9 %"), (0, 0, "–")],
)
def test_a_share_never_says_none_of_some_or_all_of_most(part: int, whole: int, said: str) -> None:
    assert share(part, whole) == said


def test_figures_are_short() -> None:
    assert [number(value) for value in (0, 999, 1_234, 999_999, 12_345_678, 3.2e9, 1.5e12, 0.01234)] == [
        "0", "999", "1,234", "999,999", "12.3 million", "3.2 billion", "1.5 trillion", "0.0123",
    ]  # fmt: skip


# signals


def test_documents_beyond_a_bound_are_those_that_the_rules_would_not_keep(finished: Path) -> None:
    folder, manifest = open_corpus(str(finished))
    with Logs(folder, manifest) as logs:
        found = list(distributions(logs))
        checked = 0
        for one in found:
            for beyond in one.beyond:
                failed = 0
                for view, block in logs.signals.items():
                    if block.partition("/")[0] in one.components:
                        signals = logs.connection.sql(f'select "{one.signal}" from "{view}"').to_arrow_table()
                        failed += int((decide([beyond.rule], signals).first >= 0).sum())
                assert beyond.documents == failed, beyond.rule.name
                checked += 1
    assert checked > 20
    assert sum(beyond.documents for one in found for beyond in one.beyond) > 0


def signal_log(tmp_path: Path, manifest: Manifest, finished: Path, values: pa.Array, rules: list[Rule]) -> Logs:
    """A corpus of one component whose one block measured `values` of `made.up`, judged by `rules`."""
    rows = len(values)
    path = "logs/signals/books/filters1/00000.parquet"
    (tmp_path / path).parent.mkdir(parents=True)
    ids = pa.array([f"books/x#{n}" for n in range(rows)])
    pq.write_table(pa.table({"id": ids, "text_bytes": pa.array([1] * rows), "made.up": values}), tmp_path / path)
    record = manifest.content.components["books"]
    stage = record.stages[0].model_copy(update={"stage": "made", "rules": rules})
    log = next(one for one in manifest.content.logs if one.kind == "signals").model_copy(update={"path": path, "rows": rows})
    content = manifest.content.model_copy(
        update={
            "components": {"books": record.model_copy(update={"stages": [stage]})},
            "counts": [one for one in manifest.content.counts if one.component == "books"],
            **{"stages": [], "logs": [log], "shards": []},
        }
    )
    return Logs(Folder(tmp_path), Manifest.seal(content, {}))


RULES = {
    "at least": Rule(name="made.rule", signal="made.up", keep_if_at_least=5),
    "at most": Rule(name="made.rule", signal="made.up", keep_if_at_most=5),
    "above": Rule(name="made.rule", signal="made.up", keep_if_above=5),
    "below": Rule(name="made.rule", signal="made.up", keep_if_below=5, when_undefined="remove"),
    "nothing above": Rule(name="made.rule", signal="made.up", keep_if_at_most=0),
}
VALUES = {
    "whole numbers": pa.array([0, 1, 4, 5, 5, 6, 9, None], pa.int64()),
    "many whole numbers": pa.array([*range(0, 3000, 7), 5, 5, 4, 6, None], pa.int64()),
    "a long tail": pa.array([*range(12), *(2**n for n in range(30))], pa.int64()),
    "numbers": pa.array([0.0, 4.999999, 5.0, 5.0000001, 7.5, math.nan, None], pa.float64()),
    "one number": pa.array([5.0, 5.0], pa.float64()),
    "below nothing": pa.array([-3.0, -2.5, 0.0, 8.0], pa.float64()),
    "ratios": pa.array([{"numerator": n, "denominator": d} for n, d in ((5, 1), (10, 2), (1, 3), (11, 2), (0, 0))], RATIO),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", VALUES)
def test_every_value_is_in_a_bar_and_each_bar_on_one_side_of_the_bound(
    tmp_path: Path, manifest: Manifest, finished: Path, rule: str, kind: str
) -> None:
    values = VALUES[kind]
    with signal_log(tmp_path, manifest, finished, values, [RULES[rule]]) as logs:
        (one,) = distributions(logs)
    table = pa.table({"made.up": values})
    failed = decide([RULES[rule]], table).first >= 0
    assert one.beyond[0].documents == int(failed.sum())
    assert sum(one.counts) == one.documents - one.undefined
    assert len(one.counts) == len(one.edges) - 1 <= 3 * BINS
    assert one.edges == sorted(set(one.edges))
    (bound,) = one.bounds
    assert one.edges[0] < bound < one.edges[-1]
    assert bound in one.edges
    under = sum(count for count, end in zip(one.counts, one.edges[1:], strict=True) if end <= bound)
    undefined = one.undefined if RULES[rule].when_undefined == "remove" else 0
    kept_below = RULES[rule].keep_if_at_most is not None or RULES[rule].keep_if_below is not None
    assert (sum(one.counts) - under if kept_below else under) + undefined == one.beyond[0].documents


def test_words_are_counted_and_a_list_of_kept_ones_is_a_bound(tmp_path: Path, manifest: Manifest, finished: Path) -> None:
    rule = Rule(name="made.rule", signal="made.up", keep_if_in=("en", "d'e"))
    values = pa.array(["en", "en", "d'e", "fr", None])
    with signal_log(tmp_path, manifest, finished, values, [rule]) as logs:
        (one,) = distributions(logs)
    assert one.words == {"en": 2, "d'e": 1, "fr": 1}
    assert (one.beyond[0].documents, one.undefined) == (1, 1)


@pytest.mark.parametrize("values", [pa.array([None, None], pa.float64()), pa.array([math.inf, -math.inf, 1.0])])
def test_signals_without_a_range_have_no_bars(tmp_path: Path, manifest: Manifest, finished: Path, values: pa.Array) -> None:
    with signal_log(tmp_path, manifest, finished, values, []) as logs:
        (one,) = distributions(logs)
    assert one.counts == []


def test_a_sample_is_the_same_each_time_and_its_size_is_told(tmp_path: Path, manifest: Manifest, finished: Path) -> None:
    values = pa.array(np.arange(20_000) % 1000, pa.int64())
    with signal_log(tmp_path, manifest, finished, values, [RULES["at least"]]) as logs:
        (all_of_them,) = distributions(logs)
        (some,), (again,) = distributions(logs, 2_000), distributions(logs, 2_000)
        said = Read(report(logs.corpus, logs.manifest, most=2_000)).text
    assert some == again
    assert all_of_them.documents == some.measured == 20_000
    assert 1_700 < some.documents < 2_300
    assert abs(some.quantiles[2] - 500) < 50
    assert some.sampled and not all_of_them.sampled
    assert f"{some.documents:,} documents here" in said


# strangers


def rewritten(corpus: Path, kind: str, change: Any) -> None:
    for path in (corpus / "logs" / kind).rglob("*.parquet"):
        table = pq.ParquetFile(path).read()
        pq.write_table(change(table), path)


def test_nothing_that_strangers_named_becomes_markup(copied: Path) -> None:
    def names(table: pa.Table) -> pa.Table:
        for column in ("domain", "language"):
            made = pa.array([HOSTILE[n % len(HOSTILE)] for n in range(table.num_rows)], pa.string())
            table = table.set_column(table.schema.get_field_index(column), table.schema.field(column), made)
        return table

    def rules(table: pa.Table) -> pa.Table:
        made = pa.array([HOSTILE[0] + rule for rule in table["rule"].to_pylist()], pa.string())
        return names(table).set_column(table.schema.get_field_index("rule"), table.schema.field("rule"), made)

    rewritten(copied, "documents", names)
    rewritten(copied, "removals", rules)
    folder, manifest = open_corpus(str(copied))
    content = manifest.content.model_copy(deep=True)
    content.name = HOSTILE[2]
    for number_, component in enumerate(content.components.values()):
        component.licence = HOSTILE[number_ % len(HOSTILE)]
        component.source = HOSTILE[1]
        component.unread_files = {HOSTILE[0]: 3}
        component.skipped_records = {HOSTILE[2]: 1}
    content.decontamination[0]["benchmarks"][0]["benchmark"] = HOSTILE[1]
    content.decontamination[0]["benchmarks"][0]["unchecked"] = [HOSTILE[0]]
    page = report(folder, Manifest.seal(content, {}))
    read = Read(page)
    assert {tag for tag, _ in read.tags} <= set(
        "html head meta title link style body header main footer section nav h1 h2 h3 h4 p small code a dl div dt dd ol ul li "
        "span svg rect polygon line path circle text desc details summary table thead tbody tr th td wbr".split()
    )
    assert not [name for _, attributes in read.tags for name in attributes if name.startswith("on") or name == "style"]
    assert {value for tag, attributes in read.tags for name, value in attributes.items() if name in ("href", "src")} <= {
        "data:,",
        *(attributes["href"] for tag, attributes in read.tags if tag == "a" and (attributes["href"] or "").startswith("#")),
    }
    said = "".join(read.words)
    assert HOSTILE[0] in said and HOSTILE[1] in said
    assert "\x1b" not in page and "\u202e" not in page
    assert "\\x1b[31m\\u202eevil" in said


def test_an_element_escapes_all_that_is_put_into_it() -> None:
    for text in HOSTILE[:3]:
        made = written(element("p", text, title=text, class_=text))
        assert made.count("<") == 3, made  # doctype, the paragraph and its end
    assert "\ud800" not in written(element("p", "half \ud800 character"))


def test_the_policy_lets_nothing_be_loaded_or_run(page: str) -> None:
    policy = next(one["content"] for tag, one in Read(page).tags if one.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy and "http" not in policy


# pictures


def test_bars_are_on_one_scale() -> None:
    made = bars([Bar("all", [Piece(10, "kept", "ten")]), Bar("half", [Piece(3, "kept", "three"), Piece(2, "removed", "two")])])
    widths = [[float(mark.attrib["width"]) for mark in row.iter("rect")] for row in made]
    assert widths == [[1000.0], [300.0, 200.0]]


def test_a_funnel_of_nothing_can_be_drawn() -> None:
    made = funnel([Level("came in", 0, 0), Level("kept", 0, 0)], 0)
    assert len(list(made.iter("polygon"))) == 2


def test_pictures_have_titles(page: str) -> None:
    svgs = re.findall(r"<svg[^>]*role=\"img\"[^>]*>(.{7})", page)
    assert len(svgs) > 30
    assert set(svgs) == {"<title>"}


# the command


def test_the_command_writes_one_file_and_never_over_another(finished: Path, tmp_path: Path, page: str) -> None:
    target = tmp_path / "report.html"
    assert call("report", finished, "--output", target).exit_code == 0
    assert target.read_text() == page
    target.write_text("mine")
    result = call("report", finished, "--output", target)
    assert (result.exit_code, target.read_text()) == (1, "mine")
    assert "--force" in result.stderr
    assert call("report", finished, "--output", target, "--force").exit_code == 0
    assert target.read_text() == page
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]


def test_no_page_is_written_into_the_corpus(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(finished)
    for place in (finished / "report.html", finished / "logs" / "report.html", tmp_path / "link" / "report.html"):
        result = call("report", finished, "--output", place)
        assert result.exit_code == 1
        assert "inside the corpus" in result.stderr
        assert not place.exists()


def test_a_damaged_log_is_an_error_of_one_line(copied: Path, tmp_path: Path) -> None:
    path = next((copied / "logs" / "removals").rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-40])
    result = call("report", copied, "--output", tmp_path / "report.html")
    assert result.exit_code == 1
    assert "corpusmill verify" in result.stderr
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("file", "text"), [("run.json", None), ("run.json", "[]"), ("metrics.jsonl", "{]\n"), ("result.json", "7")]
)
def test_a_run_that_cannot_be_read_is_named(finished: Path, tmp_path: Path, file: str, text: str | None) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("run.json", "config.json"):
        (run / name).write_text("{}")
    if text is None:
        (run / file).unlink()
    else:
        (run / file).write_text(text)
    result = call("report", finished, "--run", run, "--output", tmp_path / "report.html")
    assert result.exit_code == 1
    assert file in result.stderr


def test_runs_show_their_epochs_loss_and_score(finished: Path, manifest: Manifest, tmp_path: Path) -> None:
    run = tmp_path / "tiny"
    run.mkdir()
    (run / "run.json").write_text(f'{{"manifest_digest": "{manifest.digest}", "parameters": 1234567}}')
    (run / "config.json").write_text("{}")
    (run / "metrics.jsonl").write_text("".join(f'{{"tokens": {100 * n}, "loss": {9 - n}}}\n' for n in range(1, 4)) + '{"tok')
    (run / "result.json").write_text(
        '{"tokens": 300, "epochs": {"books": 2.5}, "score": {"val_bpb": 1.5, "split": "validation"}}'
    )
    page = report(*open_corpus(str(finished)), [run])
    said = Read(page).text
    for words in ("300 tokens", "1,234,567 parameters", "1.5000 bits per byte", "2.50 epochs"):
        assert words in said
    assert "From 8.000 at 100 tokens to 6.000 at 300 tokens" in said
    assert "another corpus" not in said
    (run / "run.json").write_text("{}")
    assert "another corpus" in Read(report(*open_corpus(str(finished)), [run])).text


def test_a_mixture_shows_what_a_run_would_take(finished: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mixture.yaml"
    recipe.write_text("phases: [{weights: {books: 3, web: 1}}]\n")
    result = call("report", finished, "--mixture", recipe, "--tokens", "100000", "--output", tmp_path / "report.html")
    assert result.exit_code == 0, result.stderr
    said = Read((tmp_path / "report.html").read_text()).text
    assert "Planned: 100,000 tokens" in said
    assert "75.0 %" in said
    assert call("report", finished, "--mixture", recipe, "--output", tmp_path / "other.html").exit_code == 2


def test_a_corpus_of_an_object_store_gives_the_same_page(finished: Path, page: str) -> None:
    store = fsspec.filesystem("memory")
    for path in [finished / MANIFEST, *(finished / "logs").rglob("*.parquet"), *(finished / "tokens").rglob("*.parquet")]:
        store.pipe_file(f"/reported/{path.relative_to(finished)}", path.read_bytes())
    try:
        assert report(*open_corpus("memory://reported")) == page
    finally:
        store.rm("/reported", recursive=True)


# a browser


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
def test_a_browser_shows_it_without_network_errors_or_overflow(page: str, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    target = tmp_path / "report.html"
    target.write_text(page, encoding="utf-8")
    said: list[str] = []
    asked: list[str] = []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width, scheme in ((1280, "light"), (400, "dark")):
            tab = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            tab.on("console", lambda message: said.append(message.text))
            tab.on("pageerror", lambda error: said.append(str(error)))
            tab.on("request", lambda request: asked.append(request.url))
            tab.goto(target.as_uri())
            for summary in tab.locator("summary").all():
                summary.click()
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            cells = tab.evaluate("[...document.querySelectorAll('.heat td')].map(one => one.getBoundingClientRect().height)")
            assert len(cells) > 5 and max(cells) < 40, "a share is broken over two lines"
            table = tab.locator("#where .scroll").first
            assert "gradient" in table.evaluate("one => getComputedStyle(one).backgroundImage"), "nothing says that it scrolls"
            paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
            assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]
            edges = tab.evaluate("[...document.querySelectorAll('#rules .strip')].map(one => one.getBoundingClientRect().width)")
            assert max(edges) - min(edges) < 1, "bars of different lengths are no scale"
            smallest = tab.evaluate(
                "Math.min(...[...document.querySelectorAll('.plot text')].map(one => one.getBoundingClientRect().height))"
            )
            assert smallest >= 9, "words in a picture are too small to be read"
        browser.close()
    assert said == []
    assert set(asked) == {target.as_uri()}


def test_distributions_know_whether_they_are_of_a_sample() -> None:
    assert Distribution("a.b", ["x"], 10, 5, 0, []).sampled
