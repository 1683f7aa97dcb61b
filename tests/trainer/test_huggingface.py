"""The export for transformers: names and shapes here, and the same logits where transformers is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from tests.trainer.corpus_fixture import VOCABULARY, learnable_corpus
from tests.trainer.test_loop import options
from trainer.commands import app
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.data.corpus import Corpus
from trainer.export.huggingface import config_of, export
from trainer.network.model import GPT
from trainer.presets import PRESETS
from trainer.run_files import checkpoint_format
from trainer.scores.scoring import Loaded

SHAPES = [
    {"qk_norm": qk_norm, "tied": tied, "heads": 4, "kv_heads": kv_heads}
    for qk_norm in (False, True)
    for tied in (False, True)
    for kv_heads in (2, 4)
]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable_corpus(tmp_path_factory.mktemp("corpus"), train=20, held_out=5)


def loaded(manifest: Path, tmp_path: Path, **shape: object) -> Loaded:
    """A model with random gains too, so that a norm in another place would be seen."""
    given = options(manifest, tmp_path / "run", model={"layers": 2, "width": 32, "hidden": 48, **shape})
    config = TrainConfig.check(**given)
    model = GPT(config.architecture(VOCABULARY))
    model.initialise(1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.copy_(0.5 + torch.rand(parameter.shape, generator=generator))
            else:
                parameter.mul_(4.0)
    corpus = Corpus.open(manifest)
    state = checkpoint_format.State(
        step=1, position=1, tokens=1, clipped_steps=0, spent_seconds=0.0, architecture=model.architecture.model_dump(),
        config=config.model_dump(mode="json"), loader_digest="", manifest_digest=corpus.manifest.digest,
        tokenizer_sha256=corpus.tokenizer.sha256, code_sha256="", lineage=[],
    )  # fmt: skip
    return Loaded(tmp_path, state, config, model.eval())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_transformers_gives_the_same_logits(manifest: Path, tmp_path: Path, shape: dict[str, object]) -> None:
    transformers = pytest.importorskip("transformers")
    ours = loaded(manifest, tmp_path, **shape)
    export(ours, Corpus.open(manifest), tmp_path / "out", "float32")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    assert type(theirs).__name__ == ("Qwen3ForCausalLM" if shape["qk_norm"] else "LlamaForCausalLM")
    tokens = torch.randint(0, VOCABULARY, (3, 32), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected, found = ours.model(tokens), theirs(tokens).logits
    assert float(expected.abs().max()) > 1
    assert float((expected - found).abs().max()) < 1e-3


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[-2]], ids=str)
def test_every_weight_is_there_once(manifest: Path, tmp_path: Path, shape: dict[str, object]) -> None:
    ours = loaded(manifest, tmp_path, **shape)
    export(ours, Corpus.open(manifest), tmp_path / "out", "float32")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert sum(tensor.numel() for tensor in found.values()) == ours.model.architecture.parameters()
    assert ("lm_head.weight" in found) == (not shape["tied"])
    query, key = (found[f"model.layers.1.self_attn.{name}_proj.weight"] for name in "qk")
    packed = ours.model.state_dict()["blocks.1.attention.projection.weight"]
    assert torch.equal(torch.cat((query, key)), packed[: len(query) + len(key)])
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["num_key_value_heads"], config["tie_word_embeddings"]) == (shape["kv_heads"], shape["tied"])
    assert (config["bos_token_id"], config["vocab_size"], config["rms_norm_eps"]) == (0, VOCABULARY, 1e-5)
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["bos_token"] == "<|bos|>"
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (manifest.parent / "tokenizer.json").read_bytes()


def test_bfloat16_is_the_default_and_rounds(manifest: Path, tmp_path: Path) -> None:
    ours = loaded(manifest, tmp_path, heads=4, kv_heads=4)
    export(ours, Corpus.open(manifest), tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")["model.norm.weight"]
    assert torch.equal(found, ours.model.norm.weight.to(torch.bfloat16))


def test_what_transformers_cannot_compute_is_refused(manifest: Path, tmp_path: Path) -> None:
    ours = loaded(manifest, tmp_path, heads=4, kv_heads=4)
    strange = ours.model.architecture.model_copy(update={"rope_theta": 5.0})
    assert config_of(strange, 32, 0, "float32")["rope_parameters"]["rope_theta"] == 5.0
    for preset in PRESETS.values():
        architecture = preset.build(VOCABULARY)
        if architecture.model_dump().get("feed", "swiglu") != "swiglu":
            with pytest.raises(ConfigurationError, match="no class for such a model"):
                config_of(architecture, 32, 0, "float32")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(ConfigurationError, match="is there already"):
        export(ours, Corpus.open(manifest), tmp_path / "out")
    result = CliRunner().invoke(app, ["export", "huggingface", str(tmp_path / "run"), "--output", str(tmp_path / "x")])
    assert result.exit_code == 1 and "neither a checkpoint nor a run" in result.stderr
