"""Arithmetic of a training step, and the share of the device's peak that it reaches (MFU), in two labelled conventions.

Per token, forward and backward: 6 x matmul parameters (the input embedding is a look-up and does not count, a tied one
does, as the head) + attention, 12 x layers x attention width x keys a query meets.

- `palm` (Chowdhery et al. 2022, appendix B): every query meets T keys, or as many as its window has: 6N + 12LdT.
- `causal_exact`: every query meets the keys it may see, itself included: (T + 1) / 2 on average in a row of T, and the
  mean over the pieces actually packed where attention is masked per document; fewer in layers with a window (`mean_keys`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.presets import Architecture

DENSE_BF16_PEAKS = (
    # NVIDIA's data sheets, dense (1,979 for H100 and H200 is the figure with 2:4 sparsity). PCIe and NVL cards of the
    # same name are slower and not listed: no figure rather than a wrong one.
    (re.compile(r"NVIDIA H100 (80GB HBM3|SXM5?.*)"), 989.4e12),
    (re.compile(r"NVIDIA H200(?! NVL).*"), 989.4e12),
    (re.compile(r"NVIDIA A100.*"), 312e12),
)


def peak_flops(device_name: str, dtype: str) -> float | None:
    """The peak in FLOP/s of a device as the driver names it, or None where it is not known for sure."""
    if dtype != "bfloat16":
        return None
    return next((peak for pattern, peak in DENSE_BF16_PEAKS if pattern.fullmatch(device_name)), None)


def mfu(flops_per_second: float, device_name: str, dtype: str) -> float | None:
    """The share of one device's peak that `flops_per_second` is; None for an unknown device."""
    peak = peak_flops(device_name, dtype)
    return None if peak is None else flops_per_second / peak


def palm_flops_per_token(architecture: Architecture, sequence_length: int) -> float:
    return _flops_per_token(architecture, sequence_length, min(architecture.window or sequence_length, sequence_length))


def causal_flops_per_token(architecture: Architecture, keys: float, near_keys: float | None = None) -> float:
    """`keys`: those that an average query may see, itself included; (T + 1) / 2 for a causal row of T. `near_keys`: in layers
    with a window, which must be given where there are some."""
    if architecture.short_layers and near_keys is None:
        raise ValueError("the keys that a query sees in a window are needed for a model with windows")
    return _flops_per_token(architecture, keys, near_keys or 0.0)


def mean_keys(lengths: Iterable[npt.NDArray[np.signedinteger[Any]]], window: int = 0) -> float:
    """Keys that an average query may see, itself included, in pieces of these lengths; `window` of them at most, if not 0."""
    seen = total = 0
    for some in (pieces.astype(np.int64) for pieces in lengths):
        full = np.minimum(some, window) if window else some
        seen += int((full * (full + 1) // 2 + (some - full) * full).sum())
        total += int(some.sum())
    return seen / total


def _flops_per_token(architecture: Architecture, keys: float, near_keys: float) -> float:
    attention_width = architecture.heads * architecture.head_width
    short = architecture.short_layers
    met = (architecture.layers - short) * keys + short * near_keys
    return 6.0 * architecture.matmul_parameters() + 12.0 * attention_width * met
