"""The tokenizer that a model was trained with, as it lies beside its corpus."""

from __future__ import annotations

import hashlib
from typing import Any

from manifests.storage import Folder
from trainer.data.corpus import BUILT_AGAIN
from trainer.run_files.checkpoint_format import CheckpointError


def open_tokenizer(folder: Folder, file: str, sha256: str) -> Any:
    """A `tokenizers.Tokenizer`, of the digest that the model was trained with, which encodes texts as the corpus was: whole, and
    what spells a special token is text. CheckpointError says what is wrong."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise CheckpointError("the library that reads tokenizers is missing: pip install tokenizers") from None
    try:
        data = folder.read(file)
    except FileNotFoundError:
        raise CheckpointError(f"{folder.url}/{file} is not there") from None
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise CheckpointError(
            f"{folder.url}/{file}: the model was trained with another tokenizer ({sha256[:12]}…, not {found[:12]}…); "
            f"{BUILT_AGAIN}"
        )
    try:
        tokenizer = Tokenizer.from_str(data.decode())
    except Exception as error:  # the library raises nothing more special
        raise CheckpointError(f"{folder.url}/{file}: not a tokenizer: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer
