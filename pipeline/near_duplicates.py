"""MinHash-LSH over parts: sign, find candidates, bring shingle sets together, verify, cluster.

Five steps, each of many tasks, with files between them (`pipeline.shuffle`):

1. `sign`, per part: shingle sets, kept; band keys, shuffled by key.
2. `candidates`, per partition of keys: pairs that share a bucket, shuffled by pair; and requests for their shingle sets, by part.
3. `fetch`, per part: the requested shingle sets, shuffled to where their pairs are.
4. `verify`, per partition of pairs: exact Jaccard; edges at or above the threshold.
5. `cluster` (removal) or `group` (split), one task: union of the verified edges.

With `chain: closure` the removed documents whose kept twin was never compared with them go through 3 and 4 once more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from manifests.identity import printed_ids
from pipeline import documents, shuffle
from pipeline.duplicates import by_part, decision_table, send_back
from pipeline.provenance import check_libraries
from pipeline.receipts import State
from pipeline.work import Task
from stages.clusters import connected_components, keep_ranks, resolve
from stages.minhash import MinHashOptions, band_keys, bucket_pairs, distinct_pairs, jaccard, signatures
from stages.shingles import ShingleOptions, ShingleSets, shingle_sets

SETS = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("id", pa.large_string(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("hashes", pa.large_list(pa.uint64()), nullable=False),
    ]
)
SENT = pa.schema([SETS.field(name).with_name("ordinal") if name == "row" else SETS.field(name) for name in SETS.names])
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
COMPARED = pa.schema([pa.field("row", pa.int64(), nullable=False), pa.field("jaccard", pa.float64(), nullable=False)])
GROUPED = pa.schema([pa.field("row", pa.int64(), nullable=False), pa.field("cluster", pa.string(), nullable=False)])


def sign(task: Task) -> None:
    """inputs: `state`, `partitions`; arguments: `words`, `characters`, `hash`, `bands`, `rows`, `seed`."""
    state = State.model_validate(task.inputs["state"])
    arguments = task.arguments
    check_libraries(arguments["libraries"])
    options = ShingleOptions(words=arguments["words"], characters=arguments["characters"], hash=arguments["hash"])
    bands, partitions, count = arguments["bands"], task.inputs["partitions"], 0
    with (
        task.corpus.writer(task.file("sets.arrow")) as out,
        pa.ipc.new_file(out, SETS, options=shuffle.IPC) as sink,
        shuffle.writing(task.corpus, task.file("bands.shuffle"), BANDS, partitions) as writer,
    ):
        columns = ["component", "file", "position", "language", "text"]
        for rows, batch in documents.read_state(task.corpus, state, columns):
            sets = shingle_sets(batch["text"], batch["language"], options)
            lengths = documents.text_bytes(batch["text"])
            hashes = pa.LargeListArray.from_arrays(pa.array(sets.offsets), pa.array(sets.hashes))
            sink.write_batch(pa.record_batch([pa.array(rows), _ids(batch), pa.array(lengths), hashes], schema=SETS))
            minima = signatures(sets, bands * arguments["rows"], arguments["seed"])
            keys = band_keys(minima, bands, arguments["rows"]).reshape(-1)
            columns_of_bands = (keys, np.repeat(rows, bands), np.repeat(lengths, bands))
            table = pa.table([pa.array(column) for column in columns_of_bands], schema=BANDS)
            writer.add(table, (keys % np.uint64(partitions)).astype(np.int64))
            count += len(rows)
    task.receipt.add("sets", out.written, count)
    task.receipt.add("bands", writer.out.written, writer.rows)


def candidates(task: Task) -> None:
    """inputs: `bands` (one file a part), `bases`, `components`; arguments: `partition`, `scope`, `priorities`, `keep`,
    `max_bucket`, `bucket_sample`, `pair_partitions`."""
    pairs, skipped = np.zeros((0, 2), dtype=np.int64), 0
    which = task.arguments["partition"], task.arguments["partitions"]
    found = list(shuffle.gather_residue(task.corpus, task.inputs["bands"], "key", *which))
    if found:
        part = np.concatenate([np.full(rows.num_rows, index) for index, rows in found])
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
        pairs = number[local_pairs]
    task.receipt.values["skipped_pairs"] = int(skipped)
    request(task, pairs)


def request(task: Task, pairs: np.ndarray) -> None:
    """Shuffles pairs of document numbers, and the requests for their shingle sets."""
    partitions = task.arguments["pair_partitions"]
    bases = task.inputs["bases"]
    mixed = pairs[:, 0].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ pairs[:, 1].astype(np.uint64) * np.uint64(
        0xC2B2AE3D27D4EB4F
    )
    where = ((mixed >> np.uint64(32)) % np.uint64(partitions)).astype(np.int64)
    table = pa.table([pa.array(pairs[:, 0]), pa.array(pairs[:, 1])], schema=PAIRS)
    task.receipt.add(
        "pairs", shuffle.write_partitions(task.corpus, task.file("pairs.shuffle"), table, where, partitions), len(pairs)
    )
    wanted = (
        np.unique(np.column_stack([pairs.reshape(-1), np.repeat(where, 2)]), axis=0) if len(pairs) else np.zeros((0, 2), np.int64)
    )
    part, row = by_part(bases, wanted[:, 0])
    requests = pa.table([pa.array(row), pa.array(wanted[:, 1].astype(np.int32))], schema=REQUESTS)
    written = shuffle.write_partitions(task.corpus, task.file("requests.shuffle"), requests, part, len(bases))
    task.receipt.add("requests", written, requests.num_rows)


def fetch(task: Task) -> None:
    """inputs: `sets` of this part, `requests` (files), `index` and `base` of the part; arguments: `pair_partitions`."""
    found = [rows for _, rows in shuffle.gather(task.corpus, task.inputs["requests"], task.inputs["index"])]
    requests = pa.concat_tables([REQUESTS.empty_table(), *found])
    wanted = np.unique(np.column_stack([requests["row"].to_numpy(), requests["partition"].to_numpy()]), axis=0)
    with (
        shuffle.writing(task.corpus, task.file("sent.shuffle"), SENT, task.arguments["pair_partitions"]) as writer,
        task.corpus.open(task.inputs["sets"]) as file,
        pa.ipc.open_file(file) as reader,
    ):
        for index in range(reader.num_record_batches if len(wanted) else 0):
            batch = reader.get_batch(index)
            rows = batch["row"].to_numpy()
            mine = wanted[np.isin(wanted[:, 0], rows)]
            taken = batch.take(pa.array(np.searchsorted(rows, mine[:, 0])))
            ordinal = pa.array(task.inputs["base"] + mine[:, 0], pa.int64())
            writer.add(pa.table([ordinal, *taken.columns[1:]], schema=SENT), mine[:, 1])
    task.receipt.add("sent", writer.out.written, writer.rows)


def verify(task: Task) -> None:
    """inputs: `pairs` and `sent` (files), `bases`; arguments: `partition`, `threshold` (edges below it are dropped), `compare`:
    True writes each right document's Jaccard back to its part in place of edges."""
    partition = task.arguments["partition"]
    pair_tables = [rows for _, rows in shuffle.gather(task.corpus, task.inputs["pairs"], partition)]
    table = pa.concat_tables([PAIRS.empty_table(), *pair_tables])
    pairs = np.column_stack([table["left"].to_numpy(), table["right"].to_numpy()])
    if len(pairs):
        pairs = distinct_pairs(pairs)
    sent = pa.concat_tables(
        [SENT.empty_table(), *(rows for _, rows in shuffle.gather(task.corpus, task.inputs["sent"], partition))]
    )
    ordinal = sent["ordinal"].to_numpy()
    order = np.argsort(ordinal, kind="stable")
    sent, ordinal = sent.take(pa.array(order)).combine_chunks(), ordinal[order]
    left, right = (np.searchsorted(ordinal, pairs[:, side]) for side in (0, 1))
    similarity = jaccard(_sets(sent), left, right) if len(pairs) else np.zeros(0)
    task.receipt.values["pairs"] = len(pairs)
    if task.arguments["compare"]:
        part, row = by_part(task.inputs["bases"], pairs[:, 1])
        compared = pa.table([pa.array(row), pa.array(similarity)], schema=COMPARED)
        written = shuffle.write_partitions(task.corpus, task.file("compared.shuffle"), compared, part, len(task.inputs["bases"]))
        task.receipt.add("compared", written, compared.num_rows)
        return
    good = similarity >= task.arguments["threshold"]
    edges = pa.table([pa.array(pairs[good, 0]), pa.array(pairs[good, 1]), pa.array(similarity[good])], schema=EDGES)
    members = np.unique(np.concatenate([left[good], right[good]]))
    nodes = sent.select(NODES.names).take(pa.array(members))
    task.receipt.add("nodes", documents.write_table(task.corpus, task.file("nodes.arrow"), nodes), nodes.num_rows)
    task.receipt.add("edges", documents.write_table(task.corpus, task.file("edges.arrow"), edges), edges.num_rows)


def cluster(task: Task) -> None:
    """inputs: `edges` and `nodes` (files), `bases`, `components`; arguments: `chain`, `keep`, `priorities`, `pair_partitions`."""
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
    """inputs: `edges` and `nodes` (files), `bases`: sends each document that stands in an edge the id that names its group."""
    pairs, _, number, ids, _ = _edges(task)
    member, root = connected_components(pairs)
    part, row = by_part(task.inputs["bases"], number[member])
    table = pa.table([pa.array(row), ids.take(pa.array(root)).cast(pa.string())], schema=GROUPED)
    written = shuffle.write_partitions(task.corpus, task.file("groups.shuffle"), table, part, len(task.inputs["bases"]))
    task.receipt.add("groups", written, table.num_rows)


def _edges(task: Task) -> tuple[np.ndarray, pa.Table, np.ndarray, pa.Array, np.ndarray]:
    """(pairs in local numbers, edges, global number, id and length of every local one); local order is id order."""
    edges = pa.concat_tables([EDGES.empty_table(), *(documents.read_table(task.corpus, name) for name in task.inputs["edges"])])
    nodes = pa.concat_tables([NODES.empty_table(), *(documents.read_table(task.corpus, name) for name in task.inputs["nodes"])])
    number, first = np.unique(nodes["ordinal"].to_numpy(), return_index=True)
    nodes = nodes.take(pa.array(first))
    pairs = np.column_stack([np.searchsorted(number, edges[side].to_numpy()) for side in ("left", "right")]).astype(np.int64)
    return pairs, edges, number, nodes["id"].combine_chunks(), nodes["length"].to_numpy()


def _ids(batch: pa.RecordBatch) -> pa.Array:
    return printed_ids(batch).cast(pa.large_string())


def _sets(sent: pa.Table) -> ShingleSets:
    if not sent.num_rows:
        return ShingleSets.of([])
    hashes = sent["hashes"].combine_chunks()
    if isinstance(hashes, pa.ChunkedArray):
        hashes = hashes.chunk(0)
    offsets = hashes.offsets.to_numpy()
    return ShingleSets(offsets - offsets[0], hashes.flatten().to_numpy())


def _bucket_options(arguments: dict[str, Any]) -> MinHashOptions:
    return MinHashOptions(max_bucket=arguments["max_bucket"], bucket_sample=arguments["bucket_sample"])
