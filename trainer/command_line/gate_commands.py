"""`corpusmill gate`: decides a gate for two evaluations that were made elsewhere, or again for a run that has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from manifests.terminal import visible
from trainer.command_line.exits import BAD_USAGE, FAILED, end

ScoreFiles = list[Path]


def gate(
    file: Annotated[Path, typer.Argument(help="The gate, in YAML; or a run, whose gate is decided again.", metavar="GATE|RUN")],
    before: Annotated[
        ScoreFiles | None,
        typer.Option(help="What documents cost before, as `evaluate --documents` wrote it; repeat.", metavar="FILE"),
    ] = None,
    after: Annotated[ScoreFiles | None, typer.Option(help="The same documents after; repeat.", metavar="FILE")] = None,
    fail_on_gate: Annotated[bool, typer.Option(help="Exit code 1 where the gate says fail.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the decision as JSON.")] = False,
) -> None:
    """Decides whether a model has passed a gate: domain loss down, general loss not up, over the same documents.

    A gate is decided on what was written before: keep the file's SHA-256, which is printed, from then. Of a run, its own records
    decide alone; exit code 1 where that is not the decision that the run recorded.
    """
    from manifests.manifest import ManifestError, open_corpus
    from manifests.storage import StorageError
    from trainer.adaptation.gate import GateError, GateFile, decide
    from trainer.adaptation.gate_record import decide_again
    from trainer.scores.document_scores import DocumentScores, DocumentScoresError

    if not file.exists():
        end(FAILED, visible(f"{file} is not there: name a gate in YAML, or a run's folder"))
    if bool(before) != bool(after) or file.is_dir() == bool(before):
        end(BAD_USAGE, "a gate in YAML is decided for --before and --after, and a run's without them: it has its own scores")
    differing: list[str] = []
    try:
        if not before or not after:
            decision, differing = decide_again(file)
        else:
            read = GateFile.read(file)
            scores = [[DocumentScores.read(path) for path in paths] for paths in (before, after)]

            def digest_of(corpus: str | None) -> str | None:
                return None if corpus is None else open_corpus(read.place(corpus))[1].digest

            decision = decide(read.gate, read.sha256, digest_of, *scores)
    except GateError as error:
        end(BAD_USAGE if before else FAILED, str(error))
    except (DocumentScoresError, ManifestError, StorageError, OSError) as error:
        end(FAILED, str(error))
    print(json.dumps(decision.as_json(), indent=1) if as_json else visible(decision.describe()), flush=True)
    if differing:
        end(FAILED, visible(f"the run recorded another decision: {'; '.join(differing)}"))
    if fail_on_gate and not decision.passed:
        end(FAILED, "the gate says fail")
