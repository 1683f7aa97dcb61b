"""Reviews: only ever added to, by several people at once, and what they say of a rule is what the formula says."""

from __future__ import annotations

import csv
import io
import json
import math
import multiprocessing
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from manifests.audit.reviews import (
    Review,
    ReviewError,
    ReviewFile,
    default_reviews,
    latest,
    review_file,
    sample_size,
    summed,
    wilson,
)
from manifests.commands import app
from manifests.manifest import Manifest
from manifests.storage import Folder

HALF = "half a character: \ud800, and a\nline"


def review(
    document: str, verdict: str, reviewer: str = "Ada", seed: int | None = 0, rule: str = "a.b", place: int | None = None
) -> Review:
    return Review("2026-01-01T00:00:00Z", reviewer, "digest", document, rule, verdict, "", seed, place)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"),
    # by hand, with z = 1.959964: of 10 with 0 hits the upper end is z²/(10+z²); Newcombe (1998) has the other three
    [
        (0, 10, 0.0, 0.277533),
        (10, 10, 0.722467, 1.0),
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_the_interval_is_wilson_s(hits: int, of: int, low: float, high: float) -> None:
    found = wilson(hits, of)
    assert found == pytest.approx((low, high), abs=6e-5)
    assert 0 <= found[0] <= hits / of <= found[1] <= 1


@pytest.mark.parametrize(("hits", "of", "population"), [(3, 10, 12), (1, 29, 100), (7, 50, 400), (81, 263, 10**9)])
def test_the_interval_ends_where_a_finite_population_would_be_surprising(hits: int, of: int, population: int) -> None:
    # the score interval by its definition: at either end the rate seen is z standard errors away
    for end in wilson(hits, of, population):
        variance = end * (1 - end) / of * (population - of) / (population - 1)
        seen_at_most = (population - of + hits) / population
        assert (hits / of - end) ** 2 == pytest.approx(1.959964**2 * variance, rel=1e-5) or end in (
            hits / population,
            seen_at_most,
        )
    assert wilson(hits, of, 10**12) == pytest.approx(wilson(hits, of), abs=1e-9)


def test_of_all_documents_of_a_rule_the_rate_is_known() -> None:
    assert wilson(3, 10, 10) == (0.3, 0.3) and wilson(0, 1, 1) == (0.0, 0.0) and wilson(1, 1, 1) == (1.0, 1.0)
    found = summed([review(str(n), "right" if n else "false_positive") for n in range(4)], populations={"a.b": 4})["a.b"]
    assert found.all_of_them and found.interval == (0.25, 0.25)
    assert not summed([review("1", "right")], populations={"a.b": 4})["a.b"].all_of_them
    # 9 of 10 without a false positive: the tenth may still be one, and no more
    assert wilson(0, 9, 10)[1] <= 0.1 and wilson(9, 9, 10)[0] >= 0.9


def test_the_interval_of_a_small_population_holds_the_rate_as_often_as_it_says() -> None:
    for population, drawn in ((20, 10), (60, 25), (200, 150)):
        held = []
        for wrong in range(population + 1):
            ways = math.comb(population, drawn)
            chance = 0.0
            for hits in range(max(0, drawn - (population - wrong)), min(wrong, drawn) + 1):
                low, high = wilson(hits, drawn, population)
                if low <= wrong / population <= high:
                    chance += math.comb(wrong, hits) * math.comb(population - wrong, drawn - hits) / ways
            held.append(chance)
        assert 0.94 < sum(held) / len(held) < 0.98, (population, drawn)  # without the correction: 0.99 and more


def test_a_small_population_takes_fewer_documents() -> None:
    assert [sample_size(0.05, population=n) for n in (1, 10, 100, 1_000, 10**7)] == [1, 10, 80, 276, 381]
    for population in (10, 100, 1_000):
        n = sample_size(0.05, population=population)
        low, high = wilson(n // 2, n, population)
        assert (high - low) / 2 <= 0.0501
    assert sample_size(0.05, population=0) == 0


def test_a_sample_of_the_suggested_size_is_wide_enough_and_one_less_is_not() -> None:
    for half in (0.02, 0.05, 0.1, 0.3):
        needed = sample_size(half)
        widths = [(high - low) / 2 for low, high in (wilson(n // 2, n) for n in (needed + needed % 2,))]
        assert widths[0] <= half
        low, high = wilson((needed - 2) // 2, needed - 2)
        assert (high - low) / 2 > half
    assert sample_size(0.05) == 381
    assert sample_size(0.05, 1, 100) < sample_size(0.05)  # a rate that is known to be small needs fewer
    for wrong in (0.0, -1.0, 0.6, math.nan):
        with pytest.raises(ReviewError, match="half the width"):
            sample_size(wrong)


def test_the_last_verdict_of_a_reviewer_counts_and_a_withdrawn_one_does_not() -> None:
    made = [review("1", "right"), review("1", "false_positive"), review("2", "right"), review("2", "withdrawn")]
    assert [(one.id, one.verdict) for one in latest(made)] == [("1", "false_positive")]
    # a second look by hand at a document of a sample does not take it out of the sample
    assert latest([review("1", "right"), review("1", "false_positive", seed=None)])[0].seed == 0


def test_only_sampled_documents_on_which_reviewers_agree_count_in_a_rate() -> None:
    made = [
        *(review(f"right {n}", "right") for n in range(3)),
        review("wrong", "false_positive"),
        review("wrong", "false_positive", "Ben"),
        review("wrong", "unsure", "Cleo"),
        review("disputed", "right"),
        review("disputed", "false_positive", "Ben"),
        review("unsure", "unsure"),
        review("picked", "false_positive", seed=None),
        review("other", "right", rule="c.d"),
    ]
    found = summed(made, ["none"])
    one = found["a.b"]
    assert (one.sampled, one.false_positives, one.disputed, one.unsure, one.by_hand) == (4, 1, 1, 1, 1)
    assert one.rate == 0.25 and one.interval == wilson(1, 4)
    assert one.reviewers == ("Ada", "Ben", "Cleo")
    assert found["none"].rate is None and found["none"].interval is None
    assert found["c.d"].sampled == 1


def test_documents_picked_from_the_middle_of_a_sample_count_in_no_rate_until_those_before_them_do() -> None:
    made = [
        review("second", "false_positive", place=2),
        review("fortieth", "false_positive", "Ben", place=40),
        review("first of another seed", "right", seed=1, place=1),
        review("first of another rule", "right", rule="c.d", place=1),
    ]
    one = summed(made)["a.b"]
    assert (one.sampled, one.false_positives, one.by_hand) == (1, 0, 2)
    assert summed(made)["c.d"].sampled == 1
    made.append(review("first", "unsure", "Cleo", place=1))
    one = summed(made)["a.b"]
    assert (one.sampled, one.false_positives, one.unsure, one.by_hand) == (2, 1, 1, 1)
    made.append(review("first", "withdrawn", "Cleo", place=1))
    assert summed(made)["a.b"].sampled == 1


def test_what_is_stored_is_read_back_and_nothing_before_it_is_changed(tmp_path: Path) -> None:
    stored = ReviewFile(tmp_path / "of" / "me" / "reviews.jsonl", "digest")
    assert stored.read() == []
    first = stored.add(" Ada ", "12e5/a#1", "<b>", "right", HALF, 7)
    before = stored.path.read_bytes()
    second = stored.add("Ben", "12e5/a#1", "<b>", "unsure")
    assert stored.path.read_bytes().startswith(before)
    assert stored.read() == [first, second]
    assert (first.reviewer, first.note, first.seed, second.seed) == ("Ada", HALF, 7, None)
    assert first.time.endswith("Z")
    assert stored.path.stat().st_mode & 0o077 == 0


def test_a_line_that_was_cut_off_costs_no_other_line(tmp_path: Path) -> None:
    stored = ReviewFile(tmp_path / "reviews.jsonl", "digest")
    stored.add("Ada", "1", "a.b", "right")
    with stored.path.open("ab") as file:
        file.write(b'{"time": "2026')
    stored.add("Ada", "2", "a.b", "right")
    ReviewFile(stored.path, "another").add("Ada", "3", "a.b", "right")
    with stored.path.open("ab") as file:
        file.write(b'[1]\n{"a": 1}\n\xff\n' + b'{"time":1,"reviewer":"","corpus":"digest","id":"","rule":"","verdict":"right"}\n')
        file.write(json.dumps({**review("4", "right").as_json(), "seed": True}).encode() + b"\n")
    assert [one.id for one in stored.read()] == ["1", "2"]
    assert (stored.unreadable, stored.others) == (6, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("", "1", "a.b", "right"), "needs the reviewer's name"),
        (("Ada", "1", "a.b", "wrong"), "no verdict"),
        (("Ada", "1", "a.b", "right", "n" * 2001), "the note has 2,001"),
        (("A" * 101, "1", "a.b", "right"), "the name has 101"),
    ],
)
def test_what_is_no_review_is_not_stored(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    stored = ReviewFile(tmp_path / "reviews.jsonl", "digest")
    with pytest.raises(ReviewError, match=said):
        stored.add(*words)  # type: ignore[arg-type]
    assert not stored.path.exists()


@pytest.mark.parametrize("longer", ["reviewer", "note", "id", "rule", "time"])
def test_a_line_that_is_longer_than_a_review_may_be_is_none(tmp_path: Path, longer: str) -> None:
    stored = ReviewFile(tmp_path / "reviews.jsonl", "digest")
    lines = [review("1", "right").as_json(), {**review("2", "right").as_json(), longer: "é" * 10_001}]
    stored.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert ([one.id for one in stored.read()], stored.unreadable) == (["1"], 1)


def test_what_is_no_plain_file_is_not_waited_for(finished: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(ReviewError, match="is no plain file"):
            review_file(Folder(finished), "0ab", str(path))
        with pytest.raises(ReviewError, match="is no plain file"):
            ReviewFile(path, "0ab").read()
        with pytest.raises(ReviewError, match="is no plain file"):
            ReviewFile(path, "0ab").add("Ada", "1", "a.b", "right")


def _many(path: Path, name: str, number: int) -> None:
    stored = ReviewFile(path, "digest")
    for n in range(number):
        stored.add(name, str(n), "a.b", "right", "note " * 300)


def test_two_reviewers_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "reviews.jsonl"
    context = multiprocessing.get_context("spawn")
    people = [context.Process(target=_many, args=(path, name, 20)) for name in ("Ada", "Ben")]
    for one in people:
        one.start()
    for one in people:
        one.join()
        assert one.exitcode == 0
    stored = ReviewFile(path, "digest")
    assert {(one.reviewer, one.id) for one in stored.read()} == {(name, str(n)) for name in ("Ada", "Ben") for n in range(20)}
    assert stored.unreadable == 0


def test_reviews_lie_outside_the_corpus(finished: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    folder = Folder(finished)
    assert review_file(folder, "0ab/..").path == tmp_path / "data" / "corpusmill" / "reviews" / "0ab---.jsonl"
    assert default_reviews("0ab").name == "0ab.jsonl"
    with pytest.raises(ReviewError, match="lies in the corpus"):
        review_file(folder, "0ab", str(finished / "logs" / ".." / "reviews.jsonl"))
    with pytest.raises(ReviewError, match="is a folder"):
        review_file(folder, "0ab", str(tmp_path))


def test_the_command_prints_rates_and_every_verdict(finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "reviews.jsonl"

    def call(*more: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["audit", "reviews", str(finished), "--reviews", str(path), *more])
        assert result.exit_code == code, result.output
        return result.output

    assert "no review of this corpus" in call()
    stored = ReviewFile(path, Manifest.load(Folder(finished)).digest)
    stored.add("Ada", "12e5", "minhash.near_duplicate", "false_positive", "=1+1", 3)
    stored.add("Ada", "12e6", "minhash.near_duplicate", "right", "", 3)
    stored.add("Ada", "12e7", "a.b", "right")
    said = call()
    assert "minhash.near_duplicate" in said and "50.00 %" in said and "16.67 % to 83.33 %" in said  # of the six that it removed
    whole = json.loads(call("--json", "--rule", "minhash.near_duplicate"))
    assert whole["rules"][0]["rate"] == 0.5 and whole["rules"][0]["needed"] == 6  # all that it removed
    assert [one["id"] for one in whole["reviews"]] == ["12e5", "12e6"]
    rows = list(csv.DictReader(io.StringIO(call("--csv"))))
    assert [row["id"] for row in rows] == ["12e5", "12e6", "12e7"]
    assert rows[0]["note"] == "'=1+1" and rows[2]["seed"] == ""
    for n in range(4):
        stored.add("Ada", f"12e{8 + n}", "minhash.near_duplicate", "right", "", 3)
    assert "all of them" in call()
    assert "half the width" in call("--half-width", "0", code=1)
