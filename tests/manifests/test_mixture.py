"""Shares, epochs and limits of a mixture are arithmetic that one can do by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from manifests.commands import app
from manifests.manifest import Content, Manifest
from manifests.mixture import MixtureError, PhaseRecipe, plan, read_mixture, tokens_by_language, weights_of
from manifests.storage import Folder

UNIQUE = {"web": 800, "books": 150, "code": 50}
LANGUAGES = {"web": {"en": 700, "de": 100}, "books": {"de": 150}, "code": {"en": 50}}


@pytest.fixture
def content(manifest: Manifest) -> Content:
    component, shard = next(iter(manifest.content.components.values())), manifest.content.shards[0]
    shards = [
        shard.model_copy(update={"component": name, "split": split, "tokens": tokens})
        for name, unique in UNIQUE.items()
        for split, tokens in (("train", unique - 10), ("train", 10), ("validation", 7))
    ]
    return manifest.content.model_copy(update={"components": dict.fromkeys(UNIQUE, component), "shards": shards})


def rows(planned: object) -> dict[str, tuple[float, float]]:
    return {row.component: (row.tokens, row.epochs) for row in planned.rows}  # type: ignore[attr-defined]


def test_without_weights_every_component_is_taken_by_its_tokens(content: Content) -> None:
    planned = plan(content, read_mixture(""), 2000)
    assert rows(planned) == {"web": (1600, 2), "books": (300, 2), "code": (100, 2)}


def test_weights_are_divided_by_their_sum(content: Content) -> None:
    planned = plan(content, read_mixture("phases: [{weights: {web: 3, books: 1}}]"), 400)
    assert rows(planned) == {"web": (300, 0.375), "books": (100, pytest.approx(2 / 3)), "code": (0, 0)}
    assert planned.warnings == ["code: no phase takes anything from it"]


def test_phases_add_up(content: Content) -> None:
    planned = plan(content, read_mixture("phases: [{share: 0.9, weights: {web: 1}}, {weights: {books: 0.5, code: 0.5}}]"), 1000)
    assert {name: tokens for name, (tokens, _) in rows(planned).items()} == pytest.approx({"web": 900, "books": 50, "code": 50})


def test_more_than_four_epochs_are_warned_of_and_above_the_limit_refused(content: Content) -> None:
    text = "phases: [{weights: {web: 0.5, code: 0.5}}]"
    planned = plan(content, read_mixture(text), 500)
    assert [warning for warning in planned.warnings if warning.startswith("code")] == [
        "code: 5.00 epochs; beyond 4, repeated tokens are worth ever less"
    ]
    assert not any(warning.startswith("code") for warning in plan(content, read_mixture(text), 400).warnings)
    with pytest.raises(MixtureError, match=r"component 'code' 5\.00 times, more than max_epochs 4: at most 400 tokens fit"):
        plan(content, read_mixture(text + "\nmax_epochs: 4"), 500)
    plan(content, read_mixture(text + "\nmax_epochs: 4"), 400)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_a_temperature_draws_languages_by_a_power_of_their_share(alpha: float) -> None:
    weights = weights_of(PhaseRecipe(temperature=alpha), UNIQUE, LANGUAGES)
    english, german = 0.75**alpha, 0.25**alpha
    english, german = english / (english + german), german / (english + german)
    expected = {"web": english * 700 / 750 + german * 100 / 250, "books": german * 150 / 250, "code": english * 50 / 750}
    assert weights == pytest.approx(expected)
    assert sum(weights.values()) == pytest.approx(1)


def test_alpha_1_is_natural() -> None:
    assert weights_of(PhaseRecipe(temperature=1), UNIQUE, LANGUAGES) == pytest.approx(weights_of(PhaseRecipe(), UNIQUE))


def test_the_languages_that_a_run_hears_are_told(content: Content) -> None:
    planned = plan(content, read_mixture("phases: [{weights: {books: 1, web: 1}}]"), 100, LANGUAGES)
    assert planned.languages == pytest.approx({"en": 0.4375, "de": 0.5625})


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("phases: [", "not YAML"),
        ("phases: []", "a mixture has a phase at least"),
        ("phases: [{weights: {}}]", "one a component"),
        ("phases: [{weights: {web: 0}}]", "all weights are 0"),
        ("phases: [{weights: {web: -1}}]", "from 0 on"),
        ("phases: [{weights: {web: .inf}}]", "from 0 on"),
        ("phases: [{weights: {web: 1.0e+308, books: 1.0e+308}}]", "too large to be added up"),
        ("phases: [{weights: {web: 1, web: 2}}]", "'web' stands there twice"),
        ("[" * 5000, "not YAML"),
        ("phases: [{weights: {web: 1}, temperature: 0.3}]", "not both"),
        ("phases: [{}, {}]", "every phase but the last has a share"),
        ("phases: [{share: 0.6}, {share: 0.6}]", "add up to 1.2"),
        ("phases: [{share: 0.6}]", "add up to 0.6"),
        ("phases: [{share: 1}, {}]", "add up to 1"),
        ("fases: []", "fases"),
        ("[1]", "dictionary"),
    ],
)
def test_a_mixture_that_is_none_is_refused_in_words(text: str, complaint: str) -> None:
    with pytest.raises(MixtureError) as raised:
        read_mixture(text)
    assert complaint in str(raised.value)


def test_a_component_that_is_not_there_is_named(content: Content) -> None:
    with pytest.raises(MixtureError, match="there is no component 'wob' with training tokens; there are web, books, code"):
        plan(content, read_mixture("phases: [{weights: {wob: 1}}]"), 10)


def test_epochs_are_told_by_phase_too(content: Content) -> None:
    planned = plan(content, read_mixture("phases: [{share: 0.9, weights: {web: 1}}, {weights: {web: 1, code: 3}}]"), 2000)
    assert planned.phases[0]["epochs"] == pytest.approx({"web": 1800 / 800, "books": 0, "code": 0})
    assert planned.phases[1]["epochs"] == pytest.approx({"web": 50 / 800, "books": 0, "code": 3})
    for row in planned.rows:
        assert sum(phase["epochs"][row.component] for phase in planned.phases) == pytest.approx(row.epochs)


def test_alpha_03_is_what_one_gets_by_hand() -> None:
    """English 0.75 of the tokens, German 0.25: 0.75^0.3 = 0.91731, 0.25^0.3 = 0.65975, so English 0.58166, German 0.41834."""
    weights = weights_of(PhaseRecipe(temperature=0.3), UNIQUE, LANGUAGES)
    assert weights == pytest.approx({"web": 0.71022, "books": 0.25100, "code": 0.03878}, abs=1e-5)


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--tokens", "inf"], "'inf' is not a number of tokens"),
        (["--tokens", "nan"], "--tokens"),
        (["--tokens", "0"], "--tokens"),
        (["--tokens", "10", "--max-epochs", "nan"], "a number above 0"),
        (["--tokens", "10", "--max-epochs", "-1"], "a number above 0"),
        (["--tokens", "10", "--weight", "web"], "is not COMPONENT=NUMBER"),
        (["--tokens", "10", "--weight", "web=1", "--weight", "web=2"], "has two weights"),
        (["--tokens", "10", "--weight", "web=1", "--temperature", "0.3"], "or --weight, or --temperature"),
    ],
)
def test_numbers_that_are_none_are_refused_in_words(finished: Path, arguments: list[str], complaint: str) -> None:
    refused = CliRunner().invoke(app, ["mixture", str(finished), *arguments], env={"COLUMNS": "200"})
    assert refused.exit_code == 2
    assert complaint in refused.output


def test_the_command_tells_tokens_epochs_and_languages_of_a_real_corpus(finished: Path, manifest: Manifest) -> None:
    unique = {name: one.tokens["train"] for name, one in manifest.content.components.items() if one.tokens.get("train")}
    total = sum(unique.values())
    spoken = tokens_by_language(Folder(finished), manifest)
    assert {name: sum(of.values()) for name, of in spoken.items()} == unique
    result = CliRunner().invoke(app, ["mixture", str(finished), "--tokens", str(2 * total), "--json"])
    planned = json.loads(result.stdout)
    assert all(row["epochs"] == pytest.approx(2) for row in planned["rows"])
    assert sum(planned["languages"].values()) == pytest.approx(1)
    shown = CliRunner().invoke(app, ["mixture", str(finished), "--tokens", "1e3", "--weight", f"{next(iter(unique))}=1"])
    assert shown.exit_code == 0
    assert next(iter(unique)) in shown.output and "epochs" in shown.output
    refused = CliRunner().invoke(app, ["mixture", str(finished), "--tokens", str(9 * total), "--max-epochs", "4"])
    assert refused.exit_code == 1
    assert "tokens fit" in refused.output


def test_a_word_that_a_mixture_does_not_know_is_named_with_the_nearest() -> None:
    with pytest.raises(MixtureError, match=r"phases\.0\.wieghts: there is no 'wieghts'; did you mean 'weights'\?"):
        read_mixture("phases: [{wieghts: {web: 1}}]")
    with pytest.raises(MixtureError, match=r"colour: there is no 'colour'; known: phases, max_epochs"):
        read_mixture("colour: red")


@pytest.mark.parametrize("value", ["2026-02-30", "!!int zz", "!!timestamp zz", "!!python/name:os.system"])
def test_a_value_that_yaml_cannot_read_is_no_traceback(value: str) -> None:
    with pytest.raises(MixtureError):
        read_mixture(f"phases: [{{temperature: {value}}}]")
