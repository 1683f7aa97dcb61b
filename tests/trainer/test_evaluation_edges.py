"""evaluate_bpb at the edges of what a corpus can be, and the same figure on any number of ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.corpus_fixture import VOCABULARY, Documents, build_corpus, documents_of_lengths, sentences
from tests.trainer.ranks_fixture import in_ranks
from trainer.data.corpus import Corpus, CorpusError
from trainer.distributed.ranks import Ranks
from trainer.network.model import GPT
from trainer.presets import Architecture
from trainer.scores.evaluation import EvaluationError, Score, evaluate_bpb
from trainer.scores.scoring import model_logits

ALONE = Ranks(0, 1, 0, torch.device("cpu"))
WEB, BOOKS = ("web", "validation"), ("books", "validation")
TABLE = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(0))


def bigram(tokens: Tensor) -> Tensor:
    return TABLE[tokens]


def score_of(folder: Path, shards: Mapping[tuple[str, str], Sequence[Documents]], length: int = 16, **options: Any) -> Score:
    return evaluate_bpb(bigram, Corpus.open(build_corpus(folder, shards, **options)), "validation", length, ALONE)


@pytest.mark.parametrize("documents", [[], [[], [], []]])
def test_a_split_without_text_has_no_score(tmp_path: Path, documents: Documents) -> None:
    with pytest.raises(EvaluationError, match="the validation split has no text to score"):
        score_of(tmp_path, {WEB: [documents]})


def test_documents_of_one_token_cannot_show_whether_a_model_looks_ahead(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="no held-out document is long enough"):
        score_of(tmp_path, {WEB: [[[1], [2], [3]]]})


def test_a_split_that_is_not_there_is_never_another_one(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no validation split"):
        score_of(tmp_path, {("web", "train"): [[[1, 2, 3]]]})


def test_text_without_bytes_has_no_bits_a_byte(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="no bytes to divide by"):
        score_of(tmp_path, {WEB: [[[1, 2, 3]]]}, bytes_a_token=0)


def test_empty_documents_shards_and_components_change_nothing_but_their_count(tmp_path: Path) -> None:
    texts = [[1, 2, 3, 4], [5, 6]]
    plain = score_of(tmp_path / "plain", {WEB: [texts]})
    padded = score_of(tmp_path / "padded", {WEB: [[], [[], texts[0], []], [texts[1]], []], BOOKS: [[], [[], []]]})
    assert padded.nats == pytest.approx(plain.nats)
    assert (padded.text_bytes, padded.tokens) == (plain.text_bytes, plain.tokens)
    assert (plain.documents, padded.documents) == (2, 6)
    assert list(padded.by_component) == ["web"]


def test_a_document_longer_than_a_row_is_scored_whole_and_t_decides_what_is_seen_of_it(tmp_path: Path) -> None:
    """What a model of one token back costs depends on T alone at the cuts, where it sees nothing else; all tokens are there."""
    lengths = [500, 17, 16, 15, 33]
    found = {
        length: score_of(tmp_path / str(length), {WEB: [documents_of_lengths(lengths)]}, length) for length in (2, 16, 10**12)
    }
    for length, one in found.items():
        assert one.tokens == sum(lengths) - len(lengths)
        assert one.sequence_length == length and f"T = {length}" in one.describe()
        assert one.nats == pytest.approx(found[16].nats, rel=1e-6)


@pytest.mark.parametrize("length", [1, 0, -5])
def test_a_row_of_less_than_two_tokens_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(EvaluationError, match="at least 2 tokens"):
        score_of(tmp_path, {WEB: [[[1, 2, 3]]]}, length)


def test_a_precision_without_a_tolerance_is_refused(tmp_path: Path) -> None:
    corpus = Corpus.open(build_corpus(tmp_path, {WEB: [[[1, 2, 3]]]}))
    with pytest.raises(EvaluationError, match="'float16' is not one of float32, bfloat16"):
        evaluate_bpb(bigram, corpus, "validation", 16, ALONE, "float16")


def score_in(ranks: Ranks, manifest: str, out: str) -> None:
    model = GPT(Architecture(vocabulary=VOCABULARY, layers=1, width=16, heads=2, kv_heads=1, hidden=16))
    model.initialise(0)
    logits = model_logits(model, "float32")
    found = evaluate_bpb(logits, Corpus.open(manifest), "validation", 16, ranks, batch_tokens=64, probe_seed=0)
    if ranks.first:
        Path(out).write_text(json.dumps(found.as_json()))


@pytest.mark.parametrize("worlds", [[2], pytest.param([1, 3, 4], marks=pytest.mark.slow)])
def test_any_number_of_ranks_has_the_same_figures_to_the_twelfth_digit(tmp_path: Path, worlds: list[int]) -> None:
    shards = {WEB: [sentences(20, 1), sentences(1, 2)], BOOKS: [sentences(7, 3)]}
    manifest = str(build_corpus(tmp_path, shards, language=lambda id_: "en" if "web" in id_ else "de"))
    score_in(ALONE, manifest, str(tmp_path / "alone"))
    alone = json.loads((tmp_path / "alone").read_text())
    for world in worlds:
        assert in_ranks(world, score_in, manifest, str(tmp_path / "many")) == [0] * world
        many = json.loads((tmp_path / "many").read_text())
        for name in ("val_bpb", "nats", "interval"):
            assert many[name] == pytest.approx(alone[name], rel=1e-12)
        for kind in ("by_component", "by_language"):
            assert {name: one["nats"] for name, one in many[kind].items()} == pytest.approx(
                {name: one["nats"] for name, one in alone[kind].items()}, rel=1e-12
            )
        for name in ("tokens", "text_bytes", "documents", "documents_sha256", "evaluator_sha256"):
            assert many[name] == alone[name]


def test_more_ranks_than_batches_have_a_score_too(tmp_path: Path) -> None:
    manifest = str(build_corpus(tmp_path, {WEB: [[[1, 2, 3]]]}))
    score_in(ALONE, manifest, str(tmp_path / "alone"))
    assert in_ranks(2, score_in, manifest, str(tmp_path / "many")) == [0, 0]
    assert json.loads((tmp_path / "many").read_text())["nats"] == json.loads((tmp_path / "alone").read_text())["nats"]
