"""Chinchilla's published fit of the loss (Hoffmann et al. 2022, approach 3), and what follows from it by arithmetic.

L(N, D) = 1.69 + 406.4 / N^0.34 + 410.7 / D^0.28 nats a token, for N parameters trained on D tokens (6 N D FLOPs). The constants
belong to the authors' data and tokenizer: on another corpus the loss itself means little, and what is compared are sizes.
Besiroglu et al. (2024) could not reproduce them from the published points; their own give about 20 tokens a parameter where these
give more.
"""

from __future__ import annotations

from dataclasses import dataclass

IRREDUCIBLE, SIZE_FACTOR, SIZE_POWER, DATA_FACTOR, DATA_POWER = 1.69, 406.4, 0.34, 410.7, 0.28
"""E, A, alpha, B and beta of the paper, as it rounds them."""
TOKENS_PER_PARAMETER = 20.0
"""The paper's rule of thumb."""
FITTED_PARAMETERS, FITTED_TOKENS = (70e6, 16e9), (5e9, 500e9)
"""What the authors trained, as their abstract says."""
TRAINING_FLOPS, SERVING_FLOPS = 6.0, 2.0
"""A parameter and a token: forward and backward, and forward alone."""


@dataclass(frozen=True)
class Point:
    """A model of `parameters` trained on `tokens`; `loss` in nats a token by the fit, `flops` 6 N D."""

    parameters: float
    tokens: float

    @property
    def loss(self) -> float:
        return loss(self.parameters, self.tokens)

    @property
    def flops(self) -> float:
        return TRAINING_FLOPS * self.parameters * self.tokens

    def as_json(self) -> dict[str, float]:
        return {"parameters": self.parameters, "tokens": self.tokens, "flops": self.flops, "loss": self.loss}


@dataclass(frozen=True)
class Payback:
    """A planned model beside the one that reaches the same loss for the least training FLOPs.

    `saved_flops`: what the cheapest would save in training. `served_tokens`: so many tokens read or written make up for it, as
    each costs 2 FLOPs less for every parameter that the planned one has less; None where the planned model is no smaller, and
    never pays back. (Writing tokens costs memory traffic above all; this counts FLOPs alone.)
    """

    cheapest: Point
    saved_flops: float
    served_tokens: float | None


def loss(parameters: float, tokens: float) -> float:
    return float(IRREDUCIBLE + SIZE_FACTOR / parameters**SIZE_POWER + DATA_FACTOR / tokens**DATA_POWER)


def optimum(flops: float) -> Point:
    """The point of lowest loss among all of 6 N D = `flops`: there alpha A / N^alpha = beta B / D^beta."""
    balance = (SIZE_POWER * SIZE_FACTOR / (DATA_POWER * DATA_FACTOR)) ** (1 / (SIZE_POWER + DATA_POWER))
    parameters = balance * (flops / TRAINING_FLOPS) ** (DATA_POWER / (SIZE_POWER + DATA_POWER))
    return Point(parameters, flops / TRAINING_FLOPS / parameters)


def rule_of_thumb(flops: float) -> Point:
    """20 tokens a parameter at 6 N D = `flops`."""
    parameters = (flops / TRAINING_FLOPS / TOKENS_PER_PARAMETER) ** 0.5
    return Point(parameters, TOKENS_PER_PARAMETER * parameters)


def payback(planned: Point) -> Payback:
    above = planned.loss - IRREDUCIBLE
    parameters = (SIZE_FACTOR * (1 + SIZE_POWER / DATA_POWER) / above) ** (1 / SIZE_POWER)
    tokens = (DATA_FACTOR * (1 + DATA_POWER / SIZE_POWER) / above) ** (1 / DATA_POWER)
    cheapest = Point(parameters, tokens)
    saved = max(0.0, planned.flops - cheapest.flops)  # rounding, where the planned one is the cheapest
    fewer = parameters - planned.parameters
    return Payback(cheapest, saved, saved / (SERVING_FLOPS * fewer) if fewer > 0 else None)
