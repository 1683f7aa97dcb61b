"""A release of a run, as `manifests.release` writes it: weights in a folder of their own, beside the corpus's manifest."""

from __future__ import annotations

from pathlib import Path

WEIGHTS = "weights"


def is_release(path: Path) -> bool:
    return (path / WEIGHTS).is_dir()


def weights_folder(path: Path) -> Path:
    """What has the weights: of a release the folder in it, else `path` itself."""
    return path / WEIGHTS if is_release(path) else path
