"""`corpusmill tokenizer report`: tokenizers side by side on the same texts, before a team decides.

Any tokenizer.json that the library `tokenizers` reads can be compared, also one that no corpus can be made with; it is said why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from manifests.manifest import LARGEST_VOCABULARY, MANIFEST, Manifest, ManifestError
from manifests.storage import Folder, StorageError
from stages.language import UNDETERMINED, Language, LanguageOptions
from stages.text_sources import SPLIT, SourceError, Sources, TextFile
from stages.token_usage import Usage
from stages.tokenizer import Encoder, TokenizerError, choose_engine, encode_batch, library_tokenizer

BATCH_TEXTS, BATCH_BYTES = 1000, 8 << 20
MOST_BYTES = 64 << 20
"""Text that is looked at unless more is asked for: figures of a language settle long before."""
WITHOUT_LANGUAGE = "und"


class Counter:
    """A tokenizer that can only be counted with: the interface of `Encoder`, without the promise that text comes back. unknown:
    tokens until now that stand for any text that it does not know."""

    def __init__(self, tokenizer_json: str) -> None:
        self._tokenizer = library_tokenizer(tokenizer_json)
        unknown = getattr(self._tokenizer.model, "unk_token", None)
        self._unknown = None if unknown is None else self._tokenizer.token_to_id(unknown)
        self.unknown = 0
        self.vocabulary = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if not 0 < self.vocabulary <= LARGEST_VOCABULARY:
            raise TokenizerError(f"a vocabulary of {self.vocabulary:,}; 1 to {LARGEST_VOCABULARY:,} are possible")

    def encode(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """As `Encoder.encode`; 0 stands for BOS."""
        found = encode_batch(self._tokenizer, texts.to_pylist())
        self.unknown += 0 if self._unknown is None else sum(ids.count(self._unknown) for ids in found)
        offsets = np.zeros(len(found) + 1, np.int64)
        np.cumsum([1 + len(ids) for ids in found], out=offsets[1:])
        return offsets, np.concatenate([np.empty(0, np.uint32), *(np.array([0, *ids], np.uint32) for ids in found)])


@dataclass(frozen=True)
class Named:
    """A tokenizer under the name it is shown by. unfit: why no corpus can be made with it, or None."""

    name: str
    encoder: Encoder | Counter
    unfit: str | None = None


@dataclass(frozen=True)
class Looked:
    """What was looked at of a source: documents and bytes, whether that was all, and documents without a text by rule."""

    source: str
    documents: int
    bytes: int
    complete: bool
    without_text: dict[str, int]


@dataclass(frozen=True)
class Comparison:
    """usages: what each tokenizer made of all sources, by (source, language)."""

    looked: list[Looked]
    usages: list[tuple[Named, Usage]]

    def as_json(self) -> dict[str, Any]:
        """`sources`, and `tokenizers`: one object each, with its rows and a total."""
        found = []
        for one, usage in self.usages:
            rows = []
            for row in usage.rows():
                source, label = row.pop("name")
                rows.append({"source": source, "language": label, **row})
            total = {name: sum(row[name] for row in rows) for name in ("documents", "bytes", "tokens")}
            total["bytes_per_token"] = total["bytes"] / total["tokens"] if total["tokens"] else None
            total["vocabulary_used"] = usage.used(usage.groups) / usage.vocabulary
            total["unknown_tokens"] = one.encoder.unknown if isinstance(one.encoder, Counter) else 0
            found.append(
                {"tokenizer": one.name, "vocabulary": usage.vocabulary, "unfit": one.unfit, "total": total, "rows": rows}
            )
        return {"sources": [vars(one) for one in self.looked], "tokenizers": found}


def load(names: list[str], bos: str | None = None) -> list[Named]:
    """Tokenizers of files (tokenizer.json) and of finished corpora; TokenizerError names what cannot be loaded."""
    found = []
    for name in names:
        try:
            text = _read(name)
        except FileNotFoundError:
            what = "there is no such file" if name.endswith(".json") else "no file tokenizer.json is in it"
            raise TokenizerError(f"{name}: {what}") from None
        except (OSError, StorageError, UnicodeDecodeError) as error:
            raise TokenizerError(f"{name}: cannot be read: {error}") from None
        try:
            found.append(_named(name, text, bos))
        except TokenizerError as error:
            raise TokenizerError(f"{name}: {error}") from None
    return found


def compare(tokenizers: list[Named], sources: Sources, most_bytes: int = MOST_BYTES) -> Comparison:
    """The usage of every tokenizer by (source, language), over the first `most_bytes` of text of each source. Each component of a
    corpus is a source, and any first part of its shards a fair sample."""
    language = Language(LanguageOptions())
    usages = [(one, Usage(one.encoder.vocabulary)) for one in tokenizers]
    looked = []
    for name, file in _each(sources):
        documents = size = 0
        batches = _batches(file.texts())
        for texts, length in batches:
            column = pa.array(texts, pa.large_string())
            labels = [language.predict(text)[0][0] for text in texts]
            names = [(name, WITHOUT_LANGUAGE if label == UNDETERMINED else label) for label in labels]
            for one, usage in usages:
                usage.count(names, column, *one.encoder.encode(column))
            documents, size = documents + len(texts), size + length
            if size >= most_bytes:
                break
        complete = next(batches, None) is None
        looked.append(Looked(name, documents, size, complete, dict(sorted(file.lost.items()))))
    return Comparison(looked, usages)


def _named(name: str, text: str, bos: str | None) -> Named:
    try:
        encoder = Encoder(text, bos)
    except TokenizerError as error:
        return Named(name, Counter(text), str(error))
    engine, _ = choose_engine(text, bos, ())
    return Named(name, Encoder(text, bos, engine) if engine == "tiktoken" else encoder)


def _read(name: str) -> str:
    folder, _, file = name.rpartition("/")
    if file.endswith(".json") and file != MANIFEST:
        return Folder(folder or ("/" if name.startswith("/") else ".")).read(file).decode()
    return Folder(name.removesuffix(f"/{MANIFEST}")).read("tokenizer.json").decode()


def _each(sources: Sources) -> Iterator[tuple[str, TextFile]]:
    """Files under their names, and the components of corpora that have tokens."""
    for file in sources.files:
        if file.reader is not None:
            yield file.name, file
            continue
        try:
            manifest = Manifest.load(file.folder)
        except ManifestError as error:
            raise SourceError(str(error)) from None
        having = [name for name in manifest.content.components if manifest.shards(SPLIT, name)]
        if not having:
            yield file.name, file  # reading it says what is wrong
        for component in having:
            yield f"{file.name}: {component}", replace(file, component=component)


def _batches(texts: Iterator[str]) -> Iterator[tuple[list[str], int]]:
    """Texts and their bytes of UTF-8."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text.encode())
        if len(batch) == BATCH_TEXTS or size >= BATCH_BYTES:
            yield batch, size
            batch, size = [], 0
    if batch:
        yield batch, size
