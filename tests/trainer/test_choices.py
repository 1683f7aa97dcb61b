"""Multiple choice: sums over whole continuations, a checked boundary, honest intervals, and the layouts of published sets."""

from __future__ import annotations

import hashlib
import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from typer.testing import CliRunner

from manifests.manifest import ManifestError
from manifests.storage import Folder
from tests.trainer.corpus_fixture import BOS, VOCABULARY, learnable_corpus
from tests.trainer.test_generation import with_real_tokenizer
from tests.trainer.test_loop import run
from trainer.command_line.run_options import open_corpus_of
from trainer.commands import app
from trainer.data.corpus import CorpusError
from trainer.run_files.tokenizer import open_tokenizer
from trainer.scores.choices import Answer, ChoicesError, answer_all, compare, read_answers, summarise
from trainer.scores.intervals import paired, wilson
from trainer.scores.questions import OWN, Question, QuestionsError, read_questions

CPU = torch.device("cpu")
TABLE = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(1))
"""Logits of the next letter by the letter before."""


def letters(text: str) -> list[int]:
    return [1 + ord(letter) % (VOCABULARY - 1) for letter in text]


def bigrams(tokens: torch.Tensor) -> torch.Tensor:
    return TABLE[tokens]


def ask(*questions: Question, encode: object = letters, context: int = 64) -> list[Answer]:
    return answer_all(questions, encode, bigrams, BOS, context, VOCABULARY, CPU)  # type: ignore[arg-type]


def by_hand(prompt: str, option: str) -> float:
    ids = [BOS, *letters(prompt), *letters(option)]
    log_probabilities = torch.log_softmax(TABLE.double(), dim=1)
    return -float(sum(log_probabilities[before, after] for before, after in list(pairwise(ids))[len(prompt) :]))


def test_an_option_s_score_is_the_sum_over_all_its_tokens_and_nothing_of_the_prompt() -> None:
    first = Question("a", "the sea is", (" wide", " blue and deep", " x"), 1)
    second = Question("b", "", ("no prompt", "at all"), 0)
    found = ask(first, second)
    for question, answer in zip((first, second), found, strict=True):
        expected = [by_hand(question.prompt, option) for option in question.options]
        assert answer.nats == pytest.approx(expected, rel=1e-5)
        assert answer.tokens == tuple(map(len, question.options))
        assert answer.sizes == tuple(len(option.strip()) for option in question.options)
        assert answer.chosen == expected.index(min(expected))
        normalised = [nats / size for nats, size in zip(expected, answer.sizes, strict=True)]
        assert answer.chosen_by_byte == normalised.index(min(normalised))


def test_a_long_option_can_win_by_byte_and_lose_by_sum() -> None:
    uniform = answer_all([Question("a", "p", (" xy", " abcdef"), 1)], letters, lambda t: torch.zeros(*t.shape, VOCABULARY), BOS, 64,
                         VOCABULARY, CPU)  # fmt: skip
    (answer,) = uniform
    assert answer.nats == pytest.approx((3 * math.log(VOCABULARY), 7 * math.log(VOCABULARY)))
    assert (answer.right, answer.right_by_byte) == (False, True)


def test_bytes_are_those_of_utf_8() -> None:
    (answer,) = ask(Question("a", "p", (" é", " 日本"), 0))
    assert answer.sizes == (2, 6)


def test_what_else_is_asked_changes_no_answer() -> None:
    alone = ask(Question("a", "the sea is", (" wide", " blue and deep"), 1))
    among = ask(*(Question(f"q{n}", "x" * n, (" wide", " blue and deep"), 1) for n in range(30)), alone_question())
    assert among[-1].nats == pytest.approx(alone[0].nats, rel=1e-6)


def alone_question() -> Question:
    return Question("a", "the sea is", (" wide", " blue and deep"), 1)


def test_an_option_that_changes_the_prompt_s_tokens_is_not_scored_and_counted() -> None:
    def merges(text: str) -> list[int]:
        return letters(text.replace("s ", "§"))

    kept, changed = Question("a", "the sea i", ("s wide", "s deep"), 0), Question("b", "the sea is", (" wide", " deep"), 0)
    found = ask(kept, changed, encode=merges)
    assert [answer.left_out for answer in found] == [None, "an option changes the tokens of the prompt"]
    result = summarise(found, [kept, changed])
    assert [share.questions for share in result.shares] == [1, 1]
    assert result.left_out == {"an option changes the tokens of the prompt": 1}


def test_an_option_that_adds_no_token_is_not_scored() -> None:
    (answer,) = ask(alone_question(), encode=lambda text: letters(text[:12]))
    assert answer.left_out is None
    (answer,) = ask(alone_question(), encode=lambda text: letters(text[:10]))
    assert answer.left_out == "an option changes the tokens of the prompt"


def test_a_long_prompt_keeps_its_end_and_bos_alike_for_all_options() -> None:
    seen: list[list[int]] = []

    def watched(tokens: torch.Tensor) -> torch.Tensor:
        seen.extend(tokens.tolist())
        return bigrams(tokens)

    question = Question("a", "0123456789", (" ab", " c"), 0)
    (answer,) = answer_all([question], letters, watched, BOS, 8, VOCABULARY, CPU)
    assert answer.cut == 5  # of the prompt, 5 stay with BOS and 2 of the longest option, whose last is only a target
    kept = [BOS, *letters("56789")]
    assert sorted(row[:6] for row in seen) == [kept, kept]
    assert answer.nats == pytest.approx([by_hand("0123456789", option) for option in question.options], rel=1e-5)
    (too_long,) = answer_all([question], letters, watched, BOS, 2, VOCABULARY, CPU)
    assert too_long.left_out == "an option is longer than the model's context"


def test_two_equal_options_are_no_right_answer() -> None:
    (answer,) = answer_all([Question("a", "p", (" ab", " cd"), 0)], letters, lambda t: torch.zeros(*t.shape, VOCABULARY), BOS, 64,
                           VOCABULARY, CPU)  # fmt: skip
    assert answer.chosen is None and not answer.right


def test_wilson_s_interval_is_the_published_one() -> None:
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="cannot be right"):
        wilson(3, 2)


@given(st.integers(1, 500), st.data())
def test_wilson_s_interval_holds_the_share_and_mirrors(count: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, count))
    low, high = wilson(right, count)
    assert 0 <= low <= right / count <= high <= 1
    assert wilson(count - right, count) == pytest.approx((1 - high, 1 - low))


def test_mcnemar_s_exact_test_and_the_interval_of_the_difference() -> None:
    first = [True] * 30 + [False] * 8 + [True] * 2
    second = [True] * 30 + [True] * 8 + [False] * 2
    found = paired(first, second)
    assert (found.gained, found.lost, found.difference) == (8, 2, pytest.approx(0.15))
    assert found.p == pytest.approx(2 * (1 + 10 + 45) / 1_024)
    low, high = found.interval
    assert low == pytest.approx(0.0, abs=0.03) and high == pytest.approx(0.30, abs=0.03)
    assert paired(first, first).p == 1.0 and paired(first, first).interval == (0.0, 0.0)
    assert paired(second, first).difference == -found.difference
    with pytest.raises(ValueError, match="no pairs"):
        paired([], [])


def test_answers_to_other_questions_do_not_compare() -> None:
    first = ask(alone_question())
    with pytest.raises(ChoicesError, match="same questions"):
        compare(first, ask(Question("b", "p", (" a", " b"), 0)))
    with pytest.raises(ChoicesError, match="not the same in both"):
        compare(first, ask(Question("a", "the sea was", (" wide", " blue and deep"), 1)))
    assert compare(first, first)["sum"].questions == 1


def test_this_package_s_questions_are_two_dozen_and_no_place_is_right_more_often() -> None:
    questions = read_questions(OWN)
    assert len(questions) == 24
    assert [sum(question.answer == place for question in questions) for place in range(4)] == [6] * 4
    assert all(option.startswith(" ") for question in questions for option in question.options)
    assert {question.group for question in questions} == {"language", "everyday", "knowledge", "stories"}


def written(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_hellaswag_s_layout(tmp_path: Path) -> None:
    row = {
        "ind": 24, "activity_label": "Roof shingle removal", "ctx_a": "A man is sitting on a roof.", "ctx_b": "he",
        "ctx": "A man is sitting on a roof. he", "endings": ["is using wrap.", "holds [step] a  tile.", "falls.", "waves."],
        "label": "3", "split_type": "indomain",
    }  # fmt: skip
    title = {"ctx": "How to rest [header] Why [title] Sit down.", "endings": ["Now [substeps] rest.", "Run."], "label": 0}
    first, second = read_questions(written(tmp_path / "h.jsonl", row, title))
    assert first.prompt == "Roof shingle removal: A man is sitting on a roof. He"
    assert first.options == (" is using wrap.", " holds a tile.", " falls.", " waves.")
    assert (first.id, first.answer, first.group) == ("hellaswag-24", 3, "indomain")
    assert (second.prompt, second.options) == ("How to rest Why. Sit down.", (" Now rest.", " Run."))


def test_arc_s_layouts(tmp_path: Path) -> None:
    authors = {
        "id": "M1", "answerKey": "C",
        "question": {"stem": "Which is a gas?", "choices": [{"text": t, "label": k} for t, k in zip(("ice", "sand", "air"), "ABC", strict=True)]},
    }  # fmt: skip
    faces = {
        "id": "M2",
        "question": "Which floats? ",
        "choices": {"text": ["wood", "lead"], "label": ["1", "2"]},
        "answerKey": "1",
    }
    first, second = read_questions(written(tmp_path / "arc.jsonl", authors, faces))
    assert (first.prompt, first.options, first.answer) == ("Question: Which is a gas?\nAnswer:", (" ice", " sand", " air"), 2)
    assert (second.prompt, second.options, second.answer) == ("Question: Which floats?\nAnswer:", (" wood", " lead"), 0)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("[1]", "question 1: not an object"),
        ("{", "line 1 is not JSON"),
        ("[{", "not JSON"),
        ("", "there is no question"),
        ('{"id": "a"}', "none of the layouts"),
        ('{"id": "a", "prompt": "p", "options": ["x"], "answer": 0}', "fewer than two"),
        ('{"id": "a", "prompt": "p", "options": ["x", "x"], "answer": 0}', "the same"),
        ('{"id": "a", "prompt": "p", "options": ["x", " "], "answer": 0}', "empty"),
        ('{"id": "a", "prompt": "p", "options": ["x", "y"], "answer": 2}', "answer 2 is none of 2"),
        ('{"id": "a", "prompt": "p", "options": ["x", "y"], "answer": "0"}', "not a number"),
        ('{"id": "a", "prompt": "p", "options": ["x", "y"], "answer": 0, "colour": 1}', "'colour' is not known"),
        ('{"id": "a", "prompt": "\\ud800", "options": ["x", "y"], "answer": 0}', "surrogates"),
        ('{"id": "a", "prompt": "p", "options": ["x", "y"], "answer": 0, "group": "\\udfff"}', "surrogates"),
        ('{"ctx": "c", "activity_label": "\\ud800", "endings": ["a", "b"], "label": 0}', "surrogates"),
        ('{"ctx": "c", "endings": ["a", "b"], "label": "2"}', "answer 2 is none of 2"),
        ('{"id": "a", "options": ["x", "y"], "answer": 0}', "'prompt' is missing"),
        ('{"ctx": "c", "endings": ["a", "b"], "label": ""}', "test split"),
        ('{"ctx": "c", "endings": "ab", "label": 0}', "not a list"),
        ('{"id": "a", "question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "E"}', "'E'"),
        ('{"id": "a", "question": "q", "choices": 3, "answerKey": "E"}', "no choices"),
    ],
)  # fmt: skip
def test_a_bad_question_is_named(tmp_path: Path, row: str, complaint: str) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(row + "\n")
    with pytest.raises(QuestionsError, match=complaint):
        read_questions(path)


def test_an_id_that_stands_there_twice_is_refused(tmp_path: Path) -> None:
    row = {"id": "a", "prompt": "p", "options": [" x", " y"], "answer": 0}
    with pytest.raises(QuestionsError, match="questions 1 and 2"):
        read_questions(written(tmp_path / "q.jsonl", row, row))


def test_a_question_that_spells_a_special_token_is_text_as_in_the_corpus(tmp_path: Path) -> None:
    """And none of its prompt is cut off by what the tokenizer's file says of lengths."""
    alphabet = {"<|bos|>": 0, "<unk>": 1, **{letter: 2 + n for n, letter in enumerate("<|>bos")}}
    tokenizer = Tokenizer(models.BPE(alphabet, [], unk_token="<unk>"))
    tokenizer.add_special_tokens(["<|bos|>"])
    tokenizer.enable_truncation(3)
    data = tokenizer.to_str().encode()
    (tmp_path / "tokenizer.json").write_bytes(data)
    opened = open_tokenizer(Folder(str(tmp_path)), "tokenizer.json", hashlib.sha256(data).hexdigest())
    ids = opened.encode("bos<|bos|>", add_special_tokens=False).ids
    assert ids == [alphabet[letter] for letter in "bos<|bos|>"]


def test_the_command_scores_a_run_writes_its_answers_and_compares_two(tmp_path: Path) -> None:
    learnable_corpus(tmp_path / "corpus", train=400, held_out=5)
    manifest = with_real_tokenizer(tmp_path / "corpus")
    for name, steps in (("early", 1), ("late", 150)):
        run(manifest, tmp_path / name, evaluate=False, steps=steps)
    # of the toy language, whose word n is followed by n * 7 + 3 in most cases, and once by n * 7 + 11
    rows = []
    for n in range(2, 40):
        words = [f" w{2 + (n * 7 + 3) % 60}", f" w{2 + (n * 7 + 25) % 60}", f" w{2 + (n * 7 + 31) % 60}"]
        rows.append({"id": str(n), "prompt": f"w{n}", "options": words, "answer": 0, "group": "odd" if n % 2 else "even"})
    questions = str(written(tmp_path / "questions.jsonl", *rows))
    ask_late = ["choices", str(tmp_path / "late"), "--questions", questions, "--device", "cpu"]
    out = tmp_path / "answers.jsonl"
    early = CliRunner().invoke(app, ["choices", str(tmp_path / "early"), *ask_late[2:], "--answers", str(out)])
    assert early.exit_code == 0, early.stderr
    assert [answer.id for answer in read_answers(out)] == [str(n) for n in range(2, 40)]
    by_model = CliRunner().invoke(app, [*ask_late, "--against", str(tmp_path / "early"), "--json"])
    by_file = CliRunner().invoke(app, [*ask_late, "--against", str(out), "--json"])
    assert by_model.exit_code == 0, by_model.stderr
    assert by_file.stdout == by_model.stdout
    told = json.loads(by_model.stdout)
    assert told["shares"][0]["share"] > 0.9 and told["shares"][0]["chance"] == pytest.approx(1 / 3)
    assert [group["questions"] for group in told["by_group"]] == [19, 19]
    assert told["against"]["sum"]["interval"][0] > 0 and told["against"]["sum"]["p"] < 0.01
    plain = CliRunner().invoke(app, [*ask_late, "--against", str(out)])
    assert "gained" in plain.stdout and "sum, even" in plain.stdout


def test_a_corpus_that_is_not_where_the_run_says_can_be_named(tmp_path: Path) -> None:
    gone = "the run says that its corpus lies there: --manifest names another place"
    with pytest.raises(CorpusError, match=gone):
        open_corpus_of(None, str(tmp_path / "corpus" / "manifest.json"))
    with pytest.raises(ManifestError) as named:
        open_corpus_of(str(tmp_path / "elsewhere"), str(tmp_path / "corpus"))
    assert gone not in str(named.value)


def test_the_command_names_what_is_wrong(tmp_path: Path) -> None:
    missing = CliRunner().invoke(app, ["choices", str(tmp_path / "none"), "--device", "cpu"])
    assert missing.exit_code == 1 and "none" in missing.stderr
    assert CliRunner().invoke(app, ["choices", "x", "--dtype", "int8"]).exit_code == 2
    nowhere = CliRunner().invoke(app, ["choices", "x", "--device", "tpu"])
    assert nowhere.exit_code == 2 and "--device tpu: auto, cpu or cuda" in nowhere.stderr
    for path in (tmp_path / "none" / "a.jsonl", tmp_path):
        unwritten = CliRunner().invoke(app, ["choices", "x", "--answers", str(path)])
        assert unwritten.exit_code == 1 and "--answers" in unwritten.stderr and "name a file" in unwritten.stderr
    bad = CliRunner().invoke(app, ["choices", "x", "--questions", str(tmp_path / "q.jsonl")])
    assert bad.exit_code == 1 and "q.jsonl: unreadable" in bad.stderr
    (tmp_path / "a.jsonl").write_text('{"colour": 1}\n')
    with pytest.raises(ChoicesError, match="line 1"):
        read_answers(tmp_path / "a.jsonl")
