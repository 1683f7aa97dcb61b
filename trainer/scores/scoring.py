"""Scoring a saved checkpoint: its weights go into the architecture shipped here, and `evaluate_bpb` does the rest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from trainer.configuration import TrainConfig
from trainer.data.corpus import BUILT_AGAIN, Corpus
from trainer.distributed.ranks import Ranks, usual_dtype
from trainer.network.model import GPT
from trainer.run_files import checkpoint, checkpoint_format, checkpoint_tensors
from trainer.run_files.saved_options import read_shape
from trainer.scores.evaluation import Logits, Score, Scored, evaluate_documents


def score_checkpoint(
    path: Path,
    manifest: str,
    split: str,
    ranks: Ranks,
    sequence_length: int | None = None,
    dtype: str = "auto",
    cache: str | None = None,
) -> Score:
    """The score of a run's newest checkpoint, or of the checkpoint at `path`, on `split` of a corpus.

    CheckpointError when it is incomplete, was trained with another tokenizer, or was written by a version unknown here.
    """
    return score_documents(path, manifest, split, ranks, sequence_length, dtype, cache)[0].score


@dataclass(frozen=True)
class Origin:
    """Whose score it is. `tokens` are those that the model was trained on, `sequence_length` is the T of its run."""

    checkpoint: str
    step: int
    tokens: int
    weights_sha256: str
    sequence_length: int

    def describe(self) -> str:
        return f"checkpoint {self.checkpoint}, of step {self.step:,} and {self.tokens:,} tokens\nweights {self.weights_sha256}"

    def warnings(self, sequence_length: int) -> list[str]:
        """What a score at this T says less of than it seems to."""
        if sequence_length <= self.sequence_length:
            return []
        return [
            f"T = {sequence_length:,} is beyond the T = {self.sequence_length:,} that the run trained at: the score counts "
            f"positions that it never trained on; --sequence-length {self.sequence_length} has none"
        ]


def score_documents(
    path: Path,
    manifest: str,
    split: str,
    ranks: Ranks,
    sequence_length: int | None = None,
    dtype: str = "auto",
    cache: str | None = None,
) -> tuple[Scored, Corpus, Origin]:
    """`score_checkpoint`, with the nats of each document, the corpus, and what was scored."""
    corpus = Corpus.open(manifest, cache)
    loaded = load_model(path, ranks)
    folder, state = loaded.folder, loaded.state
    if state.tokenizer_sha256 != corpus.tokenizer.sha256:
        raise checkpoint_format.CheckpointError(
            f"{folder}: trained with tokenizer {state.tokenizer_sha256[:12]}…, the corpus has {corpus.tokenizer.sha256[:12]}…; "
            f"its token ids mean other texts; {BUILT_AGAIN}"
        )
    length = sequence_length or loaded.config.row_tokens
    chosen = usual_dtype(ranks.device.type) if dtype == "auto" else dtype
    logits = model_logits(loaded.model.to(ranks.device), chosen)
    origin = Origin(str(folder), state.step, state.tokens, checkpoint.identity(folder), loaded.config.row_tokens)
    return evaluate_documents(logits, corpus, split, length, ranks, chosen), corpus, origin


@dataclass(frozen=True)
class Loaded:
    """A checkpoint's model, on the CPU in float32, and what is known of it."""

    folder: Path
    state: checkpoint_format.State
    config: TrainConfig
    model: GPT


def load_model(path: Path, ranks: Ranks | None = None) -> Loaded:
    """The newest checkpoint of a run, or the one at `path`. CheckpointError when it is not whole, or of an unknown version."""
    folder = checkpoint.resolve(path, ranks)
    state = checkpoint.load_state(folder)
    architecture, config = read_shape(folder, state)
    model = GPT(architecture)
    checkpoint_tensors.load_weights(folder, model)
    return Loaded(folder, state, config, model.eval())


def model_logits(model: GPT, dtype: str) -> Logits:
    """The model as the evaluator sees it: token ids in, logits out."""
    device = next(model.parameters()).device.type

    def logits(tokens: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
            return cast(Tensor, model(tokens))

    return logits
