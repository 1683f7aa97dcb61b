"""tiktoken as a faster engine for the same tokenizer.json: several times the speed, the same ids.

The two libraries describe BPE differently: `tokenizers` by a list of merges, tiktoken by the ranks of the tokens that merges
give. They agree on every piece of text if

1. each merge gives a token of its own, ids ascend in the order of the merges, and every token is a byte, a special token, or what
   a merge gives; and
2. every token comes out whole when its own bytes are encoded.

For then, whenever two neighbouring tokens together spell a token, no merge has crossed the ends of that stretch, so what happened
within it is what happens when it is encoded alone; and there the only two tokens that ever stand side by side are those of its
own merge. `why_not` tests both, and that nothing else in the file changes a text. What no test of the file can show is that two
regular expression engines cut every text alike; so parity is tried on texts too.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import tiktoken
from tokenizers import Tokenizer

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What `ByteLevel` with `use_regex` cuts by (Radford et al. 2019)."""


NO_TOKEN = "\0\0corpusmill\0\0"
"""A special token that is never allowed, so a text that spells it is text: a tokenizer without any would make tiktoken look for
the empty one at every character, which halves its speed."""


class TiktokenEngine:
    """Encodes ordinary text to ids; `None` for a text that it cannot encode, which is then another engine's.

    tiktoken drops what its pattern does not match: the caller compares the length of what the ids stand for.
    """

    def __init__(self, pattern: str, pieces: list[bytes]) -> None:
        ranks = {piece: number for number, piece in enumerate(pieces) if piece}
        special = {NO_TOKEN: len(pieces)}
        self._encoding = tiktoken.Encoding("corpusmill", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)

    def encode(self, texts: list[str]) -> list[np.ndarray | None]:
        """The ids of every text, uint32. One that needs more of a stack than the regular expression has (a run of about a million
        spaces where the pattern bounds no piece) is None."""
        return [self._ids(text) for text in texts]

    def _ids(self, text: str) -> np.ndarray | None:
        try:
            ids: np.ndarray = self._encoding.encode_to_numpy(text, disallowed_special=())
        except BaseException as error:  # a panic of the library is no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError | GeneratorExit):
                raise
            return None
        return ids


def pattern_of(description: dict[str, Any]) -> str | None:
    """The regular expression by which a tokenizer.json cuts text into pieces, or None where it is no single one."""
    cutter = description.get("pre_tokenizer") or {}
    if cutter.get("type") == "Sequence" and len(cutter["pretokenizers"]) == 2:
        split, level = cutter["pretokenizers"]
        pattern = split.get("pattern", {}).get("Regex") if split.get("type") == "Split" else None
        isolated = split.get("behavior") == "Isolated" and not split.get("invert")
        if pattern and isolated and level.get("type") == "ByteLevel" and not level.get("use_regex", True):
            return None if level.get("add_prefix_space") else str(pattern)
    if cutter.get("type") == "ByteLevel" and cutter.get("use_regex", True) and not cutter.get("add_prefix_space"):
        return GPT2_PATTERN
    return None


def why_not(tokenizer_json: str) -> str | None:
    """Why tiktoken may not stand in for this tokenizer.json, which `tokenizers` can load, or None where the criterion above
    holds."""
    description = json.loads(tokenizer_json)
    model = description["model"]
    if description.get("normalizer") is not None:
        return "it normalises text"
    if pattern_of(description) is None:
        return "it does not cut text by one regular expression"
    if model.get("type") not in ("BPE", None) or model.get("byte_fallback") or model.get("dropout"):
        return "its model is not plain byte-level BPE"
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return "its tokens differ by their place in a word"
    added = description.get("added_tokens") or []
    if ordinary := [token["content"] for token in added if not token.get("special")]:
        return f"its added token {ordinary[0]!r} is found in text before BPE begins"
    vocabulary: dict[str, int] = model["vocab"]
    special = {token["content"] for token in added}
    made: set[str] = set()
    last = -1
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        number = vocabulary.get(left + right)
        if number is None or number <= last:
            return f"the merge of {left!r} and {right!r} gives a token out of order"
        last = number
        made.add(left + right)
    if extra := [token for token in vocabulary if len(token) > 1 and token not in made and token not in special]:
        return f"no merge gives its token {extra[0]!r}"
    # `ignore_merges` gives a whole piece its token without asking the merges; within a longer piece they are asked all the same.
    by_merges = {**description, "model": {**model, "ignore_merges": False}}
    plain = Tokenizer.from_str(json.dumps(by_merges)).model
    for token in made:
        if [piece.value for piece in plain.tokenize(token)] != [token]:
            return f"its token {token!r} does not come out when its own bytes are encoded"
    return None
