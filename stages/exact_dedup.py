"""Exact duplicates: documents whose text is the same after NFC, lower-casing and collapsing white space (DESIGN,
Dedup 1).

Two documents are duplicates when their 128-bit keys agree. With 10 billion documents the chance that any two
different texts share a key is below 10^20 / 2^129 = 2e-19. Which one stays is decided by
`stages.clusters.keep_ranks`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa
import xxhash
from pydantic import Field

from stages.normal_form import normal_forms
from stages.stage import Options

VERSION = 1
NAME = "exact_dedup"
RULE = "exact_dedup.duplicate"


class ExactDedupOptions(Options):
    """`scope`: compare within a component or across the corpus. `keep`: the longest text, or the first in id order; a
    component of higher priority wins before either."""

    scope: Literal["component", "corpus"] = Field("corpus", description="compare within each component, or across all")
    keep: Literal["longest", "first"] = Field("longest", description="which of equal priority stays: longest text or first id")


def document_keys(texts: pa.Array) -> np.ndarray:
    """uint64 (n, 2): high and low half of xxh3_128 of the UTF-8 of each text's form (`stages.normal_form`).

    Equal rows are duplicates. A null counts as the empty text.
    """
    forms = normal_forms(texts)
    data = forms.data.data
    digests = b"".join(xxhash.xxh3_128_digest(data[start:end]) for start, end in forms.bounds.tolist())
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64).reshape(-1, 2)
