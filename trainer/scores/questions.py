"""Questions with options, from JSONL in three layouts: this package's own, HellaSwag's and ARC's.

A line of this package's: `{"id", "prompt", "options", "answer", "group"}`; `answer` counts options from 0, `group` can be left
out. A model reads prompt and option as one text, letter for letter, so an option begins with the space that parts it from the
prompt.

HellaSwag (Zellers et al. 2019): the prompt is "ACTIVITY: CTX", an option is a space and the ending; WikiHow's " [title]" is a
full stop, other marks in brackets and double spaces are taken out. ARC (Clark et al. 2018), as its authors or as Hugging Face
lay it out: the prompt is "Question: …\\nAnswer:", an option is a space and its text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OWN = Path(__file__).with_name("cloze.json")
"""Two dozen questions, written for this package."""


class QuestionsError(Exception):
    """A file of questions that cannot be read; names file and line."""


@dataclass(frozen=True)
class Question:
    """`answer`: which of the options is right, from 0. `group`: what is reported by itself, or empty."""

    id: str
    prompt: str
    options: tuple[str, ...]
    answer: int
    group: str = ""

    def __post_init__(self) -> None:
        for text in (self.id, self.prompt, self.group, *self.options):
            text.encode()  # half a character is no text; UnicodeEncodeError is a ValueError
        if len(self.options) < 2:
            raise ValueError("fewer than two options")
        if len(set(self.options)) < len(self.options):
            raise ValueError("two options are the same")
        if not all(option.strip() for option in self.options):
            raise ValueError("an option is empty")
        if not 0 <= self.answer < len(self.options):
            raise ValueError(f"answer {self.answer} is none of {len(self.options)} options, which are counted from 0")


def read_questions(path: Path) -> list[Question]:
    """QuestionsError for a line in none of the layouts, an id that stands there twice, or no question at all."""
    found: list[Question] = []
    seen: dict[str, int] = {}
    for line, row in _rows(path):
        try:
            question = _layout(row)(row, line)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise QuestionsError(f"{path}: question {line}: {why}") from None
        if question.id in seen:
            raise QuestionsError(f"{path}: questions {seen[question.id]} and {line} have the id {question.id!r}")
        seen[question.id] = line
        found.append(question)
    if not found:
        raise QuestionsError(f"{path}: there is no question")
    return found


def _rows(path: Path) -> list[tuple[int, Any]]:
    """(number, value) of each line; a file that is one JSON array has its elements for lines."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise QuestionsError(f"{path}: unreadable: {error}") from None
    try:
        if text.lstrip().startswith("["):
            return list(enumerate(json.loads(text), 1))
    except (ValueError, RecursionError) as error:
        raise QuestionsError(f"{path}: not JSON: {error}") from None
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                rows.append((number, json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise QuestionsError(f"{path}: line {number} is not JSON: {error}") from None
    return rows


def _layout(row: Any) -> Callable[[dict[str, Any], int], Question]:
    if not isinstance(row, dict):
        raise ValueError("not an object")
    if "endings" in row:
        return _hellaswag
    if "answerKey" in row:
        return _arc
    if "options" in row:
        return _own
    raise ValueError("none of the layouts: it has neither options, nor endings (HellaSwag), nor answerKey (ARC)")


def _own(row: dict[str, Any], line: int) -> Question:
    if strangers := sorted(row.keys() - {"id", "prompt", "options", "answer", "group"}):
        raise ValueError(f"{strangers[0]!r} is not known; there are id, prompt, options, answer and group")
    answer = row["answer"]
    if not isinstance(answer, int) or isinstance(answer, bool):
        raise ValueError(f"answer {answer!r} is not a number")
    return Question(_text(row, "id"), _text(row, "prompt"), _texts(row["options"]), answer, str(row.get("group", "")))


def _hellaswag(row: dict[str, Any], line: int) -> Question:
    """The test split's labels are kept secret, and are empty in the file: there is nothing to score by."""
    label = row["label"]
    if label in ("", None):
        raise ValueError("it has no label, as those of HellaSwag's test split: only questions with an answer can be scored")
    halves = "ctx_a" in row
    context = f"{_text(row, 'ctx_a')} {str(row.get('ctx_b') or '').capitalize()}" if halves else _text(row, "ctx")
    activity = row.get("activity_label")
    prompt = _without_marks(f"{activity}: {context}" if activity else context)
    options = tuple(f" {_without_marks(ending)}" for ending in _texts(row["endings"]))
    name = row.get("ind", line)
    return Question(f"hellaswag-{name}", prompt, options, int(label), str(row.get("split_type", "")))


def _arc(row: dict[str, Any], line: int) -> Question:
    question, choices = row["question"], row.get("choices")
    if isinstance(question, dict):
        stem, choices = _text(question, "stem"), question["choices"]
    else:
        stem = _text(row, "question")
    if isinstance(choices, dict):
        texts, labels = _texts(choices["text"]), _texts(choices["label"])
    elif isinstance(choices, list):
        texts, labels = _texts([one["text"] for one in choices]), _texts([one["label"] for one in choices])
    else:
        raise ValueError("it has no choices")
    key = _text(row, "answerKey")
    if len(labels) != len(texts) or labels.count(key) != 1:
        raise ValueError(f"answerKey {key!r} is not one of the labels {', '.join(labels)}")
    prompt = f"Question: {stem.strip()}\nAnswer:"
    return Question(_text(row, "id"), prompt, tuple(f" {text.strip()}" for text in texts), labels.index(key))


def _without_marks(text: str) -> str:
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def _text(row: dict[str, Any], name: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        raise ValueError(f"{name} {value!r} is not a text")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise ValueError(f"{values!r} is not a list of texts")
    return tuple(_text({"option": value}, "option") for value in values)
