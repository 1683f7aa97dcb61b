"""What continued pretraining begins with: the weights of a checkpoint, or of a folder exported for Hugging Face."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from manifests.storage import sha256_of
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.data.corpus import Corpus
from trainer.distributed.parallel import Layout, local
from trainer.distributed.ranks import Ranks
from trainer.export import huggingface
from trainer.network.model import GPT
from trainer.presets import CPU_PRESET, Architecture
from trainer.run_files import checkpoint, checkpoint_format, checkpoint_tensors, released
from trainer.run_files.checkpoint_format import CheckpointError
from trainer.run_files.saved_options import read_shape, saved_options

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class Parent:
    """A trained model. `row_tokens` is the T that it was trained at. `record` is what a run that goes on from it keeps: names and
    digests, no place of this machine, in `continued` what the parent itself went on from, and in `passed_over`, where there are
    any, what is wrong with newer checkpoints of the parent, by name."""

    folder: Path
    exported: bool
    architecture: Architecture
    row_tokens: int
    record: dict[str, Any]

    @staticmethod
    def find(path: Path, ranks: Ranks | None = None) -> Parent:
        """The newest checkpoint of a run, the checkpoint, the release or the exported folder at `path`; CheckpointError when
        it is none of them, or damaged."""
        path = released.weights_folder(path)
        if _is_exported(path):
            return _exported(path)
        folder, passed_over = whole_checkpoint(path, ranks)
        state = checkpoint.load_state(folder)
        architecture, config = read_shape(folder, state)
        record: dict[str, Any] = {
            "kind": "checkpoint",
            "run": _run_name(folder),
            "step": state.step,
            "tokens": state.tokens,
            "weights_sha256": checkpoint.identity(folder),
            "tokenizer_sha256": state.tokenizer_sha256,
            "manifest_digest": state.manifest_digest,
            "loader_digest": state.loader_digest,
            "code_sha256": state.code_sha256,
            "lineage": state.lineage,
            "continued": state.continued,
            **({"passed_over": passed_over} if passed_over else {}),
        }
        return Parent(folder, False, architecture, config.row_tokens, record)

    @staticmethod
    def usual_options(path: Path) -> dict[str, Any]:
        """preset, model and T of what `path` names, without a look at its weights; empty where there is nothing to be read."""
        path = released.weights_folder(path)
        if _is_exported(path):
            return _exported_options(*huggingface.read_architecture(path))
        own = [path] if (path / checkpoint_format.RECORD).exists() else [one for _, one in reversed(checkpoint.kept(path))]
        wrong: CheckpointError | None = None
        for folder in own:  # of a damaged one `find` takes the one before
            try:
                return _own_options(saved_options(folder, checkpoint.load_state(folder))[1])
            except CheckpointError as error:
                wrong = wrong or error
        if wrong is not None:
            raise wrong
        return {}

    @property
    def name(self) -> str:
        """As a lineage names it."""
        step = f"/step-{self.record['step']:08d}" if "step" in self.record else ""
        return f"{self.record['run']}{step} {self.record['weights_sha256']}"

    @property
    def lineage(self) -> list[str]:
        return [*self.record["lineage"], self.name]

    def check_tokenizer(self, corpus: Corpus) -> None:
        """CheckpointError where token ids of the corpus mean other texts than those that the parent was trained on."""
        ours, theirs = corpus.tokenizer.sha256, self.record["tokenizer_sha256"]
        if ours != theirs:
            raise CheckpointError(
                f"{self.folder}: trained with tokenizer {theirs[:12]}…, the corpus {corpus.folder.url} has {ours[:12]}…; its "
                "token ids mean other texts. Build the corpus with the parent's: `tokenizer: {file: tokenizer.json}` in its "
                "recipe, which is the file beside the manifest that the parent was trained on"
            )

    def check_architecture(self, wanted: Architecture) -> None:
        theirs, ours = self.architecture.model_dump(), wanted.model_dump()
        differing = [f"{name} {theirs[name]!r} there, {ours[name]!r} here" for name in theirs if theirs[name] != ours[name]]
        if differing:
            raise ConfigurationError(
                f"--from {self.folder}: a model of another shape: {'; '.join(differing)}. Without --preset and --model the run "
                "takes the shape of what it begins with"
            )

    def load(self, model: torch.nn.Module, layout: Layout) -> None:
        """Fills `model`, or this rank's shards of it."""
        if not self.exported:
            checkpoint_tensors.load_weights(self.folder, model, layout)
            return
        whole = dict(self.whole().named_parameters())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                first, rows = layout.rows(len(whole[name]))
                local(parameter).copy_(whole[name][first : first + rows])

    def whole(self) -> GPT:
        """The model, on the CPU in float32."""
        model = GPT(self.architecture)
        if self.exported:
            huggingface.load_weights(self.folder, model)
        else:
            checkpoint_tensors.load_weights(self.folder, model)
        return model.eval()


def whole_checkpoint(path: Path, ranks: Ranks | None = None) -> tuple[Path, dict[str, str]]:
    """(the checkpoint at `path`, or the newest one of that run that is whole; what is wrong with each that is newer, by name and
    without the place of the run). CheckpointError when there is none."""
    if (path / checkpoint_format.RECORD).exists() or (path / checkpoint_format.STATE).exists():
        return checkpoint.resolve(path, ranks), {}
    found, wrong = checkpoint.newest(path, ranks)
    place = f"{path / checkpoint_format.CHECKPOINTS}/"
    passed_over = {name: why.replace(place, "") for name, why in wrong.items()}
    if found is None and passed_over:
        told = "; ".join(f"{name}: {why}" for name, why in passed_over.items())
        raise CheckpointError(f"{path}: none of its checkpoints is whole: {told}")
    return found or checkpoint.resolve(path, ranks), passed_over


def told_passed_over(passed_over: dict[str, str], taken: Path) -> list[str]:
    """A warning for each checkpoint that `whole_checkpoint` passed over."""
    return [f"warning: passed over {name} ({why}): {taken.name} is taken instead" for name, why in passed_over.items()]


def _exported(folder: Path) -> Parent:
    architecture, positions = huggingface.read_architecture(folder)
    huggingface.refuse_other_size(folder, architecture)
    try:
        digests = {}
        for name in (TOKENIZER, huggingface.WEIGHTS):
            with open(folder / name, "rb") as file:
                digests[name] = sha256_of(file)[0]
    except FileNotFoundError as error:
        raise CheckpointError(f"{error.filename} is not there: an exported model has its tokenizer beside it") from None
    record: dict[str, Any] = {
        "kind": "export", "run": folder.absolute().name, "weights_sha256": digests[huggingface.WEIGHTS],
        "tokenizer_sha256": digests[TOKENIZER], "lineage": [], "continued": None,
    }  # fmt: skip
    return Parent(folder, True, architecture, positions, record)


def _is_exported(path: Path) -> bool:
    held = (path / huggingface.CONFIG).exists() and (path / huggingface.WEIGHTS).exists()
    return held and not (path / checkpoint_format.STATE).exists()


def _own_options(config: TrainConfig) -> dict[str, Any]:
    return {"preset": config.preset, "model": config.model, "sequence_length": config.row_tokens}


def _exported_options(architecture: Architecture, positions: int) -> dict[str, Any]:
    """A preset of the right family with all its numbers changed."""
    model = json.loads(architecture.model_dump_json(exclude={"vocabulary", "window"}))
    return {"preset": CPU_PRESET, "model": model, "sequence_length": positions}


def _run_name(folder: Path) -> str:
    """Of a checkpoint that lies where runs have them, the name of the run's folder, of a release its own, and else (an average
    of checkpoints, or a copy of one) that of the checkpoint's folder."""
    place = folder.absolute()
    if place.parent.name == checkpoint_format.CHECKPOINTS:
        return place.parent.parent.name
    return place.parent.name if place.name == released.WEIGHTS else place.name
