"""What every export is: a name, options, and a function that writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal

from stages.stage import OptionsType

if TYPE_CHECKING:
    from stages.exports.output import Output
    from stages.exports.source import Source

Kind = Literal["tokens", "documents", "logs"]
"""Files of a corpus: shards with their indexes and the tokenizer; the log of documents; all logs."""


class ExportError(Exception):
    """What cannot be exported, or not there; says which file or option and why."""


@dataclass(frozen=True)
class Tally:
    """Documents of one component and split; `tokens` as they stand in the corpus, `written` as they stand in the export."""

    component: str
    split: str
    documents: int
    tokens: int
    written: int

    def add(self, documents: int, tokens: int, written: int) -> Tally:
        return replace(self, documents=self.documents + documents, tokens=self.tokens + tokens, written=self.written + written)


class Format(ABC, Generic[OptionsType]):
    """`version` goes up whenever the bytes of an export can change."""

    name: ClassVar[str]
    version: ClassVar[int]
    reads: ClassVar[frozenset[Kind]]
    options_type: ClassVar[type[Any]]

    def __init__(self, options: OptionsType) -> None:
        self.options = options

    def check(self, source: Source) -> None:
        """ExportError for a corpus that this format cannot hold, before any of it is read. Most can hold any."""

    def expected(self, tally: Tally) -> Tally:
        """What is to be written of what is in the corpus."""
        return tally

    @abstractmethod
    def write(self, source: Source, output: Output, progress: Callable[[int], object]) -> list[Tally]:
        """Writes every group of `source`, and says what was written of each, in their order. What makes the files usable together
        (an index, a card) is written behind all of them."""
