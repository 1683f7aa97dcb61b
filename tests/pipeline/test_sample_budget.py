"""What each component gives to the tokenizer's sample is arithmetic, and what is offered holds it."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests.mixture import MixtureError
from pipeline.sample_budget import WHOLE, Counted, SizeCounter, bounds, budgets, check_mixture, offered, shares
from stages.tokenizer import cut, sample_key

EVERYTHING = (1 << 64) - 1


def counted(lengths: list[int], language: str = "en") -> Counted:
    counter = SizeCounter()
    counter.add(np.array(lengths, np.int64), [language] * len(lengths))
    return Counted.of([counter.values()])


def test_documents_are_counted_by_language_and_size_whatever_the_parts() -> None:
    lengths, languages = [0, 1, 2, 3, 4, 1023, 1024, 1 << 40], ["de", "de", None, "en", "en", "en", "de", "en"]
    whole, first, second = SizeCounter(), SizeCounter(), SizeCounter()
    whole.add(np.array(lengths), languages)
    first.add(np.array(lengths[:3]), languages[:3])
    first.add(np.array([], np.int64), [])
    second.add(np.array(lengths[3:]), languages[3:])
    found = Counted.of([first.values(), second.values()])
    assert found == Counted.of([whole.values()])
    assert found.sizes == {0: (1, 0), 1: (1, 1), 2: (2, 5), 3: (1, 4), 10: (1, 1023), 11: (1, 1024), 41: (1, 1 << 40)}
    assert found.languages == {"de": 1025, "en": 3 + 4 + 1023 + (1 << 40), "und": 2}


TEXTS = st.lists(st.text("aé漢🙂", max_size=60), max_size=30)


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.integers(4, 120))
def test_what_is_left_by_the_cap_lies_between_the_least_and_the_most(texts: list[str], cap: int) -> None:
    least, most = counted([len(text.encode()) for text in texts]).capped(cap)
    assert least <= sum(len(cut(text, cap).encode()) for text in texts) <= most
    if all(len(text.encode()) < cap // 2 for text in texts):
        assert least == most


def test_a_cap_far_below_the_documents_leaves_a_cap_of_each() -> None:
    assert counted([1 << 20] * 10).capped(1000) == (9970, 10_000)


def test_shares_follow_the_bytes_where_no_mixture_is_given() -> None:
    assert shares(None, {"a": counted([300]), "b": counted([100])}) == {"a": 750_000_000, "b": 250_000_000}
    assert shares(None, {"a": counted([]), "b": counted([0])}) == {"a": 0, "b": 0}


def test_shares_of_several_phases_are_weighed_by_their_lengths(tmp_path: Path) -> None:
    path = tmp_path / "mixture.yaml"
    path.write_text("phases:\n- {share: 0.75, weights: {a: 3, b: 1}}\n- {weights: {b: 1}}\n")
    sizes = {"a": counted([300]), "b": counted([100]), "c": counted([100])}
    assert shares(str(path), sizes) == {"a": 562_500_000, "b": 437_500_000, "c": 0}


def test_a_temperature_evens_languages_out_by_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "mixture.yaml"
    path.write_text("phases: [{temperature: 0.5}]")
    found = shares(str(path), {"a": counted([1600]), "b": counted([100], "de")})
    assert found == {"a": 800_000_000, "b": 200_000_000}  # 4 to 1, where the bytes are 16 to 1


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("phases: [{weights: {wbe: 1}}]", r"no component 'wbe'; did you mean 'web'\?"),
        ("phases: [{share: 0.5, temperature: 0.3}, {weights: {zzz: 1}}]", "no component 'zzz'; there are books, web"),
        ("phases: [{weights: {web: 0}}]", "all weights are 0"),
        ("phases: {", "not YAML"),
        ("\xff", "a dictionary|valid dictionary"),
    ],
)
def test_a_mixture_of_other_components_is_refused(tmp_path: Path, written: str, complaint: str) -> None:
    path = tmp_path / "mixture.yaml"
    path.write_text(written, encoding="utf-8")
    with pytest.raises(MixtureError, match=complaint):
        check_mixture(str(path), ["web", "books"])


def test_a_mixture_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mixture.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(MixtureError, match="cannot be read"):
        check_mixture(str(tmp_path / "mixture.yaml"), ["web"])
    with pytest.raises(MixtureError, match="cannot be read"):
        check_mixture(str(tmp_path / "gone.yaml"), ["web"])


def test_what_a_small_component_lacks_is_given_to_the_others_in_proportion() -> None:
    wanted = {"a": WHOLE // 2, "b": WHOLE // 4, "c": WHOLE // 4, "d": 0}
    plenty = {"a": 10_000, "b": 10_000, "c": 10_000, "d": 10_000}
    assert budgets(1000, wanted, plenty) == {"a": 500, "b": 250, "c": 250, "d": 0}
    assert budgets(1000, wanted, {**plenty, "c": 100}) == {"a": 600, "b": 300, "c": 100, "d": 0}
    # What c lacks makes the share of b more than b has.
    assert budgets(1000, wanted, {**plenty, "b": 260, "c": 100}) == {"a": 640, "b": 260, "c": 100, "d": 0}
    assert budgets(1000, wanted, {**plenty, "a": 5, "b": 6, "c": 7}) == {"a": 5, "b": 6, "c": 7, "d": 0}
    assert budgets(1000, dict.fromkeys(wanted, 0), plenty) == dict.fromkeys(wanted, 0)


COMPONENTS = st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, WHOLE), st.integers(0, 2000)), min_size=1)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 5000), COMPONENTS)
def test_a_sample_is_full_unless_everything_in_the_mixture_is_used(total: int, components: dict[str, tuple[int, int]]) -> None:
    wanted = {name: share for name, (share, _) in components.items()}
    available = {name: size for name, (_, size) in components.items()}
    found = budgets(total, wanted, available)
    assert all(0 <= found[name] <= available[name] for name in found)
    used_up = [name for name in found if found[name] == available[name]]
    if not all(name in used_up for name in found if wanted[name]):
        assert total - len(found) < sum(found.values()) <= total
        rest = [name for name in found if name not in used_up and wanted[name]]
        for one, other in pairwise(rest):  # in the proportions that were wanted, but for rounding
            assert abs(found[one] * wanted[other] - found[other] * wanted[one]) <= max(wanted[one], wanted[other])


@pytest.mark.parametrize("length", [100, 5000, 100_000])
@pytest.mark.parametrize("spread", [1, 8])
def test_documents_up_to_the_bound_hold_the_budget_and_not_much_more(length: int, spread: int) -> None:
    """Sizes alike and spread over three octaves, from many small documents to dozens of large ones."""
    chance = random.Random(length + spread)
    lengths = [length * chance.randint(1, spread) for _ in range(20_000_000 // length // spread)]
    cap = 3 * length
    left = [min(size, cap) for size in lengths]
    budget = 5_000_000
    for seed in range(10):
        bound = bounds(budget, {"a": WHOLE}, {"a": counted(lengths)}, cap)["a"]
        got = sum(size for number, size in enumerate(left) if sample_key(seed, f"a/{number}") <= bound)
        assert budget <= got <= min(sum(left), 4 * budget)
    assert length > 100 or got < 1.25 * budget


def test_a_component_without_a_share_offers_nothing_and_one_too_small_everything() -> None:
    sizes = {"a": counted([1000] * 10), "b": counted([1000] * 1000), "c": counted([])}
    found = bounds(20_000, {"a": WHOLE // 2, "b": WHOLE // 2, "c": 0}, sizes, 4000)
    assert found["a"] == EVERYTHING and found["c"] == EVERYTHING and 0 < found["b"] < EVERYTHING
    assert bounds(20_000, {"a": WHOLE, "b": 0, "c": 0}, sizes, 4000)["b"] == -1
    assert offered(10, 10, 10) == EVERYTHING
