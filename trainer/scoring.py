"""Scoring a saved checkpoint: its weights go into the architecture shipped here, and `evaluate_bpb` does the rest."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from pydantic import ValidationError
from torch import Tensor

from trainer import checkpoint
from trainer.configuration import TrainConfig
from trainer.corpus import Corpus
from trainer.evaluation import Logits, Score, evaluate_bpb
from trainer.model import GPT
from trainer.presets import Architecture
from trainer.ranks import Ranks


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
    corpus = Corpus.open(manifest, cache)
    folder = checkpoint.resolve(path, ranks)
    state = checkpoint.load_state(folder)
    if state.tokenizer_sha256 != corpus.tokenizer.sha256:
        raise checkpoint.CheckpointError(
            f"{folder}: trained with tokenizer {state.tokenizer_sha256[:12]}…, the corpus has {corpus.tokenizer.sha256[:12]}…; "
            "its token ids mean other texts"
        )
    try:
        architecture, config = Architecture.model_validate(state.architecture), TrainConfig.model_validate(state.config)
    except ValidationError as error:
        raise checkpoint.CheckpointError(f"{folder / checkpoint.STATE}: of another version: {error}") from None
    model = GPT(architecture)
    checkpoint.load_weights(folder, model)
    length = sequence_length or config.row_tokens
    chosen = ("bfloat16" if ranks.device.type == "cuda" else "float32") if dtype == "auto" else dtype
    return evaluate_bpb(model_logits(model.to(ranks.device).eval(), chosen), corpus, split, length, ranks, chosen)


def model_logits(model: GPT, dtype: str) -> Logits:
    """The model as the evaluator sees it: token ids in, logits out."""
    device = next(model.parameters()).device.type

    def logits(tokens: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
            return cast(Tensor, model(tokens))

    return logits
