"""--max-epochs: how far a run may go before a component has been gone through more often."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.configuration import TrainConfig
from trainer.data.loader import Loader, LoaderError
from trainer.data.steps import Steps, unit


@dataclass(frozen=True)
class EpochLimit:
    """`steps` is the last that is allowed: after it, `guilty` would be repeated too often, of which `rows` rows do not make too
    much."""

    steps: int
    guilty: str
    rows: int
    _config: TrainConfig
    _loader: Loader
    _steps: Steps

    @staticmethod
    def of(config: TrainConfig, loader: Loader, steps: Steps, tokens: int) -> EpochLimit | None:
        """None where epochs have no limit. `tokens` are those that were trained on already. LoaderError when the budget, known in
        tokens or steps, asks for more, or the data give not one step."""
        if config.max_epochs is None:
            return None
        rows, guilty = loader.fitting(config.max_epochs, unit(config))
        last = steps.within(rows)
        found = EpochLimit(last, guilty, rows, config, loader, steps)
        if config.steps is not None:
            enough = last >= config.steps
        elif config.tokens is not None:
            enough = tokens >= config.tokens or loader.targets(steps.position(last + 1)) >= config.tokens
        else:
            enough = last > 0
        if not enough:
            raise LoaderError(found.reason())
        return found

    def reason(self) -> str:
        """Which component it is, and what would fit."""
        return (
            f"component {self.guilty!r} would be gone through more often than --max-epochs {self._config.max_epochs:g}: "
            f"{self._what_fits()}; use a smaller budget, a smaller weight for it, or more data"
        )

    def _what_fits(self) -> str:
        """With a ramp this depends on the budget, of which all batches are shares, and a run of so many tokens goes on to the end
        of the step in which it reaches them."""
        config, targets = self._config, self._loader.targets
        if not config.batch_ramp:
            tokens = targets(self._steps.position(self.steps + 1))
            return f"at most {tokens:,} tokens fit, which is {self.steps:,} steps of {config.rows_a_step} rows"
        if config.steps is not None:
            return f"at most {Steps.that_fit(config, self.rows):,} steps of this ramp fit"
        return f"{targets(max(0, self.rows - self._steps.most_rows)):,} tokens fit"
