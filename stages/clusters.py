"""Which document of a cluster stays, and through whom each other one joined it (DESIGN, Dedup 2 and 3).

Documents are numbered 0..n-1 in id order (`manifests.identity`). `rank` is an int64 array indexed by document number,
as `keep_ranks` makes it: a total order, the smaller rank stays. A *pair* is a verified edge between two documents.
Every function here gives the same result whatever the order of its input rows, and whichever way round a pair is
written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numba
import numpy as np

Keep = Literal["longest", "first"]
Chain = Literal["closure", "direct"]


@dataclass(frozen=True)
class Clusters:
    """One row for each removed document, sorted by `removed`; all are document numbers but the Jaccards and sizes.

    linked, linked_jaccard: the neighbour by which it joined its cluster, and the Jaccard of that verified pair.
    kept, kept_jaccard: the document that stays; NaN where (removed, kept) is no verified pair, so nobody has compared
    them.
    cluster: the member with the smallest number, which names the cluster. size: its members, the kept one included.
    """

    removed: np.ndarray
    linked: np.ndarray
    linked_jaccard: np.ndarray
    kept: np.ndarray
    kept_jaccard: np.ndarray
    cluster: np.ndarray
    size: np.ndarray

    def __len__(self) -> int:
        return len(self.removed)


def keep_ranks(priority: np.ndarray, length: np.ndarray, ordinal: np.ndarray, keep: Keep = "longest") -> np.ndarray:
    """int64 (n,): each document's place in keep order, 0 the first to be kept.

    The order is total: higher component `priority`, then (keep="longest") greater `length` in bytes of UTF-8, then
    smaller `ordinal`, the document's number in id order.
    """
    priority, length, ordinal = (np.asarray(values, dtype=np.int64) for values in (priority, length, ordinal))
    keys = (ordinal, -length, -priority) if keep == "longest" else (ordinal, -priority)
    ranks = np.empty(len(ordinal), dtype=np.int64)
    ranks[np.lexsort(keys)] = np.arange(len(ordinal))
    return ranks


def group_duplicates(
    keys: np.ndarray, rank: np.ndarray, documents: np.ndarray | None = None, scope: np.ndarray | None = None
) -> Clusters:
    """Groups rows with equal `keys` (uint64 (m,) or (m, k)); in each group all but the best-ranked document are
    removed.

    Row i belongs to document `documents[i]` (default: i). With `scope` (integers (m,)), rows of different scope are
    never grouped. `linked` is `kept`, and both Jaccards are 1.
    """
    keys = np.asarray(keys, dtype=np.uint64)
    if not len(keys):
        return _nothing()
    keys = keys.reshape(len(keys), -1)
    number = np.arange(len(keys), dtype=np.int64) if documents is None else np.asarray(documents, dtype=np.int64)
    columns = [*keys.T, *([] if scope is None else [np.asarray(scope)])]
    order = np.lexsort((np.asarray(rank)[number], *columns))
    number = number[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0)
    return _all_but_first(number, first)


def resolve(pairs: np.ndarray, jaccard: np.ndarray, rank: np.ndarray, chain: Chain = "closure") -> Clusters:
    """What verified pairs (int64 (e, 2), with their `jaccard`) remove.

    "closure": a cluster is a connected component, and its best-ranked document is kept. `linked` is the neighbour one
    step nearer to the kept one: of several the one with the higher Jaccard, then the better rank.
    "direct": in keep order, a document is removed only if it has a pair with one that was kept before; that one (of
    several the best-ranked) is both `linked` and `kept`. A cluster is then a kept document and those removed for it.
    """
    pairs = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    jaccard = np.asarray(jaccard, dtype=np.float64)
    if len(pairs) != len(jaccard):
        raise ValueError(f"{len(pairs)} pairs, but {len(jaccard)} Jaccards")
    if not len(pairs):
        return _nothing()
    number = np.unique(pairs)
    place = np.argsort(np.asarray(rank)[number], kind="stable")  # nodes are renumbered by rank: node 0 is the best
    node_of = np.empty(len(number), dtype=np.int64)
    node_of[place] = np.arange(len(number))
    width = np.int32 if max(len(number), 2 * len(pairs)) < 1 << 31 else np.int64
    left, right = (node_of[np.searchsorted(number, pairs[:, side])].astype(width) for side in (0, 1))
    number = number[place]
    starts, neighbours, weights = _adjacency(left, right, jaccard, len(number))
    walk = _closure if chain == "closure" else _direct
    keeper, linked, weight = walk(starts, neighbours, weights)
    removed = np.flatnonzero(keeper != np.arange(len(number)))
    smallest = number.copy()
    np.minimum.at(smallest, keeper, number)
    size = np.bincount(keeper, minlength=len(number))
    removed = removed[np.argsort(number[removed])]
    return Clusters(
        removed=number[removed],
        linked=number[linked[removed]],
        linked_jaccard=weight[removed],
        kept=number[keeper[removed]],
        kept_jaccard=np.where(linked[removed] == keeper[removed], weight[removed], np.nan),
        cluster=smallest[keeper[removed]],
        size=size[keeper[removed]].astype(np.int64),
    )


def connected_components(left: np.ndarray, right: np.ndarray, documents: int) -> tuple[np.ndarray, np.ndarray]:
    """(document, root) of pairs of documents numbered below `documents`: all that stand in a pair, ascending, and the smallest
    number of each one's component."""
    left, right = np.asarray(left, dtype=np.int64), np.asarray(right, dtype=np.int64)
    roots = np.arange(documents, dtype=np.int64)
    _unite(left, right, roots)
    stands = np.zeros(documents, dtype=bool)
    stands[left] = stands[right] = True
    found = np.flatnonzero(stands)
    return found, roots[found]


class Union:
    """Components of a graph whose edges are never all in memory (union-find; the smallest number is the root).

    Of `documents` numbered from 0, those in `members`, which yields arrays of them in any order and number, can be joined. It
    holds a quarter of a byte for every document, and 4 bytes for each of the members (8 from 2^32 members on).
    """

    def __init__(self, documents: int, members: Iterable[np.ndarray]) -> None:
        self._bits = np.zeros(-(-documents // 64), dtype=np.uint64)
        for some in members:
            _set_bits(self._bits, np.asarray(some, dtype=np.int64))
        before = np.cumsum(np.bitwise_count(self._bits), dtype=np.int64)
        self._count = int(before[-1]) if len(before) else 0
        width = np.uint32 if self._count < 1 << 32 else np.int64
        self._before = np.concatenate([[0], before[:-1]]).astype(width)
        self._parent = np.arange(self._count, dtype=width)

    @staticmethod
    def bytes_for(documents: int, members: int) -> int:
        """What it takes of so many while it is built, which is most."""
        return documents * 9 // 16 + members * (4 if members < 1 << 32 else 8)

    def __len__(self) -> int:
        return self._count

    def join(self, left: np.ndarray, right: np.ndarray) -> None:
        """`left[i]` and `right[i]`, both members, are in one component."""
        _join(self._bits, self._before, self._parent, np.asarray(left, dtype=np.int64), np.asarray(right, dtype=np.int64))

    def roots(self, numbers: np.ndarray) -> np.ndarray:
        """int64 (n,): the smallest member of each member's component."""
        numbers = np.asarray(numbers, dtype=np.int64)
        places = np.empty(len(numbers), dtype=np.int64)
        _find_roots(self._bits, self._before, self._parent, numbers, places)
        return self._numbers_at(places)

    def _numbers_at(self, places: np.ndarray) -> np.ndarray:
        """The members of these places among all of them."""
        word = np.searchsorted(self._before, places.astype(self._before.dtype), side="right") - 1
        found = np.empty(len(places), dtype=np.int64)
        _nth_bits(self._bits, word, places - self._before[word].astype(np.int64), found)
        return found


def _nothing() -> Clusters:
    none, no_number = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64)
    return Clusters(none, none, no_number, none, no_number, none, none)


def _all_but_first(number: np.ndarray, first: np.ndarray) -> Clusters:
    """Clusters of documents `number` that lie group by group, best first; `first` marks where a group starts."""
    group = np.cumsum(first) - 1
    starts = np.flatnonzero(first)
    kept, cluster = number[starts][group], np.minimum.reduceat(number, starts)[group]
    size = np.bincount(group)[group].astype(np.int64)
    rows = np.flatnonzero(~first)
    rows = rows[np.argsort(number[rows])]
    ones = np.ones(len(rows))
    return Clusters(number[rows], kept[rows], ones, kept[rows], ones, cluster[rows], size[rows])


def _adjacency(left: np.ndarray, right: np.ndarray, jaccard: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both directions of every pair, node by node, neighbours in rank order: (where each node's begin, neighbours, Jaccards). A
    pair given twice stands twice, harmlessly.

    They are dealt by one end, and then, in that order, by the other: no comparison, and little memory beside the result.
    """
    starts = np.zeros(nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(left, minlength=nodes) + np.bincount(right, minlength=nodes), out=starts[1:])
    dealt = np.empty(2 * len(left), dtype=left.dtype)
    _deal(left, right, starts[:-1].copy(), dealt)
    neighbours, weights = np.empty(2 * len(left), dtype=left.dtype), np.empty(2 * len(left))
    _deal_again(left, right, jaccard, dealt, starts[:-1].copy(), neighbours, weights)
    return starts, neighbours, weights


@numba.njit(cache=True)
def _deal(left: np.ndarray, right: np.ndarray, at: np.ndarray, dealt: np.ndarray) -> None:  # pragma: no cover - compiled
    """Pairs by each of their ends: numbers of pairs."""
    for pair in range(len(left)):
        for node in (left[pair], right[pair]):
            dealt[at[node]] = pair
            at[node] += 1


@numba.njit(cache=True)
def _deal_again(
    left: np.ndarray,
    right: np.ndarray,
    jaccard: np.ndarray,
    dealt: np.ndarray,
    at: np.ndarray,
    neighbours: np.ndarray,
    weights: np.ndarray,
) -> None:  # pragma: no cover - compiled
    """One node after the other goes to its neighbours."""
    node = 0
    ends = at.copy()
    for place in range(len(dealt)):
        while node + 1 < len(ends) and place >= ends[node + 1]:
            node += 1
        pair = dealt[place]
        other = left[pair] if right[pair] == node else right[pair]
        neighbours[at[other]] = node
        weights[at[other]] = jaccard[pair]
        at[other] += 1


@numba.njit(cache=True)
def _closure(
    starts: np.ndarray, neighbours: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # pragma: no cover - compiled
    nodes = len(starts) - 1
    keeper = np.full(nodes, -1, dtype=np.int64)
    steps = np.zeros(nodes, dtype=np.int64)
    queue = np.empty(nodes, dtype=np.int64)
    for node in range(nodes):  # in keep order: the first node met of a component is the one that stays
        if keeper[node] >= 0:
            continue
        keeper[node] = node
        queue[0], head, tail = node, 0, 1
        while head < tail:
            here = queue[head]
            head += 1
            for edge in range(starts[here], starts[here + 1]):
                there = neighbours[edge]
                if keeper[there] < 0:
                    keeper[there] = node
                    steps[there] = steps[here] + 1
                    queue[tail] = there
                    tail += 1
    linked = np.arange(nodes)
    weight = np.full(nodes, np.nan)
    for node in range(nodes):
        for edge in range(starts[node], starts[node + 1]):
            there = neighbours[edge]
            nearer = steps[there] == steps[node] - 1
            if nearer and (linked[node] == node or weights[edge] > weight[node]):  # equal weights: the first, better ranked
                linked[node] = there
                weight[node] = weights[edge]
    return keeper, linked, weight


@numba.njit(cache=True)
def _direct(
    starts: np.ndarray, neighbours: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # pragma: no cover - compiled
    nodes = len(starts) - 1
    keeper = np.arange(nodes)
    weight = np.full(nodes, np.nan)
    for node in range(nodes):
        for edge in range(starts[node], starts[node + 1]):
            there = neighbours[edge]
            if there >= node:
                break
            if keeper[there] != there:
                continue
            if keeper[node] != node and keeper[node] != there:
                break
            keeper[node] = there
            weight[node] = weights[edge] if np.isnan(weight[node]) else max(weight[node], weights[edge])
    return keeper, keeper.copy(), weight


@numba.njit(cache=True)
def _unite(left: np.ndarray, right: np.ndarray, parent: np.ndarray) -> None:  # pragma: no cover - compiled
    for edge in range(len(left)):
        one, other = _root(parent, left[edge]), _root(parent, right[edge])
        parent[max(one, other)] = min(one, other)
    for node in range(len(parent)):
        parent[node] = parent[parent[node]]  # parents are smaller numbers, so theirs are final already


@numba.njit(cache=True)
def _set_bits(bits: np.ndarray, numbers: np.ndarray) -> None:  # pragma: no cover - compiled
    for index in range(len(numbers)):
        number = np.uint64(numbers[index])
        bits[number >> np.uint64(6)] |= np.uint64(1) << (number & np.uint64(63))


@numba.njit(cache=True)
def _place(bits: np.ndarray, before: np.ndarray, number: int) -> int:  # pragma: no cover - compiled
    """How many members are smaller."""
    word = number >> 6
    below = bits[word] & ((np.uint64(1) << np.uint64(number & 63)) - np.uint64(1))
    smaller: int = before[word] + np.int64(_ones(below))
    return smaller


@numba.njit(cache=True)
def _ones(value: np.uint64) -> np.uint64:  # pragma: no cover - compiled
    """Bits that are set (Warren, Hacker's Delight, 5-1)."""
    value -= (value >> np.uint64(1)) & np.uint64(0x5555555555555555)
    value = (value & np.uint64(0x3333333333333333)) + ((value >> np.uint64(2)) & np.uint64(0x3333333333333333))
    value = (value + (value >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (value * np.uint64(0x0101010101010101)) >> np.uint64(56)


@numba.njit(cache=True)
def _root(parent: np.ndarray, place: int) -> int:  # pragma: no cover - compiled
    while parent[place] != place:
        parent[place] = parent[parent[place]]
        place = parent[place]
    return place


@numba.njit(cache=True)
def _join(
    bits: np.ndarray, before: np.ndarray, parent: np.ndarray, left: np.ndarray, right: np.ndarray
) -> None:  # pragma: no cover - compiled
    for edge in range(len(left)):
        one = _root(parent, _place(bits, before, left[edge]))
        other = _root(parent, _place(bits, before, right[edge]))
        parent[max(one, other)] = min(one, other)


@numba.njit(cache=True)
def _find_roots(
    bits: np.ndarray, before: np.ndarray, parent: np.ndarray, numbers: np.ndarray, places: np.ndarray
) -> None:  # pragma: no cover - compiled
    for index in range(len(numbers)):
        places[index] = _root(parent, _place(bits, before, numbers[index]))


@numba.njit(cache=True)
def _nth_bits(bits: np.ndarray, words: np.ndarray, nth: np.ndarray, found: np.ndarray) -> None:  # pragma: no cover - compiled
    """The number of the nth set bit, from 0, of each word."""
    for index in range(len(words)):
        word = bits[words[index]]
        for _ in range(nth[index]):
            word &= word - np.uint64(1)
        found[index] = words[index] * 64 + np.int64(_ones((word & (~word + np.uint64(1))) - np.uint64(1)))
