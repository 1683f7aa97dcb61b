"""Generation: what is drawn follows the model's probabilities, ends where it should, and a terminal is safe from it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from manifests.manifest import Content, Manifest
from manifests.storage import Folder
from tests.trainer.corpus_fixture import BOS, VOCABULARY, learnable_corpus
from tests.trainer.test_loop import run
from trainer.commands import app
from trainer.configuration import ConfigurationError
from trainer.export.generation import Sampling, draw, generate
from trainer.run_files.checkpoint_format import CheckpointError

CPU = torch.device("cpu")
LOGITS = torch.tensor([1.0, 3.0, 2.0, 2.0, -1.0])


def drawn(sampling: Sampling, count: int = 4_000) -> Counter[int]:
    generator = torch.Generator().manual_seed(sampling.seed)
    return Counter(draw(LOGITS, sampling, generator) for _ in range(count))


def successor(tokens: torch.Tensor) -> torch.Tensor:
    """The next id, and after 9 the end."""
    following = torch.where(tokens >= 9, 0, tokens + 1)
    return 5.0 * torch.nn.functional.one_hot(following, VOCABULARY).float()


def test_temperature_0_takes_the_likeliest_whatever_the_seed() -> None:
    assert all(drawn(Sampling(0.0, seed=seed), 5) == {1: 5} for seed in range(3))


def test_frequencies_follow_the_model_and_the_temperature() -> None:
    for temperature in (1.0, 0.5, 2.0):
        expected = torch.softmax(LOGITS / temperature, 0)
        found = drawn(Sampling(temperature))
        assert all(found[n] / 4_000 == pytest.approx(float(expected[n]), abs=0.03) for n in range(5))


def test_top_k_and_top_p_leave_out_the_unlikely() -> None:
    assert set(drawn(Sampling(1.0, top_k=1), 50)) == {1}
    assert set(drawn(Sampling(1.0, top_k=3))) == {1, 2, 3}
    share = torch.softmax(LOGITS, 0)
    assert set(drawn(Sampling(1.0, top_p=float(share[1]) - 0.01), 50)) == {1}
    assert set(drawn(Sampling(1.0, top_p=float(share[1]) + 0.01))) == {1, 2}
    assert set(drawn(Sampling(5.0, top_p=1.0))) == {0, 1, 2, 3, 4}


def test_it_stops_at_the_end_of_the_document_and_at_the_limit() -> None:
    greedy = Sampling(0.0)
    assert list(generate(successor, [BOS, 5], BOS, 16, 50, greedy, CPU)) == [6, 7, 8, 9]
    assert list(generate(successor, [BOS, 5], BOS, 16, 3, greedy, CPU)) == [6, 7, 8]


def test_the_model_never_sees_more_than_it_was_trained_on() -> None:
    seen = []

    def watched(tokens: torch.Tensor) -> torch.Tensor:
        seen.append(tokens[0].tolist())
        return successor(tokens)

    assert list(generate(watched, [BOS, 1, 2, 3], BOS, 3, 3, Sampling(0.0), CPU)) == [4, 5, 6]
    assert seen == [[1, 2, 3], [2, 3, 4], [3, 4, 5]]


def test_the_same_seed_gives_the_same_text() -> None:
    def even(tokens: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*tokens.shape, VOCABULARY)

    texts = [list(generate(even, [BOS], -1, 16, 30, Sampling(seed=seed), CPU)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}, {"temperature": float("nan")}]
)
def test_impossible_ways_to_draw_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        Sampling(**wrong)  # type: ignore[arg-type]


def test_logits_that_are_not_finite_end_it() -> None:
    with pytest.raises(CheckpointError, match="not finite"):
        list(generate(lambda tokens: successor(tokens) * float("nan"), [BOS], BOS, 16, 3, Sampling(), CPU))


def with_real_tokenizer(corpus: Path) -> Path:
    """The corpus with a tokenizer of one word an id, some of which would speak to a terminal."""
    words = {"<|bos|>": 0, **{f"w{n}": n for n in range(1, VOCABULARY - 1)}, "\x1b[31m": VOCABULARY - 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<|bos|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    data = tokenizer.to_str().encode()
    (corpus / "tokenizer.json").write_bytes(data)
    folder = Folder(str(corpus))
    content = Manifest.load(folder).content.model_dump()
    content["tokenizer"]["sha256"] = hashlib.sha256(data).hexdigest()
    Manifest.seal(Content.model_validate(content), {}).save(folder)
    return corpus / "manifest.json"


def test_the_command_goes_on_with_a_text(tmp_path: Path) -> None:
    learnable_corpus(tmp_path / "corpus", train=120, held_out=5)
    manifest = with_real_tokenizer(tmp_path / "corpus")
    run(manifest, tmp_path / "run", evaluate=False, steps=3)
    arguments = ["generate", str(tmp_path / "run"), "w2 \x1b[31m", "--tokens", "5", "--device", "cpu", "--seed", "4"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    assert "\x1b" not in result.stdout and r"w2 \x1b[31m" in result.stdout
    told = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert told == json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert len(told["tokens"]) <= 5
    (tmp_path / "corpus" / "tokenizer.json").write_text("{}")
    changed = CliRunner().invoke(app, arguments)
    assert changed.exit_code == 1 and "tokenizer.json" in changed.stderr
