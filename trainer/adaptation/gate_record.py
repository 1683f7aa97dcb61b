"""The gate of a run in the run's folder, and its decision made again from nothing else.

`continued.json` has the gate as it was written and the digests of the scores that the run began with, `gate/` the scores before
and after, `run.json` the digests of the corpora that the gate names, and `result.json` the decision. Corpora, models and the
gate's own file are not looked at: they may be gone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict, ValidationError

from manifests.storage import json_object
from trainer.adaptation.gate import Decision, GateError, GateFile, decide
from trainer.run_files.released import is_release
from trainer.scores.document_scores import DocumentScores, DocumentScoresError

RECORD, FOLDER = "continued.json", "gate"
BEFORE, AFTER = "before", "after"
FACTS, RESULT = "run.json", "result.json"
SIDES = ("domain", "general")


class RecordedGate(BaseModel):
    """The gate as it was written, and the folder that relative paths in it begin at."""

    model_config = ConfigDict(extra="forbid")

    sha256: str
    text: str
    folder: str


class Record(BaseModel):
    """`continued.json`. `before`: SHA-256 of the scores that the run began with, by name of file."""

    model_config = ConfigDict(extra="forbid")

    parent: dict[str, Any]
    words: list[dict[str, Any]]
    gate: RecordedGate | None
    before: dict[str, str] | None


def decide_again(run: Path) -> tuple[Decision, list[str]]:
    """The decision of a finished run's gate, and what of it differs from the decision that the run recorded, by name.

    GateError for a run without a gate or whose files are not of one gate, and for a release, which has no scores of documents;
    DocumentScoresError for scores that are missing, damaged, or not those that the run began with. Nothing is written, and
    checkpoints are not looked at.
    """
    if not (run / RECORD).exists():
        _refuse(run)
    try:
        record = Record.model_validate(_of(run, RECORD))
    except ValidationError as error:
        raise GateError(f"{run / RECORD}: not what a run writes: {error.errors()[0]['msg']}") from None
    if record.gate is None:
        raise GateError(f"{run}: it was begun without a gate")
    recorded = _of(run, RESULT).get("gate")
    told = _inner(_of(run, FACTS).get("continued")).get("gate")
    if not isinstance(recorded, dict) or not isinstance(told, dict):
        raise GateError(f"{run}: the run has not ended with the decision of a gate")
    file = GateFile.of(record.gate.text, Path(record.gate.folder), str(run / RECORD))
    said = {RECORD: record.gate.sha256, FACTS: told.get("sha256"), RESULT: recorded.get("gate_sha256")}
    if strangers := [name for name, sha256 in said.items() if sha256 != file.sha256]:
        raise GateError(f"{run}: {', '.join(strangers)} is of another gate than the text in {RECORD}, {file.sha256[:12]}…")
    digests = _digests(run, file, told)
    before = [_scores(run, name, sha256) for name, sha256 in sorted((record.before or {}).items())]
    after = [_scores(run, AFTER + name.removeprefix(BEFORE), None) for name in sorted(record.before or {})]
    decision = decide(file.gate, file.sha256, digests.get, before, after)
    again = json.loads(json.dumps(decision.as_json()))
    return decision, _differing(recorded, again)


def _refuse(run: Path) -> NoReturn:
    """A folder without `continued.json`: says what it is, and where the decision can be made again."""
    if is_release(run) and (run / RESULT).exists():
        gate = _inner(_of(run, RESULT).get("gate"))
        if gate.get("gate") is None:
            raise GateError(f"{run}: a release of a run without a gate")
        raise GateError(
            f"{run}: a release; its {RESULT} says gate={gate['gate']}, and the scores of documents that this was decided by are "
            f"not in it: decide again in the folder of the run that was released, from {RECORD} and {FOLDER}/ there"
        )
    if (run / FACTS).exists():
        begun = _inner(_of(run, FACTS).get("continued"))
        if not begun:
            raise GateError(f"{run}: a run that began with weights of its own, without --from and --gate")
        raise GateError(f"{run / RECORD} is not there: a copy needs it, and {FOLDER}/, {FACTS} and {RESULT}, to decide again")
    raise GateError(f"{run}: no run: it has neither {RECORD} nor {FACTS}")


def _digests(run: Path, file: GateFile, told: dict[str, Any]) -> dict[str | None, str | None]:
    """The digest of the manifest of each corpus that the gate names, None for the one trained on."""
    found: dict[str | None, str | None] = {}
    for side in SIDES:
        named = [text.corpus for text in getattr(file.gate, side).text]
        texts = _inner(told.get(side)).get("text")
        known = [_inner(one).get("corpus") for one in texts] if isinstance(texts, list) else []
        if len(known) != len(named) or not all(isinstance(one, str) for one in known):
            raise GateError(f"{run / FACTS}: not the texts of the gate in {RECORD}")
        found.update(zip(named, known, strict=True))
    return found


def _scores(run: Path, name: str, sha256: str | None) -> DocumentScores:
    if Path(name).name != name or (run / FOLDER / name).is_symlink():
        raise DocumentScoresError(f"{run / RECORD}: {name!r} is no file of the run")
    return DocumentScores.read(run / FOLDER / name, sha256)


def _differing(recorded: Any, again: Any, name: str = "") -> list[str]:
    """Names of all figures that are not the same, the inner ones with their sides before them."""
    if isinstance(recorded, dict) and isinstance(again, dict):
        return [
            one
            for key in dict.fromkeys((*recorded, *again))
            for one in _differing(recorded.get(key), again.get(key), f"{name}.{key}" if name else str(key))
        ]
    return [] if recorded == again else [f"{name} {recorded!r}, now {again!r}"]


def _inner(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _of(run: Path, name: str) -> dict[str, Any]:
    return json_object(run / name, GateError, f"{run / name} is not there: no run with a gate that has ended")
