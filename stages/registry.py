"""The names a recipe can use, and where each is implemented. Modules are imported when a recipe names them."""

from __future__ import annotations

import difflib
import importlib
from importlib import metadata
from typing import Any

from stages.stage import Filter, Options, Stage

ROW_LOCAL = {
    "url_filter": "stages.url_filter:UrlFilter",
    "pre_check": "stages.pre_check:PreCheck",
    "extraction": "stages.extraction:Extraction",
    "repair": "stages.repair:Repair",
    "language": "stages.language:Language",
    "gopher_quality": "stages.gopher_quality:GopherQuality",
    "gopher_repetition": "stages.gopher_repetition:GopherRepetition",
    "c4": "stages.c4:C4",
    "fineweb": "stages.fineweb:FineWeb",
    "quality_classifier": "stages.quality_classifier:QualityClassifier",
    "personal_data": "stages.personal_data:PersonalData",
    "decontamination": "stages.decontamination:Decontamination",
}
CORPUS_WIDE = {
    "exact_dedup": "stages.exact_dedup:ExactDedupOptions",
    "line_dedup": "stages.line_dedup:LineDedupOptions",
    "paragraph_dedup": "stages.line_dedup:LineDedupOptions",
    "substring_dedup": "stages.substring_dedup:SubstringDedupOptions",
    "minhash": "stages.minhash:MinHashOptions",
    "split": "stages.split:SplitOptions",
    "tokenizer": "stages.tokenizer:TokenizerOptions",
    "shards": "stages.shards:ShardOptions",
}
"""Stages that need every document at once, by their options; pipeline.plan adds their steps."""
ENTRY_POINTS = "corpusmill.stages"


class UnknownStage(KeyError):
    """A name that no stage has."""


def names() -> list[str]:
    return sorted({*ROW_LOCAL, *(point.name for point in metadata.entry_points(group=ENTRY_POINTS))})


def find(name: str) -> type[Stage[Any]] | type[Filter[Any]]:
    """The class behind a recipe's name; UnknownStage suggests the nearest."""
    if name in ROW_LOCAL:
        module, _, attribute = ROW_LOCAL[name].partition(":")
        found: type[Stage[Any]] | type[Filter[Any]] = getattr(importlib.import_module(module), attribute)
        return found
    for point in metadata.entry_points(group=ENTRY_POINTS, name=name):
        loaded: type[Stage[Any]] | type[Filter[Any]] = point.load()
        return loaded
    near = difflib.get_close_matches(name, names(), 1)
    raise UnknownStage(f"unknown stage {name!r}" + (f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names())}"))


def corpus_wide_options(name: str) -> type[Options]:
    """The options of a corpus-wide stage."""
    module, _, attribute = CORPUS_WIDE[name].partition(":")
    found: type[Options] = getattr(importlib.import_module(module), attribute)
    return found
