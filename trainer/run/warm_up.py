"""Steps that leave no trace: compilers and allocators do their work in them, before the clock of a run starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from trainer.distributed.parallel import local

COMPILED_STEPS = 2
"""After so many steps nothing is compiled or allocated any more."""


@contextlib.contextmanager
def without_a_trace(model: nn.Module, optimiser: torch.optim.Optimizer) -> Iterator[None]:
    """Steps within it train; afterwards model, optimiser and random state are what they were, bit for bit. What they were lies on
    the host meanwhile: a GPU that holds a run need not hold a second one while it begins."""
    weights = [_copy(parameter) for parameter in model.parameters()]
    states = {owner: dict(state) for owner, state in optimiser.state.items()}
    kept = {owner: {key: _copy(value) for key, value in state.items()} for owner, state in states.items()}
    random = torch.get_rng_state()
    yield
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), weights, strict=True):
            local(parameter).copy_(value)
        optimiser.state.clear()
        for owner, state in states.items():
            for key, value in state.items():
                local(value).copy_(kept[owner][key])
            optimiser.state[owner] = state
    torch.set_rng_state(random)


def _copy(tensor: Tensor) -> Tensor:
    return local(tensor).detach().to("cpu", copy=True)
