"""manifest.json: what a corpus is, in two sections.

`content` is everything that the same recipe on the same inputs gives again, and its SHA-256 over canonical JSON is the
corpus's identity (`digest`). `run` says how this copy came about: times, hosts, parts, software; it has a digest of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from manifests.rules import Rule
from manifests.storage import Folder

FORMAT = "corpusmill/1"
TOKEN_BYTES = {"uint16": 2, "uint32": 4}
UINT16_VOCABULARY = 1 << 16
LARGEST_VOCABULARY = 1 << 22
"""Far more than any tokenizer has; a larger id is a mistake that would cost gigabytes."""
_NAME = "[a-z0-9][a-z0-9_-]{0,63}"
SHARD_PATH = rf"^tokens/{_NAME}/(train|validation|test)/[0-9]{{5,}}\.(bin|parquet)$"
LOG_PATH = rf"^logs/((removals|edits|documents)/{_NAME}|signals/{_NAME}/[A-Za-z0-9._-]+)/[0-9]{{5,}}\.parquet$"
"""Where the files of a corpus can lie: a manifest from a stranger that names others is refused."""
MANIFEST = "manifest.json"
RECIPE = "recipe.yaml"
"""The recipe as it was written, beside the manifest."""
SPLITS = ("train", "validation", "test")
TAKEDOWN = "takedown"
"""The stage under which documents are counted and logged that were taken out of a finished corpus (manifests.audit.takedown)."""


class ManifestError(Exception):
    """A manifest that is missing, malformed, or does not agree with its own digest."""


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class InputFile(Part):
    path: str
    bytes: int
    sha256: str


class StageRecord(Part):
    """A stage as it ran: every parameter, its VERSION, and what else decided its output."""

    step: str
    stage: str
    version: int
    options: dict[str, Any]
    libraries: dict[str, str] = Field(default_factory=dict)
    data: dict[str, str] = Field(default_factory=dict, description="data file or folder as the recipe names it: SHA-256")
    rules: list[Rule] = Field(default_factory=list)


class StageCount(Part):
    """Conservation at one stage of one component: documents_in = documents_kept + sum of removed."""

    component: str
    step: str
    stage: str
    documents_in: int
    documents_kept: int
    removed: dict[str, int] = Field(default_factory=dict, description="rule: documents")
    bytes_in: int = Field(0, description="UTF-8 bytes of text; 0 where there is no text yet")
    bytes_kept: int = 0
    edited: dict[str, int] = Field(default_factory=dict, description="rule: documents with at least one such edit")


class ComponentRecord(Part):
    source: str
    format: str
    licence: str
    snapshot: str | None = None
    priority: int = 0
    inputs: list[InputFile]
    stages: list[StageRecord]
    documents_in: int
    documents_kept: int
    skipped_records: dict[str, int] = Field(default_factory=dict, description="WARC record types that are no documents")
    unread_files: dict[str, int] = Field(default_factory=dict, description="files of the source that no pattern took, by ending")
    tokens: dict[str, int] = Field(default_factory=dict, description="split: tokens, BOS included")


class SampledComponent(Part):
    """What a tokenizer was trained on of one component. offered_bytes: what the sample could have taken, each document cut to
    `document_cap_bytes`; all that there was, where it is no more than the share."""

    documents: int
    bytes: int
    offered_bytes: int
    share_wanted: float = Field(description="of the sample, by the mixture")
    share_got: float


class TokenizerTraining(Part):
    """The sample of training documents that a tokenizer was trained on. It is smaller than `wanted_bytes` where the components of
    the mixture had no more, or where more would have had too many distinct words for `distinct_bytes` of the recipe."""

    documents: int
    bytes: int
    wanted_bytes: int | None = None
    distinct_bytes: int | None = Field(None, description="of distinct words")
    reduced_to: float = Field(1.0, description="share of the sample that was left for it to have no more distinct words")
    components: dict[str, SampledComponent] = Field(default_factory=dict)


class TokenizerRecord(Part):
    file: Literal["tokenizer.json"] = "tokenizer.json"
    sha256: str
    vocabulary: int = Field(gt=0, le=LARGEST_VOCABULARY, description="entries, special tokens included: ids are below it")
    dtype: Literal["uint16", "uint32"]
    bos_id: int
    special_tokens: dict[str, int]
    training: TokenizerTraining | None = Field(None, description="none when it was given")
    engine: str = Field("tokenizers", description="the library that encoded: tokenizers, or tiktoken with the same ids")
    engine_note: str | None = Field(None, description="why tiktoken was not used")

    @field_validator("training", mode="before")
    @classmethod
    def _given(cls, value: Any) -> Any:
        """Earlier manifests say {} of a tokenizer that was given."""
        return value or None

    @model_validator(mode="after")
    def _width(self) -> TokenizerRecord:
        if (self.dtype == "uint16") != (self.vocabulary <= UINT16_VOCABULARY):
            raise ValueError(f"a vocabulary of {self.vocabulary} is not stored as {self.dtype}")
        if not 0 <= self.bos_id < self.vocabulary:
            raise ValueError(f"bos_id {self.bos_id} is not in a vocabulary of {self.vocabulary}")
        return self


class TokenUsage(Part):
    """What the tokenizer made of the documents of a component and language, all splits. words: runs without white space, or where
    `unspaced` characters, white space left out. tokens: without BOS."""

    component: str
    language: str = Field(description="und where none is known")
    unspaced: bool
    documents: int
    bytes: int
    words: int
    tokens: int


class Shard(Part):
    """Flat little-endian tokens at `path`, and `index`, a Parquet of SHARD_INDEX rows in the same order."""

    path: str = Field(pattern=SHARD_PATH)
    index: str = Field(pattern=SHARD_PATH)
    component: str
    split: Literal["train", "validation", "test"]
    tokens: int = Field(ge=0)
    documents: int = Field(ge=0)
    text_bytes: int = Field(ge=0, description="UTF-8 bytes of its documents' texts")
    sha256: str
    index_sha256: str


class LogFile(Part):
    kind: Literal["removals", "edits", "signals", "documents"]
    path: str = Field(pattern=LOG_PATH)
    rows: int = Field(ge=0)
    bytes: int = Field(ge=0)
    sha256: str


class ClosestPair(Part):
    """How alike documents of different splits are: a sample of the held-out ones, compared with all documents of other splits."""

    held_out_documents: int = Field(ge=0, description="documents of validation and test in the sample")
    documents: int = Field(ge=0, description="documents in all; each of the sample was compared with those of other splits")
    jaccard: float = Field(ge=0, le=1, description="the highest of all these pairs")
    held_out: str | None = Field(None, description="its held-out document; none where no pair shares a shingle")
    other: str | None = None
    pairs_at_threshold: int = Field(0, ge=0, description="pairs with the split's threshold or more, which the bands missed")


class SplitRecord(Part):
    threshold: float
    shares: dict[str, float]
    documents: dict[str, int]
    options: dict[str, Any] = Field(default_factory=dict)
    closest: ClosestPair | None = Field(None, description="none where nothing is held out or `check_sample` is 0")


class ReferenceRecord(Part):
    """A finished corpus whose documents won over those of this one: its content's digest, and how many documents it had."""

    corpus: str
    digest: str
    documents: int


class Content(Part):
    name: str
    recipe_sha256: str
    seed: int
    components: dict[str, ComponentRecord]
    stages: list[StageRecord]
    counts: list[StageCount]
    tokenizer: TokenizerRecord | None = None
    split: SplitRecord | None = None
    references: dict[str, ReferenceRecord] = Field(default_factory=dict)
    decontamination: list[dict[str, Any]] = Field(default_factory=list)
    summaries: list[dict[str, Any]] = Field(
        default_factory=list, description="of other stages that count more than their rows, such as pre_check"
    )
    deduplication: list[dict[str, Any]] = Field(default_factory=list)
    token_usage: list[TokenUsage] = Field(default_factory=list)
    dropped: list[dict[str, Any]] = Field(
        default_factory=list,
        description="components that were left out of a corpus that had them, and what had been made with them",
    )
    shards: list[Shard] = Field(default_factory=list)
    logs: list[LogFile] = Field(default_factory=list)

    @model_validator(mode="after")
    def _each_file_once_and_in_its_place(self) -> Content:
        paths = [path for shard in self.shards for path in (shard.path, shard.index)] + [log.path for log in self.logs]
        if len(set(paths)) != len(paths):
            twice = next(path for path in paths if paths.count(path) > 1)
            raise ValueError(f"{twice} is listed twice")
        for shard in self.shards:
            stem = shard.path.removesuffix(".bin")
            if shard.component not in self.components:
                raise ValueError(f"{shard.path}: there is no component {shard.component!r}")
            if not stem.startswith(f"tokens/{shard.component}/{shard.split}/") or shard.index != f"{stem}.parquet":
                raise ValueError(f"{shard.path}: not where a {shard.split} shard of {shard.component} and its index lie")
        return self


class Manifest(Part):
    """A corpus. `load` checks the digests of its two sections; `manifests.verification.verify` checks the files."""

    format: Literal["corpusmill/1"] = "corpusmill/1"
    digest: str
    content: Content
    run: dict[str, Any]
    run_digest: str

    @staticmethod
    def seal(content: Content, run: dict[str, Any]) -> Manifest:
        return Manifest(digest=digest(content.model_dump(mode="json")), content=content, run=run, run_digest=digest(run))

    @staticmethod
    def load(corpus: Folder, name: str = MANIFEST) -> Manifest:
        """Reads and checks `name`; ManifestError says what is wrong with it."""
        where = f"{corpus.url}/{name}"
        try:
            raw = json.loads(corpus.read(name))
        except FileNotFoundError:
            raise ManifestError(f"{where}: there is no manifest; has the run finished?") from None
        except NotADirectoryError:
            raise ManifestError(f"{where}: {corpus.url} is a file; name a corpus's folder, or its manifest") from None
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"{where}: not JSON: {error}") from None
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            found = raw.get("format") if isinstance(raw, dict) else type(raw).__name__
            raise ManifestError(f"{where}: format is {found!r}, this version reads {FORMAT!r}")
        for section, name_of_digest in (("content", "digest"), ("run", "run_digest")):
            try:
                agreed = section in raw and digest(raw[section]) == raw.get(name_of_digest)
            except (ValueError, RecursionError) as error:
                raise ManifestError(f"{where}: section {section!r} has no canonical JSON: {error}") from None
            if not agreed:
                raise ManifestError(f"{where}: section {section!r} does not have the digest that the manifest states")
        try:
            return Manifest.model_validate(raw)
        except ValidationError as error:
            first = error.errors()[0]
            at = ".".join(str(step) for step in first["loc"])
            raise ManifestError(f"{where}: {at}: {first['msg']}") from None

    def save(self, corpus: Folder, name: str = MANIFEST, *, new: bool = False) -> bool:
        """False when it is to be a `new` file and there is one."""
        data = (json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n").encode()
        if new:
            return corpus.create(name, data)
        corpus.write(name, data)
        return True

    def shards(self, split: str, component: str | None = None) -> list[Shard]:
        """The shards of one split in manifest order (component, then number)."""
        return [s for s in self.content.shards if s.split == split and component in (None, s.component)]


def open_corpus(path: str) -> tuple[Folder, Manifest]:
    """A corpus by its folder or URL, or by the path of one of its manifests; ManifestError, StorageError or OSError where there
    is none."""
    folder, _, name = path.rpartition("/")
    if name.endswith(".json"):
        corpus = Folder(folder or ("/" if path.startswith("/") else "."))
        return corpus, Manifest.load(corpus, name)
    corpus = Folder(path)
    return corpus, Manifest.load(corpus)


def receipt_list(corpus: Folder, manifest: Manifest) -> list[dict[str, Any]] | None:
    """The receipts of the parts that the corpus is made of (`path`, `part`, host and times), or None where they were deleted.

    ManifestError when the list is there and is not the manifest's.
    """
    about = manifest.run.get("receipts", {})
    if not isinstance(about, dict) or (about and not {"path", "sha256"} <= set(about)):
        raise ManifestError(f"{corpus.url}/{MANIFEST}: run.receipts does not say where the receipts are listed")
    if not about or not corpus.exists(about["path"]):
        return None
    data = corpus.read(about["path"])
    if hashlib.sha256(data).hexdigest() != about["sha256"]:
        raise ManifestError(f"{corpus.url}/{about['path']}: not the list of receipts that the manifest vouches for")
    return [json.loads(line) for line in data.splitlines()]


def canonical(value: Any) -> bytes:
    """The one JSON text of a value: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(value: Any) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()


def json_schema() -> dict[str, Any]:
    """The published JSON Schema of manifest.json."""
    return Manifest.model_json_schema()


def listed_files(content: Content) -> Iterator[tuple[str, str, int | None]]:
    """(path, SHA-256, bytes or None) of every file that the manifest vouches for."""
    for shard in content.shards:
        width = TOKEN_BYTES[content.tokenizer.dtype] if content.tokenizer else None
        yield shard.path, shard.sha256, None if width is None else shard.tokens * width
        yield shard.index, shard.index_sha256, None
    for log in content.logs:
        yield log.path, log.sha256, log.bytes
    if content.tokenizer is not None:
        yield content.tokenizer.file, content.tokenizer.sha256, None
