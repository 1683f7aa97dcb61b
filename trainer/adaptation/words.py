"""How many tokens a tokenizer needs for a word of a component, and how many bytes a token holds.

A word is a maximal run of characters that are not white space. A tokenizer that was made for other text needs more tokens for the
same words: documents grow longer, T covers less of them, and every word costs more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from manifests.terminal import visible
from trainer.data.corpus import Component, Corpus
from trainer.run_files.checkpoint_format import CheckpointError
from trainer.run_files.tokenizer import open_tokenizer

SAMPLE_TOKENS = 200_000
"""Documents are read from the front of the shards, which is a fair sample, until they have so many tokens."""
LONGEST_MEAN_WORD = 20
"""Characters: words of languages that write spaces are half as long on average, and text without spaces is one long word."""


@dataclass(frozen=True)
class Words:
    """Of one component of one split, or of the part of it that was read. tokens: of text, without BOS. words: None where
    `unknown` says why there is no such figure."""

    component: str
    split: str
    documents: int
    tokens: int
    text_bytes: int
    words: int | None
    unknown: str | None = None

    @property
    def tokens_per_word(self) -> float | None:
        return self.tokens / self.words if self.words else None

    @property
    def bytes_per_token(self) -> float | None:
        return self.text_bytes / self.tokens if self.tokens else None

    def as_json(self) -> dict[str, object]:
        return {
            "component": self.component, "split": self.split, "documents": self.documents, "tokens": self.tokens,
            "bytes": self.text_bytes, "words": self.words, "tokens_per_word": self.tokens_per_word,
            "bytes_per_token": self.bytes_per_token, "unknown": self.unknown,
        }  # fmt: skip

    def describe(self) -> str:
        known = self.tokens_per_word
        per_word = f"{known:.2f} tokens a word" if known else f"tokens a word unknown: {self.unknown}"
        per_token = f", {self.bytes_per_token:.2f} bytes a token" if self.bytes_per_token else ""
        return f"{visible(self.component)} ({self.split}): {per_word}{per_token}, over {self.documents:,} documents"


def count_words(corpus: Corpus, component: Component, at_most: int = SAMPLE_TOKENS) -> Words:
    """Counts in the first documents of a component, those that have at most `at_most` tokens together. Bytes are those that the
    shard index states; words are those of the text that the tokens are decoded to. A document that is longer by itself is
    passed over."""
    short = np.flatnonzero(component.lengths <= at_most)
    chosen = short[np.cumsum(component.lengths[short]) <= at_most]
    starts, lengths = component.starts[chosen].tolist(), component.lengths[chosen].tolist()
    tokens = sum(lengths) - len(lengths)
    found = (component.name, component.split, len(lengths), tokens, int(component.text_bytes[chosen].sum()))
    if not tokens:
        return Words(*found, None, f"there is no text in documents of at most {at_most:,} tokens")
    try:
        tokenizer = open_tokenizer(corpus.folder, corpus.tokenizer.file, corpus.tokenizer.sha256)
    except CheckpointError as error:
        return Words(*found, None, str(error).removeprefix(f"{corpus.folder.url}/"))  # the record holds no place of a machine
    documents = [component.read(begin + 1, length - 1).tolist() for begin, length in zip(starts, lengths, strict=True)]
    texts = tokenizer.decode_batch(documents, skip_special_tokens=False)
    words = sum(len(text.split()) for text in texts)
    if not words or sum(map(len, texts)) > words * LONGEST_MEAN_WORD:
        return Words(*found, None, "the text has no spaces between words")
    return Words(*found, words)


def together(parts: list[Words]) -> float | None:
    """Tokens a word over several components; None where it is not known of one of them."""
    words = [one.words for one in parts]
    known = [count for count in words if count]
    return sum(one.tokens for one in parts) / sum(known) if known and len(known) == len(words) else None
