"""`corpusmill evaluate` and `corpusmill choices`: bits per byte of held-out text, and multiple-choice questions to a model."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifests.terminal import terminal, visible
from trainer.command_line.exits import BAD_USAGE, FAILED, end, explain, need_torch, ranks_of
from trainer.command_line.run_options import (
    CheckpointArgument,
    CorpusOption,
    DeviceOption,
    JsonOption,
    open_corpus_of,
    weights_of,
)
from trainer.command_line.training_options import Cache, HeldOut, Manifest, Precision

if TYPE_CHECKING:
    from trainer.distributed.ranks import Ranks
    from trainer.scores.choices import Answer, Result
    from trainer.scores.intervals import Paired
    from trainer.scores.questions import Question


def evaluate(
    checkpoint: CheckpointArgument,
    manifest: Manifest,
    split: Annotated[HeldOut, typer.Option(help="Which held-out documents.")] = HeldOut.validation,
    sequence_length: Annotated[
        int | None, typer.Option(help="T; default: as trained. Figures at different T do not compare.")
    ] = None,
    device: DeviceOption = "auto",
    dtype: Annotated[Precision, typer.Option(help="auto: bfloat16 on a GPU, float32 on a CPU.")] = Precision.auto,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole score as JSON.")] = False,
    documents: Annotated[
        Path | None, typer.Option(help="Write what each document costs here, as Parquet: for `corpusmill gate`.", metavar="FILE")
    ] = None,
    cache: Cache = None,
) -> None:
    """Scores a checkpoint on held-out documents, in bits per byte of their text."""
    need_torch()
    if sequence_length is not None and sequence_length < 2:
        end(BAD_USAGE, f"--sequence-length {sequence_length}: a row needs at least 2 tokens")
    from manifests.storage import Folder
    from trainer.run_files.released import weights_folder
    from trainer.scores.document_scores import DocumentScores
    from trainer.scores.scoring import score_documents

    with ranks_of(device) as ranks:
        if ranks.first:  # it may take minutes, as on a CPU
            print(f"scoring the {split.value} split", file=sys.stderr, flush=True)
        held, length = weights_folder(checkpoint), sequence_length
        scored, corpus, origin = score_documents(held, manifest, split.value, ranks, length, dtype.value, cache)
        score = scored.score
        if documents is not None and ranks.first:
            costs = DocumentScores.of_evaluation(scored, corpus)
            costs.write(Folder(str(documents.absolute().parent)), documents.name)
    if ranks.first:
        name = "val" if split is HeldOut.validation else split.value
        warnings = origin.warnings(score.sequence_length)
        if as_json:
            print(json.dumps({**score.as_json(), "model": asdict(origin), "warnings": warnings}, indent=1), flush=True)
            return
        told = [score.describe(), visible(origin.describe()), *(f"warning: {one}" for one in warnings)]
        print("\n".join([*told, f"{name}_bpb={score.val_bpb:.4f}"]), flush=True)


def choices(
    checkpoint: CheckpointArgument,
    questions: Annotated[
        Path | None,
        typer.Option(help="JSONL of this package, HellaSwag or ARC. Default: 24 questions of this package.", metavar="FILE"),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="Another checkpoint, or the answers of one, to compare with.", metavar="CHECKPOINT_OR_FILE"),
    ] = None,
    answers: Annotated[Path | None, typer.Option(help="Write a line for each question here, as JSONL.", metavar="FILE")] = None,
    manifest: CorpusOption = None,
    device: DeviceOption = "auto",
    dtype: Annotated[str, typer.Option(help="auto (bfloat16 on a GPU, float32 on a CPU), float32 or bfloat16.")] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Asks a model multiple-choice questions: it chooses the option that it finds likeliest after the prompt."""
    from trainer.scores.questions import OWN, QuestionsError, read_questions

    if dtype not in ("auto", "float32", "bfloat16"):
        end(BAD_USAGE, f"--dtype {dtype}: auto, float32 or bfloat16")
    if answers is not None and (answers.is_dir() or not answers.absolute().parent.is_dir()):
        end(FAILED, visible(f"--answers {answers}: {'a folder' if answers.is_dir() else 'there is no such folder'}; name a file"))
    path = questions or OWN
    try:
        asked = read_questions(path)
    except QuestionsError as error:
        end(FAILED, visible(error))
    need_torch()
    from trainer.distributed.ranks import Ranks
    from trainer.scores.choices import ChoicesError, compare, read_answers, summarise

    try:
        ranks = Ranks.join(device)
        given, about = _ask(checkpoint, asked, manifest, ranks, dtype)
        other: list[Answer] | None = None
        if against is not None and against.is_file():
            other = read_answers(against)
        elif against is not None:
            other, _ = _ask(against, asked, manifest, ranks, dtype)
        compared = None if other is None else compare(other, given)
        if answers is not None:
            answers.write_text("".join(json.dumps(one.as_json(), ensure_ascii=False) + "\n" for one in given), encoding="utf-8")
    except ChoicesError as error:
        end(FAILED, visible(error))
    except Exception as error:
        explain(error)
    found = summarise(given, asked)
    if as_json:
        about["questions_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        told = {**asdict(found), **about, "against": {name: asdict(one) for name, one in compared.items()} if compared else None}
        print(json.dumps(told, indent=1), flush=True)
        return
    _show(found)
    if compared:
        _compared(compared, str(against))


def _ask(
    checkpoint: Path, asked: list[Question], manifest: str | None, ranks: Ranks, dtype: str
) -> tuple[list[Answer], dict[str, Any]]:
    from trainer.distributed.ranks import usual_dtype
    from trainer.run_files.tokenizer import open_tokenizer
    from trainer.scores.choices import answer_all
    from trainer.scores.scoring import load_model, model_logits

    path, beside = weights_of(checkpoint)
    loaded = load_model(path)
    corpus = open_corpus_of(manifest or beside, loaded.config.manifest)
    tokenizer = open_tokenizer(corpus.folder, corpus.tokenizer.file, loaded.state.tokenizer_sha256)

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    chosen = usual_dtype(ranks.device.type) if dtype == "auto" else dtype
    logits = model_logits(loaded.model.to(ranks.device), chosen)
    length, entries = loaded.config.row_tokens, corpus.tokenizer.vocabulary
    given = answer_all(asked, encode, logits, corpus.tokenizer.bos_id, length, entries, ranks.device)
    about = {
        "checkpoint": str(loaded.folder), "step": loaded.state.step, "tokens": loaded.state.tokens, "dtype": chosen,
        "sequence_length": length, "tokenizer_sha256": loaded.state.tokenizer_sha256,
    }  # fmt: skip
    return given, about


def _show(found: Result) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("", "questions", "right", "%", "95 %", "chance"):
        table.add_column(heading, justify="right" if heading else "left")
    groups = {f"sum, {share.name}": share for share in found.by_group}
    for name, share in {**{share.name: share for share in found.shares}, **groups}.items():
        low, high = share.interval
        percent = "-" if share.share is None else f"{100 * share.share:.1f}"
        chance = "-" if share.chance is None else f"{100 * share.chance:.1f}"
        interval = f"{100 * low:.1f} to {100 * high:.1f}"
        table.add_row(Text(visible(name)), f"{share.questions:,}", f"{share.right:,}", percent, interval, chance)
    terminal().print(table)
    for reason, count in found.left_out.items():
        print(f"not scored: {count:,} questions, {reason}", flush=True)
    if found.cut:
        print(
            f"cut: the prompts of {found.cut:,} questions, which are longer than the model's context with an option", flush=True
        )


def _compared(compared: dict[str, Paired], against: str) -> None:
    for name, one in compared.items():
        low, high = one.interval
        print(
            f"{name}, against {visible(against)}: {100 * one.difference:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f}); "
            f"{one.gained:,} gained, {one.lost:,} lost of {one.questions:,}; p = {one.p:.3g} (exact McNemar)",
            flush=True,
        )
