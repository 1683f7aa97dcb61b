"""A fastText classifier read from its file, and its labels for whole batches, compiled (Joulin et al. 2017; format version 12).

`Model.predict` gives what fastText's own `predict` gives for the same text: the same rows are added in the same order and
precision. It reads the UTF-8 of a batch without making strings of it, and looks n-grams of characters up in a table where
fastText asks a hash map, which is most of its time. Two things differ on purpose: a newline is a blank and not the end of a
text, and the token `</s>` is passed over, at which fastText would stop.

Models may be quantized (`.ftz`) or not (`.bin`), with hierarchical softmax or softmax; others are refused. The compiled loops
trust the tables that they are given, so `stages.fasttext_file` walks the file first.
"""

# ruff: noqa: SIM110 (plain loops are what is compiled)

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from stages import fasttext_file

MAGIC, VERSION = 793712314, 12
HIERARCHICAL, SOFTMAX = 1, 3
SUPERVISED = 3
MOST_CHARACTERS = 64
"""Far more than anybody uses in an n-gram."""
MOST_BUCKETS = 1 << 27
"""Of n-grams, which a pruned model has a table over: half a gigabyte. fastText's default is 2,000,000."""
LABEL_PREFIX = "__label__"
END_OF_LINE = b"</s>"
NOTHING = -1
"""Label where a text has less than k, or no words."""

FNV_OFFSET, FNV_PRIME = np.uint32(2166136261), np.uint32(16777619)
WORD_NGRAM_FACTOR = np.uint64(116049371)
SMALLEST = 1e-5
"""Added to a probability before its logarithm is taken, in fastText."""


class Model:
    """`labels`: what it can answer, most frequent first. ValueError where a file is no model, or one of another kind."""

    def __init__(self, path: str | Path) -> None:
        fasttext_file.check(path)
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                self._read(_File(data))
            except (struct.error, IndexError) as error:
                raise ValueError(f"{path}: not a fastText model: it ends early") from error
            except ValueError as error:
                raise ValueError(f"{path}: not a fastText model that can be used here: {error}") from None

    def predict(self, data: np.ndarray, pieces: np.ndarray, starts: np.ndarray, best: int) -> tuple[np.ndarray, np.ndarray]:
        """(int32 labels, float32 scores), each (n, best), best first, NOTHING and 0 where there are less. Text k is the UTF-8 of
        data[begin:end] for each (begin, end) in pieces[starts[k]:starts[k + 1]], one after the other."""
        rows = len(starts) - 1
        labels, scores = np.full((rows, best), NOTHING, np.int32), np.zeros((rows, best), np.float32)
        arguments: list[np.ndarray] = [data, pieces, starts, *self._tables, self.output, *self._tree, labels, scores]
        _predict(*arguments)
        return labels, scores

    def of_text(self, text: str, best: int = 1) -> list[tuple[str, float]]:
        """The best labels of one text with their scores."""
        data = np.frombuffer(text.encode(), np.uint8)
        labels, scores = self.predict(data, np.array([[0, len(data)]]), np.array([0, 1]), best)
        return [(self.labels[label], float(score)) for label, score in zip(labels[0], scores[0], strict=True) if label != NOTHING]

    def _read(self, file: _File) -> None:
        if file.numbers("ii") != (MAGIC, VERSION):
            raise ValueError(f"it does not begin with the mark of version {VERSION}")
        dim, _, _, _, _, word_ngrams, loss, kind, bucket, minn, maxn, _, _ = file.numbers("12id")
        if kind != SUPERVISED or loss not in (HIERARCHICAL, SOFTMAX):
            raise ValueError("it is no classifier with softmax or hierarchical softmax")
        words, counts, pruned = self._read_dictionary(file)
        matrix = _matrix(file)
        self.output = _dense(file) if not file.numbers("?")[0] else _quantized(file)
        if matrix.shape[1] != dim or self.output.shape != (len(self.labels), dim):
            raise ValueError("its matrices have other sizes than its vocabulary")
        if not 0 <= minn <= maxn + 1 or not 0 <= maxn <= MOST_CHARACTERS or not 0 <= bucket < 1 << 31 or word_ngrams < 1:
            raise ValueError("its n-grams have no size")
        if bucket > MOST_BUCKETS:
            raise ValueError(f"it has {bucket:,} buckets for n-grams")
        if bucket == 0 and (maxn or word_ngrams > 1):
            raise ValueError("it has n-grams without a row")
        kept = None
        if pruned is not None:
            if len(pruned) and (
                pruned.min() < 0 or pruned[:, 0].max() >= bucket or pruned[:, 1].max() + len(words) >= len(matrix)
            ):
                raise ValueError("it keeps n-grams that have no row")
            kept = np.full(bucket, NOTHING, np.int32)
            kept[pruned[:, 0]] = pruned[:, 1] + len(words)
        elif len(matrix) < len(words) + (bucket if maxn or word_ngrams > 1 else 0):
            raise ValueError("it has n-grams without a row")
        self._tables: tuple[np.ndarray, ...] = (
            matrix,
            _placed(words),
            *_laid_out(words),
            np.empty(0, np.int32) if kept is None else kept,
            np.packbits(np.ones(bucket, bool) if kept is None else kept >= 0, bitorder="little"),
            np.array([bucket, minn, maxn, word_ngrams], np.int64),
        )
        self._tree = _tree(counts) if loss == HIERARCHICAL else (np.empty((0, 2), np.int32),)

    def _read_dictionary(self, file: _File) -> tuple[list[bytes], list[int], np.ndarray | None]:
        size, words, labels, _, pruned = file.numbers("iiiqq")
        if not 0 <= words <= size or words + labels != size:
            raise ValueError("its vocabulary has no size")
        entries = []
        for _ in range(size):
            entries.append((file.text(), *file.numbers("qb")))
        self.labels = [entry[0].decode().removeprefix(LABEL_PREFIX) for entry in entries[words:]]
        known = [entry[0] for entry in entries[:words]]
        counts = [entry[1] for entry in entries[words:]]
        if pruned < 0:
            return known, counts, None
        return known, counts, file.array(np.int32, 2 * pruned).reshape(-1, 2)


class _File:
    """Little-endian, packed, as every machine that fastText is built for writes it."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.position = data, 0

    def numbers(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{form}", self.data, self.position)
        self.position += struct.calcsize(f"<{form}")
        return found

    def array(self, kind: type[np.generic], count: int) -> np.ndarray:
        size = np.dtype(kind).itemsize * count
        if count < 0 or self.position + size > len(self.data):
            raise IndexError
        # A copy: the file is closed when all is read.
        found = np.frombuffer(self.data[self.position : self.position + size], kind).copy()
        self.position += size
        return found

    def text(self) -> bytes:
        end = self.data.find(b"\0", self.position)
        if end < 0:
            raise IndexError
        found = self.data[self.position : end]
        self.position = end + 1
        return found


def _matrix(file: _File) -> np.ndarray:
    return _quantized(file) if file.numbers("?")[0] else _dense(file)


def _dense(file: _File) -> np.ndarray:
    rows, columns = file.numbers("qq")
    return file.array(np.float32, rows * columns).reshape(rows, columns)


def _quantized(file: _File) -> np.ndarray:
    """Product quantization undone (Jégou et al. 2011): norm times centroid, in float32, as fastText multiplies on every use."""
    normed, rows, columns, size = file.numbers("?qqi")
    codes = file.array(np.uint8, size)
    matrix = _centroids(file, codes, rows, columns)
    if normed:
        norms = _centroids(file, file.array(np.uint8, rows), rows, 1)
        matrix *= norms
    return matrix


def _centroids(file: _File, codes: np.ndarray, rows: int, columns: int) -> np.ndarray:
    dim, parts, width, last = file.numbers("4i")
    table = file.array(np.float32, dim * 256)
    if dim != columns or len(codes) != rows * parts or (parts - 1) * width + last != dim:
        raise ValueError("its quantized matrix has no size")
    codes = codes.reshape(rows, parts)
    matrix = np.empty((rows, columns), np.float32)
    for part in range(parts):
        begin = part * width
        end = begin + (last if part == parts - 1 else width)
        centroids = table[part * 256 * width :][: 256 * (end - begin)].reshape(256, end - begin)
        matrix[:, begin:end] = centroids[codes[:, part]]
    return matrix


def _laid_out(words: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    starts = np.cumsum([0, *map(len, words)]).astype(np.int64)
    return np.frombuffer(b"".join(words) + b"\0", np.uint8), starts


def _placed(words: list[bytes]) -> np.ndarray:
    """An open hash table of word numbers, at most half full."""
    size = 1 << max(4, (2 * len(words)).bit_length())
    spelled, starts = _laid_out(words)
    table = np.full(size, NOTHING, np.int32)
    _fill(spelled, starts, table)
    return table


def _tree(counts: list[int]) -> tuple[np.ndarray]:
    """int32 (2k - 1, 2): the two below each node of the Huffman tree that fastText builds, NOTHING below a label."""
    size = len(counts)
    weights = [*counts, *[10**15] * (size - 1)]
    below = np.full((2 * size - 1, 2), NOTHING, np.int32)
    leaf, node = size - 1, size
    for index in range(size, 2 * size - 1):
        for side in range(2):
            if leaf >= 0 and weights[leaf] < weights[node]:
                below[index, side] = leaf
                leaf -= 1
            else:
                below[index, side] = node
                node += 1
        weights[index] = weights[below[index, 0]] + weights[below[index, 1]]
    return (below,)


@njit(cache=True, nogil=True)
def _hash(data, begin, end):  # type: ignore[no-untyped-def]
    """FNV-1a, with bytes extended by their sign as in fastText."""
    value = FNV_OFFSET
    for index in range(begin, end):
        value = np.uint32((value ^ np.uint32(np.int8(data[index]))) * FNV_PRIME)
    return value


@njit(cache=True, nogil=True)
def _fill(spelled, starts, table):  # type: ignore[no-untyped-def]
    mask = np.uint32(table.size - 1)
    for word in range(starts.size - 1):
        place = _hash(spelled, starts[word], starts[word + 1]) & mask
        while table[place] != NOTHING:
            place = (place + np.uint32(1)) & mask
        table[place] = word


@njit(cache=True, nogil=True)
def _word(data, begin, end, value, table, spelled, starts):  # type: ignore[no-untyped-def]
    mask = np.uint32(table.size - 1)
    place = value & mask
    while table[place] != NOTHING:
        word = table[place]
        first = starts[word]
        if starts[word + 1] - first == end - begin:
            same = True
            for index in range(end - begin):
                if spelled[first + index] != data[begin + index]:
                    same = False
                    break
            if same:
                return np.int64(word)
        place = (place + np.uint32(1)) & mask
    return np.int64(NOTHING)


@njit(cache=True, nogil=True)
def _predict(  # type: ignore[no-untyped-def]
    data, pieces, starts, matrix, table, spelled, word_starts, kept, kept_bits, sizes, output, below, labels, scores
):
    dim = matrix.shape[1]
    bucket, minn, maxn, word_ngrams = sizes[0], sizes[1], sizes[2], sizes[3]
    hidden = np.zeros(dim, np.float32)
    # Bytes extended by their sign, as fastText hashes them.
    token = np.empty(64, np.uint32)
    hashes = np.empty(64, np.int32)
    # Words as they are numbered, n-grams by bucket above them. All are found before one is added: memory answers many at once.
    features = np.empty(1024, np.int64)
    own_rows = word_starts.size - 1
    end_of_line = _word(END, 0, END.size, _hash(END, 0, END.size), table, spelled, word_starts)
    for row in range(starts.size - 1):
        count = tokens = 0
        for piece in range(starts[row], starts[row + 1]):
            index, end = pieces[piece, 0], pieces[piece, 1]
            while True:
                while index < end and _is_blank(data[index]):
                    index += 1
                if index == end:
                    break
                begin = index
                while index < end and not _is_blank(data[index]):
                    index += 1
                size = index - begin
                if size == END.size and _is_same(data, begin, END):
                    continue
                value = _hash(data, begin, index)
                word = _word(data, begin, index, value, table, spelled, word_starts)
                if word < 0 and size >= LABEL.size and _is_same(data, begin, LABEL):
                    continue
                if word_ngrams > 1:
                    if tokens == hashes.size:
                        hashes = np.append(hashes, np.empty(tokens, np.int32))
                    hashes[tokens] = np.int32(value)
                tokens += 1
                room = count + 2 + (size + 2) * (maxn + 1)
                if room > features.size:
                    features = np.append(features, np.empty(room, np.int64))
                if word >= 0:
                    features[count] = word
                    count += 1
                if maxn > 0:
                    if size + 2 > token.size:
                        token = np.empty(2 * size + 2, np.uint32)
                    for place in range(size):
                        token[place + 1] = np.uint32(np.int8(data[begin + place]))
                    token[size + 1] = CLOSING
                    count = _subwords(token, size + 2, minn, maxn, bucket, kept_bits, own_rows, features, count)
        if end_of_line >= 0:
            features[count] = end_of_line
            count += 1
        if word_ngrams > 1:
            if tokens == hashes.size:
                hashes = np.append(hashes, np.empty(1, np.int32))
            hashes[tokens] = np.int32(_hash(END, 0, END.size))
            room = count + (tokens + 1) * word_ngrams
            if room > features.size:
                features = np.append(features, np.empty(room, np.int64))
            count = _phrases(hashes, tokens + 1, word_ngrams, bucket, kept_bits, own_rows, features, count)
        if count == 0:
            continue
        if kept.size:
            for feature in range(count):
                if features[feature] >= own_rows:
                    features[feature] = kept[features[feature] - own_rows]
        hidden[:] = 0
        for feature in range(count):
            place = features[feature]
            for column in range(dim):
                hidden[column] += matrix[place, column]
        hidden *= np.float32(1.0 / count)
        if below.shape[0]:
            _descend(hidden, output, below, labels[row], scores[row])
        else:
            _softmax(hidden, output, labels[row], scores[row])


OPENING, CLOSING = np.uint32(ord("<")), np.uint32(ord(">"))
"""Stand around every word."""
END = np.frombuffer(END_OF_LINE, np.uint8)
LABEL = np.frombuffer(LABEL_PREFIX.encode(), np.uint8)


@njit(cache=True, nogil=True, inline="always")
def _is_blank(byte):  # type: ignore[no-untyped-def]
    return byte == 0x20 or byte == 0 or (0x09 <= byte <= 0x0D)


@njit(cache=True, nogil=True)
def _is_same(data, begin, word):  # type: ignore[no-untyped-def]
    for index in range(word.size):
        if data[begin + index] != word[index]:
            return False
    return True


@njit(cache=True, nogil=True)
def _subwords(token, size, minn, maxn, bucket, kept_bits, own_rows, features, count):  # type: ignore[no-untyped-def]
    """Writes down the n-grams of characters of a word, in fastText's order, and returns how many features there are now."""
    token[0] = OPENING
    divisor = np.uint64(bucket)
    reciprocal = (np.uint64(1) << np.uint64(32)) // divisor
    for begin in range(size):
        if token[begin] & np.uint32(0xC0) == 0x80:
            continue
        value = FNV_OFFSET
        index, characters = begin, 1
        while index < size and characters <= maxn:
            value = np.uint32((value ^ token[index]) * FNV_PRIME)
            index += 1
            while index < size and token[index] & np.uint32(0xC0) == 0x80:
                value = np.uint32((value ^ token[index]) * FNV_PRIME)
                index += 1
            if characters >= minn and not (characters == 1 and (begin == 0 or index == size)):
                # value % bucket, without a division: the quotient is right or one too small.
                whole = np.uint64(value)
                place = np.int64(whole - (whole * reciprocal >> np.uint64(32)) * divisor)
                if place >= bucket:
                    place -= bucket
                # Most n-grams of a pruned model are not kept: written anyway, and overwritten by the next.
                features[count] = own_rows + place
                count += np.int64(kept_bits[place >> 3] >> np.uint8(place & 7) & 1)
            characters += 1
    return count


@njit(cache=True, nogil=True)
def _phrases(hashes, tokens, longest, bucket, kept_bits, own_rows, features, count):  # type: ignore[no-untyped-def]
    """The same for n-grams of words."""
    for first in range(tokens):
        value = np.uint64(np.int64(hashes[first]))
        for other in range(first + 1, min(tokens, first + longest)):
            value = value * WORD_NGRAM_FACTOR + np.uint64(np.int64(hashes[other]))
            place = np.int64(value % np.uint64(bucket))
            features[count] = own_rows + place
            count += np.int64(kept_bits[place >> 3] >> np.uint8(place & 7) & 1)
    return count


@njit(cache=True, nogil=True)
def _dot(hidden, output, row):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for column in range(hidden.size):
        total += output[row, column] * hidden[column]
    return total


@njit(cache=True, nogil=True)
def _log(probability):  # type: ignore[no-untyped-def]
    return np.float32(np.log(np.float64(probability) + SMALLEST))


@njit(cache=True, nogil=True)
def _descend(hidden, output, below, labels, scores):  # type: ignore[no-untyped-def]
    """The best leaves of the Huffman tree, left before right as fastText walks it."""
    best = labels.size
    leaves = (below.shape[0] + 1) // 2
    nodes, reached = np.empty(below.shape[0], np.int32), np.empty(below.shape[0], np.float32)
    nodes[0], reached[0] = below.shape[0] - 1, 0
    open_ = 1
    found = 0
    least = np.float32(np.log(SMALLEST))
    while open_:
        open_ -= 1
        node, score = nodes[open_], reached[open_]
        if score < least or (found == best and score < scores[best - 1]):
            continue
        if below[node, 0] == NOTHING:
            found = _place(labels, scores, found, node, score)
            continue
        dot = _dot(hidden, output, node - leaves)
        # The sum is taken in float32 and the quotient in float64, as C++ reads `1. / (1 + std::exp(-f))`.
        share = np.float32(1.0 / np.float64(np.float32(1) + np.float32(np.exp(-np.float64(dot)))))
        nodes[open_], reached[open_] = below[node, 1], score + _log(share)
        nodes[open_ + 1], reached[open_ + 1] = below[node, 0], score + _log(np.float32(1.0 - np.float64(share)))
        open_ += 2
    for index in range(found):
        scores[index] = np.float32(np.exp(np.float64(scores[index])))


@njit(cache=True, nogil=True)
def _softmax(hidden, output, labels, scores):  # type: ignore[no-untyped-def]
    size = output.shape[0]
    shares = np.empty(size, np.float32)
    for label in range(size):
        shares[label] = _dot(hidden, output, label)
    largest = shares.max()
    total = np.float32(0)
    for label in range(size):
        shares[label] = np.float32(np.exp(np.float64(shares[label] - largest)))
        total += shares[label]
    found = 0
    for label in range(size):
        found = _place(labels, scores, found, label, _log(shares[label] / total))
    for index in range(found):
        scores[index] = np.float32(np.exp(np.float64(scores[index])))


@njit(cache=True, nogil=True)
def _place(labels, scores, found, label, score):  # type: ignore[no-untyped-def]
    """Puts a label among the best so far; returns how many there are."""
    index = found
    if found == labels.size:
        if score <= scores[found - 1]:
            return found
        index = found - 1
    while index > 0 and scores[index - 1] < score:
        labels[index], scores[index] = labels[index - 1], scores[index - 1]
        index -= 1
    labels[index], scores[index] = label, score
    return min(found + 1, labels.size)
