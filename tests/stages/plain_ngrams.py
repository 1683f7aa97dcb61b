"""A plain twin of `stages.benchmarks`: what items a text shares n-grams with, by comparing all of its words with all of theirs."""

from __future__ import annotations

import unicodedata

from stages.benchmarks import LABEL, Item, Match
from stages.shingles import is_unspaced


def units(text: str, by_character: bool) -> list[str]:
    lower = unicodedata.normalize("NFC", text).lower()
    words = "".join(one for one in lower if unicodedata.category(one)[0] not in "PS").split()
    return list("".join(words)) if by_character else words


def matches(text: str, items: list[Item], n: int, short: int, n_characters: int, short_characters: int) -> list[Match]:
    found = []
    letters = unicodedata.normalize("NFC", text).lower()
    beyond_ascii = any(not one.isascii() and unicodedata.category(one)[0] not in "PS" for one in letters)
    for number, item in enumerate(items):
        by_character = is_unspaced(" ".join(item.questions) or " ".join(item.others))
        size = n_characters if by_character else n
        grams = all_grams(item, n, short, n_characters, short_characters)
        page = units(text, by_character) if beyond_ascii or not by_character else []
        spans = [
            (start, start + length)
            for start in range(len(page))
            for length in sorted(set(map(len, grams)))
            if start + length <= len(page) and tuple(page[start : start + length]) in grams
        ]
        seen = {tuple(page[start:end]) for start, end in spans}
        if seen:
            whole = any(len(gram) < size for gram in seen)
            found.append(Match(number, len(seen), len(grams), whole, tuple(spans), by_character))
    return found


def all_grams(item: Item, n: int, short: int, n_characters: int, short_characters: int) -> set[tuple[str, ...]]:
    """What is looked for of an item."""
    by_character = is_unspaced(" ".join(item.questions) or " ".join(item.others))
    if by_character:
        n, short = n_characters, short_characters
    short = min(short, n)
    questions = [units(text, by_character) for text in item.questions]
    for text in item.questions:
        bare = units(LABEL.sub("", text), by_character)
        if bare not in questions:
            questions.append(bare)
    others = [units(text, by_character) for text in item.others]
    if questions and others and max(map(len, questions)) < short:
        questions.append(questions[-1] + others[-1])
    grams = {tuple(one) for one in questions if short <= len(one) < n}
    for one in (*questions, *others):
        grams |= {tuple(one[start : start + n]) for start in range(len(one) - n + 1)}
    return grams
