"""tokenizer.json of byte-level BPE, as far as it can be read without the library that encodes: its ids, its special tokens, and
the bytes that every token stands for. So tokens can be counted and spelt by whoever has a corpus.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from manifests.manifest import LARGEST_VOCABULARY, TokenizerRecord

Int64 = npt.NDArray[np.int64]


class TokenizerFileError(Exception):
    """A file that is no tokenizer.json of byte-level BPE; the message says why."""


@dataclass(frozen=True)
class TokenizerFile:
    """vocabulary: ids are below it. special_tokens: name to id. pieces: of each id the bytes that it stands for; special ones,
    and ids that no token has, stand for none."""

    vocabulary: int
    special_tokens: dict[str, int]
    pieces: list[bytes]

    @staticmethod
    def parse(data: bytes) -> TokenizerFile:
        """TokenizerFileError where it is none."""
        try:
            raw = json.loads(data)
            vocabulary: dict[str, int] = dict(raw["model"]["vocab"])
            added: list[dict[str, Any]] = raw.get("added_tokens") or []
            special = {str(token["content"]): int(token["id"]) for token in added if token.get("special")}
            plain = {str(token["content"]): int(token["id"]) for token in added if not token.get("special")}
            numbers = [*vocabulary.values(), *special.values(), *plain.values()]
            size = max(numbers, default=-1) + 1
            if not all(isinstance(one, int) for one in numbers) or not 0 < size <= LARGEST_VOCABULARY or min(numbers) < 0:
                raise TokenizerFileError(f"its ids are not 0 to {LARGEST_VOCABULARY - 1:,}")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TokenizerFileError(f"no tokenizer.json of BPE: {type(error).__name__}: {error}") from None
        return TokenizerFile(size, special, _pieces(size, vocabulary, plain, special))

    def differences(self, record: TokenizerRecord) -> Iterator[str]:
        """What the manifest says otherwise of it."""
        if self.vocabulary != record.vocabulary:
            yield f"its vocabulary of {self.vocabulary} is not the {record.vocabulary} of the manifest"
        if self.special_tokens != record.special_tokens:
            names = sorted(self.special_tokens.items() ^ record.special_tokens.items())
            told = ", ".join(f"{name} {number}" for name, number in names[:4])
            yield f"its special tokens are not those of the manifest: they differ in {told}"
        if record.bos_id not in self.special_tokens.values():
            yield f"the id {record.bos_id}, with which documents begin by the manifest, is no special token of it"

    @cached_property
    def edges(self) -> Int64:
        """(vocabulary + 1,): where the bytes of each id begin in all of them."""
        return np.concatenate([[0], np.cumsum([len(piece) for piece in self.pieces])]).astype(np.int64)

    @cached_property
    def lengths(self) -> Int64:
        """Bytes that each id stands for."""
        return np.diff(self.edges)

    @cached_property
    def special(self) -> npt.NDArray[np.bool_]:
        """Whether each id is a special token."""
        found = np.zeros(self.vocabulary, bool)
        found[list(self.special_tokens.values())] = True
        return found

    def decode(self, tokens: npt.NDArray[Any]) -> bytes:
        """The bytes that ids below the vocabulary stand for."""
        sizes = self.lengths[tokens]
        ends = np.cumsum(sizes)
        places = np.repeat(self.edges[tokens] - (ends - sizes), sizes) + np.arange(int(ends[-1]) if len(ends) else 0)
        return self._joined[places].tobytes()

    @cached_property
    def _joined(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(b"".join(self.pieces), np.uint8)


def byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes, ascending, for U+0100 and on."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in itself]
    return {chr(byte): byte for byte in itself} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


def _pieces(size: int, vocabulary: dict[str, int], plain: dict[str, int], special: dict[str, int]) -> list[bytes]:
    pieces, owner = [b""] * size, dict[int, str]()
    alphabet = byte_of_character()
    known, to_byte = frozenset(alphabet), str.maketrans(alphabet)
    for token, number in (*special.items(), *plain.items(), *vocabulary.items()):
        if owner.setdefault(number, token) != token:
            raise TokenizerFileError(f"two tokens have the id {number}: {owner[number]!r} and {token!r}")
    for token, number in vocabulary.items():
        if token in special or token in plain:
            continue
        if not known.issuperset(token):
            raise TokenizerFileError(f"token {number}, {token!r}, is not made of bytes: it is no byte-level BPE")
        pieces[number] = token.translate(to_byte).encode("latin-1")
    for token, number in plain.items():
        pieces[number] = token.encode(errors="surrogatepass")
    return pieces
