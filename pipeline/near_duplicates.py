"""MinHash-LSH over parts: sign, find candidates, bring shingle sets together, verify, unite, cluster.

Steps, each of many tasks but for one, with files between them (`pipeline.shuffle`):

1. `sign`, per part: band keys, shuffled by key.
2. `candidates`, per partition of keys: pairs that share a bucket, shuffled by the worse-ranked document of each; and requests
   for their shingle sets, by part.
3. `fetch`, per part: the requested shingle sets, made anew from the texts, shuffled to where their pairs are.
4. `verify`, per partition of pairs: exact Jaccard; edges at or above the threshold, and the components that they make of the
   partition's documents.
5. `unite`, one task: what the components of all partitions unite to. It holds no edge and no id: a bit for every document and
   a number for each that stands in an edge.
6. `spread`, per partition of pairs: edges, shuffled by the component they belong to.
7. `cluster` (removal) or `group` (split), per partition of components: whole components, with all of their edges.

With `chain: closure` the removed documents whose kept twin was never compared with them go through 3 and 4 once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from manifests.identity import printed_ids
from pipeline import documents, shuffle
from pipeline.duplicates import by_part, decision_table, send_back, shuffle_out
from pipeline.provenance import check_libraries
from pipeline.receipts import State
from pipeline.work import Task
from stages.clusters import Union, connected_components, keep_ranks, resolve
from stages.minhash import MinHashOptions, band_keys, bucket_pairs, distinct, distinct_pairs, jaccard, signatures
from stages.shingles import ShingleOptions, ShingleSets, shingle_sets

SHINGLING = ("words", "characters", "hash")
"""Options of which the shingles of a text follow."""

SENT = pa.schema(
    [
        pa.field("ordinal", pa.int64(), nullable=False),
        pa.field("id", pa.large_string(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("hashes", pa.large_binary(), nullable=False),
    ]
)
"""`hashes`: a shingle set, as little-endian uint64."""
BANDS = pa.schema(
    [
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
    ]
)
PAIRS = pa.schema([pa.field("left", pa.int64(), nullable=False), pa.field("right", pa.int64(), nullable=False)])
REQUESTS = pa.schema([pa.field("row", pa.int64(), nullable=False), pa.field("partition", pa.int32(), nullable=False)])
EDGES = pa.schema(
    [
        *PAIRS,
        pa.field("jaccard", pa.float64(), nullable=False),
    ]
)
NODES = pa.schema([SENT.field(name) for name in ("ordinal", "id", "length")])
"""Who stands in an edge: each document once a partition, so that ids, which are long, are not repeated for every edge."""
ROOTED = pa.schema([*NODES, pa.field("root", pa.int64(), nullable=False)])
"""`root`: the smallest number in its component, as far as the edges of this partition tell."""
ROOTS = pa.schema([pa.field("root", pa.int64(), nullable=False), pa.field("final", pa.int64(), nullable=False)])
COMPARED = pa.schema([pa.field("row", pa.int64(), nullable=False), pa.field("jaccard", pa.float64(), nullable=False)])
GROUPED = pa.schema([pa.field("row", pa.int64(), nullable=False), pa.field("cluster", pa.string(), nullable=False)])


def sign(task: Task) -> None:
    """inputs: `state`, `partitions`; arguments: `words`, `characters`, `hash`, `bands`, `rows`, `seed`."""
    state = State.model_validate(task.inputs["state"])
    arguments = task.arguments
    check_libraries(arguments["libraries"])
    options = shingle_options(arguments)
    bands, partitions = arguments["bands"], task.inputs["partitions"]
    with shuffle.writing(task.corpus, task.file("bands.shuffle"), BANDS, partitions) as writer:
        for rows, batch in documents.read_state(task.corpus, state, ["language", "text"]):
            sets = shingle_sets(batch["text"], batch["language"], options)
            minima = signatures(sets, bands * arguments["rows"], arguments["seed"])
            keys = band_keys(minima, bands, arguments["rows"]).reshape(-1)
            lengths = documents.text_bytes(batch["text"])
            columns = (keys, np.repeat(rows, bands), np.repeat(lengths, bands))
            table = pa.table([pa.array(column) for column in columns], schema=BANDS)
            writer.add(table, (keys % np.uint64(partitions)).astype(np.int64))
    task.receipt.add("bands", writer.out.written, writer.rows)


def candidates(task: Task) -> None:
    """inputs: `bands` (one file a part), `bases`, `components`, `own`, `widths`; arguments: `partition`, `scope`, `priorities`,
    `keep`, `max_bucket`, `bucket_sample`, `pair_partitions`."""
    pairs, skipped = np.zeros((0, 2), dtype=np.int64), 0
    which = task.arguments["partition"], task.arguments["partitions"]
    found = list(shuffle.gather_residue(task.corpus, task.inputs["bands"], "key", *which))
    if found:
        part = np.concatenate([sources for sources, _ in found])
        table = pa.concat_tables([rows for _, rows in found])
        ordinal = np.asarray(task.inputs["bases"])[part] + table["row"].to_numpy()
        number, first, local = np.unique(ordinal, return_index=True, return_inverse=True)
        component = np.asarray(task.inputs["components"])[part]
        priority = np.asarray(task.arguments["priorities"])[component[first]]
        rank = keep_ranks(priority, table["length"].to_numpy()[first], number, task.arguments["keep"])
        keys = table["key"].to_numpy()
        if task.arguments["scope"] == "component":
            # Each component's buckets are separate ones: the key is moved by an odd multiple of the component's number.
            keys = keys + component.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        local_pairs, skipped = bucket_pairs(keys, local, rank, _bucket_options(task.arguments))
        if task.arguments["scope"] == "component":
            of_document = component[first]
            local_pairs = local_pairs[of_document[local_pairs[:, 0]] == of_document[local_pairs[:, 1]]]
        # Two documents of references both stay, however alike they are: neither may stand for the other.
        of_reference = part[first] >= task.inputs["own"]
        local_pairs = local_pairs[~of_reference[local_pairs].all(axis=1)]
        pairs = number[local_pairs]
    task.receipt.values["skipped_pairs"] = int(skipped)
    request(task, pairs)


def request(task: Task, pairs: np.ndarray) -> None:
    """Shuffles pairs of document numbers, and the requests for their shingle sets.

    A pair goes where its right document, the worse-ranked one, belongs: of a crowded bucket the few leaders are sent everywhere,
    and each of the others to one place.
    """
    partitions, bases = task.arguments["pair_partitions"], task.inputs["bases"]
    where = (_mixed(pairs[:, 1]) % np.uint64(partitions)).astype(np.int64)
    table = pa.table([pa.array(pairs[:, 0]), pa.array(pairs[:, 1])], schema=PAIRS)
    shuffle_out(task, "pairs", table, where, partitions)
    wanted = distinct(np.concatenate([pairs[:, side] * partitions + where for side in (0, 1)]))
    part, row = by_part(bases, wanted // partitions)
    requests = pa.table([pa.array(row), pa.array((wanted % partitions).astype(np.int32))], schema=REQUESTS)
    shuffle_out(task, "requests", requests, part, len(bases))


def fetch(task: Task) -> None:
    """inputs: `state`, `requests` (files), `index` and `base` of the part, `widths`; arguments: `pair_partitions`, and what
    `sign` has for shingles."""
    state = State.model_validate(task.inputs["state"])
    partitions, options = task.arguments["pair_partitions"], shingle_options(task.arguments)
    found = [rows for _, rows in shuffle.gather(task.corpus, task.inputs["requests"], task.inputs["index"])]
    requests = pa.concat_tables([REQUESTS.empty_table(), *found])
    wanted = distinct(requests["row"].to_numpy() * partitions + requests["partition"].to_numpy())
    wanted_rows, wanted_partitions = wanted // partitions, wanted % partitions
    columns = ["component", "file", "position", "language", "text"]
    width = task.inputs["widths"]["sent"]
    with shuffle.writing(task.corpus, task.file("sent.shuffle"), SENT, partitions, width=width) as writer:
        for rows, batch in documents.read_state(task.corpus, state, columns) if len(wanted) else ():
            asked = np.isin(rows, wanted_rows)
            if not asked.any():
                continue
            rows, batch = rows[asked], batch.filter(pa.array(asked))
            sets = shingle_sets(batch["text"], batch["language"], options)
            hashes = pa.LargeBinaryArray.from_buffers(
                pa.large_binary(), len(sets), [None, pa.py_buffer(8 * sets.offsets), pa.py_buffer(sets.hashes)]
            )
            ordinal, length = pa.array(task.inputs["base"] + rows, pa.int64()), pa.array(documents.text_bytes(batch["text"]))
            table = pa.table([ordinal, printed_ids(batch).cast(pa.large_string()), length, hashes], schema=SENT)
            first, last = np.searchsorted(wanted_rows, [rows[0], rows[-1] + 1])
            writer.add(table.take(pa.array(_places(rows, wanted_rows[first:last]))), wanted_partitions[first:last])
    if writer.rows != len(wanted):
        raise documents.StateError(f"{len(wanted)} shingle sets were asked for, and {writer.rows} found")
    task.receipt.add("sent", writer.out.written, writer.rows)


def verify(task: Task) -> None:
    """inputs: `pairs` and `sent` (files), `bases`, `widths`; arguments: `partition`, `threshold` (edges below it are
    dropped), `compare`: True writes each right document's Jaccard back to its part in place of edges."""
    partition = task.arguments["partition"]
    pair_tables = [rows for _, rows in shuffle.gather(task.corpus, task.inputs["pairs"], partition)]
    table = pa.concat_tables([PAIRS.empty_table(), *pair_tables])
    sent = pa.concat_tables(
        [SENT.empty_table(), *(rows for _, rows in shuffle.gather(task.corpus, task.inputs["sent"], partition))]
    )
    ordinal = sent["ordinal"].to_numpy()
    order = np.argsort(ordinal, kind="stable")
    sent, ordinal = sent.take(pa.array(order)).combine_chunks(), ordinal[order]
    left, right = distinct_pairs(*(_places(ordinal, table[side].to_numpy()) for side in PAIRS.names))
    del table, pair_tables
    similarity = jaccard(_sets(sent), left, right)
    task.receipt.values["pairs"] = len(left)
    if task.arguments["compare"]:
        part, row = by_part(task.inputs["bases"], ordinal[right])
        compared = pa.table([pa.array(row), pa.array(similarity)], schema=COMPARED)
        shuffle_out(task, "compared", compared, part, len(task.inputs["bases"]))
        return
    good = similarity >= task.arguments["threshold"]
    left, right, similarity = left[good], right[good], similarity[good]
    members, root = connected_components(left, right, len(ordinal))
    nodes = sent.select(NODES.names).take(pa.array(members))
    nodes = nodes.append_column(ROOTED.field("root"), pa.array(ordinal[root], pa.int64()))
    task.receipt.add("nodes", documents.write_table(task.corpus, task.file("nodes.arrow"), nodes), nodes.num_rows)
    edges = pa.table([pa.array(ordinal[left]), pa.array(ordinal[right]), pa.array(similarity)], schema=EDGES)
    task.receipt.add("edges", documents.write_table(task.corpus, task.file("edges.arrow"), edges), edges.num_rows)


def unite(task: Task) -> None:
    """inputs: `nodes` (one file a partition), `documents` in all: for every partition, the roots of its components that are not
    those of the whole corpus, and what they are there."""

    def rooted() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for name in task.inputs["nodes"]:
            nodes = documents.read_table(task.corpus, name, ["ordinal", "root"])
            yield nodes["ordinal"].to_numpy(), nodes["root"].to_numpy()

    union = Union(task.inputs["documents"], (ordinal for ordinal, _ in rooted()))
    for ordinal, root in rooted():
        union.join(ordinal, root)
    partitions = len(task.inputs["nodes"])
    with shuffle.writing(task.corpus, task.file("roots.shuffle"), ROOTS, partitions) as writer:
        for partition, (_, root) in enumerate(rooted()):
            known = np.unique(root)
            final = union.roots(known)
            moved = known != final
            table = pa.table([pa.array(known[moved]), pa.array(final[moved])], schema=ROOTS)
            writer.add(table, np.full(table.num_rows, partition))
    task.receipt.values["documents"] = len(union)
    task.receipt.add("roots", writer.out.written, writer.rows)


def spread(task: Task) -> None:
    """inputs: `edges` and `nodes` of one partition, `roots`, `widths`; arguments: `partition`, `partitions`."""
    partition, partitions = task.arguments["partition"], task.arguments["partitions"]
    edges, nodes = (documents.read_table(task.corpus, task.inputs[name]) for name in ("edges", "nodes"))
    ordinal, root = nodes["ordinal"].to_numpy(), nodes["root"].to_numpy()
    moved = shuffle.read_partition(task.corpus, task.inputs["roots"], partition)
    if moved is not None:
        at = np.minimum(np.searchsorted(moved["root"].to_numpy(), root), moved.num_rows - 1)
        root = np.where(moved["root"].to_numpy()[at] == root, moved["final"].to_numpy()[at], root)
    where = (_mixed(root) % np.uint64(partitions)).astype(np.int64)
    of_edge = where[_places(ordinal, edges["left"].to_numpy())]
    for name, table, target in (("edges", edges, of_edge), ("nodes", nodes.select(NODES.names), where)):
        shuffle_out(task, name, table, target, partitions)


def cluster(task: Task) -> None:
    """inputs: `edges` and `nodes` (files), `bases`, `components`, `own`, `widths`; arguments: `partition`, `chain`, `keep`,
    `priorities`, `pair_partitions`."""
    pairs, edges, number, ids, lengths = _edges(task)
    bases = task.inputs["bases"]
    part, row = by_part(bases, number)
    component = np.asarray(task.inputs["components"], dtype=np.int64)[part]
    priority = np.asarray(task.arguments["priorities"], dtype=np.int64)[component]
    rank = keep_ranks(priority, lengths, number, task.arguments["keep"])
    clusters = resolve(pairs, edges["jaccard"].to_numpy(), rank, task.arguments["chain"])
    send_back(task, decision_table(clusters, ids, row), part[clusters.removed])
    unknown = np.isnan(clusters.kept_jaccard) & (part[clusters.removed] < task.inputs["own"])
    task.receipt.values["clusters"] = len(np.unique(clusters.cluster))
    request(task, np.column_stack([number[clusters.kept[unknown]], number[clusters.removed[unknown]]]))


def group(task: Task) -> None:
    """inputs: `edges` and `nodes` (files), `bases`, `widths`; arguments: `partition`: sends each document that stands in an
    edge the id that names its group."""
    pairs, _, number, ids, _ = _edges(task)
    member, root = connected_components(pairs[:, 0], pairs[:, 1], len(number))
    part, row = by_part(task.inputs["bases"], number[member])
    table = pa.table([pa.array(row), ids.take(pa.array(root)).cast(pa.string())], schema=GROUPED)
    shuffle_out(task, "groups", table, part, len(task.inputs["bases"]))


def _edges(task: Task) -> tuple[np.ndarray, pa.Table, np.ndarray, pa.Array, np.ndarray]:
    """(pairs in local numbers, edges, global number, id and length of every local one); local order is id order."""
    partition = task.arguments["partition"]
    edges, nodes = (
        pa.concat_tables([schema.empty_table(), *(rows for _, rows in shuffle.gather(task.corpus, files, partition))])
        for schema, files in ((EDGES, task.inputs["edges"]), (NODES, task.inputs["nodes"]))
    )
    number, first = np.unique(nodes["ordinal"].to_numpy(), return_index=True)
    nodes = nodes.take(pa.array(first))
    pairs = np.column_stack([_places(number, edges[side].to_numpy()) for side in ("left", "right")])
    return pairs, edges, number, nodes["id"].combine_chunks(), nodes["length"].to_numpy()


def _places(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where each wanted number stands among the known ones, which ascend; StateError when one does not."""
    at = np.searchsorted(known, wanted)
    if len(wanted) and (not len(known) or at.max() >= len(known) or not np.array_equal(known[at], wanted)):
        raise documents.StateError("a document of a pair is not among those that came with it")
    return at


def _sets(sent: pa.Table) -> ShingleSets:
    if not sent.num_rows:
        return ShingleSets.of([])
    hashes = sent["hashes"].combine_chunks()
    _, offsets, data = hashes.buffers()
    bounds = np.frombuffer(offsets, np.int64)[hashes.offset : hashes.offset + len(hashes) + 1]
    return ShingleSets(bounds // 8, np.frombuffer(data or b"", np.uint64, count=int(bounds[-1]) // 8))


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """uint64: numbers that lie evenly, whatever they are of (the finaliser of SplitMix64, Steele et al. 2014)."""
    mixed = numbers.astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def shingle_options(arguments: dict[str, Any]) -> ShingleOptions:
    return ShingleOptions(**{name: arguments[name] for name in SHINGLING})


def _bucket_options(arguments: dict[str, Any]) -> MinHashOptions:
    return MinHashOptions(max_bucket=arguments["max_bucket"], bucket_sample=arguments["bucket_sample"])
