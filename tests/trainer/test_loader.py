"""The loader: rows as a function of a position, every row once an epoch, exact mixtures, targets within documents."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.corpus_fixture import BOS, build_corpus, documents_of_lengths
from trainer.data.corpus import Corpus
from trainer.data.loader import IGNORED, PERIOD, Loader, LoaderError, Phase, permute

LENGTHS = [3, 5, 20, 2, 9, 1, 8, 16, 31, 4, 4, 7]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    manifest = build_corpus(
        tmp_path,
        {
            ("books", "train"): [documents_of_lengths(LENGTHS), documents_of_lengths([6, 6, 13, 40], first=7)],
            ("web", "train"): [documents_of_lengths([10, 12, 33, 2, 2, 5] * 5, first=3)],
        },
    )
    return Corpus.open(manifest)


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Thousands of rows, so that a period of a mixture is a few epochs."""
    books, web = documents_of_lengths([5, 20, 9, 2] * 3_000), documents_of_lengths([3, 33, 7] * 3_000)
    shards = {("books", "train"): [books], ("web", "train"): [web]}
    return Corpus.open(build_corpus(tmp_path_factory.mktemp("larger"), shards))


def loader_of(corpus: Corpus, *names: str, **options: object) -> Loader:
    return Loader([corpus.component(name, "train") for name in names], 8, **options)  # type: ignore[arg-type]


def rows_at(loader: Loader, first: int, end: int) -> list[tuple[int, int]]:
    place = loader.locate(np.arange(first, end))
    return list(zip(place.component.tolist(), place.row.tolist(), strict=True))


def pairs_of(loader: Loader, first: int, end: int) -> Counter[tuple[int, int]]:
    batch = loader.batch(np.arange(first, end))
    valid = batch.targets != IGNORED
    return Counter(zip(batch.tokens[valid].tolist(), batch.targets[valid].tolist(), strict=True))


def expected_pairs(corpus: Corpus, *names: str) -> Counter[tuple[int, int]]:
    """All (input, target) pairs, from the files, without packing."""
    pairs: Counter[tuple[int, int]] = Counter()
    for name in names:
        component = corpus.component(name, "train")
        for start, length in zip(component.starts.tolist(), component.lengths.tolist(), strict=True):
            tokens = [*component.read(start, length).tolist(), BOS]
            pairs.update(pairwise(tokens))
    return pairs


def test_an_epoch_trains_on_every_pair_once_and_no_target_is_a_neighbour_s(corpus: Corpus) -> None:
    loader = loader_of(corpus, "books", "web")
    rows = sum(plan.rows for plan in loader.plans)
    assert pairs_of(loader, 0, rows) == expected_pairs(corpus, "books", "web")


def test_a_documents_last_target_is_bos_and_a_cuts_target_is_its_own_next_token(corpus: Corpus) -> None:
    loader = loader_of(corpus, "books")
    batch = loader.batch(np.arange(loader.plans[0].rows))
    for tokens, targets, segments in zip(batch.tokens, batch.targets, batch.segments, strict=True):
        for n in range(len(tokens) - 1):
            if segments[n] == segments[n + 1] >= 0:
                assert targets[n] == tokens[n + 1]
            elif segments[n] >= 0 and tokens[n + 1] == BOS and targets[n] != BOS:
                # a cut: the target goes on in the document although the row goes on with another
                assert segments[n] != segments[n + 1]


@pytest.mark.parametrize("length", [2, 7, 40])
@pytest.mark.parametrize("weights", [None, {"books": 0.3, "web": 0.7}])
def test_rows_are_those_of_a_loop_over_their_pieces(tmp_path: Path, length: int, weights: dict[str, float] | None) -> None:
    """Two components, shards of their own, documents of a single token among them; rows asked for in any order, and twice."""
    shards = {
        ("books", "train"): [documents_of_lengths([1, 9, 30]), documents_of_lengths([1, 1, 55, 3])],
        ("web", "train"): [documents_of_lengths([12, 8, 2, 7, 40, 1])],
    }
    opened = Corpus.open(build_corpus(tmp_path, shards))
    loader = Loader([opened.component(name, "train") for name in ("books", "web")], length, 5, [Phase(weights)])
    positions = np.array([9, 0, 1, 2, 2, 57, 3])
    batch, place = loader.batch(positions), loader.locate(positions)
    for n, (number, row) in enumerate(zip(place.component.tolist(), place.row.tolist(), strict=True)):
        component, plan = loader.components[number], loader.plans[number]
        tokens, targets, segments = [], [], []
        for segment, piece in enumerate(range(plan.first_piece[row], plan.first_piece[row + 1])):
            document = int(component.document(plan.begin[piece : piece + 1])[0])
            whole = [*component.read(int(component.starts[document]), int(component.lengths[document])).tolist(), BOS]
            first, count = int(plan.begin[piece] - component.starts[document]), int(plan.length[piece])
            tokens += whole[first : first + count]
            targets += whole[first + 1 : first + 1 + count]
            segments += [segment] * count
        empty = length - len(tokens)
        assert batch.tokens[n].tolist() == tokens + [BOS] * empty
        assert batch.targets[n].tolist() == targets + [IGNORED] * empty
        assert batch.segments[n].tolist() == segments + [-1] * empty
        assert batch.components[n] == number
    assert (batch.tokens.dtype, batch.targets.dtype, batch.segments.dtype) == (np.int64, np.int64, np.int32)


def test_padding_is_never_a_target(corpus: Corpus) -> None:
    loader = loader_of(corpus, "books", "web")
    batch = loader.batch(np.arange(sum(plan.rows for plan in loader.plans)))
    padding = batch.segments == -1
    assert padding.sum() == sum(plan.padding for plan in loader.plans)
    assert (batch.targets[padding] == IGNORED).all()
    assert (batch.targets[~padding] >= 0).all()


def test_epochs_two_and_three_are_full_and_in_an_order_of_their_own(corpus: Corpus) -> None:
    loader = loader_of(corpus, "books", "web")
    rows = sum(plan.rows for plan in loader.plans)
    epochs = [rows_at(loader, n * rows, (n + 1) * rows) for n in range(3)]
    everything = {(n, row) for n, plan in enumerate(loader.plans) for row in range(plan.rows)}
    for epoch in epochs:
        assert len(epoch) == rows
        assert set(epoch) == everything
    assert epochs[0] != epochs[1] != epochs[2]
    assert loader.epochs(3 * rows) == {"books": 3.0, "web": 3.0}


def test_stopping_anywhere_and_going_on_elsewhere_repeats_and_skips_nothing(corpus: Corpus) -> None:
    loader = loader_of(corpus, "books", "web", seed=5)
    rows = sum(plan.rows for plan in loader.plans)
    unbroken = rows_at(loader, 0, 3 * rows)
    stops = [0, 7, rows + 3, 2 * rows + 1, 3 * rows]  # the second stop lies in epoch 2
    resumed = []
    for first, end in pairwise(stops):
        resumed += rows_at(loader_of(corpus, "books", "web", seed=5), first, end)
    assert resumed == unbroken


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_share_out_the_same_rows_whatever_their_number(corpus: Corpus, world: int) -> None:
    loader = loader_of(corpus, "books")
    whole = loader.batch(np.arange(8, 16))
    parts = [loader.batch(np.arange(8 + rank * 8 // world, 8 + (rank + 1) * 8 // world)) for rank in range(world)]
    assert np.array_equal(np.concatenate([part.tokens for part in parts]), whole.tokens)
    assert np.array_equal(np.concatenate([part.targets for part in parts]), whole.targets)


def test_targets_are_counted_without_reading_tokens(corpus: Corpus) -> None:
    loader = loader_of(corpus, "books", "web")
    positions = np.arange(3, 50)
    counted = (loader.batch(positions).targets != IGNORED).sum(axis=1)
    assert loader.row_targets(positions).tolist() == counted.tolist()


@pytest.mark.parametrize("phases", [[Phase()], [Phase({"books": 1, "web": 2}, rows=25), Phase({"web": 1})]])
def test_targets_in_closed_form_are_those_of_the_rows(corpus: Corpus, phases: list[Phase]) -> None:
    loader = loader_of(corpus, "books", "web", phases=phases)
    for position in (0, 1, 25, 90, 301):
        assert loader.targets(position) == loader.row_targets(np.arange(position)).sum()


@pytest.mark.parametrize("phases", [[Phase()], [Phase({"books": 1, "web": 2}, rows=25), Phase({"web": 1})]])
@pytest.mark.parametrize("most", [0.01, 1.0, 2.5])
def test_the_rows_that_fit_a_number_of_epochs_are_the_most_that_do(corpus: Corpus, phases: list[Phase], most: float) -> None:
    loader = loader_of(corpus, "books", "web", phases=phases)
    fits, guilty = loader.fitting(most, 4)
    assert fits % 4 == 0
    assert max(loader.epochs(fits).values()) <= most < loader.epochs(fits + 4)[guilty]


def test_weights_are_shares_of_target_tokens(larger: Corpus) -> None:
    loader = loader_of(larger, "books", "web", phases=[Phase({"books": 0.3, "web": 0.7})])
    place = loader.locate(np.arange(PERIOD))
    tokens = loader.row_targets(np.arange(PERIOD))
    assert tokens[place.component == 0].sum() / tokens.sum() == pytest.approx(0.3, abs=2e-4)
    served = loader.served(PERIOD)
    assert served == {"books": int((place.component == 0).sum()), "web": int((place.component == 1).sum())}


@pytest.mark.parametrize("position", [0, 1, 17, 1_000, PERIOD + 1])
def test_counts_in_closed_form_are_those_of_the_rows(larger: Corpus, position: int) -> None:
    loader = loader_of(larger, "books", "web", phases=[Phase({"books": 1, "web": 2}, rows=1_000), Phase({"web": 1})])
    found = np.bincount(loader.locate(np.arange(position)).component, minlength=2)
    assert [loader.served(position)[name] for name in ("books", "web")] == found.tolist()


def test_a_component_s_epochs_are_whole_across_phases(corpus: Corpus) -> None:
    phases = [Phase({"books": 1, "web": 2}, rows=25), Phase({"books": 3, "web": 1}, rows=31), Phase(None)]
    loader = loader_of(corpus, "books", "web", phases=phases)
    place = loader.locate(np.arange(400))
    for number, plan in enumerate(loader.plans):
        mine = place.row[place.component == number]
        for epoch in range(len(mine) // plan.rows):
            assert sorted(mine[epoch * plan.rows : (epoch + 1) * plan.rows].tolist()) == list(range(plan.rows))


def test_a_weighted_stretch_is_never_far_from_its_shares(corpus: Corpus) -> None:
    loader = loader_of(corpus, "books", "web", phases=[Phase({"books": 0.25, "web": 0.75})])
    books = np.cumsum(loader.locate(np.arange(5_000)).component == 0)
    share = loader.served(PERIOD)["books"] / PERIOD
    assert np.abs(books - share * np.arange(1, 5_001)).max() <= 1.0


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [({"boks": 1.0}, "boks"), ({"books": -1.0}, "books"), ({"books": 0.0}, "0"), ({"books": 1e-9, "web": 1.0}, "books")],
)
def test_a_mixture_that_cannot_be_served_is_refused_by_name(corpus: Corpus, weights: dict[str, float], complaint: str) -> None:
    with pytest.raises(LoaderError, match=complaint):
        loader_of(corpus, "books", "web", phases=[Phase(weights)])


def test_another_seed_row_length_or_mixture_is_another_digest(corpus: Corpus) -> None:
    component = corpus.component("books", "train")
    digests = {
        loader_of(corpus, "books").digest,
        loader_of(corpus, "books", seed=1).digest,
        loader_of(corpus, "books", "web").digest,
        loader_of(corpus, "books", phases=[Phase({"books": 1.0})]).digest,
        Loader([component], 9).digest,
    }
    assert len(digests) == 5
    assert loader_of(corpus, "books").digest == loader_of(corpus, "books").digest


KEYS = np.array([11, 22, 33, 44, 55, 66], np.uint64)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 255, 256, 257, 1_000, 65_537])
def test_the_permutation_reaches_every_row_once(size: int) -> None:
    assert sorted(permute(np.arange(size), size, KEYS).tolist()) == list(range(size))


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow), 7, 20])
def test_over_many_keys_each_row_comes_as_often_at_each_place(size: int) -> None:
    rounds = 400
    generator = np.random.default_rng(0)
    counts = np.zeros((size, size))
    for _ in range(rounds):
        counts[np.arange(size), permute(np.arange(size), size, generator.integers(0, 2**63, 6).astype(np.uint64))] += 1
    expected = rounds / size
    chi_square = ((counts - expected) ** 2 / expected).sum() * (size - 1) / size
    freedom = (size - 1) ** 2
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)


def test_neighbours_are_scattered() -> None:
    found = permute(np.arange(100_000), 100_000, KEYS)
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.02
    assert (np.abs(np.diff(found)) == 1).mean() < 1e-3
