"""Ten distinct documents, each the textbook case of one rule, and the row that each must get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.pipeline.crawl import BENCHMARK, article, build, prose, small_recipe, write_small

STAGES: list[Any] = [{"language": {"keep": ["en"]}}, "gopher_quality", "gopher_repetition", "c4", "fineweb"]
CORPUS_WIDE: list[Any] = [
    "exact_dedup",
    {"minhash": {"bands": 20, "rows": 4, "threshold": 0.7}},
    {"decontamination": {"benchmarks": "items.jsonl"}},
]
TWIN = prose("twin", 12)
GERMAN = (
    "Der alte Müller trug an jedem Morgen einen Korb voller Äpfel über die schmale Brücke in das Dorf, und die Kinder warteten dort schon "
    "auf ihn, denn er erzählte ihnen immer eine Geschichte aus dem großen Wald hinter dem Fluss. Am Abend ging er zurück in seine Mühle."
)


def fifty(extra: int) -> str:
    """Exactly 50 + `extra` words in sentences of prose."""
    words = " ".join(prose("fifty", 6)).split()[: 50 + extra]
    return " ".join(words).rstrip(".,;") + "."


DOCUMENTS: list[tuple[str, str | None, float | None, float | None]] = [
    # text, rule, value, threshold
    ("\n".join(TWIN), None, None, None),
    (fifty(-1), "gopher.min_words", 49, 50),
    (
        "\n".join(line.replace(" ", " # ", 2) for line in prose("hashes", 12)),
        "gopher.max_hashes_per_word",
        24 / len("\n".join(line.replace(" ", " # ", 2) for line in prose("hashes", 12)).split()),
        0.1,
    ),
    ("\n".join(f"• {line}" for line in prose("bullets", 12)), "gopher.max_bullet_lines", 1.0, 0.9),
    # Six distinct lines, then four of them again: 4 of 10 are repeats.
    ("\n".join([*prose("lines", 6), *prose("lines", 6)[:4]]), "gopher_repetition.max_duplicate_lines", 0.4, 0.3),
    (article("curly") + "\nThe function { returns one } to whoever called it.", "c4.curly_brace", 1, 0),
    (article("lorem") + "\nLorem ipsum dolor sit amet is what the printer set.", "c4.lorem_ipsum", 1, 0),
    (GERMAN, "language.unwanted", None, 0.65),
    (" ".join([*TWIN[:-1], "And that was all."]), "minhash.near_duplicate", None, 0.7),
    ("\n".join([*prose("item", 6), f"{BENCHMARK}.", *prose("rest", 6)]), "decontamination.ngram", len(BENCHMARK.split()) - 12, 1),
]


@pytest.fixture(scope="module")
def removals(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """Line → removal row."""
    folder = tmp_path_factory.mktemp("textbook")
    (folder / "items.jsonl").write_text(json.dumps({"benchmark": "trains", "item": "1", "text": BENCHMARK}))
    files = {"ten.jsonl": [{"text": text} for text, *_ in DOCUMENTS], "extra.jsonl": [{"text": text} for text in EXTRA]}
    build(write_small(folder, files, small_recipe(STAGES, CORPUS_WIDE)), folder / "corpus")
    rows = pq.read_table(next(Path(folder / "corpus" / "logs" / "removals" / "docs").glob("*.parquet"))).to_pylist()
    assert all(row["component"] == "docs" for row in rows)
    return {row["position"] if row["file"] == "ten.jsonl" else ~row["position"]: row for row in rows}


EXTRA = [fifty(0), GERMAN + " {", f"# {GERMAN}"]


def test_the_ten_documents_are_distinct() -> None:
    assert len({text for text, *_ in DOCUMENTS}) == len(DOCUMENTS) == 10


@pytest.mark.parametrize("line", range(10), ids=[rule or "kept" for _, rule, *_ in DOCUMENTS])
def test_a_textbook_case_has_the_row_of_its_rule_with_value_and_threshold(removals: dict[int, dict[str, Any]], line: int) -> None:
    _, rule, value, threshold = DOCUMENTS[line]
    row = removals.get(line)
    if rule is None:
        assert row is None
        return
    assert row is not None
    assert row["rule"] == rule
    assert row["failed_rules"][0] == rule
    assert row["threshold"] == threshold
    if value is not None:
        assert row["value"] == pytest.approx(value, abs=1e-12)


def test_fifty_words_are_enough(removals: dict[int, dict[str, Any]]) -> None:
    assert ~0 not in removals


def test_language_says_which_label_it_found_and_how_sure_it_was(removals: dict[int, dict[str, Any]]) -> None:
    row = removals[7]
    assert row["language"] == "de"
    assert row["detail"].startswith("de")
    assert 0.65 < row["value"] <= 1


def test_the_near_copy_names_the_kept_original_and_its_jaccard(removals: dict[int, dict[str, Any]]) -> None:
    removed, kept = 8, 0
    row = removals[removed]
    sets = []
    for line in (removed, kept):
        words = DOCUMENTS[line][0].lower().split()
        sets.append({tuple(words[i : i + 5]) for i in range(len(words) - 4)})
    assert row["kept_id"] == row["linked_id"] == f"docs/ten.jsonl#{kept}"
    assert row["kept_jaccard"] == row["value"] == pytest.approx(len(sets[0] & sets[1]) / len(sets[0] | sets[1]), abs=1e-12)
    assert row["cluster_size"] == 2


def test_the_contaminated_document_names_benchmark_item_and_words(removals: dict[int, dict[str, Any]]) -> None:
    row = removals[9]
    assert (row["benchmark"], row["item"]) == ("trains", "1")
    assert "eleven green wagons" in row["evidence"]


def test_all_rules_that_a_document_fails_are_named_in_declared_order(tmp_path: Path) -> None:
    """A bulleted list of one short line, over and over: Gopher's quality before repetition before C4 before FineWeb."""
    text = "\n".join(["- # # the and"] * 12)
    recipe = write_small(tmp_path, {"a.jsonl": [{"text": text}, {"text": article("whole")}]}, small_recipe(STAGES[1:]))
    result = build(recipe, tmp_path / "corpus")
    row = pq.read_table(tmp_path / "corpus" / "logs" / "removals" / "docs" / "00000.parquet").to_pylist()[0]
    declared = [rule.name for record in result.manifest.content.components["docs"].stages for rule in record.rules]
    assert [declared.index(rule) for rule in row["failed_rules"]] == sorted(declared.index(rule) for rule in row["failed_rules"])
    assert row["rule"] == row["failed_rules"][0] == "gopher.min_mean_word_length"
    later = ["gopher.max_bullet_lines", "gopher_repetition.max_duplicate_lines", "c4.min_sentences", "fineweb.max_short_lines"]
    assert [rule for rule in row["failed_rules"] if rule in later] == later
