"""The gradient noise scale: how many tokens a step should hold before more of them teach little (McCandlish et al. 2018,
An Empirical Model of Large-Batch Training, appendix A.1).

The gradient of n tokens is the true one, G, plus noise whose squared length is S / n on average. A step gives two sizes at once:
its first micro-batches, one of each rank, and the whole of it. From their squared norms follow estimates of |G|^2 and S, without
bias, whose averages over steps are divided: S / |G|^2, in tokens. Far smaller batches waste no token and take many steps; far
larger ones waste tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainer.data.loader import IGNORED
from trainer.distributed.ranks import Ranks

MEMORY = 0.95
"""Of the running averages: about the last 20 steps count."""


@dataclass
class GradientNoise:
    """Running averages of |G|^2 and S over steps. A resumed run begins them anew."""

    signal: float = 0.0
    noise: float = 0.0

    def add(self, small: float, inverse_small: float, large: float, inverse_large: float) -> float | None:
        """Takes a step's squared norms of mean gradients over few and over many tokens, with one over these numbers of tokens
        (its mean, where several small ones were averaged). Gives the noise scale in tokens so far, or None while the averages say
        that there is no signal, or less than no noise."""
        spread = inverse_small - inverse_large
        if not 0 < spread < float("inf"):
            return None
        noise = (small - large) / spread
        self.noise = MEMORY * self.noise + (1 - MEMORY) * noise
        self.signal = MEMORY * self.signal + (1 - MEMORY) * (large - noise * inverse_large)
        return self.noise / self.signal if self.signal > 0 and self.noise >= 0 else None


def small_square(model: nn.Module, targets: Tensor, count: int, ranks: Ranks) -> Tensor:
    """The squared norm of the mean gradient over a rank's first micro-batch, its mean over ranks. `model` has the gradient of
    this micro-batch's summed loss x ranks / `count`, and of no other; `targets` are the micro-batch's."""
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    squared = (norm * (count / ranks.world) / (targets != IGNORED).sum()).float().square()
    if ranks.world > 1:
        torch.distributed.all_reduce(squared)
    return squared / ranks.world


def inverse_size(row_targets: NDArray[np.int64], world: int, micro_rows: int) -> float:
    """The mean over ranks of one over the targets in a rank's first micro-batch; `row_targets` are those of a step's rows, rank
    after rank."""
    first = row_targets.reshape(world, -1)[:, :micro_rows].sum(axis=1)
    return float((1.0 / first).mean()) if first.all() else float("inf")
