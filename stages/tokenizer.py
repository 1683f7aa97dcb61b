"""Byte-level BPE (Sennrich et al. 2016; bytes: Radford et al. 2019): trained on a sample, and exact in both directions.

All 256 bytes are tokens and nothing is normalised, so every text round-trips. Text that spells a special token is
ordinary text; special ids come from the program alone. Training gives the same tokenizer.json for the same texts in the
same order, whatever the number of threads.

Before BPE a text is cut into pieces (words with their leading space, numbers, punctuation, white space), and no piece
is longer than `LONGEST_PIECE` characters: a run of megabytes without a space costs no more than other text of as many distinct
pieces. How much distinct text there may be is for whoever draws the sample (`stages.distinct_words`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
from numba import njit
from pydantic import Field, model_validator
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from manifests.identity import keyed_hash
from manifests.manifest import LARGEST_VOCABULARY
from manifests.tokenizer_file import byte_of_character
from stages import text_buffers
from stages.shards import token_dtype
from stages.stage import DataFile, Options
from stages.tiktoken_engine import TiktokenEngine, pattern_of, why_not

VERSION = 2
NAME = "tokenizer"
BOS = "<|bos|>"
RESERVED = "<|reserved_{}|>"
SPECIAL_TOKENS = 16
"""Ids 0 to 15 are BOS and 15 reserved ones, for whoever trains further."""

LONGEST_PIECE = 48
"""Characters; longer than all but a few words of any language that writes spaces. Chosen here."""

LARGEST_SAMPLE = 2**31 - 1
"""Bytes. The library counts pairs in 32 bits; no pair occurs more often than there are bytes."""

LONGEST_CHARACTER = 4
"""Bytes of UTF-8."""

FED_CHARACTERS = 1 << 16
"""Training hands the library texts of at most so many characters: it reads 256 of them ahead."""

ENCODED_AT_ONCE = 4 << 20
"""Bytes of text that are encoded in one call, which bounds the memory of intermediate results."""

BOS_NAMES = (BOS, "<|begin_of_text|>", "<|beginoftext|>", "<|startoftext|>", "<s>", "<bos>", "[BOS]", "<|endoftext|>")
"""What begins a document in tokenizers that were not trained here, in the order in which they are looked for."""


Engine = Literal["tokenizers", "tiktoken"]

PARITY_BYTES = 4 << 20
"""Text on which every run tries whether tiktoken encodes as `tokenizers` does."""


class TokenizerError(Exception):
    """A tokenizer that would lose text, or a sample that nothing can be learned from."""


class TokenizerOptions(Options):
    """Either `file`, a tokenizer.json to use as it is, or how one is trained."""

    file: Annotated[str, DataFile()] | None = Field(None, description="a tokenizer.json to use instead of training one")
    vocabulary: int = Field(32_768, ge=512, le=LARGEST_VOCABULARY, description="entries to train, special tokens included")
    pad_to: int = Field(
        64, ge=1, le=LARGEST_VOCABULARY, description="reserved tokens fill the vocabulary up to a multiple of this"
    )
    sample_bytes: int = Field(
        256 << 20, ge=1, le=LARGEST_SAMPLE, description="UTF-8 bytes of training documents that it is trained on"
    )
    document_cap_bytes: int = Field(1 << 20, ge=4, description="of each document at most so many bytes are used")
    distinct_bytes: int = Field(
        32 << 20,
        ge=1 << 16,
        description="bytes of distinct words: the sample is made smaller to have no more, since training holds 150 times as much",
    )
    mixture: Annotated[str, DataFile()] | None = Field(
        None, description="the mixture that the sample has the shares of: the file that `corpusmill mixture` reads; none: natural"
    )
    digits: Literal["single", "pairs", "triple", "whole"] = Field(
        "triple", description="digits apart, in groups of up to two or three from the left, or a number as one piece"
    )
    minimum_frequency: int = Field(2, ge=1, description="a pair that occurs less often is not merged")
    bos: str | None = Field(None, description="the token of `file` that begins a document, if it has an unusual name")
    engine: Literal["auto", "tokenizers"] = Field(
        "auto", description="auto: tiktoken where it provably gives the same ids, which is faster; else tokenizers"
    )

    @model_validator(mode="after")
    def _bos_of_a_file(self) -> TokenizerOptions:
        if self.bos is not None and self.file is None:
            raise ValueError(f"bos names a token of `file`; a trained tokenizer begins documents with {BOS}")
        if self.mixture is not None and self.file is not None:
            raise ValueError("mixture says what a tokenizer is trained on, and `file` is one that is trained already")
        return self


def train_tokenizer(texts: Iterable[str], options: TokenizerOptions) -> str:
    """tokenizer.json trained on `texts` in their order: each cut to `document_cap_bytes`, until `sample_bytes` are used up; the
    last is cut to what is left of them.

    TokenizerError when there is no text at all. A small sample gives a smaller vocabulary than was asked for. Memory: up to 150
    bytes for each byte of a distinct piece; `distinct_bytes` is for who chooses the texts.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(piece_pattern(options.digits)), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [BOS, *(RESERVED.format(number) for number in range(1, SPECIAL_TOKENS))]
    trainer = trainers.BpeTrainer(
        vocab_size=options.vocabulary,
        min_frequency=options.minimum_frequency,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    sample = _Sample(texts, options)
    tokenizer.train_from_iterator(sample.texts(), trainer)
    if not sample.bytes:
        raise TokenizerError("no text to train a tokenizer on")
    entries = tokenizer.get_vocab_size()
    padding = -entries % options.pad_to
    reserved = [RESERVED.format(number) for number in range(SPECIAL_TOKENS, SPECIAL_TOKENS + padding)]
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in reserved])
    return str(tokenizer.to_str(pretty=True))


def choose_engine(tokenizer_json: str, bos: str | None, texts: Iterable[str]) -> tuple[Engine, str | None]:
    """What to encode with, and why it is not tiktoken: that takes a tokenizer which passes `tiktoken_engine.why_not`, and no
    difference on probes and on `texts`."""
    reason = why_not(tokenizer_json)
    if reason is not None:
        return "tokenizers", reason
    try:
        encoder = Encoder(tokenizer_json, bos, "tiktoken")
    except (ValueError, TokenizerError) as error:
        return "tokenizers", f"tiktoken does not take it: {error}"
    try:
        different = encoder.disagreement([*_probes([*encoder.special_tokens]), *texts])
    except TokenizerError as error:
        return "tokenizers", f"the two could not be compared: {error}"
    return ("tokenizers", f"tiktoken encodes {different!r} otherwise") if different is not None else ("tiktoken", None)


def sample_key(seed: int, printed_id: str) -> int:
    """A document's place in the order in which training documents are taken for the sample; 64 bits."""
    return keyed_hash(f"tokenizer sample {seed}", printed_id)


def library_tokenizer(tokenizer_json: str) -> Tokenizer:
    """The library's tokenizer, set up to encode whole texts as text; TokenizerError when it cannot."""
    try:
        tokenizer = Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"not a tokenizer.json: {error}") from error
    if getattr(tokenizer.model, "dropout", None):
        raise TokenizerError("its model has dropout: it would encode the same text differently each time")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # text that spells a special token is text
    return tokenizer


def encode_batch(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """The ids of every text, by the library; TokenizerError where its regular expression gives up: Oniguruma does after ten
    million steps back in one place."""
    try:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    except BaseException as error:  # a panic of the library is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError | GeneratorExit):
            raise
        raise TokenizerError(f"it cannot cut one of {len(texts)} texts, such as {texts[0][:60]!r}: {error}") from None
    return [encoding.ids for encoding in encodings]


class Encoder:
    """A tokenizer.json at work. TokenizerError when it is not byte-level BPE, or changes any text.

    vocabulary: ids are below it. dtype: of ids on disk. bos_id: begins every document. special_tokens: name to id.
    """

    def __init__(self, tokenizer_json: str, bos: str | None = None, engine: Engine = "tokenizers") -> None:
        self._tokenizer = library_tokenizer(tokenizer_json)
        if not isinstance(self._tokenizer.model, models.BPE):
            raise TokenizerError(f"its model is {type(self._tokenizer.model).__name__}: only byte-level BPE is supported")
        self._normalises = self._tokenizer.normalizer is not None
        added = json.loads(tokenizer_json).get("added_tokens") or []
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self._check_ids(vocabulary, added)
        self.special_tokens: dict[str, int] = {token["content"]: token["id"] for token in added if token.get("special")}
        self.vocabulary = max(vocabulary.values(), default=-1) + 1
        if not 0 < self.vocabulary <= LARGEST_VOCABULARY:
            raise TokenizerError(
                f"its largest id makes a vocabulary of {self.vocabulary:,}; 1 to {LARGEST_VOCABULARY:,} are possible"
            )
        self.dtype = token_dtype(self.vocabulary)
        self.bos_id = self._find_bos(bos)
        self._bytes_of = self._byte_table(vocabulary, {token["id"]: token["content"] for token in added})
        self._fast: TiktokenEngine | None = None
        if engine == "tiktoken":
            pattern = pattern_of(json.loads(tokenizer_json))
            if pattern is None:
                raise TokenizerError("tiktoken cannot cut text as it does")
            self._fast = TiktokenEngine(pattern, self._bytes_of)
        self._check_round_trip()

    def encode(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """(offsets int64 (n + 1,), ids): document i is `ids[offsets[i]:offsets[i + 1]]`, BOS and then its text.

        TokenizerError for a text of which the tokens would not be every byte.
        """
        _, places = text_buffers.of(texts)
        offsets = np.zeros(len(places), np.int64)
        pieces = []
        for first, last in _groups(places):
            group = ["" if text is None else text for text in texts.slice(first, last - first).to_pylist()]
            ends, ids = self._encode(group, np.diff(places[first : last + 1]))
            offsets[first + 1 : last + 1] = offsets[first] + ends[1:]
            pieces.append(ids)
        return offsets, pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, self.dtype), *pieces])

    def disagreement(self, texts: Iterable[str]) -> str | None:
        """The beginning of the first text that tiktoken encodes otherwise than `tokenizers`, or None."""
        for text in texts:
            _, ids = self._encode([text], np.array([len(text.encode())]))
            if ids[1:].tolist() != encode_batch(self._tokenizer, [text])[0]:
                return text[:80]
        return None

    def _encode(self, texts: list[str], sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same for texts of these UTF-8 bytes. What the fast engine cannot encode, or not all of, is encoded by the other."""
        found: list[np.ndarray | None] = [None] * len(texts) if self._fast is None else self._fast.encode(texts)
        offsets, ids = self._joined(found)
        left = np.flatnonzero(self._sizes(offsets, ids) != sizes).tolist()
        if left:
            for row, slow in zip(left, encode_batch(self._tokenizer, [texts[row] for row in left]), strict=True):
                found[row] = np.array(slow, np.uint32)
            offsets, ids = self._joined(found)
            lost = np.flatnonzero(self._sizes(offsets, ids) != sizes).tolist()
            if lost:
                raise TokenizerError(f"it changes text: not every byte of {texts[lost[0]][:60]!r} is in its tokens")
        if self._normalises:  # as many bytes need not be the same ones
            for row, text in enumerate(texts):
                if self.decode(ids[offsets[row] : offsets[row + 1]]) != text.encode():
                    raise TokenizerError(f"it changes text: normalised, {text[:60]!r} is another text")
        return offsets, ids

    def _joined(self, found: list[np.ndarray | None]) -> tuple[np.ndarray, np.ndarray]:
        """BOS and the ids of each text, one after another; those of a text without any are BOS."""
        offsets = np.zeros(len(found) + 1, np.int64)
        np.cumsum([1 if ids is None else 1 + len(ids) for ids in found], out=offsets[1:])
        joined = np.empty(int(offsets[-1]), self.dtype)
        joined[offsets[:-1]] = self.bos_id
        for ids, end in zip(found, offsets[1:].tolist(), strict=True):
            if ids is not None and len(ids):
                joined[end - len(ids) : end] = ids
        return offsets, joined

    def _sizes(self, offsets: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Bytes that the tokens of each document stand for."""
        bounds = np.zeros(len(offsets), np.int64)
        _measure(ids, offsets, self._pieces[1], bounds)
        return np.diff(bounds)

    def decode(self, ids: np.ndarray) -> bytes:
        """The UTF-8 of the text that `ids` stand for; special ids stand for nothing. ValueError for an unknown id."""
        numbers = np.asarray(ids).tolist()
        if numbers and not 0 <= min(numbers) <= max(numbers) < self.vocabulary:
            raise ValueError(f"token id {max(numbers)} is not in a vocabulary of {self.vocabulary}")
        return b"".join(self._bytes_of[number] for number in numbers)

    def decode_all(self, ids: np.ndarray, offsets: np.ndarray) -> pa.Array:
        """The texts of n documents, large_string: document i is `ids[offsets[i]:offsets[i + 1]]`, as `encode` gives them.

        ValueError for an unknown id, and for bytes that are no UTF-8.
        """
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocabulary:
            raise ValueError(f"token id {int(ids.max())} is not in a vocabulary of {self.vocabulary}")
        pieces, edges = self._pieces
        bounds = np.zeros(len(offsets), np.int64)
        _measure(ids, offsets, edges, bounds)
        data = np.empty(int(bounds[-1]), np.uint8)
        _join(ids[offsets[0] : offsets[-1]], pieces, edges, data)
        texts = text_buffers.column(data, bounds)
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            raise ValueError("these tokens are no UTF-8") from None
        return texts

    @cached_property
    def _pieces(self) -> tuple[np.ndarray, np.ndarray]:
        """(uint8, int64 (vocabulary + 1,)): the bytes of all tokens, special ones having none, and where those of each begin."""
        edges = np.zeros(self.vocabulary + 1, np.int64)
        np.cumsum([len(piece) for piece in self._bytes_of], out=edges[1:])
        return np.frombuffer(b"".join(self._bytes_of), np.uint8), edges

    def _check_ids(self, vocabulary: dict[str, int], added: list[dict[str, Any]]) -> None:
        """The file's ids are those at work, each of one token: otherwise nobody could tell what an id stands for."""
        for token in added:
            number = self._tokenizer.token_to_id(token["content"])
            if number != token["id"]:
                raise TokenizerError(f"its added token {token['content']!r} has the id {token['id']} there, and {number} at work")
        if len(set(vocabulary.values())) < len(vocabulary):
            owner: dict[int, str] = {}
            for name, number in sorted(vocabulary.items()):
                if owner.setdefault(number, name) != name:
                    raise TokenizerError(f"its tokens {owner[number]!r} and {name!r} both have the id {number}")

    def _find_bos(self, wanted: str | None) -> int:
        names = BOS_NAMES if wanted is None else (wanted,)
        for name in names:
            if name in self.special_tokens:
                return self.special_tokens[name]
        known = ", ".join(sorted(self.special_tokens)) or "none"
        raise TokenizerError(f"no special token begins a document: looked for {', '.join(names)}; it has {known}")

    def _byte_table(self, vocabulary: dict[str, int], added: dict[int, str]) -> list[bytes]:
        byte_of = byte_of_character()
        missing = sorted(byte_of[character] for character in byte_of if character not in vocabulary)
        if missing:
            raise TokenizerError(f"{len(missing)} of 256 bytes are no tokens, the first is {missing[0]:#04x}: text would vanish")
        special = set(self.special_tokens.values())
        alphabet, to_byte = frozenset(byte_of), str.maketrans(byte_of)
        table = [b""] * self.vocabulary
        for token, number in vocabulary.items():
            if number in special:
                continue
            if number in added:
                table[number] = added[number].encode()
            elif alphabet.issuperset(token):
                table[number] = token.translate(to_byte).encode("latin-1")
            else:
                raise TokenizerError(f"token {number}, {token!r}, is not made of bytes: only byte-level BPE is supported")
        return table

    def _check_round_trip(self) -> None:
        special = set(self.special_tokens.values())
        for probe in _probes([*self.special_tokens]):
            _, ids = self.encode(pa.array([probe], pa.large_string()))
            if self.decode(ids) != probe.encode():
                raise TokenizerError(f"it changes text: {probe[:40]!r} comes back as {self.decode(ids)[:60]!r}")
            if special.intersection(ids[1:].tolist()):
                raise TokenizerError(f"text becomes a special token: {probe[:40]!r}")


@njit(cache=True, nogil=True)
def _measure(ids, offsets, edges, bounds):  # type: ignore[no-untyped-def]
    """Writes to `bounds` where the bytes of each document end, behind a 0."""
    size = 0
    for document in range(offsets.size - 1):
        for place in range(offsets[document], offsets[document + 1]):
            token = np.int64(ids[place])
            size += edges[token + 1] - edges[token]
        bounds[document + 1] = size


@njit(cache=True, nogil=True)
def _join(ids, pieces, edges, data):  # type: ignore[no-untyped-def]
    """Writes the bytes of all tokens one after another."""
    at = 0
    for place in range(ids.size):
        token = np.int64(ids[place])
        for index in range(edges[token], edges[token + 1]):
            data[at] = pieces[index]
            at += 1


def piece_pattern(digits: str) -> str:
    """The pieces that BPE does not cross: a regular expression that matches every character, in the dialect of
    Oniguruma.

    In this order: English contractions; letters with one leading space or mark; numbers; punctuation with one leading
    space and the line ends after it; line ends with the white space before them; white space without its last
    character, which belongs to the word behind it; white space.
    """
    most = LONGEST_PIECE
    longest = {"single": 1, "pairs": 2, "triple": 3, "whole": most}[digits]
    numbers = r"\p{N}" if longest == 1 else rf"\p{{N}}{{1,{longest}}}"
    return "|".join(
        [
            r"'(?i:[sdmt]|ll|ve|re)",
            rf"[^\r\n\p{{L}}\p{{M}}\p{{N}}]?[\p{{L}}\p{{M}}]{{1,{most}}}",
            numbers,
            rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]{{1,{most}}}[\r\n]{{0,{most}}}",
            rf"\s{{0,{most}}}[\r\n]{{1,{most}}}",
            rf"\s{{1,{most}}}(?!\S)",
            rf"\s{{1,{most}}}",
        ]
    )


def cut(text: str, most: int) -> str:
    """`text` cut to at most `most` bytes of UTF-8, between characters."""
    if 4 * len(text) <= most:
        return text
    data = text.encode()
    return text if len(data) <= most else data[:most].decode(errors="ignore")


class _Sample:
    """Texts cut, counted, and handed out in pieces of `FED_CHARACTERS` at most."""

    def __init__(self, texts: Iterable[str], options: TokenizerOptions) -> None:
        self._texts, self._options, self.bytes = texts, options, 0

    def texts(self) -> Iterator[str]:
        for text in self._texts:
            used = cut(text, min(self._options.sample_bytes - self.bytes, self._options.document_cap_bytes))
            self.bytes += len(used.encode())
            yield from _fed(used)
            if self.bytes + LONGEST_CHARACTER > self._options.sample_bytes:
                return


def _fed(text: str) -> Iterator[str]:
    """`text` in pieces, cut behind an end of a line that no white space follows: no piece of `piece_pattern` crosses that. Where
    there is none, at the limit, which cuts one piece of the pattern in two."""
    start = 0
    while len(text) - start > FED_CHARACTERS:
        end = start + FED_CHARACTERS
        line = text.rfind("\n", start, end)
        while line >= start and text[line + 1].isspace():
            line = text.rfind("\n", start, line)
        end = line + 1 if line >= start else end
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _groups(places: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges of rows of up to ENCODED_AT_ONCE bytes, or of one row; row i lies between places[i] and places[i + 1]."""
    first = 0
    while first < len(places) - 1:
        last = max(first + 1, int(np.searchsorted(places, places[first] + ENCODED_AT_ONCE, side="right")) - 1)
        yield first, last
        first = last


def _probes(special: list[str]) -> list[str]:
    """Texts that normalisation, prefixes, stripping or special tokens would change; together they have every UTF-8 byte."""
    leads = [chr(point) for point in (*range(0x80, 0x800, 0x3F), *range(0x800, 0xD800, 0xFFF), *range(0xE000, 0x110000, 0xFFFF))]
    batched = [special[start : start + 100] for start in range(0, len(special), 100)]
    return [
        "".join(map(chr, range(0x100))),
        "".join(leads),
        " two  spaces\r\n\tand\u00a0a tab \n\n",
        "e\u0301 \u1e9b\u0323 \ufb01 \uff21 \u2126 \u200b",
        "ABC don't 1234567 1,000.50",
        *("".join(f"before {name} after{name}{name}" for name in some) for some in batched),
    ]
