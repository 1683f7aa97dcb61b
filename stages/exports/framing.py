"""How documents begin and end in an export of tokens."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from manifests.manifest import TokenizerRecord
from stages.exports.format import ExportError, Tally
from stages.shard_texts import TokenSlice
from stages.stage import Options


class FramingOptions(Options):
    bos: bool = Field(True, description="keep BOS, which begins every document in the corpus")
    eod: str | None = Field(None, description="a special token, by name, that is put behind every document")


class Framing:
    """ExportError for an `eod` that is no special token of the tokenizer."""

    def __init__(self, options: FramingOptions, tokenizer: TokenizerRecord) -> None:
        self.bos = options.bos
        self.eod: int | None = None
        if options.eod is not None:
            if options.eod not in tokenizer.special_tokens:
                known = sorted(tokenizer.special_tokens, key=lambda name: tokenizer.special_tokens[name])
                shown = ", ".join(known[:8]) + (", …" if len(known) > 8 else "")
                raise ExportError(f"{options.eod!r} is no special token of this corpus; it has {shown}")
            self.eod = tokenizer.special_tokens[options.eod]

    @property
    def longer(self) -> int:
        """Tokens that every document has more than in the corpus; -1 for one less."""
        return (self.eod is not None) - (not self.bos)

    def expected(self, tally: Tally) -> Tally:
        return tally.add(0, 0, self.longer * tally.documents)

    def frame(self, part: TokenSlice) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, offsets) of the documents of a slice with their beginnings and ends."""
        tokens, offsets = part.tokens, part.offsets
        if self.eod is not None:
            tokens = np.insert(tokens, offsets[1:], self.eod)
            offsets = offsets + np.arange(len(offsets))
        if not self.bos:
            tokens = np.delete(tokens, offsets[:-1])
            offsets = offsets - np.arange(len(offsets))
        return tokens, offsets
