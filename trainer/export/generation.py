"""Text from a model: one token after the other, each drawn from what the model says of the text so far.

Nothing is kept between tokens: each costs a pass over the text so far, at most the T tokens that the model was trained on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.configuration import ConfigurationError
from trainer.run_files.checkpoint_format import CheckpointError
from trainer.scores.evaluation import Logits


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn: `temperature` 0 takes the likeliest; `top_k` (0: all) and `top_p` leave out unlikely ones first."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.temperature < float("inf") and self.top_k >= 0 and 0 < self.top_p <= 1):
            raise ConfigurationError(
                f"temperature {self.temperature} must be 0 or more, top-k {self.top_k} 0 or more, and top-p {self.top_p} above 0 "
                "and at most 1"
            )


def generate(
    logits: Logits, prompt: Sequence[int], stop: int, context: int, tokens: int, sampling: Sampling, device: torch.device
) -> Iterator[int]:
    """At most `tokens` ids that follow `prompt`, until `stop`, which is not given out. The model sees the last `context`."""
    generator = torch.Generator().manual_seed(sampling.seed)
    seen = list(prompt)
    with torch.inference_mode():
        for _ in range(tokens):
            last = logits(torch.tensor([seen[-context:]], device=device))[0, -1].float().cpu()
            if not bool(torch.isfinite(last).all()):
                raise CheckpointError("the model gives logits that are not finite")
            token = draw(last, sampling, generator)
            if token == stop:
                return
            seen.append(token)
            yield token


def draw(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """One token of logits (vocabulary,) on the CPU. Of those as likely as the last that `top_k` takes, the first stay."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    ordered, token = torch.sort(logits / sampling.temperature, descending=True, stable=True)
    if sampling.top_k:
        ordered, token = ordered[: sampling.top_k], token[: sampling.top_k]
    share = torch.softmax(ordered.double(), dim=0)
    before = torch.cumsum(share, dim=0) - share
    share = share * (before < sampling.top_p)  # the likeliest always stays
    return int(token[torch.multinomial(share, 1, generator=generator)])
