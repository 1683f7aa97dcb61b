"""What all ranks of a run agree on before its first step."""

from __future__ import annotations

from typing import Any

from manifests.manifest import digest
from trainer.configuration import TrainConfig
from trainer.distributed.parallel import Layout
from trainer.distributed.ranks import Ranks, RanksError

OWN_TO_A_RANK = ("manifest", "out", "cache", "parent", "gate")
"""Options that ranks may have of their own: where things lie. What lies there is compared."""


def agreed_layout(config: TrainConfig, ranks: Ranks) -> Layout:
    """How the model is spread; RanksError where another rank would spread it otherwise, which would never meet in a sum."""
    asked = f"{config.parallel} {config.replicas}"
    if ranks.differing({"layout": digest(asked)}):
        raise RanksError(
            f"rank {ranks.rank} has --parallel {config.parallel} and --replicas {config.replicas}, another rank has others; "
            "start all of them with the same command"
        )
    return Layout.of(config.parallel, config.replicas, ranks)


def refuse_other_ranks(ranks: Ranks, step: int, position: int, facts: dict[str, Any]) -> None:
    """RanksError, which names the `facts` that differ, where ranks begin at different steps, or with other rows or options: they
    would train on without a sign of it."""
    here = {"step": step, "position": position, **facts}
    differing = ranks.differing({name: digest(value) for name, value in here.items()})
    if differing:
        raise RanksError(
            f"rank {ranks.rank} begins after step {step}, position {position:,}, and the ranks do not agree on: "
            f"{', '.join(differing)}; start all of them with the same command, and with --out in a folder that all machines share"
        )
