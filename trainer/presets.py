"""Shapes of models, and what is known of them without building one.

`Architecture` is everything that `trainer.model.GPT` needs; `PRESETS` names the usual ones together with the row length,
batch and learning rate that suit them. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Architecture(BaseModel):
    """A decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases.

    `hidden` is the width inside the SwiGLU, `heads` and `kv_heads` count query and key/value heads of `head_width`
    each. A tied model uses its embedding as the output head too.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    vocabulary: int = Field(ge=2)
    layers: int = Field(ge=1)
    width: int = Field(ge=2)
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    hidden: int = Field(ge=1)
    tied: bool = False
    qk_norm: bool = False
    rope_theta: float = Field(default=10_000.0, gt=1)
    norm_epsilon: float = Field(default=1e-5, gt=0)

    @model_validator(mode="after")
    def _heads_fit(self) -> Architecture:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.head_width % 2:
            raise ValueError(f"width / heads is {self.head_width}; rotary positions need an even number")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        return self

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def matmul_parameters(self) -> int:
        """Parameters that a token is multiplied with: every matrix but an untied embedding, which is a look-up."""
        attention = self.width * self.head_width * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.width * self.hidden) + self.vocabulary * self.width

    def parameters(self) -> int:
        """All parameters; equals what the built model counts."""
        norms = self.layers * (2 * self.width + (2 * self.head_width if self.qk_norm else 0)) + self.width
        return self.matmul_parameters() + norms + (0 if self.tied else self.vocabulary * self.width)


@dataclass(frozen=True)
class Preset:
    """An architecture without its vocabulary, which the corpus decides, and what it is trained with unless told otherwise.

    `sequence_length` and `batch_tokens` are in tokens (the batch over all ranks), `micro_batch` in rows a rank.
    """

    architecture: dict[str, Any]
    sequence_length: int
    batch_tokens: int
    micro_batch: int
    learning_rate: float

    def build(self, vocabulary: int, **overrides: Any) -> Architecture:
        return Architecture(**{**self.architecture, "vocabulary": vocabulary, **overrides})


def _shape(layers: int, width: int, heads: int, kv_heads: int, hidden: int, **rest: Any) -> dict[str, Any]:
    return {"layers": layers, "width": width, "heads": heads, "kv_heads": kv_heads, "hidden": hidden, **rest}


PRESETS: dict[str, Preset] = {
    # for a minute on a laptop's CPU
    "tiny": Preset(_shape(4, 128, 4, 2, 352, tied=True, qk_norm=True), 256, 2_048, 8, 4e-3),
    "mini": Preset(_shape(6, 256, 8, 8, 688, tied=True, qk_norm=True), 512, 16_384, 8, 2e-3),
    # for one GPU
    "small": Preset(_shape(12, 768, 6, 6, 2_048, qk_norm=True), 2_048, 524_288, 32, 1e-3),
    "1b": Preset(_shape(16, 2_048, 16, 8, 7_168, qk_norm=True), 2_048, 1_048_576, 16, 4e-4),
    "8b": Preset(_shape(32, 4_096, 32, 8, 14_336, rope_theta=500_000.0), 4_096, 4_194_304, 2, 3e-4),
}

DEFAULT_PRESET, CPU_PRESET = "small", "tiny"
"""With a GPU and without one: a step of `small` takes tens of gigabytes, and on a CPU many minutes."""
