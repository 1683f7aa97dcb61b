"""Arrow schemas of everything a corpus stores. Files are always written with one of these, so that a column that is all
null in one part still has its type, and 64-bit integers with nulls among them stay integers.
"""

from __future__ import annotations

import pyarrow as pa

IDENTITY = [
    pa.field("component", pa.string(), nullable=False),
    pa.field("file", pa.string(), nullable=False),
    pa.field("position", pa.int64(), nullable=False),
]

RECORDS = pa.schema(
    [
        *IDENTITY,
        pa.field("url", pa.string()),
        pa.field("date", pa.string()),
        pa.field("media_type", pa.string()),
        pa.field("charset", pa.string()),
        pa.field("payload", pa.large_binary()),
        pa.field("text", pa.large_string()),
        pa.field("rule", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("detail", pa.string()),
    ]
)
"""What a reader yields. A record is a *page* (`payload` bytes with `media_type` and the `charset` its transport declared),
a *text* (`text`, `payload` null), or a *loss*: `rule` is set, says why it is no document, and both are null."""

DOCUMENTS = pa.schema(
    [
        *IDENTITY,
        pa.field("url", pa.string()),
        pa.field("date", pa.string()),
        pa.field("media_type", pa.string()),
        pa.field("language", pa.string()),
        pa.field("language_score", pa.float64()),
        pa.field("text", pa.large_string(), nullable=False),
    ]
)
"""Documents between steps, after extraction."""

REMOVALS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        *IDENTITY,
        pa.field("url", pa.string()),
        pa.field("domain", pa.string()),
        pa.field("step", pa.string(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("rule", pa.string(), nullable=False),
        pa.field("value", pa.float64()),
        pa.field("threshold", pa.float64()),
        pa.field("failed_rules", pa.list_(pa.string())),
        pa.field("detail", pa.string()),
        pa.field("text_bytes", pa.int64()),
        pa.field("language", pa.string()),
        pa.field("linked_id", pa.string()),
        pa.field("linked_jaccard", pa.float64()),
        pa.field("kept_id", pa.string()),
        pa.field("kept_jaccard", pa.float64()),
        pa.field("cluster", pa.string()),
        pa.field("cluster_size", pa.int64()),
        pa.field("benchmark", pa.string()),
        pa.field("item", pa.string()),
        pa.field("evidence", pa.string()),
    ]
)
"""One row a removed document: which stage and rule, the measured value, the threshold, and the evidence.

`text_bytes` is the UTF-8 length of the text that the stage saw (null where there was none yet). `linked_id` is the document
of the verified pair that joined this one to its cluster, `kept_id` the survivor; `cluster` is the smallest id in it.
"""

EDITS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        *IDENTITY,
        pa.field("step", pa.string(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("rule", pa.string(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("bytes_before", pa.int64(), nullable=False),
        pa.field("bytes_after", pa.int64(), nullable=False),
        pa.field("sha256_before", pa.string(), nullable=False),
        pa.field("sha256_after", pa.string(), nullable=False),
        pa.field("detail", pa.string()),
    ]
)
"""One row for each document, stage and rule that changed a text; lengths (UTF-8) and digests are the whole stage's. `detail` says
what a reader needs to understand the edit, or is null."""

DOCUMENT_LOG = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        *IDENTITY,
        pa.field("url", pa.string()),
        pa.field("url_key", pa.string()),
        pa.field("domain", pa.string()),
        pa.field("date", pa.string()),
        pa.field("media_type", pa.string()),
        pa.field("language", pa.string()),
        pa.field("language_score", pa.float64()),
        pa.field("removed_by", pa.string()),
        pa.field("text_bytes", pa.int64()),
        pa.field("text_sha256", pa.string()),
        pa.field("split", pa.string()),
        pa.field("split_cluster", pa.string()),
        pa.field("shard", pa.string()),
        pa.field("start", pa.int64()),
        pa.field("tokens", pa.int64()),
    ]
)
"""One row a document that came in. `url` is shown without credentials and query; `url_key` (manifests.identity.url_key) finds it
by the whole URL. `removed_by` names the stage, or is null for a kept one; then `text_bytes` and
`text_sha256` are those of the final text, and `shard`, `start`, `tokens` say where its tokens lie (BOS included)."""

SHARD_INDEX = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
    ]
)
"""Beside each shard, one row a document: first token's index, number of tokens (BOS included), UTF-8 bytes of its text."""

LOG_SCHEMAS = {"removals": REMOVALS, "edits": EDITS, "documents": DOCUMENT_LOG}
"""Logs of one fixed schema. `signals` has one schema for each filter block: IDENTITY's columns and the block's signals."""


def signals_schema(signals: dict[str, pa.DataType]) -> pa.Schema:
    """The schema of one filter block's signal log; `text_bytes` is the UTF-8 length of the text that was measured,
    `text_bytes_after` that of the text which left the block's measuring."""
    lengths = [pa.field(name, pa.int64(), nullable=False) for name in ("text_bytes", "text_bytes_after")]
    leading = [pa.field("id", pa.string(), nullable=False), *IDENTITY, *lengths]
    return pa.schema([*leading, *(pa.field(name, type_) for name, type_ in signals.items())])


def empty_rows(schema: pa.Schema, rows: int, **columns: pa.Array) -> pa.Table:
    """A table of `schema` with the given columns and nulls elsewhere."""
    arrays = [columns[field.name] if field.name in columns else pa.nulls(rows, field.type) for field in schema]
    return pa.table([array.cast(field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema)
