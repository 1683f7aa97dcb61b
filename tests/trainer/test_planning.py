"""The arithmetic of a run before it begins: figures of a published course to their digits, and nothing silently impossible."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.trainer.corpus_fixture import build_corpus, documents_of_lengths
from trainer.commands import app
from trainer.network.flops import causal_flops_per_token
from trainer.planning.estimate import (
    GPU_HOURS_A_FAILURE,
    GPUS,
    PlanError,
    Request,
    TrainingPlan,
    activation_bytes,
    bubble,
    checkpoint_interval,
    checkpointed_bytes,
    chinchilla,
    flops_per_token,
    logit_bytes,
    measured,
    model_states,
    parameters_by_part,
    plan,
)
from trainer.presets import PRESETS, Architecture
from trainer.run_files.run_record import RecordError, RunRecord

REPOSITORY = Path(__file__).resolve().parents[2]
COURSE = Architecture(layers=36, width=4_096, heads=32, kv_heads=8, hidden=15_360, vocabulary=152_064)
TOKENS, T = 2e12, 8_192

MINI_TABLE = 4_096 * 256
MINI_BLOCK = (PRESETS["mini"].build(4_096).parameters() - MINI_TABLE) / 6


def planned(**changes: Any) -> TrainingPlan:
    asked: dict[str, Any] = {
        "architecture": COURSE, "tokens": TOKENS, "sequence_length": T, "micro_batch": 1, "batch_tokens": 480 * T, "gpus": 80,
        "gpu": GPUS["h100"], "achieved": 4e14, **changes,
    }  # fmt: skip
    return plan(Request(**asked))


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["plan-training", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("architecture", "parameters"),
    [
        (COURSE, 9_550_729_216),
        (PRESETS["8b"].build(128_256), 8_030_261_248),
        (Architecture(layers=12, width=768, heads=12, kv_heads=12, hidden=2_048, vocabulary=32_000, tied=True), 109_529_856),
        (Architecture(layers=6, width=256, heads=8, kv_heads=8, hidden=688, vocabulary=4_096, tied=True), 5_795_072),
    ],
)
def test_the_parts_of_published_shapes_add_up_to_their_parameters(architecture: Architecture, parameters: int) -> None:
    assert sum(parameters_by_part(architecture).values()) == parameters


@pytest.mark.parametrize("preset", PRESETS)
def test_the_parts_of_every_preset_are_those_of_the_built_model(preset: str) -> None:
    import torch

    from trainer.network.model import GPT

    architecture = PRESETS[preset].build(512)
    with torch.device("meta"):
        model = GPT(architecture)
    parts = parameters_by_part(architecture)
    assert sum(parts.values()) == sum(parameter.numel() for parameter in model.parameters())
    matrices = {
        name: sum(p.numel() for at, p in model.named_parameters() if p.ndim == 2 and inside in at)
        for name, inside in (("feed-forward", ".feed."), ("value embeddings", ".values."))
    }
    assert {name: parts.get(name, 0) for name in matrices} == matrices


def test_two_trillion_tokens_take_the_course_s_flops_hours_and_days() -> None:
    found = planned()
    assert f"{found.flops:.3e}" == "1.216e+23"
    assert f"{found.gpu_hours:.0f}" == "84465"
    assert f"{found.days:.2f}" == "43.99"
    assert f"{100 * (found.shortcut / found.flops - 1):.1f}" == "-5.8"


def test_model_states_under_dp_and_zero_1_to_3() -> None:
    states = model_states(COURSE.parameters(), 8)
    assert [f"{size / 1e9:.1f}" for size in states.values()] == ["152.8", "52.5", "35.8", "19.1"]
    assert len(set(model_states(COURSE.parameters(), 1).values())) == 1


def test_a_running_average_is_4_bytes_a_parameter_divided_as_the_weights_are() -> None:
    without, found = planned(gpus=8), planned(gpus=8, ema=True)
    for layout, share in (("DP", 1), ("ZeRO-1", 1), ("ZeRO-2", 1), ("ZeRO-3 (FSDP)", 8)):
        more = 4 * found.request.architecture.parameters() / share
        assert found.states[layout] - without.states[layout] == pytest.approx(more)
        totals = [{one.checkpointed: one.total for one in plan.fits if one.layout == layout} for plan in (without, found)]
        assert totals[1][True] - totals[0][True] == pytest.approx(more)


def test_activations_with_and_without_checkpointing_and_logits() -> None:
    assert f"{activation_bytes(COURSE, T) / 1e9:.2f}" == "42.88"
    assert f"{checkpointed_bytes(COURSE, T) / 1e9:.2f}" == "3.61"
    assert f"{logit_bytes(COURSE, T) / 1e9:.2f}" == "4.98"


def test_every_second_block_checkpointed_lies_between_all_and_none() -> None:
    assert checkpointed_bytes(COURSE, T) < checkpointed_bytes(COURSE, T, every=2) < activation_bytes(COURSE, T)


def test_a_pipeline_of_4_stages_waits_with_16_micro_batches_and_of_1_never() -> None:
    assert f"{100 * bubble(4, 16):.1f}" == "15.8"
    assert bubble(1, 16) == 0
    assert planned(stages=4, micro_batches=16).bubble == bubble(4, 16)
    assert planned(stages=4, gpus=480).bubble == bubble(4, 480)  # by default, the rows of a step pass through it


def test_young_s_interval_and_what_is_lost() -> None:
    found = checkpoint_interval(3.09 * 3_600, 60)
    assert f"{found.interval / 60:.1f}" == "19.3"
    assert f"{100 * found.share:.1f}" == "10.4"
    around = [60 / t + t / (2 * found.mtbf) for t in (0.9 * found.interval, 1.1 * found.interval)]
    assert found.share < min(around)


def test_failures_come_as_often_as_llama_3_recorded_unless_said_otherwise() -> None:
    assert f"{GPU_HOURS_A_FAILURE / 16_384:.2f}" == "3.09"
    assert planned(gpus=16_384).checkpoints.mtbf == pytest.approx(3.09 * 3_600, rel=2e-3)
    assert planned(gpus=16_384, mtbf_hours=5.0).checkpoints.mtbf == 5 * 3_600


def test_chinchilla_s_optimum_at_the_same_budget() -> None:
    best = planned().optimum
    assert f"{best.parameters / 1e9:.3f}" == "15.526"
    assert f"{best.tokens / 1e12:.3f}" == "1.230"
    assert f"{best.loss:.6f}" == "1.998483"
    assert best.flops == pytest.approx(planned().planned.flops)
    for factor in (0.99, 1.01):
        assert chinchilla.loss(best.parameters * factor, best.tokens / factor) > best.loss


def test_the_cheapest_model_of_the_same_loss_and_when_a_smaller_one_pays_back() -> None:
    found = planned().payback
    assert f"{found.cheapest.parameters / 1e9:.3f}" == "15.018"
    assert f"{found.served_tokens:.3e}" == "7.439e+11"
    assert found.cheapest.loss == pytest.approx(planned().planned.loss, rel=1e-12)
    served = found.served_tokens or 0.0
    together = [point.flops + 2 * point.parameters * served for point in (found.cheapest, planned().planned)]
    assert together[0] == pytest.approx(together[1], rel=1e-12)


def test_a_model_that_is_too_large_for_its_tokens_never_pays_back() -> None:
    found = chinchilla.payback(chinchilla.Point(1e11, 1e11))
    assert found.served_tokens is None
    assert found.saved_flops > 0


def test_the_rule_of_thumb_has_20_tokens_a_parameter_and_the_same_budget() -> None:
    rule = chinchilla.rule_of_thumb(1e21)
    assert rule.tokens == pytest.approx(20 * rule.parameters)
    assert rule.flops == pytest.approx(1e21)


def test_flops_are_those_of_the_trainer_but_for_gains_and_half_a_key() -> None:
    gains = 36 * 2 * 4_096 + 4_096
    half_a_key = 12 * 36 * 4_096 * 0.5
    assert flops_per_token(COURSE, T) == causal_flops_per_token(COURSE, (T + 1) / 2) + 6 * gains - half_a_key


def test_a_window_of_the_whole_row_is_no_window_and_a_short_one_costs_less() -> None:
    def of(window: int) -> float:
        return flops_per_token(COURSE.model_copy(update={"windows": "SL", "window": window}), T)

    assert of(T) == flops_per_token(COURSE, T)
    assert of(1_024) < of(4_096) < of(T)
    exact = sum(min(place, 1_024) - 0.5 for place in range(1, 1_025)) / T + (T - 1_024) * 1_024 / T  # areas, as T / 2 is one
    short = COURSE.model_copy(update={"windows": "SL", "window": 1_024})
    assert flops_per_token(COURSE, T) - of(1_024) == pytest.approx(12 * short.short_layers * 4_096 * (T / 2 - exact))


def test_looked_up_tables_cost_no_flops() -> None:
    with_values = COURSE.model_copy(update={"value_embeddings": True})
    tables = parameters_by_part(with_values)["value embeddings"]
    assert tables == 18 * 152_064 * 8 * 128
    gates = 18 * 32 * 8
    assert flops_per_token(with_values, T) == flops_per_token(COURSE, T) + 6 * gates


def test_what_fits_is_within_the_memory_that_headroom_leaves() -> None:
    found = planned(gpus=8, headroom=0.1)
    for one in found.fits:
        kept = found.checkpointed if one.checkpointed else found.activations
        assert one.total == found.states[one.layout] + kept + found.logits
        assert one.fits == (one.total <= 72e9)
    fitting = [(one.layout, one.checkpointed) for one in found.fits if one.fits]
    assert fitting == [("ZeRO-1", True), ("ZeRO-2", True), ("ZeRO-3 (FSDP)", False), ("ZeRO-3 (FSDP)", True)]
    assert not any("no layout" in warning for warning in found.warnings)
    assert any(
        "no layout fits: 27.7 GB at least" in warning for warning in planned(gpus=8, gpu=GPUS["h100"], headroom=0.7).warnings
    )


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"tokens": float("nan")}, "--tokens"),
        ({"tokens": 0.0}, "--tokens"),
        ({"tokens": float("inf")}, "--tokens"),
        ({"tokens": 1e300}, "beyond all reckoning"),
        ({"achieved": 1e-300}, "beyond all reckoning"),
        ({"achieved": 1e15}, "more than"),
        ({"gpus": 0}, "--gpus"),
        ({"headroom": 1.0}, "--headroom"),
        ({"mtbf_hours": 0.0}, "--mtbf-hours"),
        ({"checkpoint_seconds": -1.0}, "--checkpoint-seconds"),
        ({"batch_tokens": T + 1}, "nearest is 8192"),
        ({"stages": 37}, "36, the layers"),
        ({"micro_batches": 4}, "--stages"),
        ({"stages": 4, "micro_batches": 0}, "--micro-batches"),
    ],
)
def test_impossible_figures_are_refused_by_name(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        planned(**changes)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"batch_tokens": 512 * T}, f"--batch-tokens {480 * T} would do"),
        ({"tokens": 1e5}, "less than a step"),
        ({"tokens": 1e12}, "extrapolates"),
        ({"mtbf_hours": 0.05}, "does not hold"),
        ({"stages": 3}, "no multiple of 3 stages"),
    ],
)
def test_doubtful_figures_are_warned_of(changes: dict[str, Any], complaint: str) -> None:
    assert any(complaint in warning for warning in planned(**changes).warnings)


SAID = [
    "--preset", "8b", "--model", "layers=36", "--model", "hidden=15360", "--vocabulary", "152064", "--tokens", "2e12",
    "--sequence-length", "8192", "--micro-batch", "1", "--gpus", "80", "--achieved", "4e14", "--mtbf-hours", "3.09",
]  # fmt: skip


def test_the_command_tells_the_course_s_figures() -> None:
    code, out, errors = invoke(*SAID, "--stages", "4", "--micro-batches", "16")
    assert code == 0, errors
    for figure in ("9,550,729,216", "1.216e+23", "-5.8 %", "84,465", "43.99", "15.8 %", "19.3 min", "10.4 %", "42.88", "3.61",
                   "4.98", "1.998483", "15.526B", "1.230T", "30.904B", "2.005373", "15.018B", "7.439e+11", "152.81"):  # fmt: skip
        assert figure in out, figure


def test_the_command_counts_a_running_average_when_told_or_when_the_run_has_one(tmp_path: Path) -> None:
    code, out, errors = invoke(*SAID, "--ema")
    assert code == 0 and "with a running average" in out and "191.01" in out, errors  # 152.81 and 4 x 9.55
    folder = _run_folder(tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "ema": 0.99}))
    states = []
    for more in ((), ("--no-ema",)):
        code, out, errors = invoke("--run", str(folder), "--json", *more)
        assert code == 0, errors
        states.append(json.loads(out)["states"]["DP"])
    assert states[0] / states[1] == pytest.approx(20 / 16)


def test_the_command_s_json_has_the_same_figures_and_names_its_convention() -> None:
    code, out, _ = invoke(*SAID, "--json")
    told = json.loads(out)
    assert code == 0
    assert told["flops"] == planned().flops
    assert told["payback"]["served_tokens"] == pytest.approx(7.439e11, rel=1e-4)
    assert told["mfu"] == pytest.approx(4e14 / 989.4e12)
    assert told["corpus"] is None and told["run"] is None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--vocabulary is needed"),
        (["--vocabulary", "1"], "--vocabulary 1"),
        (["--vocabulary", "512", "--preset", "9b"], "--preset '9b'"),
        (["--vocabulary", "512", "--gpu", "tpu"], "--gpu 'tpu'"),
        (["--vocabulary", "512", "--mfu", "40"], "--mfu 40"),
        (["--vocabulary", "512", "--mfu", "0.4", "--achieved", "1e14"], "not both"),
        (["--vocabulary", "512", "--model", "heads=5"], "multiple of heads"),
        (["--vocabulary", "512", "--model", "layers=1000000000000"], "layers"),
        (["--vocabulary", "512", "--tokens", "nan"], "--tokens"),
        (["--vocabulary", "512", "--gpu-memory", "-3"], "--gpu-memory"),
        (["--vocabulary", "512", "--gpus", "-1"], "--gpus"),
        (["--vocabulary", "512", "--sequence-length", "0"], "--sequence-length"),
        (["--vocabulary", "512", "--gpus", "9" * 400], "--gpus"),
        (["--vocabulary", "512", "--micro-batch", "9" * 400], "--micro-batch"),
        (["--vocabulary", "512", "--model", "hidden=" + "9" * 400], "--model hidden"),
        (["--vocabulary", "512", "--mixture-recipe", "none.yaml"], "--manifest"),
    ],
)
def test_bad_options_end_with_exit_code_2_and_their_name(arguments: list[str], complaint: str) -> None:
    code, _, errors = invoke(*arguments)
    assert code == 2
    assert complaint in errors


@pytest.mark.parametrize(
    ("written", "tokens"),
    [("2T", 2e12), ("1.2T", 1.2e12), ("300B", 3e11), ("20M", 2e7), ("2e12", 2e12), ("2_000_000", 2e6), ("1.1B", 1.1e9)],
)
def test_tokens_are_written_as_for_train(written: str, tokens: float) -> None:
    code, out, errors = invoke("--vocabulary", "512", "--tokens", written, "--json")
    assert code == 0, errors
    assert json.loads(out)["request"]["tokens"] == tokens


@pytest.mark.parametrize("gpus", [1, 7, 8, 512])
def test_a_batch_that_nothing_was_said_of_can_be_shared_by_the_gpus(gpus: int) -> None:
    code, out, errors = invoke("--vocabulary", "512", "--sequence-length", "1000", "--gpus", str(gpus), "--json")
    assert code == 0, errors
    assert json.loads(out)["request"]["batch_tokens"] % (1_000 * gpus) == 0
    assert not any("cannot share" in warning for warning in json.loads(out)["warnings"])


def test_a_corpus_decides_vocabulary_tokens_and_epochs(tmp_path: Path) -> None:
    shards = {
        ("web", "train"): [documents_of_lengths([300] * 10)], ("books", "train"): [documents_of_lengths([100] * 10)],
        ("web", "validation"): [documents_of_lengths([50])],
    }  # fmt: skip
    manifest = str(build_corpus(tmp_path / "corpus", shards))
    code, out, errors = invoke("--manifest", manifest, "--preset", "tiny", "--json")
    assert code == 0, errors
    told = json.loads(out)
    assert told["request"]["architecture"]["vocabulary"] == 64
    assert told["request"]["tokens"] == 4_000
    assert {row["component"]: row["epochs"] for row in told["corpus"]["rows"]} == {"web": 1.0, "books": 1.0}
    recipe = tmp_path / "mixture.yaml"
    recipe.write_text("phases: [{weights: {web: 1, books: 1}}]\n")
    code, out, _ = invoke(
        "--manifest", manifest, "--preset", "tiny", "--tokens", "12000", "--mixture-recipe", str(recipe), "--json"
    )
    told = json.loads(out)
    assert {row["component"]: row["epochs"] for row in told["corpus"]["rows"]} == {"web": 2.0, "books": 6.0}
    assert any("books: 6.00 epochs" in warning for warning in told["warnings"])
    recipe.write_text("phases: [{weights: {code: 1}}]\n")
    code, _, errors = invoke("--manifest", manifest, "--mixture-recipe", str(recipe))
    assert code == 1
    assert "no component 'code'" in errors
    code, out, _ = invoke("--manifest", manifest, "--vocabulary", "100", "--preset", "tiny")
    assert code == 0
    assert "tokenizer has 64 tokens, not 100" in out
    assert "in all" in out


def test_a_missing_corpus_or_run_ends_with_exit_code_1(tmp_path: Path) -> None:
    code, _, errors = invoke("--manifest", str(tmp_path / "none"))
    assert (code, "there is no manifest" in errors) == (1, True)
    code, _, errors = invoke("--run", str(tmp_path / "none"))
    assert (code, "is no run" in errors) == (1, True)


def _run_folder(folder: Path, device: str = "NVIDIA H200", **changes: Any) -> Path:
    """What a run of `mini` leaves that a plan reads."""
    folder.mkdir()
    architecture = PRESETS["mini"].build(4_096)
    config = {"manifest": "m", "out": "o", "preset": "mini", "batch_tokens": 32_768, "micro_batch": 16}
    run = {
        "architecture": architecture.model_dump(),
        "ranks": 2,
        "shards": 2,
        "device": device,
        "dtype": "bfloat16",
        "manifest_digest": "d",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "run.json").write_text(json.dumps({**run, **changes}))
    speeds = [1e3, 1e4, 2e6, 3e6, 2.5e6, 2e6]
    lines = [
        {"step": n, "tokens": n * 32_000, "loss": 5.0, "tokens_per_second": speed, "mfu_palm": 0.3, "mfu_causal_exact": 0.2, "memory_gb": n / 10}
        for n, speed in enumerate(speeds, 1)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 7, "lo')
    return folder


def test_a_run_s_measured_speed_and_memory_stand_beside_the_estimate(tmp_path: Path) -> None:
    code, out, errors = invoke("--run", str(_run_folder(tmp_path / "run")), "--json")
    assert code == 0, errors
    told = json.loads(out)
    architecture = PRESETS["mini"].build(4_096)
    assert told["request"]["architecture"] == architecture.model_dump(mode="json")
    assert (told["request"]["sequence_length"], told["request"]["batch_tokens"]) == (512, 32_768)
    of_run = told["run"]
    assert of_run["tokens_per_second"] == 2.5e6  # the median of the last half
    assert of_run["achieved"] == 1.25e6 * flops_per_token(architecture, 512)
    assert of_run["mfu"] == pytest.approx(of_run["achieved"] / 989.4e12)
    assert told["mfu"] == pytest.approx(of_run["mfu"])  # what was reached is what is planned with
    assert of_run["memory"] == pytest.approx(0.6e9)
    slots = 16 * 512
    held = (12 / 2 + 2 + 4) * architecture.parameters()  # shards; bfloat16 weights and float32 gradients whole
    held += 4 * (MINI_TABLE + 2 * MINI_BLOCK)  # gradients on their way
    assert of_run["estimated_memory"] == held + activation_bytes(architecture, slots) + logit_bytes(architecture, slots)
    code, out, _ = invoke("--run", str(tmp_path / "run"), "--preset", "1b", "--mfu", "0.5")
    assert code == 0
    assert "50.0 %" in out and "memory, GB a rank" in out


@pytest.mark.parametrize(
    ("ranks", "shards", "options", "held", "on_its_way"),
    [
        (1, 1, {}, 16 + 2, 0),
        (2, 1, {}, 16 + 2, 0),
        # weights and gradients of the table, which stay, and of two blocks weights alone; gradients of all as they are sent
        (2, 2, {"accumulate": "sharded", "parallel": "fsdp"}, 8, 8 * MINI_TABLE + 6 * 2 * MINI_BLOCK),
        # one micro-batch a step: nothing is held from one to the next
        (2, 2, {"parallel": "fsdp", "micro_batch": 32}, 8, 8 * MINI_TABLE + 6 * 2 * MINI_BLOCK),
        (1, 1, {"ema": 0.999}, 16 + 2 + 4, 0),
        (2, 2, {"accumulate": "sharded", "parallel": "fsdp", "ema": 0.999}, 8 + 2, 8 * MINI_TABLE + 6 * 2 * MINI_BLOCK),
        (1, 1, {"recompute": "full"}, 16 + 2, 0),
        (1, 1, {"recompute": "feed"}, 16 + 2, 0),
        (1, 1, {"loss_chunk": 1_024}, 16 + 2, 0),
    ],
)
def test_the_estimate_of_a_run_follows_its_layout(
    tmp_path: Path, ranks: int, shards: int, options: dict[str, Any], held: float, on_its_way: float
) -> None:
    folder = _run_folder(tmp_path / "run", ranks=ranks, shards=shards)
    config = json.loads((folder / "config.json").read_text()) | options
    (folder / "config.json").write_text(json.dumps(config))
    architecture, slots = PRESETS["mini"].build(4_096), config["micro_batch"] * 512
    kept = (
        checkpointed_bytes(architecture, slots) if options.get("recompute") == "full" else activation_bytes(architecture, slots)
    )
    if options.get("recompute") == "feed":  # not what the last product is of: a bfloat16 number for each hidden one
        kept -= 2 * slots * architecture.hidden * architecture.layers
    expected = held * architecture.parameters() + on_its_way + kept + logit_bytes(architecture, options.get("loss_chunk", slots))
    assert measured(RunRecord.read(folder)).estimated_memory == pytest.approx(expected)


def test_whole_models_have_buckets_in_float32_alone(tmp_path: Path) -> None:
    """In bfloat16 each sum of gradients leaves by itself, from where it was added up. With one micro-batch a step the buckets are
    the gradients."""
    found = {}
    for dtype in ("bfloat16", "float32"):
        for ranks in (1, 2):
            for rows in (16, 64 // ranks):
                folder = _run_folder(tmp_path / f"{dtype}-{ranks}-{rows}", ranks=ranks, shards=1, dtype=dtype)
                config = json.loads((folder / "config.json").read_text()) | {"micro_batch": rows}
                (folder / "config.json").write_text(json.dumps(config))
                found[dtype, ranks, rows] = measured(RunRecord.read(folder)).estimated_memory
    assert found["bfloat16", 2, 16] == found["bfloat16", 1, 16]
    assert found["float32", 2, 16] - found["float32", 1, 16] == pytest.approx(4 * PRESETS["mini"].build(4_096).parameters())
    slots = 32 * 512
    architecture = PRESETS["mini"].build(4_096)
    alone = 16 * architecture.parameters() + activation_bytes(architecture, slots, 4) + logit_bytes(architecture, slots)
    assert found["float32", 2, 32] == pytest.approx(alone)


@pytest.mark.parametrize(
    ("preset", "rows", "ranks", "shards", "accumulate", "gigabytes"),
    [
        ("small", 32, 1, 1, "whole", 33.58),
        ("1b", 16, 1, 1, "whole", 64.1),
        ("1b", 16, 2, 1, "whole", 64.1),
        ("1b", 16, 2, 2, "whole", 58.0),
        ("8b", 2, 2, 2, "whole", 127.5),
        ("8b", 2, 2, 2, "sharded", 99.6),
    ],
)
def test_estimates_are_within_three_hundredths_of_what_h200s_held(
    tmp_path: Path, preset: str, rows: int, ranks: int, shards: int, accumulate: str, gigabytes: float
) -> None:
    architecture, length = PRESETS[preset].build(32_768), PRESETS[preset].sequence_length
    folder = _run_folder(tmp_path / "run", ranks=ranks, shards=shards, architecture=architecture.model_dump())
    config = {
        "manifest": "m",
        "out": "o",
        "preset": preset,
        "sequence_length": length,
        "micro_batch": rows,
        "batch_tokens": 8 * rows * length,
        "parallel": "fsdp" if shards > 1 else "ddp",
        "accumulate": accumulate,
    }
    (folder / "config.json").write_text(json.dumps(config))
    assert measured(RunRecord.read(folder)).estimated_memory == pytest.approx(gigabytes * 1e9, rel=0.03)


def test_a_run_on_a_cpu_has_a_speed_but_no_mfu(tmp_path: Path) -> None:
    code, out, errors = invoke("--run", str(_run_folder(tmp_path / "run", "x86_64 CPU", dtype="float32")), "--json")
    assert code == 0, errors
    told = json.loads(out)
    assert told["run"]["mfu"] is None and told["run"]["achieved"] > 0
    assert told["mfu"] == pytest.approx(0.4)
    assert "process" in told["run"]["memory_of"]


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("run.json", "{}", "not what a run writes"),
        ("run.json", "[" * 100_000, "unreadable"),
        ("config.json", "[]", "not what a run writes"),
        ("config.json", '{"manifest": "m", "out": "o", "colour": 3}', "another version"),
        ("metrics.jsonl", "{}\n", "line 1 is not a step"),
        ("metrics.jsonl", '{"step": 2, "tokens": 1, "loss": 1}\n{"step": 2, "tokens": 1, "loss": 1}\n', "step 2, after step 2"),
        ("metrics.jsonl", '{"step": 1e999, "tokens": 1, "loss": 1}\n', "line 1 is not a step"),
        ("metrics.jsonl", '{"step": "1", "tokens": 1, "loss": 1}\n', "line 1 is not a step"),
        ("run.json", '{"ranks": 1e999}', "not what a run writes"),
    ],
)
def test_a_damaged_run_is_named(tmp_path: Path, file: str, text: str, complaint: str) -> None:
    folder = _run_folder(tmp_path / "run")
    (folder / file).write_text(text)
    with pytest.raises(RecordError, match=complaint):
        RunRecord.read(folder)


def test_steps_without_a_loss_are_counted_and_left_out(tmp_path: Path) -> None:
    folder = _run_folder(tmp_path / "run")
    losses = ("null", "1.5", "NaN", "-3", "1e308", "1" + "0" * 400)
    lines = [f'{{"step": {n}, "tokens": {n}, "loss": {loss}}}\n' for n, loss in enumerate(losses, 1)]
    (folder / "metrics.jsonl").write_text("".join(lines) + f'{{"step": 7, "tokens": 1{"0" * 400}, "loss": 2}}\n')
    record = RunRecord.read(folder)
    assert ([line["step"] for line in record.lines], record.left_out) == ([2], 6)
    assert record.tokens_per_second is None and record.memory is None


def test_planning_needs_no_torch() -> None:
    program = (
        "import sys; from typer.testing import CliRunner; from trainer.commands import app\n"
        "assert CliRunner().invoke(app, ['plan-training', '--vocabulary', '512']).exit_code == 0\n"
        "assert not {'torch', 'ray', 'stages', 'pipeline'} & set(sys.modules)\n"
    )
    finished = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
