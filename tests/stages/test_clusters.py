import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.clusters import Clusters, Union, connected_components, group_duplicates, keep_ranks, resolve

edges = st.dictionaries(
    st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda pair: pair[0] < pair[1]),
    st.sampled_from([0.8, 0.85, 0.9, 1.0]),
    max_size=25,
)
ranks = st.permutations(range(13))


def rows(clusters: Clusters) -> list[tuple[object, ...]]:
    """Plain tuples, NaN as None."""
    columns = [getattr(clusters, name).tolist() for name in Clusters.__dataclass_fields__]
    return [tuple(None if value != value else value for value in row) for row in zip(*columns, strict=True)]


def plain_closure(found: dict[tuple[int, int], float], rank: list[int]) -> list[tuple[object, ...]]:
    """The same by the definition alone: a breadth-first search from each component's best document."""
    both = found | {(b, a): weight for (a, b), weight in found.items()}
    seen: set[int] = set()
    result: list[tuple[object, ...]] = []
    for keeper in sorted({node for pair in both for node in pair}, key=lambda node: rank[node]):
        if keeper in seen:
            continue
        steps, level = {keeper: 0}, [keeper]
        while level:
            level = sorted({b for a, b in both if a in level and b not in steps})
            steps |= dict.fromkeys(level, max(steps.values()) + 1)
        seen |= set(steps)
        for node in steps.keys() - {keeper}:
            nearer = [other for other in steps if (node, other) in both and steps[other] == steps[node] - 1]
            linked = min(nearer, key=lambda other: (-both[node, other], rank[other]))
            kept_jaccard = both.get((node, keeper))
            result.append((node, linked, both[node, linked], keeper, kept_jaccard, min(steps), len(steps)))
    return sorted(result)


def plain_direct(found: dict[tuple[int, int], float], rank: list[int]) -> list[tuple[object, ...]]:
    both = found | {(b, a): weight for (a, b), weight in found.items()}
    keeper_of: dict[int, int] = {}
    for node in sorted({node for pair in both for node in pair}, key=lambda node: rank[node]):
        kept = [other for other in keeper_of if keeper_of[other] == other and (node, other) in both]
        keeper_of[node] = min(kept, key=lambda other: rank[other]) if kept else node
    result: list[tuple[object, ...]] = []
    for node, keeper in keeper_of.items():
        if node != keeper:
            members = [other for other in keeper_of if keeper_of[other] == keeper]
            result.append((node, keeper, both[node, keeper], keeper, both[node, keeper], min(members), len(members)))
    return sorted(result)


@given(edges, ranks)
def test_closure_is_what_its_definition_says(found: dict[tuple[int, int], float], rank: list[int]) -> None:
    assert rows(resolve(np.array([*found]), np.array([*found.values()]), np.array(rank))) == plain_closure(found, rank)


@given(edges, ranks)
def test_direct_is_what_its_definition_says(found: dict[tuple[int, int], float], rank: list[int]) -> None:
    got = resolve(np.array([*found]), np.array([*found.values()]), np.array(rank), "direct")
    assert rows(got) == plain_direct(found, rank)


@given(edges, ranks, st.randoms(use_true_random=False), st.sampled_from(["closure", "direct"]))
def test_order_direction_and_repetition_of_pairs_do_not_matter(found, rank, random, chain) -> None:
    given_rows = [(*pair, weight) for pair, weight in found.items()]
    mixed = [(b, a, weight) if random.random() < 0.5 else (a, b, weight) for a, b, weight in given_rows * 2]
    random.shuffle(mixed)

    def result(table: list[tuple[int, int, float]]) -> list[tuple[object, ...]]:
        return rows(resolve(np.array([row[:2] for row in table]), np.array([row[2] for row in table]), np.array(rank), chain))

    assert result(mixed) == result(given_rows)


def test_a_chain_is_removed_by_closure_but_its_far_end_stays_by_direct() -> None:
    chain, weights = np.array([[0, 1], [1, 2]]), np.array([0.8, 0.9])
    closure = resolve(chain, weights, np.arange(3))
    assert rows(closure) == [(1, 0, 0.8, 0, 0.8, 0, 3), (2, 1, 0.9, 0, None, 0, 3)]
    assert rows(resolve(chain, weights, np.arange(3), "direct")) == [(1, 0, 0.8, 0, 0.8, 0, 2)]


def test_a_long_chain_needs_no_recursion() -> None:
    nodes = 50_000
    pairs = np.stack([np.arange(nodes - 1), np.arange(1, nodes)], axis=1)
    found = resolve(pairs, np.full(nodes - 1, 0.9), np.arange(nodes)[::-1])
    assert len(found) == nodes - 1 and set(found.kept.tolist()) == {nodes - 1} and set(found.size.tolist()) == {nodes}
    assert found.linked.tolist() == list(range(1, nodes))


def test_pairs_without_a_jaccard_are_refused() -> None:
    with pytest.raises(ValueError, match="2 pairs, but 1 Jaccards"):
        resolve(np.array([[0, 1], [1, 2]]), np.array([0.9]), np.arange(3))


def test_priority_wins_over_length_and_length_over_id() -> None:
    priority, length, ordinal = np.array([0, 0, 1, 0]), np.array([5, 9, 1, 9]), np.arange(4)
    assert keep_ranks(priority, length, ordinal).tolist() == [3, 1, 0, 2]
    assert keep_ranks(priority, length, ordinal, "first").tolist() == [1, 2, 0, 3]


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 4)), max_size=20), st.randoms(use_true_random=False))
def test_keep_order_is_total_and_no_matter_of_arrival(documents, random) -> None:
    table = np.array([(*document, number) for number, document in enumerate(documents)], dtype=np.int64).reshape(-1, 3)
    ranks = keep_ranks(*table.T)
    assert sorted(ranks.tolist()) == list(range(len(documents)))
    shuffled = list(range(len(documents)))
    random.shuffle(shuffled)
    assert np.array_equal(keep_ranks(*table[shuffled].T), ranks[shuffled])


@given(st.lists(st.integers(0, 4), max_size=20), st.data())
def test_duplicates_are_grouped_by_key_whatever_the_order_of_rows(keys: list[int], data) -> None:
    rank = np.array(data.draw(st.permutations(range(len(keys)))), dtype=np.int64)
    expected = []
    for key in set(keys):
        members = [number for number, other in enumerate(keys) if other == key]
        keeper = min(members, key=lambda number: rank[number])
        expected += [(n, keeper, 1.0, keeper, 1.0, members[0], len(members)) for n in members if n != keeper]
    order = np.array(data.draw(st.permutations(range(len(keys)))), dtype=np.int64)
    both_halves = np.stack([np.array(keys, dtype=np.uint64)] * 2, axis=1).reshape(-1, 2)
    assert rows(group_duplicates(both_halves[order], rank, documents=order)) == sorted(expected)


def test_one_component_is_no_duplicate_of_another_when_the_scope_is_the_component() -> None:
    keys, scope = np.array([7, 7, 7], dtype=np.uint64), np.array([0, 1, 1])
    assert group_duplicates(keys, np.arange(3), scope=scope).removed.tolist() == [2]
    assert group_duplicates(keys, np.arange(3)).removed.tolist() == [1, 2]


def test_keys_that_agree_in_one_half_only_are_different() -> None:
    keys = np.array([[1, 2], [1, 3], [4, 2]], dtype=np.uint64)
    assert len(group_duplicates(keys, np.arange(3))) == 0


@given(edges)
def test_components_are_named_by_their_smallest_document(found: dict[tuple[int, int], float]) -> None:
    root = {node: node for pair in found for node in pair}
    for _, (a, b) in itertools.product(range(13), found):
        root[a] = root[b] = min(root[a], root[b])
    documents, roots = connected_components(*np.array([*found], dtype=np.int64).reshape(-1, 2).T, 13)
    assert dict(zip(documents.tolist(), roots.tolist(), strict=True)) == root


@given(
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), max_size=60),
    st.lists(st.integers(0, 900), max_size=20),
    st.integers(1, 7),
    st.randoms(use_true_random=False),
)
def test_a_union_that_is_fed_piece_by_piece_has_the_same_components(pairs, alone, pieces, random) -> None:
    edges = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    members = np.concatenate([edges.ravel(), np.array(alone, dtype=np.int64)])
    union = Union(901, np.array_split(members, pieces))
    assert len(union) == len(set(members.tolist()))
    random.shuffle(pairs)
    for piece in np.array_split(np.array(pairs, dtype=np.int64).reshape(-1, 2), pieces):
        union.join(piece[:, 1], piece[:, 0])
    documents, roots = connected_components(*edges.T, 901)
    expected = {**{number: number for number in alone}, **dict(zip(documents.tolist(), roots.tolist(), strict=True))}
    assert dict(zip(members.tolist(), union.roots(members).tolist(), strict=True)) == expected


def test_a_union_takes_four_bytes_a_member_and_less_than_one_for_each_of_the_others() -> None:
    union = Union(64_000_000, [np.arange(0, 64_000_000, 64_000)])
    held = sum(array.nbytes for array in (union._bits, union._before, union._parent))
    assert held < 64_000_000 / 4 + 4 * 1000 + 64
    union.join(np.arange(64_000, 64_000_000, 64_000), np.arange(0, 63_936_001, 64_000))
    assert union.roots(np.array([0, 63_936_000])).tolist() == [0, 0]


def test_nothing_in_gives_nothing_out() -> None:
    assert len(resolve(np.empty((0, 2)), np.empty(0), np.arange(3))) == 0
    assert len(group_duplicates(np.empty((0, 2)), np.arange(0))) == 0
    assert connected_components(np.empty(0), np.empty(0), 0)[0].tolist() == []
    assert Union(0, []).roots(np.empty(0)).tolist() == Union(9, []).roots(np.empty(0)).tolist() == []


def test_a_copy_of_a_reference_document_names_it_and_no_number_that_is_no_document() -> None:
    """An older corpus is a component of higher priority; its documents win however short or late they are."""
    priority, length = np.array([0, 0, 0, 5]), np.array([90, 80, 70, 10])
    rank = keep_ranks(priority, length, np.arange(4))
    exact = group_duplicates(np.array([1, 2, 7, 7], dtype=np.uint64), rank)
    near = resolve(np.array([[2, 3]]), np.array([0.9]), rank)
    for found in (exact, near):
        assert found.removed.tolist() == [2] and found.kept.tolist() == found.linked.tolist() == [3]
        for name in ("removed", "linked", "kept", "cluster"):
            assert set(getattr(found, name).tolist()) <= set(range(4))
