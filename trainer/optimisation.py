"""AdamW and the learning rate's course over a run.

Betas (.9, .95); weight decay on matrices only, never on norms' gains. The rate warms up linearly and falls along a cosine,
over the *share of the budget* that is spent, whether the budget is seconds, tokens or steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

BETAS = (0.9, 0.95)
EPSILON = 1e-8


def build_adamw(model: nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=BETAS, eps=EPSILON, fused=True)


@dataclass(frozen=True)
class WarmupCosine:
    """peak x (linear up to `warmup`, then a cosine down to `final` at 1); `warmup` and `final` are shares."""

    peak: float
    warmup: float
    final: float

    def rate(self, spent: float) -> float:
        """The learning rate when the share `spent` (0 to 1, cut there) of the budget is used; never 0 before the end."""
        spent = min(max(spent, 0.0), 1.0)
        if spent < self.warmup:
            return self.peak * max(spent / self.warmup, 1e-3)
        falling = (spent - self.warmup) / (1.0 - self.warmup)
        return self.peak * (self.final + (1.0 - self.final) * 0.5 * (1.0 + math.cos(math.pi * falling)))


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate
