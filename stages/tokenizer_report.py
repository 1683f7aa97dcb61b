"""`corpusmill tokenizer report`: tokenizers side by side on the same texts, before a team decides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from manifests.storage import Folder, StorageError
from stages.language import UNDETERMINED, Language, LanguageOptions
from stages.text_sources import Sources
from stages.token_usage import Usage
from stages.tokenizer import Encoder, TokenizerError, choose_engine

BATCH_TEXTS, BATCH_BYTES = 1000, 8 << 20
MOST_BYTES = 64 << 20
"""Text that is looked at unless more is asked for: figures of a language settle long before."""


@dataclass(frozen=True)
class Named:
    """A tokenizer under the name it is shown by."""

    name: str
    encoder: Encoder


def load(names: list[str], bos: str | None = None) -> list[Named]:
    """Tokenizers of files (tokenizer.json) and of finished corpora; TokenizerError names what cannot be loaded."""
    found = []
    for name in names:
        folder, _, file = name.rpartition("/")
        try:
            text = _read(name, folder, file)
        except (OSError, StorageError, UnicodeDecodeError) as error:
            raise TokenizerError(f"{name}: cannot be read: {error}") from None
        try:
            encoder = Encoder(text, bos)
            engine, _ = choose_engine(text, bos, ())
            found.append(Named(name, Encoder(text, bos, engine) if engine == "tiktoken" else encoder))
        except TokenizerError as error:
            raise TokenizerError(f"{name}: {error}") from None
    return found


def compare(tokenizers: list[Named], sources: Sources, most_bytes: int = MOST_BYTES) -> list[tuple[Named, Usage]]:
    """The usage of every tokenizer by (source, language), over the first `most_bytes` of text of each source."""
    language = Language(LanguageOptions())
    usages = [(one, Usage(one.encoder.vocabulary)) for one in tokenizers]
    for file in sources.files:
        for texts in _batches(file.texts(), most_bytes):
            column = pa.array(texts, pa.large_string())
            labels = [language.predict(text)[0][0] for text in texts]
            names = [(file.name, "?" if label == UNDETERMINED else label) for label in labels]
            for one, usage in usages:
                usage.count(names, column, *one.encoder.encode(column))
    return usages


def as_json(usages: list[tuple[Named, Usage]]) -> list[dict[str, Any]]:
    """One object a tokenizer, with its rows and a total."""
    found = []
    for one, usage in usages:
        rows = []
        for row in usage.rows():
            source, label = row.pop("name")
            rows.append({"source": source, "language": label, **row})
        total = {name: sum(row[name] for row in rows) for name in ("documents", "bytes", "tokens")}
        total["vocabulary_used"] = usage.used(usage.groups) / usage.vocabulary
        found.append({"tokenizer": one.name, "vocabulary": usage.vocabulary, "total": total, "rows": rows})
    return found


def _read(name: str, folder: str, file: str) -> str:
    if file.endswith(".json"):
        return Folder(folder or ("/" if name.startswith("/") else ".")).read(file).decode()
    return Folder(name).read("tokenizer.json").decode()


def _batches(texts: Iterator[str], most_bytes: int) -> Iterator[list[str]]:
    batch: list[str] = []
    size = total = 0
    for text in texts:
        batch.append(text)
        size += len(text.encode())
        if len(batch) == BATCH_TEXTS or size >= BATCH_BYTES:
            yield batch
            total += size
            batch, size = [], 0
            if total >= most_bytes:
                return
    if batch:
        yield batch
