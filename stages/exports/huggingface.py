"""Parquet as the Hugging Face Hub and `datasets` take it: kept texts with what the log of documents says of them, a folder for
each split, a dataset card (README.md) with the configurations, and Croissant metadata.

Texts are decoded from the shards, in their order, and each must have the SHA-256 that the log has for it.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml
from pydantic import Field

from manifests.manifest import SPLITS, Manifest, Shard
from manifests.schemas import DOCUMENT_LOG
from manifests.storage import AtomicWriter
from stages.exports import croissant, licences
from stages.exports.croissant import DESCRIPTIONS, Described, Publication, Records, describe
from stages.exports.format import ExportError, Format, Kind, Tally
from stages.exports.output import File, Output
from stages.exports.source import DocumentRows, Group, Source
from stages.shard_texts import load_encoder, read_index, texts_of
from stages.tokenizer import Encoder

LOGGED = ("id", "component", "file", "position", "url", "domain", "date", "media_type", "language", "language_score")
PLACED = ("text_bytes", "text_sha256", "tokens", "shard", "start")
SCHEMA = pa.schema(
    [
        *(DOCUMENT_LOG.field(name) for name in LOGGED),
        pa.field("licence", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        *(DOCUMENT_LOG.field(name).with_nullable(False) for name in PLACED),
    ]
)
ROW_GROUP_BYTES = 32 << 20
"""Of text and ROW_BYTES a row: what is held in memory, and what a reader has to take at once."""
ROW_BYTES = 256
"""What a document takes beside its text, roughly, so that millions of short ones are no row group."""
CARD = "README.md"
LISTED_SHARE = 0.001
"""A language of fewer of the documents is not listed in the card: a detector is sometimes wrong."""
SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"))
LARGER = ((10**8, "10M<n<100M"), (10**9, "100M<n<1B"), (10**10, "1B<n<10B"), (10**11, "10B<n<100B"), (10**12, "100B<n<1T"))


class HuggingFaceOptions(Publication):
    file_bytes: int = Field(512 << 20, ge=1, description="bytes of text in a file, about; a longer document has its own")


class HuggingFace(Format[HuggingFaceOptions]):
    """`data/<split>/<component>/00000-of-00003.parquet`, README.md and croissant.json."""

    name = "parquet"
    version = 1
    reads: ClassVar[frozenset[Kind]] = frozenset({"tokens", "documents"})
    options_type = HuggingFaceOptions

    def write(self, source: Source, output: Output, progress: Callable[[int], object]) -> list[Tally]:
        encoder = load_encoder(source.corpus, source.tokenizer)
        counts: list[Tally] = []
        languages: Counter[str] = Counter()
        for component in source.components:
            with source.documents(component, [*LOGGED, *PLACED, "split"]) as rows:
                for group in source.groups:
                    if group.component == component:
                        counts.append(self._write_group(source, output, group, encoder, rows, languages, progress))
        documents = sum(one.documents for one in counts)
        listed = sorted(
            code for code, number in languages.items() if number >= LISTED_SHARE * documents and re.fullmatch("[a-z]{2,3}", code)
        )
        self._describe(source, output, listed)
        output.write(CARD, _card(source.manifest, source.components, counts, listed).encode())
        return counts

    def _write_group(
        self,
        source: Source,
        output: Output,
        group: Group,
        encoder: Encoder,
        rows: DocumentRows,
        languages: Counter[str],
        progress: Callable[[int], object],
    ) -> Tally:
        files = self._count_files(source, group)
        tally = group.nothing

        def numbered() -> Iterator[tuple[int, pa.Table]]:
            """Documents with the number of the file that they belong in."""
            nonlocal tally
            licence = source.manifest.content.components[group.component].licence
            cuts, number = Cuts(self.options.file_bytes), -1
            for shard in group.shards:
                for table, tokens in _tables(source, shard, encoder, rows, licence):
                    for first, last, new in cuts.of(table["text_bytes"].to_numpy()):
                        number += new
                        yield number, table.slice(first, last - first)
                    languages.update(one for one in table["language"].to_pylist() if one is not None)
                    tally = tally.add(table.num_rows, tokens, int(table["tokens"].to_numpy().sum()))
                    progress(tokens)

        for number, pieces in groupby(numbered(), key=itemgetter(0)):
            name = f"data/{group.split}/{group.component}/{number:05d}-of-{files:05d}.parquet"
            with output.writer(name) as out:
                _write_file(out, (table for _, table in pieces))
        return tally

    def _count_files(self, source: Source, group: Group) -> int:
        """Their names say how many there are, so that one that is missing is missed."""
        cuts = Cuts(self.options.file_bytes)
        sizes = (read_index(source.corpus, shard)["bytes"].to_numpy() for shard in group.shards)
        return sum(new for one in sizes for _, _, new in cuts.of(one))

    def _describe(self, source: Source, output: Output, languages: list[str]) -> None:
        content = source.manifest.content
        described = Described(
            source.manifest,
            f"{content.name}: the texts of a corpus with where each came from, its licence and its split.",
            source.components,
            [File(path=one.path, bytes=one.size, sha256=one.sha256) for one in output.written],
            [Records("documents", "one record a document", ["data/*/*/*.parquet"], SCHEMA, "id")],
            Publication(**self.options.model_dump(exclude={"file_bytes"})),
            languages,
        )
        output.write(croissant.FILE, describe(described))


class Cuts:
    """Documents, whose sizes come in any pieces, cut where another would make more than `limit`."""

    def __init__(self, limit: int, overhead: int = 0) -> None:
        self._limit, self._overhead, self._used = limit, overhead, -1

    def of(self, sizes: np.ndarray) -> Iterator[tuple[int, int, bool]]:
        """(first, last, whether a new cut begins) of runs of documents; `last` is the one behind them."""
        ends = np.cumsum(sizes + self._overhead)
        first = 0
        while first < len(ends):
            before = int(ends[first - 1]) if first else 0
            new = self._used < 0 or (self._used > 0 and self._used + int(ends[first]) - before > self._limit)
            used = 0 if new else self._used
            last = max(first + 1, int(np.searchsorted(ends, before + self._limit - used, side="right")))
            self._used = used + int(ends[last - 1]) - before
            yield first, last, new
            first = last


def _write_file(out: AtomicWriter, pieces: Iterable[pa.Table]) -> None:
    """Row groups depend on the documents alone, not on the pieces in which they come."""
    cuts = Cuts(ROW_GROUP_BYTES, ROW_BYTES)
    held: list[pa.Table] = []
    with pq.ParquetWriter(out, SCHEMA, compression="zstd", write_page_index=True) as writer:
        for table in pieces:
            for first, last, new in cuts.of(table["text_bytes"].to_numpy()):
                if new and held:
                    _write_row_group(writer, held)
                    held = []
                held.append(table.slice(first, last - first))
        _write_row_group(writer, held)


def _write_row_group(writer: pq.ParquetWriter, held: list[pa.Table]) -> None:
    table = pa.concat_tables(held).combine_chunks()
    writer.write_table(table, row_group_size=table.num_rows)


def _tables(source: Source, shard: Shard, encoder: Encoder, rows: DocumentRows, licence: str) -> Iterator[tuple[pa.Table, int]]:
    """(rows of SCHEMA, tokens) of a shard, some at a time; ExportError where log, index and texts do not agree."""
    logged = rows.of(shard)
    at = 0
    for ids, texts, tokens in texts_of(source.corpus, shard, source.tokenizer, encoder):
        mine = logged.slice(at, len(ids)).combine_chunks()
        at += len(ids)
        if not mine["id"].combine_chunks().equals(ids):
            raise ExportError(f"{shard.path}: the log of documents has others there, or in another order")
        if any(mine[name].null_count for name in (*PLACED, "split")):
            raise ExportError(f"{shard.path}: the log of documents does not say where and what they are")
        digests = [hashlib.sha256(text.as_buffer()).hexdigest() for text in texts]
        for document, digest, expected in zip(ids, digests, mine["text_sha256"].to_pylist(), strict=True):
            if digest != expected:
                raise ExportError(f"{shard.path}: the text of {document} is not the one that the log of documents tells of")
        if not pc.binary_length(texts).equals(mine["text_bytes"].combine_chunks()):
            raise ExportError(f"{shard.path}: the log of documents tells of texts of other lengths")
        if int(mine["tokens"].to_numpy().sum()) != tokens or set(mine["split"].to_pylist()) != {shard.split}:
            raise ExportError(f"{shard.path}: the log of documents tells of other tokens or another split")
        columns = {name: mine[name] for name in (*LOGGED, *PLACED)}
        columns["text"] = texts
        columns["licence"] = pa.repeat(licence, len(ids))
        columns["split"] = mine["split"]
        yield pa.table([_plain(columns[one.name], one.type) for one in SCHEMA], schema=SCHEMA), tokens


def _plain(column: pa.Array | pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array(column.cast(type_).chunks if isinstance(column, pa.ChunkedArray) else [column.cast(type_)], type_)


def _card(manifest: Manifest, components: list[str], counts: list[Tally], languages: list[str]) -> str:
    """The dataset card: YAML for the Hub, and for people what the corpus is made of."""
    content = manifest.content
    records = {name: content.components[name] for name in components}
    everything = "default"
    while everything in records:
        everything = f"{everything}_all"
    configs = [_config(everything, "*", counts, default=True)]
    if len(components) > 1:
        configs += [_config(name, name, [one for one in counts if one.component == name]) for name in components]
    documents = sum(one.documents for one in counts)
    about = {
        "pretty_name": content.name,
        "license": licences.hub_names([one.licence for one in records.values()]),
        "language": languages,
        "task_categories": ["text-generation"],
        "size_categories": [next((name for below, name in (*SIZES, *LARGER) if documents < below), "n>1T")],
        "configs": configs,
    }
    front = yaml.safe_dump({key: value for key, value in about.items() if value}, sort_keys=False, allow_unicode=True, width=120)
    sources = [
        (name, one.source, one.snapshot or "", one.licence, f"{one.documents_in:,}", f"{one.documents_kept:,}")
        for name, one in records.items()
    ]
    rows = [(one.component, one.split, f"{one.documents:,}", f"{one.tokens:,}") for one in counts]
    columns = [(f"`{one.name}`", str(one.type), DESCRIPTIONS[one.name]) for one in SCHEMA]
    return "\n".join(
        [
            "---",
            f"{front}---",
            "",
            f"# {content.name}",
            "",
            "Made by corpusmill. The digest of the corpus, which says with which sources, stages and options it was built, is "
            f"`{manifest.digest}`.",
            "",
            "## Sources and licences",
            "",
            *_table(("component", "source", "snapshot", "licence", "documents in", "documents kept"), sources),
            "",
            "## Documents and tokens",
            "",
            *_table(("component", "split", "documents", "tokens"), rows),
            "",
            "Documents of a component and split are in the order of a keyed hash of their id: any file, and any beginning of "
            "one, is a fair sample of them. Splits hold whole clusters of similar documents."
            if content.split
            else "",
            "",
            "## Columns",
            "",
            *_table(("column", "type", "what it is"), columns),
            "",
        ]
    )


def _config(name: str, component: str, counts: list[Tally], default: bool = False) -> dict[str, object]:
    there = {one.split for one in counts}
    splits = [split for split in SPLITS if split in there]
    files = [{"split": split, "path": f"data/{split}/{component}/*.parquet"} for split in splits]
    return {"config_name": name, "data_files": files, **({"default": True} if default else {})}


def _table(heading: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of a Markdown table."""
    return [
        "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in row) + " |"
        for row in (heading, ("---",) * len(heading), *rows)
    ]
