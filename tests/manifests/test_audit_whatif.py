"""What-if: exact inside the filter block, which a second run with the other recipe confirms; beyond it, a bound that holds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from manifests.audit.whatif import WhatIf, WhatIfError, changes_of, what_if
from manifests.commands import app
from manifests.logs import Logs
from manifests.manifest import Manifest
from manifests.storage import Folder
from tests.pipeline.crawl import build, prose, small_recipe, write_small

FILTERS: dict[str, dict[str, Any]] = {
    "gopher_quality": {"min_words": 50, "max_hashes_per_word": 0.1, "max_bullet_lines": 0.9},
    "c4": {"min_sentences": 2},
    "fineweb": {"max_short_lines": 0.67},
}


def recipe(options: dict[str, dict[str, Any]], dedup: bool = False) -> dict[str, Any]:
    stages = [{name: given} for name, given in options.items()]
    return small_recipe(stages, ["exact_dedup"] if dedup else [])


def documents() -> dict[str, list[dict[str, Any]]]:
    """Texts of all lengths, some with hashes, bullets and short lines, each in two files now and then."""
    chance = random.Random("what if")
    files: dict[str, list[dict[str, Any]]] = {"a.jsonl": [], "b.jsonl": [], "c.jsonl": []}
    for number in range(90):
        lines = prose(f"what if {number}", chance.randint(1, 9))
        if number % 5 == 0:
            lines = [line + " #" * chance.randint(1, 4) for line in lines]
        if number % 7 == 0:
            lines = [f"- {line}" if chance.random() < 0.95 else line for line in lines]
        if number % 4 == 0:
            lines = [piece for line in lines for piece in line.split(" ", 3)]
        text = "\n".join(lines)
        files["abc"[number % 3] + ".jsonl"].append({"text": text, "url": f"https://site{number % 4}.example/{number}"})
        if number % 6 == 0:
            files["c.jsonl"].append({"text": text})
    return files


def kept(corpus: Path, stage: str | None = "filters1") -> set[str]:
    """Ids that the stage (None: every stage) kept."""
    gone = ds.dataset(sorted(corpus.glob("logs/removals/*/*.parquet"))).to_table(columns=["id", "stage"]).to_pylist()
    everything = ds.dataset(sorted(corpus.glob("logs/documents/*/*.parquet"))).to_table(columns=["id"])["id"].to_pylist()
    return set(everything) - {row["id"] for row in gone if stage in (None, row["stage"])}


def ask(corpus: Path, *asked: str, examples: int = 1000) -> WhatIf:
    folder = Folder(corpus)
    manifest = Manifest.load(folder)
    with Logs(folder, manifest, ["removals"]) as logs:
        return what_if(logs, changes_of(manifest.content, asked), examples)


def ids(answer: WhatIf, side: str) -> set[str]:
    return {example["id"] for example in answer.examples[side]}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whatif")
    build(write_small(folder, documents(), recipe(FILTERS, dedup=True)), folder / "corpus")
    return folder / "corpus"


CHANGES = (
    {"gopher_quality.min_words": 20},
    {"gopher_quality.min_words": 120},
    {"gopher_quality.min_words": 30, "c4.min_sentences": 1, "fineweb.max_short_lines": 0.95},
    {"gopher_quality.max_hashes_per_word": 0.02, "gopher_quality.max_bullet_lines": 1.0, "c4.min_sentences": 5},
    {"gopher_quality.min_words": 0, "gopher_quality.max_hashes_per_word": 0.5, "c4.min_sentences": 0},
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: " ".join(f"{name}={value}" for name, value in change.items()))
def test_it_is_what_another_run_with_that_recipe_decides(corpus: Path, tmp_path: Path, change: dict[str, float]) -> None:
    options = {name: dict(given) for name, given in FILTERS.items()}
    for name, value in change.items():
        options[name.partition(".")[0]][name.partition(".")[2]] = value
    build(write_small(tmp_path, documents(), recipe(options, dedup=True)), tmp_path / "corpus")
    answer = ask(corpus, *(f"{name}={value}" for name, value in change.items()))
    before, after = kept(corpus), kept(tmp_path / "corpus")
    assert ids(answer, "newly_kept") == after - before
    assert ids(answer, "newly_removed") == before - after
    assert before ^ after, "the change changes nothing: it shows nothing"
    assert sum(one.documents for one in answer.newly_kept) == len(after - before)
    assert sum(one.documents for one in answer.newly_removed) == len(before - after)
    came_in = kept(tmp_path / "corpus", None) - kept(corpus, None)
    assert len(came_in) <= answer.most_kept, "the bound does not hold"
    assert answer.in_corpus == len(ids(answer, "newly_removed") & kept(corpus, None))


def windows(text: list[str], places: list[tuple[int, int]]) -> dict[str, list[dict[str, str]]]:
    """Documents of the words from one place of a text to another, five a line: neighbours are near-duplicates."""
    lines = [[" ".join(text[at : at + 5]) for at in range(begin, end, 5)] for begin, end in places]
    return {"in.jsonl": [{"text": "\n".join(one)} for one in lines]}


def test_a_document_that_joined_two_others_is_missed_though_it_was_removed_itself(tmp_path: Path) -> None:
    text = " ".join(prose("bridge", 60)).split()
    files = windows(text, [(0, 430), (30, 430), (60, 472)])
    for words, name in ((50, "corpus"), (405, "other")):
        written = small_recipe([{"gopher_quality": {"min_words": words}}], [{"minhash": {"threshold": 0.8}}])
        build(write_small(tmp_path / name, files, written), tmp_path / name / "corpus")
    corpus = tmp_path / "corpus" / "corpus"
    assert kept(corpus, None) == {"docs/in.jsonl#0"}, "the three are no chain"
    came_in = kept(tmp_path / "other" / "corpus", None) - kept(corpus, None)
    assert came_in == {"docs/in.jsonl#2"}
    answer = ask(corpus, "gopher_quality.min_words=405")
    assert (answer.in_corpus, answer.freed_copies, answer.most_kept) == (0, 1, 1)
    shown = CliRunner().invoke(app, ["audit", "whatif", str(corpus), "gopher_quality.min_words=405"]).stdout
    assert "upper bound: 1 document more" in shown


def test_of_a_copy_whose_kept_one_goes_one_comes_back(tmp_path: Path) -> None:
    """Three pairs and a cluster of three, each with one document that is too long for the other recipe and stays for its length;
    of a fourth pair both are."""
    files: dict[str, list[dict[str, str]]] = {"in.jsonl": []}
    for number, sizes in enumerate([(400, 420), (400, 420), (400, 420), (400, 405, 420), (430, 440), (300,)]):
        text = " ".join(prose(f"pair {number}", 60)).split()
        files["in.jsonl"] += windows(text, [(0, size) for size in sizes])["in.jsonl"]
    for most, name in ((1000, "corpus"), (410, "other")):
        written = small_recipe([{"gopher_quality": {"max_words": most}}], ["exact_dedup", {"minhash": {"threshold": 0.8}}])
        build(write_small(tmp_path / name, files, written), tmp_path / name / "corpus")
    corpus = tmp_path / "corpus" / "corpus"
    answer = ask(corpus, "gopher.max_words=410")
    before, after = kept(corpus, None), kept(tmp_path / "other" / "corpus", None)
    assert ids(answer, "newly_removed") == kept(corpus) - kept(tmp_path / "other" / "corpus"), "the block is exact"
    assert answer.in_corpus == len(before - after) == 5
    assert answer.expected_copies == len(after - before) == 4
    assert answer.freed_copies == answer.most_kept == 5, "the bound has both copies of the cluster of three"
    shown = CliRunner().invoke(app, ["audit", "whatif", str(corpus), "gopher.max_words=410"]).stdout
    assert "and 4 copies back of what goes" in shown


WIDE: dict[str, list[Any]] = {
    "twins": ["exact_dedup", {"minhash": {"threshold": 0.6, "bands": 32, "rows": 3}}],
    "nearest twins alone": [{"minhash": {"threshold": 0.6, "bands": 32, "rows": 3, "chain": "direct"}}],
    "twins of twins": [{"minhash": {"threshold": 0.6, "bands": 32, "rows": 3}}, "exact_dedup"],
    "lines": [{"line_dedup": {"max_documents": 1, "min_characters": 10}}, "exact_dedup"],
}
MOVED = ({"max_words": 150}, {"min_words": 60, "max_words": 170})


@pytest.mark.parametrize("stages", WIDE)
def test_the_bound_holds_whatever_later_stages_compare(tmp_path: Path, stages: str) -> None:
    chance = random.Random("windows")
    text = " ".join(prose("windows", 200)).split()
    places = []
    for _ in range(160):
        begin = 25 * chance.randint(0, 50)
        places.append((begin, begin + 20 * chance.randint(3, 10)))
    usual = {"min_words": 100, "max_words": 180}
    made = {}
    for number, options in enumerate([usual, *MOVED]):
        written = small_recipe([{"gopher_quality": {**usual, **options}}], WIDE[stages])
        folder = tmp_path / str(number)
        build(write_small(folder, windows(text, places), written), folder / "corpus")
        made[number] = kept(folder / "corpus", None)
    came = 0
    for number, options in enumerate(MOVED, 1):
        answer = ask(tmp_path / "0" / "corpus", *(f"gopher.{name}={value}" for name, value in options.items()))
        came_in = made[number] - made[0]
        assert len(came_in) <= answer.most_kept, options
        came += len(came_in - ids(answer, "newly_kept"))
    assert came, "nothing came back because of others"


def test_stages_that_look_at_other_documents_are_all_known() -> None:
    from manifests.audit.later_stages import COMPARING, REWRITING
    from stages.registry import CORPUS_WIDE

    assert set(CORPUS_WIDE) - COMPARING - REWRITING == {"split", "tokenizer", "shards"}, "which remove nothing"


def test_of_a_rule_that_moves_nothing_it_is_said_why(corpus: Path) -> None:
    answer = ask(corpus, "gopher.min_words=49")
    (one,) = answer.verdicts
    gone = ds.dataset(sorted(corpus.glob("logs/removals/*/*.parquet"))).to_table().to_pylist()
    failed = [row["failed_rules"] for row in gone if row["stage"] == "filters1" and "gopher.min_words" in row["failed_rules"]]
    assert one.failed == len(failed)
    answer = ask(corpus, "gopher.min_words=off")
    (one,) = answer.verdicts
    assert (one.would_fail, one.fail_others) == (0, sum(len(rules) > 1 for rules in failed))
    assert one.fail_others == one.failed - sum(moved.documents for moved in answer.newly_kept) > 0
    shown = CliRunner().invoke(app, ["audit", "whatif", str(corpus), "gopher.min_words=off"]).stdout
    said = f"gopher.min_words of docs: {one.failed} documents failed it, 0 would; of those that would not, {one.fail_others} fail"
    assert said in shown


def test_ratios_of_examples_are_numbers(corpus: Path) -> None:
    examples = ask(corpus, "gopher.max_mean_word_length=4").examples["newly_removed"]
    assert examples
    assert all(4 < one["gopher.mean_word_length"] < 10 for one in examples)


def test_a_rule_left_out_is_one_that_every_document_meets(corpus: Path) -> None:
    off, low = ask(corpus, "gopher.min_words=off"), ask(corpus, "gopher.min_words=0")
    assert ids(off, "newly_kept") == ids(low, "newly_kept")
    assert off.newly_kept == low.newly_kept
    assert off.newly_kept


def test_asking_for_what_decided_changes_nothing(corpus: Path) -> None:
    answer = ask(corpus, "gopher_quality.min_words=50", "c4.min_sentences=2.0")
    assert (answer.newly_kept, answer.newly_removed, answer.other_reason, answer.most_kept) == ([], [], 0, 0)
    assert answer.measured == 105


def test_examples_are_chosen_by_seed_and_not_by_place(corpus: Path) -> None:
    folder = Folder(corpus)
    manifest = Manifest.load(folder)
    with Logs(folder, manifest, ["removals"]) as logs:
        changes = changes_of(manifest.content, ["gopher.min_words=120"])
        first, again, other = (what_if(logs, changes, 3, seed).examples["newly_removed"] for seed in (0, 0, 1))
    assert first == again != other
    assert len(first) == 3
    assert all(50 <= one["gopher.words"] < 120 for one in first)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("gopher.min_wrds=3", "did you mean"),
        ("gopher.min_words", "is not RULE=VALUE"),
        ("gopher.min_words=", "is not RULE=VALUE"),
        ("gopher.min_words=many", "is not a number"),
        ("gopher.min_words=nan", "is not a number"),
        ("gopher.min_words=inf", "is not a number"),
        ("gopher.min_words=-1e309", "is not a number"),
        ("c4.terminal_punctuation=0", "changes what is measured"),
        ("fineweb.short_line_characters=3", "changes what is measured"),
        ("nowhere:gopher.min_words=3", "no component 'nowhere'"),
        ("'; drop view removals; --=3", "no rule is called"),
    ],
)
def test_what_stored_signals_cannot_answer_is_said_with_the_reason(corpus: Path, asked: str, said: str) -> None:
    with pytest.raises(WhatIfError, match=said):
        ask(corpus, asked)
    result = CliRunner().invoke(app, ["audit", "whatif", str(corpus), asked])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")


def test_a_rule_is_asked_once(corpus: Path) -> None:
    with pytest.raises(WhatIfError, match="twice"):
        ask(corpus, "gopher.min_words=3", "docs:gopher_quality.min_words=4")


def test_removals_that_contradict_the_signals_are_refused_by_name(corpus: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "corpus"
    shutil.copytree(corpus, copy, ignore=shutil.ignore_patterns("steps"))
    path = copy / "logs/signals/docs/filters1/00000.parquet"
    table = pq.read_table(path)
    words = table["gopher.words"].to_pylist()
    words[4] = 1 if words[4] >= 50 else 1000
    changed = table.set_column(table.schema.get_field_index("gopher.words"), table.schema.field("gopher.words"), pa.array(words))
    pq.write_table(changed, path)
    with pytest.raises(WhatIfError, match=f"{table['id'][4]} .*gopher.min_words"):
        ask(copy, "gopher.min_words=40" if words[4] > 1 else "gopher.min_words=0")


def test_the_command_labels_what_is_exact_a_bound_and_an_estimate(corpus: Path) -> None:
    shown = CliRunner().invoke(app, ["audit", "whatif", str(corpus), "gopher.min_words=20"]).stdout
    for label in ("exact, of 105 measured documents", "upper bound: ", "estimate, if later stages"):
        assert label in shown
    told = json.loads(CliRunner().invoke(app, ["audit", "whatif", str(corpus), "gopher.min_words=20", "--json"]).stdout)
    assert told["upper_bound"]["documents_that_come_in"] >= told["estimate"]["documents_that_come_in"] > 0
