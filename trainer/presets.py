"""Shapes of models, and what is known of them without building one.

`Architecture` is everything that `trainer.network.model.GPT` needs; `PRESETS` names the usual ones together with the row length,
batch, optimiser and course of rates that suit them. Nothing here imports torch.

Two families of one model: `llama` (Touvron et al. 2023, with Qwen 3's norms of queries and keys), and `speedrun`, what the
searches of modded-nanogpt, nanochat and autoresearch (github.com/KellerJordan/modded-nanogpt, karpathy/nanochat and
karpathy/autoresearch) found to learn fastest in minutes of one GPU. Each finding is an option, off in the `llama` presets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST_LAYERS = 10_000
GATE_INPUTS = 32
"""Numbers of the normed stream that decide how much of a value embedding each head takes (as nanochat has it)."""


class Architecture(BaseModel):
    """A decoder: RMSNorm, rotary positions, grouped-query attention, a feed-forward layer, no biases.

    `hidden` is the width inside the feed-forward layer, `heads` and `kv_heads` count query and key/value heads of `head_width`
    each. A tied model uses its embedding as the output head too.

    - `feed`: `swiglu` (Shazeer 2020), or `relu2`, squares of ReLU (So et al. 2021).
    - `norm_gains`: norms have a learned gain a channel. `embedding_norm`: the stream is normed before the first layer too.
    - `lambdas`: a layer reads `a x stream + b x embedding`, with two learned numbers a layer.
    - `value_embeddings`: in every second layer, the last among them, each token adds a row of a table to its values, as much of
      it as a gate decides for every head (Zhou et al. 2024, value residual learning; the gate is nanochat's).
    - `soft_cap`: logits are soft_cap x tanh(logits / soft_cap) (Gemma 2); 0: as they are.
    - `windows`: a letter a layer, repeated: in layers of `S` a query sees the last `window` tokens only, itself included, in
      those of `L`, and in the last layer, the whole row or document. `window` 0 is an eighth of the training's row.
    - `initialisation`: `gpt2` (normal, deviation .02) or `uniform` (matrices uniform with deviation 1 / sqrt(width), those into
      the stream zero, the head next to zero, the embedding normal).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    vocabulary: int = Field(ge=2, lt=2**48)
    layers: int = Field(ge=1, le=MOST_LAYERS)
    width: int = Field(ge=2, lt=2**32)
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    hidden: int = Field(ge=1, lt=2**32)
    tied: bool = False
    qk_norm: bool = False
    rope_theta: float = Field(default=10_000.0, gt=1, allow_inf_nan=False)
    norm_epsilon: float = Field(default=1e-5, gt=0, allow_inf_nan=False)
    feed: Literal["swiglu", "relu2"] = "swiglu"
    norm_gains: bool = True
    embedding_norm: bool = False
    lambdas: bool = False
    value_embeddings: bool = False
    soft_cap: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    windows: str = Field(default="", pattern="^[SL]*$")
    window: int = Field(default=0, ge=0)
    initialisation: Literal["gpt2", "uniform"] = "gpt2"

    @model_validator(mode="after")
    def _heads_fit(self) -> Architecture:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.head_width % 2:
            raise ValueError(f"width / heads is {self.head_width}; rotary positions need an even number")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        return self

    @model_validator(mode="after")
    def _options_fit(self) -> Architecture:
        if self.tied and self.initialisation == "uniform":
            raise ValueError("initialisation uniform begins with an embedding of deviation 1, which is no head: use tied=false")
        if self.window and not any(self.short(layer) for layer in range(self.layers)):
            raise ValueError(f"window {self.window} needs windows with an S for some layer but the last, like SSSL")
        return self

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def family(self) -> Literal["llama", "speedrun"]:
        """`llama` where every option of the other family that changes the function is off."""
        changed = self.feed != "swiglu" or not self.norm_gains or self.embedding_norm or self.lambdas or self.value_embeddings
        return "speedrun" if changed or self.soft_cap or self.window else "llama"

    def has_values(self, layer: int) -> bool:
        """Whether a layer (from 0) has a table of value embeddings."""
        return self.value_embeddings and layer % 2 == (self.layers - 1) % 2

    def short(self, layer: int) -> bool:
        """Whether a layer (from 0) sees a window only."""
        return bool(self.windows) and layer < self.layers - 1 and self.windows[layer % len(self.windows)] == "S"

    @property
    def short_layers(self) -> int:
        return sum(self.short(layer) for layer in range(self.layers)) if self.window else 0

    def matmul_parameters(self) -> int:
        """Parameters that a token is multiplied with: every matrix but an untied embedding and those of values, which are
        looked up."""
        attention = self.width * self.head_width * (2 * self.heads + 2 * self.kv_heads)
        feed = (3 if self.feed == "swiglu" else 2) * self.width * self.hidden
        gates = self._value_layers() * min(GATE_INPUTS, self.width) * self.kv_heads
        return self.layers * (attention + feed) + gates + self.vocabulary * self.width

    def parameters(self) -> int:
        """All parameters; equals what the built model counts."""
        norms = self.layers * (2 * self.width + (2 * self.head_width if self.qk_norm else 0)) + self.width
        norms += self.width if self.embedding_norm else 0
        tables = self._value_layers() * self.vocabulary * self.kv_heads * self.head_width
        return (
            self.matmul_parameters()
            + (norms if self.norm_gains else 0)
            + (2 * self.layers if self.lambdas else 0)
            + tables
            + (0 if self.tied else self.vocabulary * self.width)
        )

    def _value_layers(self) -> int:
        return sum(self.has_values(layer) for layer in range(self.layers))


@dataclass(frozen=True)
class Preset:
    """An architecture without its vocabulary, which the corpus decides, and what it is trained with unless told otherwise.

    `sequence_length` and `batch_tokens` are in tokens (the batch over all ranks), `micro_batch` in rows a rank.
    `learning_rate` is AdamW's peak rate, `muon_rate` that of matrices under Muon. `warmup`, `cooldown` and `final_rate` are
    shares: of the budget in which the rate rises, in which it falls (`wsd` only), and of the peak rate that is left at the end.
    `clip` 0 never clips.
    """

    architecture: dict[str, Any]
    sequence_length: int
    batch_tokens: int
    micro_batch: int
    learning_rate: float
    muon_rate: float = 0.02
    optimiser: Literal["adamw", "muon"] = "adamw"
    schedule: Literal["cosine", "wsd"] = "cosine"
    warmup: float = 0.05
    cooldown: float = 0.5
    final_rate: float = 0.05
    weight_decay: float = 0.1
    clip: float = 1.0

    def build(self, vocabulary: int, **overrides: Any) -> Architecture:
        return Architecture(**{**self.architecture, "vocabulary": vocabulary, **overrides})


def _shape(layers: int, width: int, heads: int, kv_heads: int, hidden: int, **rest: Any) -> dict[str, Any]:
    return {"layers": layers, "width": width, "heads": heads, "kv_heads": kv_heads, "hidden": hidden, **rest}


def _speedrun(layers: int, width: int, heads: int) -> dict[str, Any]:
    """The shape and options of autoresearch's decoder: full heads, four times the width inside, and all that was found to win."""
    return _shape(
        layers, width, heads, heads, 4 * width, qk_norm=True, feed="relu2", norm_gains=False, embedding_norm=True, lambdas=True,
        value_embeddings=True, soft_cap=15.0, windows="SSSL", initialisation="uniform",
    )  # fmt: skip


_SPEEDRUN_COURSE: dict[str, Any] = {
    "learning_rate": 1e-3, "muon_rate": 0.04, "optimiser": "muon", "schedule": "wsd", "warmup": 0.0, "cooldown": 0.5,
    "final_rate": 0.0, "weight_decay": 0.2, "clip": 0.0,
}  # fmt: skip
"""autoresearch's rates and their course; AdamW's own rate is for comparison."""

PRESETS: dict[str, Preset] = {
    # for a minute on a laptop's CPU
    "tiny": Preset(_shape(4, 128, 4, 2, 352, tied=True, qk_norm=True), 256, 2_048, 8, 4e-3),
    "mini": Preset(_shape(6, 256, 8, 8, 688, tied=True, qk_norm=True), 512, 16_384, 8, 2e-3),
    "speedrun-tiny": Preset(_speedrun(4, 128, 4), 256, 2_048, 8, **_SPEEDRUN_COURSE),
    # for one GPU
    "small": Preset(_shape(12, 768, 6, 6, 2_048, qk_norm=True), 2_048, 524_288, 32, 1e-3),
    # about 50 million parameters with a vocabulary of 8,192
    "speedrun": Preset(_speedrun(8, 512, 4), 2_048, 131_072, 64, **_SPEEDRUN_COURSE),
    "1b": Preset(_shape(16, 2_048, 16, 8, 7_168, qk_norm=True), 2_048, 1_048_576, 16, 4e-4),
    "8b": Preset(_shape(32, 4_096, 32, 8, 14_336, rope_theta=500_000.0), 4_096, 4_194_304, 2, 3e-4),
}

DEFAULT_PRESET, CPU_PRESET = "small", "tiny"
"""With a GPU and without one: a step of `small` takes tens of gigabytes, and on a CPU many minutes."""
