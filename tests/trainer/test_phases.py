"""What `corpusmill mixture` announces is what a training run takes, also from components that pack unequally."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from manifests.commands import app as questions
from manifests.manifest import open_corpus
from manifests.trained_on import TrainedOn
from tests.trainer.corpus_fixture import build_corpus, documents_of_lengths, sentences
from trainer.commands import app
from trainer.configuration import TrainConfig
from trainer.data.corpus import Corpus
from trainer.data.loader import Budget, Loader, LoaderError, Phase

T, BATCH = 32, 256
SHAPE = ["layers=1", "width=16", "heads=2", "kv_heads=1", "hidden=16"]
RECIPE = "phases: [{share: 0.75, weights: {half: 2, full: 1}}, {weights: {full: 1}}]\n"
SHARES = {"half": 0.75 * 2 / 3, "full": 0.75 / 3 + 0.25}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of `half` leave 12 slots of 32 empty, those of `full` none."""
    return build_corpus(
        tmp_path_factory.mktemp("corpus"),
        {
            ("half", "train"): [documents_of_lengths([20] * 150)],
            ("full", "train"): [documents_of_lengths([32] * 150)],
            ("full", "validation"): [sentences(5, 3)],
        },
    )


def trained(manifest: Path, out: Path, *budget: str) -> dict[str, int]:
    """Runs `corpusmill train` and returns the target tokens of each component, from the ledger of documents that it keeps."""
    recipe = out.with_suffix(".yaml")
    recipe.write_text(RECIPE)
    shape = [part for one in SHAPE for part in ("--model", one)]
    result = CliRunner().invoke(
        app,
        [
            "train", "--manifest", str(manifest), "--out", str(out), "--preset", "tiny", *shape, "--sequence-length", str(T),
            "--batch-tokens", str(BATCH), "--device", "cpu", "--no-evaluate", "--mixture-recipe", str(recipe), *budget,
        ],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    seen = TrainedOn(out, *open_corpus(str(manifest))).documents()
    found: dict[str, int] = {}
    for name, targets in zip(seen["component"].to_pylist(), seen["targets"].to_pylist(), strict=True):
        found[name] = found.get(name, 0) + targets
    return found


def planned(manifest: Path, tokens: int, recipe: Path) -> dict[str, float]:
    result = CliRunner().invoke(questions, ["mixture", str(manifest), "--tokens", str(tokens), "--recipe", str(recipe), "--json"])
    assert result.exit_code == 0, result.output
    return {row["component"]: row["tokens"] for row in json.loads(result.stdout)["rows"]}


def test_a_run_of_so_many_tokens_takes_what_the_plan_says(manifest: Path, tmp_path: Path) -> None:
    """To within a row for each phase, and for the last one the step in which the budget ends."""
    found = trained(manifest, tmp_path / "run", "--tokens", "9000")
    plan = planned(manifest, 9000, tmp_path / "run.yaml")
    assert plan == pytest.approx({name: 9000 * share for name, share in SHARES.items()})
    assert abs(found["half"] - plan["half"]) <= T
    assert -T <= found["full"] - plan["full"] <= BATCH + T


def test_a_run_of_so_many_steps_takes_the_shares_that_the_plan_says(manifest: Path, tmp_path: Path) -> None:
    found = trained(manifest, tmp_path / "run", "--steps", "40")
    plan = planned(manifest, sum(found.values()), tmp_path / "run.yaml")
    for name, tokens in plan.items():
        assert abs(found[name] - tokens) <= 2 * T


@pytest.mark.parametrize("budget", [Budget(rows=1000), Budget(tokens=20_000)])
def test_phases_share_target_tokens_and_not_rows(manifest: Path, budget: Budget) -> None:
    corpus = Corpus.open(manifest)
    components = [corpus.component(name, "train") for name in ("full", "half")]
    phases = [Phase({"half": 1.0}, share=0.5), Phase(None, share=0.3), Phase({"full": 1.0}, share=0.2)]
    loader = Loader(components, T, phases=phases, budget=budget)
    rows = [int(count) for _, count in loader.parameters["phases"][:-1]]
    edges = np.cumsum([0, *rows])
    targets = [loader.targets(int(end)) - loader.targets(int(first)) for first, end in pairwise(edges)]
    total = budget.tokens or loader.targets(1000)
    assert targets[0] == pytest.approx(0.5 * total, abs=T)
    assert targets[1] == pytest.approx(0.3 * total, abs=2 * T)
    assert loader.digest == Loader(components, T, phases=[*map(Phase, [p.weights for p in phases], [*rows, None])]).digest


@pytest.mark.parametrize(
    ("phases", "budget", "complaint"),
    [
        ([Phase(None, share=0.5), Phase(None, share=0.5)], None, "the run's rows or its tokens"),
        ([Phase(None, share=0.5), Phase(None)], Budget(rows=10), "a share each"),
        ([Phase(None, share=1e-6), Phase(None, share=1 - 1e-6)], Budget(rows=10), "phase 1 is 0.000% of the run"),
        ([Phase({"wob": 1.0}, share=0.5), Phase(None, share=0.5)], Budget(rows=10), "names component 'wob'"),
    ],
)
def test_shares_that_are_no_phases_are_refused(
    manifest: Path, phases: list[Phase], budget: Budget | None, complaint: str
) -> None:
    with pytest.raises(LoaderError, match=complaint):
        Loader([Corpus.open(manifest).component("full", "train")], T, phases=phases, budget=budget)


def test_a_run_in_shares_does_not_go_on_with_another_budget() -> None:
    shares = [{"mixture": {}, "share": 0.5}, {"mixture": {"a": 1.0}, "share": 0.5}]
    saved = TrainConfig.check(manifest="m", out="o", steps=10, phases=shares).model_dump(mode="json")
    longer = TrainConfig.check(manifest="m", out="o", steps=20, phases=shares)
    assert longer.differences(saved) == ["steps: 10 -> 20"]
    plain = TrainConfig.check(manifest="m", out="o", steps=20)
    assert plain.differences({**plain.model_dump(mode="json"), "steps": 10, "phases": [{"mixture": {}, "rows": None}]}) == []


def test_weights_whose_sum_is_infinite_are_refused() -> None:
    with pytest.raises(ValueError, match="too large to be added up"):
        TrainConfig(phases=({"mixture": {"half": 1e308, "full": 1e308}},), steps=1)
