"""Code points: which belong to a script that writes no spaces between words, and which end a sentence.

Everything here is a property of single code points. Sources: Unicode 15 Blocks.txt for the scripts,
PropList.txt's Sentence_Terminal for the marks; `str.isalpha`, `str.isspace` and `unicodedata` for the rest.
"""

from __future__ import annotations

import numpy as np

UNSPACED_SCRIPTS: dict[str, tuple[tuple[int, int], ...]] = {
    "han": (
        (0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3021, 0x3029), (0x3038, 0x303B), (0x3100, 0x312F),
        (0x31A0, 0x31BF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF),
    ),
    "kana": ((0x3041, 0x309F), (0x30A1, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F), (0x1B000, 0x1B16F)),
    "thai": ((0x0E01, 0x0E3A), (0x0E40, 0x0E5B)),
    "lao": ((0x0E80, 0x0EFF),),
    "tibetan": ((0x0F00, 0x0FFF),),
    "myanmar": ((0x1000, 0x109F), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F)),
    "khmer": ((0x1780, 0x17FF), (0x19E0, 0x19FF)),
}  # fmt: skip
"""Inclusive ranges of code points, vowel signs and digits of the script included. Bopomofo counts as Han.
Tibetan separates syllables by a mark and not words by a space. Korean, which writes spaces, is not here."""

SENTENCE_TERMINALS = frozenset(
    "!.?\u0589\u061d\u061e\u061f\u06d4\u0700\u0701\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u104a\u104b\u1362\u1367\u1368"
    "\u166e\u1735\u1736\u17d4\u17d5\u1803\u1809\u1944\u1945\u1aa8\u1aa9\u1aaa\u1aab\u1b5a\u1b5b\u1b5e\u1b5f\u1c3b\u1c3c\u1c7e\u1c7f"
    "\u203c\u203d\u2047\u2048\u2049\u2e2e\u2e3c\u2e53\u2e54\u3002\ua4ff\ua60e\ua60f\ua6f3\ua6f7\ua876\ua877\ua8ce\ua8cf\ua92f"
    "\ua9c8\ua9c9\uaa5d\uaa5e\uaa5f\uaaf0\uaaf1\uabeb\ufe52\ufe56\ufe57\uff01\uff0e\uff1f\uff61"
)
"""Unicode 15, PropList.txt, Sentence_Terminal, Basic Multilingual Plane."""

MAJORITY = 0.5
"""A text is unspaced when more than this share of its letters belongs to unspaced scripts; chosen here."""

KANA_SHARE = 0.1
"""An unspaced text with at least this share of kana among its Han and kana is Japanese; chosen here. In
none of the 220 Japanese sentences of Lingua's test set is that share below a quarter."""


def unspaced(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which texts are unspaced, and the index in UNSPACED_SCRIPTS of the most frequent script of each.

    counts[row, 1 + k] are characters of script k, counts[row, 0] other alphabetic ones. Han counts as kana
    where kana makes Japanese of it; ties go to the script named first.
    """
    of_script = counts[:, 1:].copy()
    unspaced = of_script.sum(axis=1) > MAJORITY * counts.sum(axis=1)
    han, kana = (list(UNSPACED_SCRIPTS).index(name) for name in ("han", "kana"))
    both = of_script[:, han] + of_script[:, kana]
    japanese = (of_script[:, kana] > 0) & (of_script[:, kana] >= KANA_SHARE * both)
    of_script[japanese, kana] = both[japanese]
    of_script[japanese, han] = 0
    return unspaced, of_script.argmax(axis=1)
