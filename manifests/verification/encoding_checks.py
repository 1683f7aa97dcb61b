"""Does the tokenizer of a corpus encode its texts as they stand in its shards?

Two tokenizers can have the same ids that stand for the same bytes and still cut texts otherwise: merges in another order, text
that is changed first. So the first documents of each shard are encoded again, by the library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from manifests.manifest import TokenizerRecord
from manifests.tokenizer_file import TokenizerFile

SAMPLE_BYTES = 1 << 18
"""Of text that is encoded again of each shard; a longer document is left out."""


PIECES = ["Split", "ByteLevel"]
"""How one that was trained here cuts texts: by a regular expression, and then into bytes."""


class EncodingError(Exception):
    """A tokenizer.json that the library does not take; the message says why."""


class Encoding:
    """A tokenizer.json at work: whole texts, in which nothing is special and nothing is added."""

    def __init__(self, data: bytes) -> None:
        from tokenizers import Tokenizer  # most that import this encode nothing

        try:
            self._tokenizer: Any = Tokenizer.from_str(data.decode())
        except Exception as error:  # the library raises plain Exception
            raise EncodingError(f"the library tokenizers does not take it: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True

    def ids(self, text: str) -> list[int] | None:
        """None where the library cannot cut the text: its regular expression gives up on some."""
        try:
            found: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        except BaseException as error:  # a panic of the library is no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError | GeneratorExit):
                raise
            return None
        return found


def check_setting(data: bytes, record: TokenizerRecord) -> Iterator[str]:
    """What a tokenizer that was trained here has beside its vocabulary: no normaliser, pieces by a regular expression, and the
    decoder of byte-level BPE. One that was given may have others."""
    if record.training is None:
        return
    raw = json.loads(data)
    if raw.get("normalizer") is not None:
        yield f"has the normaliser {_name(raw['normalizer'])}, and one that is trained here changes no text"
    if _name(raw.get("decoder")) != "ByteLevel":
        yield f"has the decoder {_name(raw.get('decoder'))} in place of ByteLevel: its tokens would not be decoded to texts"
    if raw.get("truncation") is not None or raw.get("padding") is not None:
        yield "cuts or fills texts, and one that is trained here does not"
    cuts = raw.get("pre_tokenizer") or {}
    kinds = [_name(one) for one in cuts.get("pretokenizers", ())] if _name(cuts) == "Sequence" else [_name(cuts)]
    if kinds != PIECES:
        yield f"cuts texts by {', '.join(kinds)}, and one that is trained here by {', '.join(PIECES)}"
    model = raw["model"]
    if model.get("type", "BPE") != "BPE" or model.get("dropout") or model.get("ignore_merges"):
        yield "its model is no plain BPE, and one that is trained here is"


def _name(part: Any) -> str:
    return str(part.get("type")) if isinstance(part, dict) else "none"


class Sample:
    """The first documents of one shard, up to SAMPLE_BYTES of text."""

    def __init__(self, encoding: Encoding, file: TokenizerFile) -> None:
        self.encoding, self.file = encoding, file
        self.left = SAMPLE_BYTES

    def difference(self, tokens: npt.NDArray[Any]) -> str | None:
        """What differs for one document (BOS and its text), or None; None too of one that does not fit."""
        text = tokens[1:]
        size = int(self.file.lengths[text].sum())
        if size > self.left:
            return None
        self.left -= size
        try:
            again = self.encoding.ids(self.file.decode(text).decode())
        except UnicodeDecodeError:
            return "its tokens are no UTF-8"
        if again is None:
            return None
        found = np.array(again, np.int64)
        both = min(len(found), len(text))
        differ = np.flatnonzero(found[:both] != text[:both].astype(np.int64))
        if not differ.size and len(found) == len(text):
            return None
        at = int(differ[0]) if differ.size else both
        mine, theirs = (str(one[at]) if at < len(one) else "nothing" for one in (found, text))
        return f"the tokenizer encodes its text otherwise: {mine} in place of {theirs} as its token {at + 1}"
