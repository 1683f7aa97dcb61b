"""The corpus that is exported: the chosen shards, and what the log of documents says of each document in a shard."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from manifests.logs import Logs
from manifests.manifest import SPLITS, Manifest, Shard, TokenizerRecord, listed_files
from manifests.storage import Folder, StorageError, sha256_of
from stages.exports.format import ExportError, Kind, Tally
from stages.shard_texts import TokenSlice, slices_of

SORT_MEMORY, SORT_THREADS = "512MB", 4
"""What DuckDB may use to bring a component's log of documents into the order of shards; more goes to a temporary folder."""


@dataclass(frozen=True)
class Group:
    """The shards of one component and split, in their order."""

    component: str
    split: str
    shards: list[Shard]

    @property
    def tally(self) -> Tally:
        tokens = sum(shard.tokens for shard in self.shards)
        return Tally(self.component, self.split, sum(shard.documents for shard in self.shards), tokens, tokens)

    @property
    def nothing(self) -> Tally:
        return Tally(self.component, self.split, 0, 0, 0)


class Source:
    """groups: by component and then split, in the order of the manifest; those without documents are left out."""

    def __init__(
        self, corpus: Folder, manifest: Manifest, components: list[str] | None = None, splits: list[str] | None = None
    ) -> None:
        self.corpus, self.manifest, content = corpus, manifest, manifest.content
        if content.tokenizer is None or not content.shards:
            raise ExportError(
                "this corpus has no shards, which are what its texts and tokens are kept in: "
                "add the stages `tokenizer` and `shards` to its recipe and run it again"
            )
        self.tokenizer: TokenizerRecord = content.tokenizer
        for what, asked, known in (("component", components, list(content.components)), ("split", splits, list(SPLITS))):
            for name in asked or []:
                if name not in known:
                    raise ExportError(f"there is no {what} {name!r}; there are {', '.join(known)}")
        self.groups = []
        for component in content.components:
            for split in SPLITS:
                shards = [shard for shard in manifest.shards(split, component) if shard.documents]
                if shards and component in (components or content.components) and split in (splits or SPLITS):
                    self.groups.append(Group(component, split, shards))
        if not self.groups:
            raise ExportError("no documents are in these components and splits")

    @property
    def components(self) -> list[str]:
        """Those with documents among the chosen, in the order of the manifest."""
        return list(dict.fromkeys(group.component for group in self.groups))

    def check_files(self, kinds: frozenset[Kind]) -> None:
        """ExportError for the first file to be read that is not the one that the manifest lists."""
        chosen: set[str] = {self.tokenizer.file} if "tokens" in kinds else set()
        for group in self.groups if "tokens" in kinds else []:
            chosen |= {path for shard in group.shards for path in (shard.path, shard.index)}
        for log in self.manifest.content.logs:
            if log.path.split("/")[2] not in self.components:
                continue
            if "logs" in kinds or ("documents" in kinds and log.kind == "documents"):
                chosen.add(log.path)
        for path, sha256, _ in listed_files(self.manifest.content):
            if path not in chosen:
                continue
            try:
                with self.corpus.open(path) as file:
                    found, _ = sha256_of(file)
            except FileNotFoundError:
                raise ExportError(f"{path}: missing, though the manifest lists it") from None
            except (OSError, StorageError) as error:
                raise ExportError(f"{path}: cannot be read: {error}") from None
            if found != sha256:
                raise ExportError(f"{path}: not the file that the manifest lists; `corpusmill verify` says more")

    def slices(self, shard: Shard) -> Iterator[TokenSlice]:
        """The tokens of a shard. Every document begins with BOS, and has it nowhere else."""
        for part in slices_of(self.corpus, shard, self.tokenizer):
            bos = part.tokens == self.tokenizer.bos_id
            if int(bos.sum()) != len(part.ids) or not bos[part.offsets[:-1]].all():
                raise ExportError(
                    f"{shard.path}: not every document has BOS, id {self.tokenizer.bos_id}, as its first token alone"
                )
            if int(part.tokens.max()) >= self.tokenizer.vocabulary:
                raise ExportError(
                    f"{shard.path}: token id {part.tokens.max()} is not in a vocabulary of {self.tokenizer.vocabulary}"
                )
            yield part

    @contextmanager
    def documents(self, component: str, columns: list[str]) -> Iterator[DocumentRows]:
        """What the log of documents says of a component's documents, shard by shard."""
        with (
            tempfile.TemporaryDirectory(prefix="corpusmill-") as folder,
            Logs(self.corpus, self.manifest, only=["documents"]) as logs,
        ):
            logs.connection.execute(f"set memory_limit = '{SORT_MEMORY}'")
            logs.connection.execute(f"set threads = {SORT_THREADS}")  # each takes its share of the memory
            logs.connection.execute(f"set temp_directory = '{folder}'")
            logs.connection.execute(f"attach '{folder}/placed.duckdb' as sorted")
            listed = ", ".join(f'"{name}"' for name in {*columns, "shard", "start"})
            logs.connection.execute(
                f"create table sorted.placed as select {listed} from documents "
                "where component = ? and shard is not null order by shard, start",
                [component],
            )
            yield DocumentRows(logs, columns)


class DocumentRows:
    """The rows of one component, by shard."""

    def __init__(self, logs: Logs, columns: list[str]) -> None:
        self._logs = logs
        self._listed = ", ".join(f'"{name}"' for name in columns)

    def of(self, shard: Shard) -> pa.Table:
        """In the order of the shard; ExportError when the log does not have as many documents there as the manifest says."""
        query = f"select {self._listed} from sorted.placed where shard = ? order by start"
        found = self._logs.connection.sql(query, params=[shard.path]).to_arrow_table()
        if found.num_rows != shard.documents:
            raise ExportError(
                f"{shard.path}: the log of documents has {found.num_rows} documents there, the manifest says {shard.documents}"
            )
        return found
