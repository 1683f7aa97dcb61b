"""Gates: the change of a loss and its interval by hand, which end decides, and what is no gate."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from manifests.storage import Folder
from trainer.adaptation.gate import Decision, Gate, GateError, GateFile, change_interval, decide
from trainer.commands import app
from trainer.scores.document_scores import DocumentScores, DocumentScoresError

GATE = """
domain: {text: [{components: [safety]}], down_by: 1.0}
general: {text: [{components: [stories]}], up_by: 0.2}
least_documents: 2
"""
TOKENS = [10, 20, 30, 40]


def scores(safety: Sequence[float], stories: Sequence[float], tokens: Sequence[int] = TOKENS, **about: object) -> DocumentScores:
    """Documents of both components, of 4 bytes a token, with so many nats a token each."""
    told = {
        "manifest_digest": "a" * 64, "split": "validation", "sequence_length": 64, "dtype": "float32",
        "documents_sha256": "d" * 64, "tokenizer_sha256": "e" * 64, "evaluator_sha256": "f" * 64, "val_bpb": 1.0, **about,
    }  # fmt: skip
    counts = np.array([*tokens, *tokens], np.int64)
    nats = np.array([*safety, *stories]) * counts
    owner = np.repeat([0, 1], len(tokens))
    ids = [f"{name}/f#{n}" for name in ("safety", "stories") for n in range(len(tokens))]
    return DocumentScores(told, ["safety", "stories"], owner, nats, counts, 4 * counts, pa.array(ids))


def gate(text: str = GATE) -> Gate:
    return GateFile.of(text, Path("/"), "gate.yaml").gate


def decided(before: DocumentScores, after: DocumentScores, text: str = GATE) -> Decision:
    return decide(gate(text), "0" * 64, lambda corpus: None, [before], [after])


def test_the_change_is_that_of_all_nats_over_all_tokens_and_not_a_mean_of_documents() -> None:
    found = decided(scores([5, 5, 5, 5], [2, 2, 2, 2]), scores([1, 2, 3, 5], [2, 2, 2, 3]))
    assert found.domain.before == pytest.approx(5)
    assert found.domain.after == pytest.approx((10 + 40 + 90 + 200) / 100)
    assert found.domain.change == pytest.approx(-(40 + 60 + 60) / 100)
    assert found.general.change == pytest.approx(40 / 100)
    assert (found.domain.documents, found.domain.tokens, found.domain.text_bytes) == (4, 100, 400)
    assert not found.general.passed


def test_bits_per_byte_are_nats_over_ln_2_and_the_bytes_of_the_text() -> None:
    found = decided(scores([5] * 4, [2] * 4), scores([1] * 4, [2] * 4), GATE + "unit: bits per byte\n")
    assert found.domain.change == pytest.approx(-4 / (4 * math.log(2)))
    assert found.domain.passed


def test_a_change_that_is_just_what_was_asked_for_passes() -> None:
    found = decided(scores([5] * 4, [2] * 4), scores([4] * 4, [2.25] * 4), GATE.replace("0.2", "0.25"))
    assert found.domain.interval == (-1, -1) and found.general.interval == (0.25, 0.25)
    assert found.passed and found.word == "pass"
    assert not decided(scores([5] * 4, [2] * 4), scores([4.001] * 4, [2.25] * 4), GATE.replace("0.2", "0.25")).passed


def test_documents_are_drawn_with_both_their_scores() -> None:
    """They differ by nats; each changed by as much."""
    found = decided(scores([1, 9, 3, 40], [2, 30, 1, 9]), scores([0, 8, 2, 39], [2, 30, 1, 9]))
    assert found.domain.interval == pytest.approx((-1, -1))
    assert found.general.interval == (0, 0)


def test_the_worse_end_decides_unless_the_gate_says_that_the_change_itself_does() -> None:
    before, after = scores([5] * 4, [2] * 4), scores([3.8, 4.2, 3.6, 3.9], [2.1] * 4)
    by_interval, by_point = (decided(before, after, f"{GATE}decided_by: {by}\n") for by in ("interval", "point"))
    assert by_interval.domain.change == by_point.domain.change < -1 < by_interval.domain.interval[1]
    assert (by_interval.word, by_point.word) == ("fail", "pass")
    risen = scores([1] * 4, [2.0, 2.1, 2.5, 2.1])
    assert [decided(before, risen, f"{GATE}decided_by: {by}\n").general.passed for by in ("interval", "point")] == [False, False]
    some = scores([1] * 4, [2.0, 2.0, 2.4, 2.1])
    assert [decided(before, some, f"{GATE}decided_by: {by}\n").general.passed for by in ("interval", "point")] == [False, True]


def test_the_interval_of_many_documents_is_that_of_the_normal_distribution() -> None:
    generator = np.random.default_rng(3)
    changes, sizes = generator.normal(-30, 20, 2_000), np.full(2_000, 25.0)
    low, high = change_interval(changes, sizes)
    wide = 1.96 * changes.std() / 25 / math.sqrt(2_000)
    assert low == pytest.approx(changes.mean() / 25 - wide, abs=0.05 * wide)
    assert high == pytest.approx(changes.mean() / 25 + wide, abs=0.05 * wide)
    assert change_interval(changes, sizes) == (low, high)


def test_sides_can_be_of_several_corpora() -> None:
    text = """
domain: {text: [{corpus: one, components: [safety]}, {corpus: two, components: [safety]}], down_by: 1}
general: {text: [{corpus: two, components: [stories]}, {corpus: one, components: [stories], split: test}], up_by: 0.2}
least_documents: 2
"""
    digests = {"one": "1" * 64, "two": "2" * 64}
    kinds = [{"manifest_digest": digests["one"]}, {"manifest_digest": digests["two"]}]
    kinds.append({"manifest_digest": digests["one"], "split": "test"})
    before = [scores([5] * 4, [2] * 4, **kind) for kind in kinds]
    after = [scores([3] * 4, [9] * 4, **kinds[0]), scores([2] * 4, [2.1] * 4, **kinds[1]), scores([99] * 4, [2] * 4, **kinds[2])]
    found = decide(gate(text), "0" * 64, lambda corpus: digests[str(corpus)], before, after[::-1])
    assert found.domain.change == pytest.approx(-2.5) and found.general.change == pytest.approx(0.05)
    assert found.domain.documents == 8 and found.passed
    assert len(found.protocols) == 3
    with pytest.raises(GateError, match=r"2 of the scores before could be meant; name its corpus"):
        decide(gate(), "0" * 64, lambda corpus: None, before, after)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"sequence_length": 128}, "not scored alike: sequence length 64 and 128"),
        ({"evaluator_sha256": "9" * 64}, "evaluator sha256 ffffffffffff… and 999999999999…"),
        ({"documents_sha256": "9" * 64}, "documents sha256"),
        ({"dtype": "bfloat16"}, "dtype float32 and bfloat16"),
        ({"split": "test"}, "no score of it after"),
        ({"manifest_digest": "9" * 64}, "passes"),
    ],
)
def test_scores_that_were_not_made_alike_are_not_compared(change: dict[str, object], complaint: str) -> None:
    """The same documents can be held out by two manifests: the documents' digest decides, not the manifest's."""
    before, after = scores([5] * 4, [2] * 4), scores([1] * 4, [2] * 4, **change)
    if complaint == "passes":
        assert decided(before, after).passed
    else:
        with pytest.raises(GateError, match=complaint):
            decided(before, after)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "gate.yaml: keys with values are needed; there are: domain, general, unit"),
        ("domain: [", "not YAML"),
        (GATE + "colour: red\n", "colour: there is no such key; there are: domain, general, unit, decided_by"),
        (GATE.replace("domain", "domian"), "domian: there is no such key; there are: domain, general"),
        (GATE.replace("down_by", "down"), r"domain\.down: there is no such key; there are: text, down_by, max_tokens"),
        (GATE.replace("up_by", "down_by"), r"general\.down_by: there is no such key; there are: text, up_by"),
        (GATE.replace("components: [safety]", "component: safety"), r"domain\.text\.0\.component: .* there are: corpus, split, comp"),
        (GATE.replace("[{components: [safety]}]", "{components: [safety]}"), r"domain\.text: a list is needed"),
        (GATE.replace("[safety]", "safety"), r"domain\.text\.0\.components: a list is needed"),
        (GATE.replace("{components: [safety]}", "safety"), r"domain\.text\.0: keys with values are needed; .* corpus, split"),
        ("domain: speech\ngeneral: books\n", "domain: keys with values are needed; there are: text, down_by"),
        ("unit: bits per byte\n", "domain: it is needed"),
        ("unit: nats per token\ndomain: {text: [1,\n", "not YAML: line 3: "),
        (GATE + "domain: {}\n", "'domain' stands there twice"),
        (GATE.replace("1.0", "-1.0"), r"domain\.down_by"),
        (GATE.replace("0.2", ".nan"), r"general\.up_by"),
        (GATE.replace("0.2", ".inf"), r"general\.up_by"),
        (GATE.replace("1.0", "yes"), "down_by is a number, not yes or no"),
        (GATE.replace("components: [safety]", "split: train"), r"domain\.text\.0\.split"),
        (GATE.replace("[{components: [safety]}]", "[]"), r"domain\.text"),
        (GATE.replace("[safety]", "[safety, safety]"), "a component stands there twice"),
        (GATE.replace("least_documents: 2", "least_documents: 1"), "least_documents"),
        (GATE + "unit: nats\n", "unit"),
        (GATE + "when: 2026-02-30\n", "not YAML"),
        ("[" * 2_000, "not YAML"),
        ("!!python/object/apply:os.getcwd []", "not YAML"),
    ],
)  # fmt: skip
def test_what_is_no_gate_is_refused_by_its_key(text: str, complaint: str) -> None:
    with pytest.raises(GateError, match=complaint):
        gate(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (GATE.replace("[stories]", "[poems]"), "there is no score of it before; there are: validation of aaaaaaaaaaaa…: safety, stories"),
        (GATE.replace("[stories]", "[stories, safety]"), "'safety' of split validation is in the domain already, and in general"),
        (GATE.replace("{components: [stories]}", "{}"), "'safety' of split validation is in the domain already"),
        (GATE.replace("[{components: [safety]}]", "[{components: [safety]}, {components: [safety]}]"), "in domain twice"),
        (GATE.replace("least_documents: 2", ""), "domain: 4 documents are fewer than the gate's least_documents, 20"),
        (GATE + "sequence_length: 128\n", "scored at T = 64, and the gate says 128"),
    ],
)  # fmt: skip
def test_texts_that_cannot_be_compared_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(GateError, match=complaint):
        decided(scores([5] * 4, [2] * 4), scores([1] * 4, [2] * 4), text)


def test_other_documents_of_the_same_sizes_are_not_the_same_documents() -> None:
    before, after = scores([5] * 4, [2] * 4), scores([1] * 4, [2] * 4)
    with pytest.raises(GateError, match="the documents before and after are not the same"):
        decided(before, replace(after, ids=after.ids.take(pa.array([*range(7, -1, -1)]))))  # type: ignore[union-attr]


def test_scores_come_back_from_their_file_as_they_were(tmp_path: Path) -> None:
    held = scores([5.25, 1 / 3, 2, 7], [2, 3, 4, 5])
    sha256 = held.write(Folder(str(tmp_path)), "scores.parquet")
    found = DocumentScores.read(tmp_path / "scores.parquet", sha256)
    assert found.about == held.about and found.components == held.components and found.ids.equals(held.ids)
    for name in ("owner", "nats", "tokens", "text_bytes"):
        assert np.array_equal(getattr(found, name), getattr(held, name))
    assert found.of(("stories",)).ids.to_pylist() == [f"stories/f#{n}" for n in range(4)]
    with pytest.raises(DocumentScoresError, match="its digest is another"):
        DocumentScores.read(tmp_path / "scores.parquet", "0" * 64)


def test_a_file_that_holds_no_scores_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scores.parquet"
    for data in (b"", b"PAR1", b"{}"):
        path.write_bytes(data)
        with pytest.raises(DocumentScoresError, match=r"scores\.parquet: no scores of documents"):
            DocumentScores.read(path)
    held = scores([5] * 4, [2] * 4)
    for broken in (replace(held, nats=held.nats * np.nan), replace(held, tokens=-held.tokens), replace(held, about={})):
        broken.write(Folder(str(tmp_path)), path.name)
        with pytest.raises(DocumentScoresError, match="no scores of documents"):
            DocumentScores.read(path)


def test_the_command_decides_and_its_exit_code_is_0_unless_asked(tmp_path: Path) -> None:
    (tmp_path / "gate.yaml").write_text(GATE)
    for name, held in (
        ("before", scores([5] * 4, [2] * 4)),
        ("good", scores([1] * 4, [2] * 4)),
        ("bad", scores([1] * 4, [3] * 4)),
    ):
        held.write(Folder(str(tmp_path)), name)

    def call(after: str, *more: str) -> tuple[int, str, str]:
        files = ["--before", str(tmp_path / "before"), "--after", str(tmp_path / after)]
        result = CliRunner().invoke(app, ["gate", str(tmp_path / "gate.yaml"), *files, *more])
        return result.exit_code, result.stdout, result.stderr

    code, out, _ = call("good", "--fail-on-gate")
    assert code == 0 and out.splitlines()[-1] == "gate=pass"
    code, out, _ = call("bad")
    assert code == 0 and out.splitlines()[-1] == "gate=fail"
    assert (
        "stories" not in out
        and "general: 2.0000 before, 3.0000 after, +1.0000 (95 % over 4 documents: +1.0000 to +1.0000)" in out
    )
    code, out, errors = call("bad", "--json", "--fail-on-gate")
    assert code == 1 and "the gate says fail" in errors
    told = json.loads(out)
    assert told["gate"] == "fail" and told["general"]["texts"] == ["stories (validation)"] and told["general"]["limit"] == 0.2
    code, _, errors = call("missing")
    assert code == 1 and "missing" in errors
    (tmp_path / "gate.yaml").write_text(GATE + "colour: red\n")
    code, _, errors = call("good")
    assert code == 2 and "colour" in errors
