"""A model for Hugging Face transformers: config.json, weights as safetensors, and the tokenizer, in one folder.

A model of the `llama` family is a `LlamaForCausalLM` there. With QK-norm it is a `Qwen3ForCausalLM`, which norms each head's
queries and keys before they are rotated, as ours does; both rotate halves of a head. What no class there computes is refused.
transformers itself is not needed.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from manifests.storage import TEMPORARY_PREFIX, Folder, sync_directory
from trainer.configuration import ConfigurationError
from trainer.data.corpus import BUILT_AGAIN, Corpus
from trainer.network.model import GPT
from trainer.presets import Architecture
from trainer.run_files.checkpoint_format import CheckpointError
from trainer.scores.scoring import Loaded

WEIGHTS, CONFIG = "model.safetensors", "config.json"
UNDERSTOOD = {
    "vocabulary", "layers", "width", "heads", "kv_heads", "hidden", "tied", "qk_norm", "rope_theta", "norm_epsilon",
}  # fmt: skip
"""What the two classes can be told of an architecture. Every other option must be as the llama presets have it."""


def export(loaded: Loaded, corpus: Corpus, output: Path, dtype: str = "bfloat16") -> list[str]:
    """Writes the new folder `output` and gives the names of its files. ConfigurationError for an architecture that has no class
    there, or an output that is not empty."""
    _understood(loaded.model.architecture)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigurationError(f"{output} is there already; name a new folder")
    tokenizer = corpus.tokenizer
    if loaded.state.tokenizer_sha256 != tokenizer.sha256:
        raise CheckpointError(f"{loaded.folder}: trained with another tokenizer than the corpus has; {BUILT_AGAIN}")
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=output.parent))
    try:
        made = Folder(str(temporary.absolute()))
        kind = getattr(torch, dtype)
        weights = {name: tensor.detach().to("cpu", kind).contiguous().clone() for name, tensor in tensors(loaded.model)}
        save_file(weights, temporary / WEIGHTS, metadata={"format": "pt"})
        os.chmod(temporary / WEIGHTS, 0o644)  # the library leaves a file that only its owner can read
        bos = next((name for name, number in tokenizer.special_tokens.items() if number == tokenizer.bos_id), None)
        made.write(CONFIG, _json(config_of(loaded.model.architecture, loaded.config.row_tokens, tokenizer.bos_id, dtype)))
        made.write("generation_config.json", _json({"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.bos_id}))
        made.write("tokenizer.json", corpus.folder.read(tokenizer.file))
        made.write("tokenizer_config.json", _json(_tokenizer_config(bos, loaded.config.row_tokens)))
        names = sorted(made.names())
        os.chmod(temporary, 0o755)
        if output.exists():
            output.rmdir()  # an empty folder
        os.rename(temporary, output)
        sync_directory(str(output.parent))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return names


def read_architecture(folder: Path) -> tuple[Architecture, int]:
    """(the architecture, T) of a folder that `export` wrote, or of another that says nothing else of its model. CheckpointError
    when it is none, or says something that no llama preset computes."""
    try:
        told = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        found = Architecture(
            vocabulary=told["vocab_size"], layers=told["num_hidden_layers"], width=told["hidden_size"],
            heads=told["num_attention_heads"], kv_heads=told["num_key_value_heads"], hidden=told["intermediate_size"],
            tied=told["tie_word_embeddings"], qk_norm=told["model_type"] == "qwen3", rope_theta=told["rope_theta"],
            norm_epsilon=told["rms_norm_eps"],
        )  # fmt: skip
        positions = int(told["max_position_embeddings"])
        expected = config_of(found, positions, told["bos_token_id"], told["dtype"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{folder / CONFIG}: not a model that was exported here: {error!r}") from None
    other = sorted(name for name in told.keys() | expected.keys() if told.get(name) != expected.get(name))
    if other:
        raise CheckpointError(f"{folder / CONFIG}: a model of another kind than is trained here, by {', '.join(other)}")
    return found, positions


def refuse_other_size(folder: Path, architecture: Architecture) -> None:
    """CheckpointError where the file of weights does not have as many numbers as the architecture: a model that a stranger says
    to be larger would wait for memory that is not there."""
    try:
        with safe_open(folder / WEIGHTS, "pt") as file:
            names = list(file.keys())
            there = sum(math.prod(file.get_slice(name).get_shape()) for name in names)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder / WEIGHTS}: {error}") from None
    if there != architecture.parameters():
        raise CheckpointError(
            f"{folder / WEIGHTS}: {there:,} numbers, and the model of {CONFIG} has {architecture.parameters():,} parameters"
        )


def load_weights(folder: Path, model: GPT) -> None:
    """Fills a whole model on the CPU from an exported folder; CheckpointError when a tensor is missing or has another shape."""
    path = folder / WEIGHTS
    try:
        with safe_open(path, "pt") as file, torch.no_grad():
            into = dict(tensors(model))
            if differing := sorted(set(file.keys()) ^ into.keys()):
                raise CheckpointError(f"{path}: not the tensors of this architecture: {', '.join(differing[:3])}")
            for name, view in into.items():
                read = file.get_tensor(name)
                if read.shape != view.shape or not read.is_floating_point():
                    raise CheckpointError(f"{path}: {name} is {list(read.shape)} of {read.dtype}, expected {list(view.shape)}")
                view.copy_(read)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def tensors(model: GPT) -> Iterator[tuple[str, Tensor]]:
    """The weights under the names that transformers has for them; the matrices that ours holds together are taken apart."""
    held, a = dict(model.named_parameters()), model.architecture
    inner, values = a.heads * a.head_width, a.kv_heads * a.head_width
    yield "model.embed_tokens.weight", held["embedding.weight"]
    for layer in range(a.layers):
        ours, theirs = f"blocks.{layer}.", f"model.layers.{layer}."
        query, key, value = torch.split(held[f"{ours}attention.projection.weight"], [inner, values, values])
        gate, up = held[f"{ours}feed.gate_and_up.weight"].chunk(2)
        yield f"{theirs}self_attn.q_proj.weight", query
        yield f"{theirs}self_attn.k_proj.weight", key
        yield f"{theirs}self_attn.v_proj.weight", value
        yield f"{theirs}self_attn.o_proj.weight", held[f"{ours}attention.output.weight"]
        if a.qk_norm:
            yield f"{theirs}self_attn.q_norm.weight", held[f"{ours}attention.query_norm.weight"]
            yield f"{theirs}self_attn.k_norm.weight", held[f"{ours}attention.key_norm.weight"]
        yield f"{theirs}mlp.gate_proj.weight", gate
        yield f"{theirs}mlp.up_proj.weight", up
        yield f"{theirs}mlp.down_proj.weight", held[f"{ours}feed.down.weight"]
        yield f"{theirs}input_layernorm.weight", held[f"{ours}attention_norm.weight"]
        yield f"{theirs}post_attention_layernorm.weight", held[f"{ours}feed_norm.weight"]
    yield "model.norm.weight", held["norm.weight"]
    if not a.tied:
        yield "lm_head.weight", held["head.weight"]


def config_of(architecture: Architecture, positions: int, bos: int, dtype: str) -> dict[str, Any]:
    """transformers' config.json. `positions`: T in training; versions before and after 5 read the rate of rotation and the type
    under different names, so both are given."""
    _understood(architecture)
    name, kind = ("Qwen3ForCausalLM", "qwen3") if architecture.qk_norm else ("LlamaForCausalLM", "llama")
    return {
        "architectures": [name],
        "model_type": kind,
        "vocab_size": architecture.vocabulary,
        "hidden_size": architecture.width,
        "intermediate_size": architecture.hidden,
        "num_hidden_layers": architecture.layers,
        "num_attention_heads": architecture.heads,
        "num_key_value_heads": architecture.kv_heads,
        "head_dim": architecture.head_width,
        "hidden_act": "silu",
        "max_position_embeddings": positions,
        "rms_norm_eps": architecture.norm_epsilon,
        "rope_theta": architecture.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": architecture.rope_theta},
        "tie_word_embeddings": architecture.tied,
        "attention_bias": False,
        "attention_dropout": 0.0,
        **({"use_sliding_window": False} if architecture.qk_norm else {"mlp_bias": False}),
        "bos_token_id": bos,
        "eos_token_id": bos,
        "use_cache": True,
        "torch_dtype": dtype,
        "dtype": dtype,
    }


def _understood(architecture: Architecture) -> None:
    fields = Architecture.model_fields
    other = [
        f"{name} {value!r}"
        for name, value in architecture.model_dump().items()
        if name not in UNDERSTOOD and value != fields[name].default
    ]
    if other:
        raise ConfigurationError(
            f"transformers has no class for such a model: {', '.join(other)}; the llama presets can be exported"
        )


def _tokenizer_config(bos: str | None, positions: int) -> dict[str, Any]:
    """A document of ours begins with BOS, and the next document's ends it."""
    named = {} if bos is None else {"bos_token": bos, "eos_token": bos}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,
        **named,
    }


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
