"""evaluate_bpb: one honest figure, whatever the batching, and no score for a model that cheats."""

from __future__ import annotations

import ast
import io
import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F

from tests.trainer.corpus_fixture import BOS, VOCABULARY, build_corpus, documents_of_lengths, learnable_corpus
from trainer.data.corpus import Corpus
from trainer.distributed.ranks import Ranks
from trainer.network.model import GPT
from trainer.presets import Architecture
from trainer.scores import evaluation
from trainer.scores.evaluation import DECIDING_FILES, EvaluationError, Score, bits_per_byte, evaluate_bpb, evaluator_sha256
from trainer.scores.scoring import model_logits

ALONE = Ranks(0, 1, 0, torch.device("cpu"))
LENGTHS = [2, 9, 17, 33, 1, 6]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus.open(learnable_corpus(tmp_path, train=20, held_out=12))


def uniform(tokens: torch.Tensor) -> torch.Tensor:
    return torch.zeros(*tokens.shape, VOCABULARY)


def bigram(tokens: torch.Tensor) -> torch.Tensor:
    """Honest: what it says depends on the current token alone."""
    table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(0))
    return table[tokens]


def score(logits: object, corpus: Corpus, **options: object) -> Score:
    return evaluate_bpb(logits, corpus, "validation", 16, ALONE, **{"probe_seed": 0, **options})  # type: ignore[arg-type]


def test_sums_are_divided_once_and_means_are_never_averaged() -> None:
    assert bits_per_byte([(3, 10), (40, 50)]) == pytest.approx(43 / (60 * math.log(2)))
    assert round(bits_per_byte([(3, 10), (40, 50)]), 4) == 1.0339


@pytest.mark.parametrize("sums", [[], [(1.0, 0.0)], [(math.nan, 3.0)], [(math.inf, 3.0)]])
def test_a_figure_that_cannot_be_is_refused(sums: list[tuple[float, float]]) -> None:
    with pytest.raises(EvaluationError):
        bits_per_byte(sums)


def test_every_text_token_is_scored_once_and_closing_bos_never(tmp_path: Path) -> None:
    texts = documents_of_lengths(LENGTHS)
    corpus = Corpus.open(build_corpus(tmp_path, {("web", "validation"): [texts]}, bytes_a_token=3))
    found = score(uniform, corpus)
    text_tokens = sum(len(text) for text in texts)
    assert found.tokens == text_tokens
    assert found.text_bytes == 3 * text_tokens
    assert found.nats == pytest.approx(text_tokens * math.log(VOCABULARY), rel=1e-6)
    assert found.val_bpb == pytest.approx(math.log2(VOCABULARY) / 3, rel=1e-6)
    assert found.documents == len(LENGTHS)


def test_the_sum_is_that_of_a_loop_over_documents(tmp_path: Path) -> None:
    texts = documents_of_lengths(LENGTHS)
    corpus = Corpus.open(build_corpus(tmp_path, {("web", "validation"): [texts]}))
    nats = 0.0
    for text in texts:
        tokens = torch.tensor([BOS, *text])
        if len(text):
            nats += float(F.cross_entropy(bigram(tokens[:-1]).double(), tokens[1:], reduction="sum"))
    assert score(bigram, corpus).nats == pytest.approx(nats, rel=1e-6)


@pytest.mark.parametrize("batch_tokens", [1, 40, 100_000])
def test_the_figure_does_not_depend_on_the_batch_size(corpus: Corpus, batch_tokens: int) -> None:
    model = GPT(Architecture(vocabulary=VOCABULARY, layers=1, width=16, heads=2, kv_heads=1, hidden=16))
    model.initialise(0)
    logits = model_logits(model, "float32")
    assert score(logits, corpus, batch_tokens=batch_tokens).val_bpb == pytest.approx(score(logits, corpus).val_bpb, rel=1e-6)


def test_bfloat16_is_near_float32_and_passes_its_probe(corpus: Corpus) -> None:
    model = GPT(Architecture(vocabulary=VOCABULARY, layers=2, width=32, heads=2, kv_heads=1, hidden=32))
    model.initialise(0)
    exact = score(model_logits(model, "float32"), corpus)
    rounded = score(model_logits(model, "bfloat16"), corpus, dtype="bfloat16")
    assert rounded.val_bpb == pytest.approx(exact.val_bpb, rel=5e-3)


def test_what_stands_beside_the_figure_says_what_was_scored(corpus: Corpus) -> None:
    found = score(bigram, corpus)
    assert found.sequence_length == 16
    assert found.documents_sha256 == corpus.split_digest("validation")
    assert found.tokenizer_sha256 == corpus.tokenizer.sha256
    assert found.interval[0] < found.val_bpb < found.interval[1]
    assert found.components == {"toy": found.val_bpb}
    for part in ("T = 16", found.documents_sha256, found.tokenizer_sha256, found.evaluator_sha256):
        assert part in found.describe()


def test_components_and_languages_have_figures_of_their_own(tmp_path: Path) -> None:
    """Documents of several shards, told apart through a log in another order; a token is 3 bytes, and all cost as much."""
    texts = {
        ("web", "validation"): [documents_of_lengths([9, 17, 4]), documents_of_lengths([30, 6, 1])],
        ("books", "validation"): [documents_of_lengths([5, 8])],
        ("books", "train"): [documents_of_lengths([50])],
    }
    spoken = {"web/validation.jsonl#0": "de", "web/validation.jsonl#1000000": "de", "books/validation.jsonl#1": "de"}
    manifest = build_corpus(tmp_path, texts, language=lambda id_: spoken.get(id_, None if "books" in id_ else "fr"))
    found = score(bigram, Corpus.open(manifest))
    expected = {"web": [9, 17, 4, 30, 6, 1], "books": [5, 8], "de": [9, 30, 8], "fr": [17, 4, 6, 1], "und": [5]}
    assert list(found.by_component) == ["books", "web"]
    assert list(found.by_language) == ["de", "fr", "und"]
    assert found.languages_unknown is None
    for name, group in {**found.by_component, **found.by_language}.items():
        tokens = sum(expected[name]) - len(expected[name])
        assert (group.documents, group.tokens, group.text_bytes) == (len(expected[name]), tokens, 3 * tokens)
        assert group.interval[0] <= group.val_bpb <= group.interval[1]
        assert group.val_bpb == pytest.approx(group.nats / math.log(2) / group.text_bytes)
    for groups in (found.by_component, found.by_language):
        assert math.fsum(one.nats for one in groups.values()) == pytest.approx(found.nats)
    assert found.by_language["und"].interval == (found.by_language["und"].val_bpb,) * 2
    assert "language" in found.describe()


def test_each_document_is_counted_in_its_own_language(tmp_path: Path) -> None:
    """The model knows the token 5 only, which only documents in one language hold."""

    def fives(tokens: torch.Tensor) -> torch.Tensor:
        return uniform(tokens) + 9.0 * F.one_hot(torch.full_like(tokens, 5), VOCABULARY)

    texts = [[5, 5, 5], [7, 7], [5], [8, 9, 10, 11]]
    manifest = build_corpus(
        tmp_path,
        {("web", "validation"): [texts[:3], texts[3:]]},
        language=lambda id_: "five" if id_.endswith(("#0", "#2")) else "other",
    )
    found = score(fives, Corpus.open(manifest)).by_language
    assert found["five"].nats == pytest.approx(4 * -math.log(math.exp(9) / (math.exp(9) + VOCABULARY - 1)), rel=1e-4)
    assert found["other"].nats == pytest.approx(6 * math.log(math.exp(9) + VOCABULARY - 1), rel=1e-4)


def test_a_corpus_without_its_log_says_so_and_still_has_a_score(tmp_path: Path, corpus: Corpus) -> None:
    assert score(bigram, corpus).by_language == {}
    assert "lists no document log" in (score(bigram, corpus).languages_unknown or "")
    texts = {("web", "validation"): [documents_of_lengths([9, 17, 4])]}
    logged = Corpus.open(build_corpus(tmp_path / "logged", texts, language=lambda _: "en"))
    log = tmp_path / "logged/logs/documents/web/00000.parquet"
    kept = log.read_bytes()
    log.unlink()
    found = score(bigram, logged)
    assert found.by_language == {}
    assert "is not beside the shards" in found.describe()
    log.write_bytes(kept[:-5])
    assert "cannot be read" in (score(bigram, logged).languages_unknown or "")
    pq.write_table(pq.read_table(io.BytesIO(kept)).slice(1), log)
    assert "leaves out 1 documents" in (score(bigram, logged).languages_unknown or "")


def looks_ahead(tokens: torch.Tensor) -> torch.Tensor:
    following = torch.cat([tokens[:, 1:], tokens[:, -1:]], dim=1)
    return F.one_hot(following, VOCABULARY).float() * 20


def looks_far_ahead(tokens: torch.Tensor) -> torch.Tensor:
    return uniform(tokens) + F.one_hot(tokens[:, -1], VOCABULARY).float()[:, None, :]


def reads_the_row_above(tokens: torch.Tensor) -> torch.Tensor:
    return bigram(tokens) + F.one_hot(tokens.roll(1, dims=0), VOCABULARY).float()


class RemembersCalls:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        logits = uniform(tokens)
        logits[..., self.calls % VOCABULARY] = 1.0
        return logits


@pytest.mark.parametrize("cheat", [looks_ahead, looks_far_ahead, reads_the_row_above, RemembersCalls()])
@pytest.mark.parametrize("seed", range(3))
def test_a_model_that_sees_more_than_the_text_before_has_no_score(corpus: Corpus, cheat: object, seed: int) -> None:
    with pytest.raises(EvaluationError, match="text before alone"):
        score(cheat, corpus, probe_seed=seed)


def draws_at_random(tokens: torch.Tensor) -> torch.Tensor:
    return bigram(tokens) + 0.02 * torch.rand(*tokens.shape, VOCABULARY)


def looks_at_the_clock(tokens: torch.Tensor) -> torch.Tensor:
    logits = bigram(tokens)
    logits[..., time.perf_counter_ns() // 1_000 % VOCABULARY] += 0.1
    return logits


class LearnsFromCalls:
    """Counts the tokens that it was shown, and expects them."""

    def __init__(self) -> None:
        self.counts = torch.ones(VOCABULARY)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.counts.log().expand(*tokens.shape, VOCABULARY).clone()
        self.counts = self.counts + tokens.flatten().bincount(minlength=VOCABULARY)
        return logits


class TrainsItself:
    """A small step on every text that it is shown, after it has given its logits: what a row teaches helps the next."""

    def __init__(self, rate: float) -> None:
        self.table, self.rate = torch.zeros(VOCABULARY, VOCABULARY, requires_grad=True), rate

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            loss = F.cross_entropy(self.table[tokens[:, :-1]].flatten(0, 1), tokens[:, 1:].flatten())
            (gradient,) = torch.autograd.grad(loss, self.table)
        found = self.table.detach()[tokens]
        self.table = (self.table - self.rate * gradient).detach().requires_grad_()
        return found


@pytest.mark.parametrize("cheat", [draws_at_random, looks_at_the_clock, LearnsFromCalls(), TrainsItself(30.0)])
@pytest.mark.parametrize("seed", range(3))
def test_a_model_that_changes_between_calls_has_no_score(corpus: Corpus, cheat: object, seed: int) -> None:
    with pytest.raises(EvaluationError, match="text before alone"):
        score(cheat, corpus, probe_seed=seed)


@pytest.mark.parametrize(("rate", "complaint"), [(0.2, "run again at the end"), (0.03, "when all was")])
@pytest.mark.parametrize("seed", range(2))
def test_what_is_learned_too_slowly_to_show_in_a_batch_shows_at_the_end(
    tmp_path: Path, rate: float, complaint: str, seed: int
) -> None:
    """In bfloat16's tolerance, a step of this size is lost between two calls, and plain over all of them."""
    corpus = Corpus.open(learnable_corpus(tmp_path, train=20, held_out=300))
    with pytest.raises(EvaluationError, match=complaint):
        score(TrainsItself(rate), corpus, dtype="bfloat16", batch_tokens=64, probe_seed=seed)


class Flattering(torch.Tensor):
    """Overrides what the loss is computed with."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        found = super().__torch_function__(function, types, arguments, options or {})
        return found * 0 if function is torch.logsumexp else found


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (lambda tokens: uniform(tokens).as_subclass(Flattering), "a Flattering, and not a plain tensor"),
        (lambda tokens: [uniform(tokens)], "a list, and not"),
        (lambda tokens: uniform(tokens).long(), "torch.int64, which is no type of logits"),
        (lambda tokens: uniform(tokens)[:, :, :-1], "a vocabulary of 64"),
        (lambda tokens: uniform(tokens)[:, 1:], "logits have shape"),
        (lambda tokens: uniform(tokens)[0], "logits have shape"),
        (lambda tokens: uniform(tokens).transpose(0, 1), "logits have shape"),
    ],
)
def test_what_is_not_logits_is_refused(corpus: Corpus, wrong: Any, complaint: str) -> None:
    with pytest.raises(EvaluationError, match=complaint):
        score(wrong, corpus)


def test_a_vocabulary_that_is_padded_only_costs(corpus: Corpus) -> None:
    def padded(tokens: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*tokens.shape, VOCABULARY + 8)

    assert score(padded, corpus).nats == pytest.approx(score(uniform, corpus).nats * math.log(72) / math.log(64), rel=1e-6)


def following(tokens: torch.Tensor) -> torch.Tensor:
    return F.one_hot(torch.cat([tokens[:, 1:], tokens[:, -1:]], dim=1), VOCABULARY).float()


def cheats_in_large_batches(tokens: torch.Tensor) -> torch.Tensor:
    return bigram(tokens) + (20.0 if len(tokens) > 8 else 0.0) * following(tokens)


def cheats_in_long_rows(tokens: torch.Tensor) -> torch.Tensor:
    return bigram(tokens) + (20.0 if tokens.shape[1] > 12 else 0.0) * following(tokens)


@pytest.mark.parametrize("cheat", [cheats_in_large_batches, cheats_in_long_rows])
@pytest.mark.parametrize("seed", range(5))
def test_a_model_that_looks_ahead_only_in_the_shape_that_is_scored_has_no_score(corpus: Corpus, cheat: object, seed: int) -> None:
    with pytest.raises(EvaluationError, match="text before alone"):
        score(cheat, corpus, probe_seed=seed)


@pytest.mark.parametrize("gain", [0.24, 0.05])
@pytest.mark.parametrize("seed", range(5))
def test_a_gain_at_every_token_below_bfloat16_s_rounding_has_no_score(corpus: Corpus, gain: float, seed: int) -> None:
    def shy(tokens: torch.Tensor) -> torch.Tensor:
        return bigram(tokens) + gain * following(tokens)

    with pytest.raises(EvaluationError, match="text before alone"):
        score(shy, corpus, dtype="bfloat16", probe_seed=seed)


def test_a_gain_from_two_tokens_ahead_has_no_score(corpus: Corpus) -> None:
    def patient(tokens: torch.Tensor) -> torch.Tensor:
        return bigram(tokens) + 0.2 * F.one_hot(tokens.roll(-2, dims=1), VOCABULARY).float()

    def knowing(tokens: torch.Tensor) -> torch.Tensor:
        """The next token, weighted by whether the one after it is the real one."""
        after = tokens.roll(-2, dims=1) % 2
        return bigram(tokens) + 0.2 * after[..., None] * following(tokens)

    for cheat in (patient, knowing):
        with pytest.raises(EvaluationError, match="text before alone"):
            score(cheat, corpus, dtype="float32")


@pytest.mark.parametrize("batch_tokens", [64, 8_192])
def test_the_batches_that_are_scored_are_probed_in_their_own_shape(
    corpus: Corpus, batch_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []

    def watched(tokens: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(tokens.shape))
        return bigram(tokens)

    monkeypatch.setattr(evaluation, "PROBE_CUTS", 0)
    monkeypatch.setattr(evaluation, "PROBE_BATCHES", 0)
    with pytest.raises(EvaluationError, match="long enough"):
        score(watched, corpus, batch_tokens=batch_tokens)
    scored, probed = Counter(seen), set()
    monkeypatch.setattr(evaluation, "PROBE_BATCHES", 1)
    for seed in range(10):
        seen.clear()
        score(watched, corpus, batch_tokens=batch_tokens, probe_seed=seed)
        again = Counter(seen) - scored
        probed |= {shape for shape in again if shape in scored and shape[0] > 1}
        assert all(shape in scored or shape[0] == 1 for shape in again)
        assert max(again[shape] for shape in scored) >= evaluation.PROBE_CALLS
    assert probed == {shape for shape in scored if shape[0] > 1}


def test_the_probe_does_not_change_the_figure(corpus: Corpus) -> None:
    model = GPT(Architecture(vocabulary=VOCABULARY, layers=1, width=16, heads=2, kv_heads=1, hidden=16))
    model.initialise(0)
    figures = {score(model_logits(model, "float32"), corpus, probe_seed=seed).nats for seed in (None, 0, 1, 2)}
    assert len(figures) == 1


def test_a_model_in_bfloat16_does_not_change_in_one_shape(corpus: Corpus) -> None:
    model = GPT(Architecture(vocabulary=VOCABULARY, layers=2, width=32, heads=2, kv_heads=1, hidden=32))
    model.initialise(0)
    found = score(model_logits(model, "bfloat16"), corpus, dtype="bfloat16")
    assert abs(found.probe_mean_change) < 1e-3
    assert found.probe_positions > 50


def test_the_evaluator_s_digest_covers_all_that_evaluating_imports() -> None:
    repository = Path(__file__).resolve().parents[2]
    reached, waiting = set[str](), ["trainer.scores.evaluation", "trainer.scores.scoring"]
    while waiting:
        name = waiting.pop()
        path = f"{name.replace('.', '/')}.py"
        if path in reached or not (repository / path).exists():
            continue
        reached.add(path)
        for node in ast.walk(ast.parse((repository / path).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("trainer", "manifests"):
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    assert reached == set(DECIDING_FILES)
    for path in {folder / "__init__.py" for name in DECIDING_FILES for folder in Path(name).parents if folder.name}:
        [only] = ast.parse((repository / path).read_text()).body  # a docstring, which decides nothing
        assert isinstance(only, ast.Expr) and isinstance(only.value, ast.Constant), path


@pytest.mark.parametrize("name", DECIDING_FILES)
def test_a_change_in_any_file_that_decides_is_another_evaluator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, read = evaluator_sha256(), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + (b"#" if str(path).endswith(name) else b""))
    assert evaluator_sha256() != before


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_refused(corpus: Corpus, value: float) -> None:
    def broken(tokens: torch.Tensor) -> torch.Tensor:
        logits = uniform(tokens)
        logits[..., 5] = torch.where(tokens == 7, value, 0.0)
        return logits

    with pytest.raises(EvaluationError, match="not finite"):
        score(broken, corpus)


def test_probabilities_that_do_not_sum_to_one_gain_nothing(corpus: Corpus) -> None:
    def boastful(tokens: torch.Tensor) -> torch.Tensor:
        return bigram(tokens) + 1_000.0

    assert score(boastful, corpus).val_bpb == pytest.approx(score(bigram, corpus).val_bpb, rel=1e-4)


def test_the_probe_draws_unpredictable_positions_unless_it_is_told_a_seed(corpus: Corpus) -> None:
    seen: list[np.ndarray] = []

    def watched(tokens: torch.Tensor) -> torch.Tensor:
        seen.append(tokens.numpy())
        return bigram(tokens)

    for _ in range(2):
        score(watched, corpus, probe_seed=None)
    half = len(seen) // 2
    assert any(a.shape != b.shape or (a != b).any() for a, b in zip(seen[:half], seen[half:], strict=True))
