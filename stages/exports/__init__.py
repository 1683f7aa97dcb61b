"""Exports: a finished corpus in the formats that other programs read. One module a format; this is the list of them.

An export is complete once its record, `export.json`, is there: it is written last. The same corpus and options give the same
bytes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from manifests.manifest import Manifest
from manifests.storage import Folder
from stages.exports.format import ExportError as ExportError
from stages.exports.format import Format as Format
from stages.exports.format import Tally
from stages.exports.output import Output, Record
from stages.exports.source import Source
from stages.shard_texts import ShardTextError

FORMATS = {
    "croissant": "stages.exports.croissant:Croissant",
    "mds": "stages.exports.mds:Mds",
    "megatron": "stages.exports.megatron:Megatron",
    "parquet": "stages.exports.huggingface:HuggingFace",
}


@dataclass(frozen=True)
class Exported:
    """What lies in the output now; `present` if it already did."""

    record: Record
    present: bool


def find(name: str) -> type[Format[Any]]:
    """The class behind a format's name."""
    module, _, attribute = FORMATS[name].partition(":")
    found: type[Format[Any]] = getattr(importlib.import_module(module), attribute)
    return found


def export(
    corpus: Folder,
    manifest: Manifest,
    target: Folder,
    format_: Format[Any],
    components: list[str] | None = None,
    splits: list[str] | None = None,
    progress: Callable[[int], object] = lambda tokens: None,
) -> Exported:
    """Writes `components` and `splits` of a corpus, all of them by default, to an empty folder.

    Every file that is read is hashed before anything is written, and documents and tokens are counted in and out. ExportError
    where the corpus is damaged or does not have what was asked for, and where `target` lies in the corpus or holds anything but
    this very export; what a failed export had written is deleted. `progress` is given the tokens of each piece that was read.
    """
    source = Source(corpus, manifest, components, splits)
    output = Output(target, corpus)
    record = Record(
        export=format_.name,
        version=format_.version,
        corpus=manifest.content.name,
        corpus_digest=manifest.digest,
        components=components,
        splits=splits,
        options=format_.options.model_dump(mode="json"),
    )
    present = output.finished(record)
    if present is not None:
        return Exported(present, True)
    try:
        format_.check(source)
        source.check_files(format_.reads)
        written = format_.write(source, output, progress)
        _compare(format_, source, written)
        return Exported(output.finish(record, written), False)
    except ShardTextError as error:
        output.discard()
        raise ExportError(str(error)) from None
    except BaseException:
        output.discard()
        raise


def _compare(format_: Format[Any], source: Source, written: list[Tally]) -> None:
    """Nothing is lost and nothing is added: what was written is what the manifest lists."""
    for group, tally in zip(source.groups, written, strict=True):
        expected = format_.expected(group.tally)
        if tally != expected:
            raise ExportError(f"counted wrongly, which is a mistake of the program: {tally} written, {expected} in the corpus")
