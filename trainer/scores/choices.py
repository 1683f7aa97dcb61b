"""Multiple choice: the option that a model finds likeliest after the prompt, and how often that is the right one.

An option's score is the sum of log-probabilities of all its tokens after BOS and the prompt (float32 a token, summed in
float64). The length-normalised score is that sum over the UTF-8 bytes of the option, spaces around it left out. A choice is
right only where its score is above those of all others.

Prompt and option are tokenized as one text. Where the tokens of the prompt alone are not the first of these, the option would be
scored on some of the prompt as well, or after tokens that no such text has: such a question is not scored, and is counted. So is
one with an option longer than the T that the model was trained on. Of a prompt that is too long with its options, BOS and the end
are kept, as much for all of them as for the longest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer.scores.evaluation import BATCH_TOKENS, Logits, row_nats
from trainer.scores.intervals import Paired, paired, wilson
from trainer.scores.questions import Question

IGNORED = -1
Encode = Callable[[str], Sequence[int]]


class ChoicesError(Exception):
    """Answers that cannot be given, or compared."""


@dataclass(frozen=True)
class Answer:
    """What a model made of a question. `nats`: minus the score of each option, with its `tokens` and `sizes` in bytes. `chosen`,
    `chosen_by_byte`: the best option, or None where two are. `left_out`: why it was not scored. `cut`: prompt tokens left away.
    `sha256`: of the question."""

    id: str
    group: str
    answer: int
    sha256: str
    nats: tuple[float, ...] = ()
    tokens: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    chosen: int | None = None
    chosen_by_byte: int | None = None
    cut: int = 0
    left_out: str | None = None

    @property
    def right(self) -> bool:
        return self.chosen == self.answer

    @property
    def right_by_byte(self) -> bool:
        return self.chosen_by_byte == self.answer

    def as_json(self) -> dict[str, Any]:
        told = asdict(self)
        return told if self.left_out else {**told, "right": self.right, "right_by_byte": self.right_by_byte}


@dataclass(frozen=True)
class Share:
    """Right answers among questions, with Wilson's 95 % interval. `chance`: what guessing would have."""

    name: str
    questions: int
    right: int
    share: float | None
    interval: tuple[float, float]
    chance: float | None


@dataclass(frozen=True)
class Result:
    """`shares`: of sums, then of sums over bytes. `by_group`: of sums. `left_out`: reason → questions."""

    shares: list[Share]
    by_group: list[Share] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    cut: int = 0


def answer_all(
    questions: Sequence[Question], encode: Encode, logits: Logits, bos: int, context: int, vocabulary: int, device: torch.device
) -> list[Answer]:
    """The answers in the order of the questions. `context`: tokens that the model may see at a time, BOS among them."""
    prepared = [_prepare(question, encode, bos, context) for question in questions]
    rows = [(at, option) for at, one in enumerate(prepared) for option in range(len(one.rows))]
    scored: dict[tuple[int, int], float] = {}
    with torch.inference_mode():
        for batch in _batches(rows, [len(prepared[at].rows[option]) for at, option in rows]):
            some = [prepared[at].rows[option] for at, option in batch]
            counts = [prepared[at].counts[option] for at, option in batch]
            found = _sums(some, counts, logits, vocabulary, device)
            scored.update(zip(batch, found, strict=True))
    return [
        _answer(question, one, [scored[at, option] for option in range(len(one.rows))])
        for at, (question, one) in enumerate(zip(questions, prepared, strict=True))
    ]


def summarise(answers: Sequence[Answer], questions: Sequence[Question]) -> Result:
    chances = {question.id: 1 / len(question.options) for question in questions}
    scored = [answer for answer in answers if answer.left_out is None]
    groups = dict.fromkeys(answer.group for answer in answers if answer.group)
    left_out: dict[str, int] = {}
    for answer in answers:
        if answer.left_out is not None:
            left_out[answer.left_out] = left_out.get(answer.left_out, 0) + 1
    shares = [
        _share("sum", scored, [answer.right for answer in scored], chances),
        _share("by byte", scored, [answer.right_by_byte for answer in scored], chances),
    ]
    by_group = []
    for group in groups:
        some = [answer for answer in scored if answer.group == group]
        by_group.append(_share(group, some, [answer.right for answer in some], chances))
    return Result(shares, by_group, left_out, sum(answer.cut > 0 for answer in scored))


def compare(first: Sequence[Answer], second: Sequence[Answer]) -> dict[str, Paired]:
    """`second` against `first`, by sum and by byte, over questions that both scored. ChoicesError where they are not the same."""
    before = {answer.id: answer for answer in first}
    if before.keys() != {answer.id for answer in second}:
        raise ChoicesError("the two did not answer the same questions")
    if changed := [answer.id for answer in second if before[answer.id].sha256 != answer.sha256]:
        raise ChoicesError(f"question {changed[0]!r} is not the same in both")
    pairs = [(before[answer.id], answer) for answer in second if answer.left_out is None and before[answer.id].left_out is None]
    if not pairs:
        raise ChoicesError("there is no question that both scored")
    return {
        "sum": paired([one.right for one, _ in pairs], [other.right for _, other in pairs]),
        "by byte": paired([one.right_by_byte for one, _ in pairs], [other.right_by_byte for _, other in pairs]),
    }


def read_answers(path: Path) -> list[Answer]:
    """Answers that were written before, a line each."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ChoicesError(f"{path}: unreadable: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            row = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
            found.append(Answer(**{name: value for name, value in row.items() if name not in ("right", "right_by_byte")}))
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise ChoicesError(f"{path}: line {number} is no answer that this program wrote") from None
    return found


@dataclass(frozen=True)
class _Prepared:
    """Of each option its row of ids, and how many of the last are its own."""

    rows: list[list[int]]
    counts: list[int]
    cut: int = 0
    left_out: str | None = None


def _prepare(question: Question, encode: Encode, bos: int, context: int) -> _Prepared:
    prompt = list(encode(question.prompt))
    options = []
    for option in question.options:
        whole = list(encode(question.prompt + option))
        if whole[: len(prompt)] != prompt or len(whole) == len(prompt):
            return _Prepared([], [], left_out="an option changes the tokens of the prompt")
        options.append(whole[len(prompt) :])
    longest = max(map(len, options))
    if longest > context:
        return _Prepared([], [], left_out="an option is longer than the model's context")
    cut = max(0, len(prompt) + longest - context)  # the last token of a row is a target only, which makes room for BOS
    return _Prepared([[bos, *prompt[cut:], *own] for own in options], [len(own) for own in options], cut)


def _batches(rows: Sequence[tuple[int, int]], lengths: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """Rows of like lengths together, at most BATCH_TOKENS slots or one row; an order that the questions alone decide."""
    batch: list[tuple[int, int]] = []
    for n in np.argsort(lengths, kind="stable").tolist():
        if batch and (len(batch) + 1) * lengths[n] > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(rows[n])
    if batch:
        yield batch


def _sums(rows: list[list[int]], counts: list[int], logits: Logits, vocabulary: int, device: torch.device) -> list[float]:
    """Nats of the last `counts` tokens of each row. What pads a row stands after it, where no query of it looks."""
    length = max(map(len, rows)) - 1
    tokens = torch.zeros((len(rows), length), dtype=torch.int64)
    targets = torch.full((len(rows), length), IGNORED, dtype=torch.int64)
    for n, (row, own) in enumerate(zip(rows, counts, strict=True)):
        tokens[n, : len(row) - 1] = torch.tensor(row[:-1])
        targets[n, len(row) - 1 - own : len(row) - 1] = torch.tensor(row[-own:])
    nats = row_nats(logits(tokens.to(device)), targets.to(device), vocabulary)
    found: list[float] = nats.double().sum(dim=1).tolist()
    return found


def _answer(question: Question, one: _Prepared, nats: list[float]) -> Answer:
    written = json.dumps([question.prompt, question.options, question.answer], ensure_ascii=False)
    sha256 = hashlib.sha256(written.encode()).hexdigest()
    if one.left_out:
        return Answer(question.id, question.group, question.answer, sha256, left_out=one.left_out)
    sizes = tuple(len(option.strip().encode()) for option in question.options)
    by_byte = [sum_ / size for sum_, size in zip(nats, sizes, strict=True)]
    best, best_by_byte = _least(nats), _least(by_byte)
    about = (question.id, question.group, question.answer, sha256)
    return Answer(*about, tuple(nats), tuple(one.counts), sizes, best, best_by_byte, one.cut)


def _least(values: Sequence[float]) -> int | None:
    least = min(values)
    return values.index(least) if values.count(least) == 1 else None


def _share(name: str, answers: Sequence[Answer], right: Sequence[bool], chances: dict[str, float]) -> Share:
    count, hits = len(answers), sum(right)
    chance = float(np.mean([chances[answer.id] for answer in answers])) if answers else None
    return Share(name, count, hits, hits / count if count else None, wilson(hits, count), chance)
