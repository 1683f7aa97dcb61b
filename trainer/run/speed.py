"""How fast a run is, and what it takes: tokens a second as a share of the device's peak, and peak memory."""

from __future__ import annotations

import platform
import resource
from dataclasses import dataclass

import numpy as np
import torch

from trainer.configuration import TrainConfig
from trainer.data.loader import Loader
from trainer.network.flops import causal_flops_per_token, mean_keys, mfu, palm_flops_per_token
from trainer.presets import Architecture


@dataclass(frozen=True)
class Speed:
    """Arithmetic of one target token, in the two conventions of `trainer.network.flops`, on a device of this name."""

    palm_flops: float
    causal_flops: float
    device_name: str
    dtype: str

    @staticmethod
    def of(config: TrainConfig, architecture: Architecture, loader: Loader, device: torch.device, dtype: str) -> Speed:
        masked = config.attention == "masked"
        keys = loader.mean_visible_keys if masked else (config.row_tokens + 1) / 2
        near_keys = None
        if architecture.short_layers:
            seen = (plan.length for plan in loader.plans) if masked else [np.array([config.row_tokens])]
            near_keys = mean_keys(seen, architecture.window)
        return Speed(
            palm_flops_per_token(architecture, config.row_tokens),
            causal_flops_per_token(architecture, keys, near_keys),
            device_name(device),
            dtype,
        )

    def mfu(self, tokens_per_second: float) -> dict[str, float | None]:
        """Of one device that trains on so many real targets a second: what is computed on padding is not work done."""
        return {
            "mfu_palm": mfu(tokens_per_second * self.palm_flops, self.device_name, self.dtype),
            "mfu_causal_exact": mfu(tokens_per_second * self.causal_flops, self.device_name, self.dtype),
        }


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine() + " CPU"


def peak_memory_gb(device: torch.device) -> float:
    """Of the device where it has memory of its own, else of the process; 10^9 bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def synchronise(device: torch.device) -> None:
    """Waits for what the device was given to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
