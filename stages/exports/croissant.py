"""Croissant 1.0 (MLCommons): JSON-LD that says which files a dataset has, with their SHA-256, which records are in them, and
under which licences. `Croissant` describes a corpus as it is; the Parquet export describes itself with the same functions.

Whom to name, where the dataset is found and when it was published is known to those who publish it (`Publication`); the
specification asks for it, and it is left out unless it is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field, field_validator

from manifests.manifest import Manifest
from manifests.schemas import DOCUMENT_LOG, REMOVALS, SHARD_INDEX
from stages.exports import licences
from stages.exports.format import Format, Kind, Tally
from stages.exports.output import File, Output, json_bytes
from stages.exports.source import Source
from stages.stage import Options

FILE = "croissant.json"
CONFORMS_TO = ["http://mlcommons.org/croissant/1.0", "http://mlcommons.org/croissant/RAI/1.0"]
PARQUET = "application/x-parquet"
MEDIA_TYPES = {"parquet": PARQUET, "bin": "application/octet-stream", "json": "application/json", "md": "text/markdown"}
CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
"""The context that the specification gives, term for term: readers compare it."""

DESCRIPTIONS = {
    "id": "component/file#position: where the document came from",
    "component": "the source of its own licence and stages that the document came from",
    "file": "the input file, relative to its component's root",
    "position": "byte offset, line or row in that file",
    "url": "where it was fetched, without credentials and query",
    "domain": "registered domain of the URL",
    "date": "when it was fetched, or what the source says",
    "media_type": "what the document was before its text was taken",
    "language": "code of the detected language",
    "language_score": "how sure the detection was, from 0 to 1",
    "licence": "licence of its component",
    "split": "train, validation or test",
    "text": "the whole text",
    "text_bytes": "UTF-8 bytes of the text",
    "text_sha256": "SHA-256 of the text's UTF-8",
    "tokens": "tokens in the corpus, BOS included",
    "bytes": "UTF-8 bytes of the text",
    "shard": "file of the corpus that holds its tokens",
    "start": "its first token in that file",
    "stage": "the stage that removed it",
    "rule": "the rule that removed it",
    "value": "the measured value",
    "threshold": "what the value was compared with",
    "kept_id": "the document that was kept instead of this copy",
    "removed_by": "the stage that removed it; none for a kept document",
}


class Publication(Options):
    url: str | None = Field(None, description="web page of the dataset")
    creator: str | None = Field(None, description="who made it")
    published: str | None = Field(None, description="date of publication, YYYY-MM-DD")
    release: str | None = Field(None, description="version of the dataset, such as 1.0.0")
    citation: str | None = Field(None, description="how to cite it, best as BibTeX")

    @field_validator("published")
    @classmethod
    def _date(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", value):
            raise ValueError("not a date as YYYY-MM-DD")
        return value


@dataclass(frozen=True)
class Records:
    """A record for each row of the Parquet files that match one of `includes`. `key` names the column that tells them apart."""

    name: str
    description: str
    includes: list[str]
    schema: pa.Schema
    key: str | None = None


@dataclass(frozen=True)
class Described:
    """What is described: `components` of a corpus, as `files` and `records`. `languages` are codes."""

    manifest: Manifest
    description: str
    components: list[str]
    files: list[File]
    records: list[Records]
    publication: Publication
    languages: list[str] = field(default_factory=list)
    base_url: str = ""


def describe(what: Described) -> bytes:
    """croissant.json."""
    content = what.manifest.content
    components = {name: content.components[name] for name in what.components}
    collected = [
        f"{name}: {one.documents_in:,} documents from {one.source} ({one.format}"
        + (f", {one.snapshot}" if one.snapshot else "")
        + f"), {one.documents_kept:,} kept, licence {one.licence}"
        for name, one in components.items()
    ]
    done = [
        f"{name}: " + ", ".join(f"{stage.stage} {stage.version}" for stage in one.stages)
        for name, one in components.items()
        if one.stages
    ]
    if content.stages:
        done.append("all components: " + ", ".join(f"{stage.stage} {stage.version}" for stage in content.stages))
    publication = what.publication
    about: dict[str, Any] = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": content.name,
        "description": what.description,
        "identifier": f"sha256:{what.manifest.digest}",
        "license": licences.pages([one.licence for one in components.values()]),
        "inLanguage": what.languages,
        "url": publication.url,
        "creator": {"@type": "sc:Organization", "name": publication.creator} if publication.creator else None,
        "datePublished": publication.published,
        "version": publication.release,
        "citeAs": publication.citation,
        "rai:dataCollection": "; ".join(collected),
        "rai:dataPreprocessingProtocol": done,
        "distribution": [_file(one, what.base_url) for one in what.files] + [_file_set(one) for one in what.records],
        "recordSet": [_record_set(one) for one in what.records],
    }
    return json_bytes({key: value for key, value in about.items() if value not in (None, [])})


def _file(file: File, base_url: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": file.path,
        "name": file.path,
        "contentUrl": f"{base_url}{file.path}",
        "contentSize": f"{file.bytes} B",
        "encodingFormat": MEDIA_TYPES[file.path.rpartition(".")[2]],
        "sha256": file.sha256,
    }


def _file_set(records: Records) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": f"{records.name}-files",
        "name": f"{records.name}-files",
        "description": f"the files of {records.name}",
        "encodingFormat": PARQUET,
        "includes": records.includes,
    }


def _record_set(records: Records) -> dict[str, Any]:
    found: dict[str, Any] = {
        "@type": "cr:RecordSet",
        "@id": records.name,
        "name": records.name,
        "description": records.description,
    }
    if records.key is not None:
        found["key"] = {"@id": f"{records.name}/{records.key}"}
    found["field"] = [_field(records.name, one) for one in records.schema]
    return found


def _field(records: str, column: pa.Field) -> dict[str, Any]:
    repeated = pa.types.is_list(column.type)
    found: dict[str, Any] = {
        "@type": "cr:Field",
        "@id": f"{records}/{column.name}",
        "name": column.name,
        "dataType": _data_type(column.type.value_type if repeated else column.type),
        "source": {"fileSet": {"@id": f"{records}-files"}, "extract": {"column": column.name}},
    }
    if column.name in DESCRIPTIONS:
        found["description"] = DESCRIPTIONS[column.name]
    if repeated:
        found["repeated"] = True
    return found


def _data_type(type_: pa.DataType) -> str:
    if pa.types.is_integer(type_):
        return "sc:Integer"
    return "sc:Float" if pa.types.is_floating(type_) else "sc:Text"


class CroissantOptions(Publication):
    base_url: str = Field("", description="put before the paths of files; by default croissant.json lies in the corpus")

    @field_validator("base_url")
    @classmethod
    def _ends(cls, value: str) -> str:
        return f"{value.rstrip('/')}/" if value else ""


class Croissant(Format[CroissantOptions]):
    """`croissant.json` of a corpus: shards, their indexes and logs; records of documents, removals and shard indexes."""

    name = "croissant"
    version = 1
    reads: ClassVar[frozenset[Kind]] = frozenset({"tokens", "logs"})
    options_type = CroissantOptions

    def write(self, source: Source, output: Output, progress: Callable[[int], object]) -> list[Tally]:
        content = source.manifest.content
        described = Described(
            source.manifest,
            f"{content.name}, a text corpus: token shards, and one row for every document that came in, kept or removed.",
            source.components,
            list(_files(source)),
            [
                Records(
                    "documents",
                    "every document that came in; removed_by is empty for those that were kept",
                    [f"logs/documents/{name}/*.parquet" for name in source.components],
                    DOCUMENT_LOG,
                    "id",
                ),
                Records(
                    "removals",
                    "every document that was removed, by which rule and on what evidence",
                    [f"logs/removals/{name}/*.parquet" for name in source.components],
                    REMOVALS,
                    "id",
                ),
                Records(
                    "shard_index",
                    "where the tokens of each kept document are",
                    [f"tokens/{group.component}/{group.split}/*.parquet" for group in source.groups],
                    SHARD_INDEX,
                    "id",
                ),
            ],
            Publication(**self.options.model_dump(exclude={"base_url"})),
            base_url=self.options.base_url,
        )
        output.write(FILE, describe(described))
        return [group.tally for group in source.groups]


def _files(source: Source) -> Iterable[File]:
    """Files whose sizes the manifest does not tell are asked for theirs."""
    content = source.manifest.content
    tokenizer = source.tokenizer
    yield File(path=tokenizer.file, bytes=source.corpus.size(tokenizer.file), sha256=tokenizer.sha256)
    for group in source.groups:
        for shard in group.shards:
            yield File(path=shard.path, bytes=source.corpus.size(shard.path), sha256=shard.sha256)
            yield File(path=shard.index, bytes=source.corpus.size(shard.index), sha256=shard.index_sha256)
    for log in content.logs:
        if log.path.split("/")[2] in source.components:
            yield File(path=log.path, bytes=log.bytes, sha256=log.sha256)
