"""Running a recipe: step after step, part by part, resuming where an earlier run ended."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from manifests.manifest import MANIFEST, Manifest, ManifestError, listed_files
from manifests.storage import Folder
from pipeline import known_inputs, lock, receipts, standing
from pipeline.execution import Executor
from pipeline.finish import finish, plan_digest
from pipeline.inputs import PART_BYTES, InputError, source_folder
from pipeline.journal import Journal, latest, line
from pipeline.metrics import Metrics
from pipeline.plan import make_plan
from pipeline.progress import Progress
from pipeline.receipts import Packed, Receipt, Receipts
from pipeline.recipe import Recipe
from pipeline.resources import MIB
from pipeline.steps import Done, Plan, Step
from pipeline.summary import changes, outdated, remarks, removals_so_far
from pipeline.tally import StepTally, Tally
from pipeline.work import STEPS, Work

SHOWN_FAILURES = 5
MARGIN_MIB = 256
MOST_FAILURES = 20
"""A step that has so many failed parts is broken: no more of it is started."""


class RunFailed(Exception):
    """A run that ended incomplete: which parts, why, and how to go on."""


@dataclass
class StepReport:
    """A step as `corpusmill plan` shows it; `parts` is None where it follows from counts that are not there yet."""

    step: Step
    parts: int | None
    finished: int = 0


@dataclass
class Result:
    manifest: Manifest
    ran: dict[str, int] = field(default_factory=dict)
    """Step → parts that ran now; the others were done before."""
    remarks: list[str] = field(default_factory=list)
    """What a person should hear, `warning: …` or `note: …`; it stands in the log of the run too."""


@dataclass
class _Run:
    """What the steps of a run share."""

    corpus: Folder
    recipe: Recipe
    executor: Executor
    progress: Progress
    tally: Tally
    journal: Journal
    metrics: Metrics
    held: lock.Held


def run(
    recipe: Recipe,
    corpus: Folder,
    executor: Executor,
    progress: Progress,
    part_bytes: int = PART_BYTES,
    needs: Mapping[str, str] | None = None,
    echo: bool = False,
    changes_meant: bool = False,
) -> Result:
    """Builds the corpus and returns its manifest. RunFailed when a part cannot be done; starting again goes on from there.

    `needs` says otherwise what parts take, by step or stage (see `pipeline.resources`); `echo` writes the log of the run to
    standard error too. Neither changes the corpus. `changes_meant`: input files may differ from what the last run saw.
    """
    started = time.time()
    check_apart(recipe, corpus)
    with lock.exclusive(corpus) as held:
        plan = make_plan(recipe, part_bytes)
        plan.declare(needs or {})
        known_inputs.check(corpus, plan, changes_meant)
        if (manifest := _finished_before(corpus, recipe, standing.same(corpus, plan))) is not None:
            return _nothing_to_do(corpus, recipe, plan, manifest, echo)
        known = _known(plan, corpus)
        if len(known) == len(plan.steps):
            wanted = plan_digest(plan, known)
            if (manifest := _finished_before(corpus, recipe, wanted)) is not None:
                standing.save(corpus, plan, wanted)
                return _nothing_to_do(corpus, recipe, plan, manifest, echo)
        tally = Tally(recipe.path, corpus.url, len(plan.steps))
        done: Done = {}
        ran: dict[str, int] = {}
        with Journal(corpus, tally, echo) as journal:
            this = _Run(corpus, recipe, executor, progress, tally, journal, Metrics(recipe.corpus), held)
            for step in plan.steps:
                held.check()
                done[step.name], ran[step.name] = _run_step(step, done, known.pop(step.name, None), this)
            held.check()
            progress.line("writing the manifest")
            manifest = finish(
                corpus,
                plan,
                done,
                {
                    "started": round(started, 3),
                    "ended": round(time.time(), 3),
                    "host": socket.gethostname(),
                    "process": os.getpid(),
                    "parts": len(plan.parts),
                    "parts_run": sum(ran.values()),
                },
                held,
            )
            standing.save(corpus, plan, plan_digest(plan, done))
            tally.digest = manifest.digest
            said = _remarks(corpus, manifest)
            for one in said:
                journal.event("remark", message=one)
        progress.times(tally)
        return Result(manifest, ran, said)


def _nothing_to_do(corpus: Folder, recipe: Recipe, plan: Plan, manifest: Manifest, echo: bool) -> Result:
    """The corpus stands as the recipe wants it. Where the latest run ended otherwise, such as one of another recipe that failed,
    this one says so in its place; else the journal of the run that made the corpus stays the latest."""
    said = _remarks(corpus, manifest)
    try:
        last = latest(corpus)
    except OSError:
        last = {}
    if last and (last.get("state"), last.get("digest")) != ("finished", manifest.digest):
        tally = Tally(recipe.path, corpus.url, len(plan.steps), digest=manifest.digest)
        tally.documents_in = sum(one.documents_in for one in manifest.content.components.values())
        for count in manifest.content.counts:
            tally.removed.setdefault(count.stage, Counter()).update(count.removed)
        with Journal(corpus, tally, echo) as journal:
            journal.event("nothing_to_do", digest=manifest.digest)
            for one in said:
                journal.event("remark", message=one)
    elif echo:
        run = str(last.get("run") or "")
        print(line(run, "nothing_to_do", digest=manifest.digest), file=sys.stderr)
        for one in said:
            print(line(run, "remark", message=one), file=sys.stderr, flush=True)
    return Result(manifest, dict.fromkeys((step.name for step in plan.steps), 0), said)


def _remarks(corpus: Folder, manifest: Manifest) -> list[str]:
    """A corpus that is built is built, whether or not its folder can be looked at once more."""
    said = remarks(manifest.content)
    try:
        return [*said, *outdated(corpus, manifest)]
    except OSError as error:
        return [*said, f"warning: whether other manifests in {corpus.url} still fit cannot be told: {error}"]


def check_apart(recipe: Recipe, corpus: Folder) -> None:
    """InputError when the corpus lies in a component's source, or the source in the corpus: a run would read what it wrote. So it
    would, and replace it, if the corpus were one of its own references. And it is no file."""
    if corpus.local and os.path.isfile(corpus.root):
        raise InputError(f"the corpus is a folder, and {corpus.url} is a file: name another with --corpus")
    mine = os.path.realpath(corpus.root) if corpus.local else corpus.url
    for name, path in recipe.references.items():
        reference = Folder(path)
        other = os.path.realpath(reference.root) if reference.local else reference.url
        if reference.local == corpus.local and (f"{mine}/".startswith(f"{other}/") or f"{other}/".startswith(f"{mine}/")):
            raise InputError(f"the corpus {corpus.url} is, or lies in or around, its reference {name}: name another folder")
    for component in recipe.components.values():
        folder, only = source_folder(component)
        theirs = os.path.realpath(folder.root) if folder.local else folder.url
        if folder.local != corpus.local:
            continue
        inside = f"{mine}/".startswith(f"{theirs}/") and only is None
        if inside or f"{theirs}/".startswith(f"{mine}/"):
            where = "in the source" if inside else "around the source"
            raise InputError(
                f"the corpus {corpus.url} lies {where} of component {component.name}, {component.source}: name another folder"
            )


def survey(recipe: Recipe, corpus: Folder, part_bytes: int = PART_BYTES) -> tuple[list[StepReport], list[str]]:
    """What is done and what will run, without running anything; and what has changed since the corpus was built."""
    check_apart(recipe, corpus)
    plan = make_plan(recipe, part_bytes)
    try:
        changed = changes(Manifest.load(corpus).content, plan) if corpus.exists(MANIFEST) else []
    except ManifestError as error:
        changed = [str(error)]
    if others := known_inputs.changed(corpus, plan):
        more = f", and {len(others) - 1} more" if len(others) > 1 else ""
        changed.append(f"an input file has changed, which `run` refuses without --changed-inputs: {others[0]}{more}")
    done: Done = {}
    reports = []
    for step in plan.steps:
        if any(need not in done for need in step.needs):
            reports.append(StepReport(step, None))
            continue
        works = step.works(done)
        prints = [work.fingerprint for work in works]
        found = _Found(receipts.finished(corpus, step.name, prints))
        finished = sum(one in found.at for one in prints)
        reports.append(StepReport(step, len(works), finished))
        if finished == len(works):
            done[step.name] = found.ordered(prints)
    return reports, changed


def _known(plan: Plan, corpus: Folder) -> Done:
    """Receipts of the steps that are done; it ends at the first that is not."""
    known: Done = {}
    for step in plan.steps:
        prints = [work.fingerprint for work in step.works(known)]
        found = _Found(receipts.finished(corpus, step.name, prints))
        if len(found.at) < len(set(prints)):
            break
        known[step.name] = found.ordered(prints)
    return known


class _Found:
    """Receipts as they come, to be put in order."""

    def __init__(self, receipts: Iterable[Receipt] = ()) -> None:
        self.packed = Packed()
        self.at: dict[str, int] = {}
        for receipt in receipts:
            self.add(receipt)

    def add(self, receipt: Receipt) -> None:
        self.at[receipt.fingerprint] = self.packed.add(receipt)

    def ordered(self, prints: Sequence[str]) -> Receipts:
        return Receipts([(self.packed, array("L", [self.at[one] for one in prints]))])


def _run_step(step: Step, done: Done, known: Receipts | None, this: _Run) -> tuple[Receipts, int]:
    """The step's receipts, and how many parts had to run. `known` are all of them, where they have been read already."""
    step, works = step.counted(done), step.works(done)
    prints = [work.fingerprint for work in works]
    tally = this.tally.begin(step.name, step.about, len(set(prints)), step.resources)
    found = _there(step, prints, known, this)
    # Parts that hold the same, which only empty ones do, are one piece of work.
    todo = list({one: work for work, one in zip(works, prints, strict=True) if one not in found.at}.values())
    parts = len(works)
    del works
    this.journal.step_started(tally)
    if todo:
        _run_parts(step, [work.declaring(step.resources) for work in todo], parts, found, tally, this)
    ordered = found.ordered(prints)
    _check_errors(step, ordered, this.recipe, this.corpus)
    if step.check is not None:
        try:
            step.check(ordered)
        except Exception as error:
            raise RunFailed(f"{step.name}: {error}; {removals_so_far(done)}") from error
    this.journal.step_ended(tally)
    if tally.peak_bytes > step.resources.memory:
        took, declared = tally.peak_bytes / MIB, step.resources.memory / MIB
        this.progress.line(
            f"note: a part of {step.name} took {took:,.0f} MiB of memory and {declared:,.0f} are declared: "
            f"with --resources {step.name}:memory={took + MARGIN_MIB:.0f}MiB fewer run on a node at a time"
        )
    return ordered, len(todo)


def _there(step: Step, prints: list[str], known: Receipts | None, this: _Run) -> _Found:
    """Receipts of the parts that are done. Work files may be deleted once a corpus is built: a part that lost them is as good as
    never run, and its receipt goes."""
    corpus, found = this.corpus, _Found()
    own = f"{STEPS}/{step.name}"
    sizes: dict[str, int] | None = None
    for receipt in receipts.finished(corpus, step.name, prints) if known is None else known:
        if sizes is None:
            there = corpus.folder(own)
            sizes = {f"{own}/{stamp.path}": stamp.size for stamp in there.stamps()} if corpus.exists(own) else {}
        if receipt.fingerprint in found.at:
            continue
        if any(sizes.get(entry.path) != entry.bytes for entry in receipt.files.values()):
            corpus.delete(receipts.receipt_name(step.name, receipt.fingerprint))
            continue
        found.add(receipt)
        this.tally.known([receipt])
    return found


def _run_parts(step: Step, todo: list[Work], parts: int, found: _Found, tally: StepTally, this: _Run) -> None:
    """Runs what is left of a step; RunFailed when a part cannot be done."""
    failures: list[tuple[Work, str]] = []
    this.metrics.step(tally)
    with this.progress.step(tally) as bar, contextlib.closing(this.executor.run(this.corpus.url, todo)) as outcomes:
        for outcome in outcomes:
            this.held.check()
            if outcome is None:
                continue
            work, receipt = outcome.work, outcome.receipt
            if receipt is not None:
                found.add(receipt)
                this.tally.add(work, receipt)
                this.journal.part_done(work, receipt)
                this.metrics.part_done(tally, work, receipt)
                bar.advance()
                continue
            error = outcome.error or "unknown"
            failures.append((work, error))
            this.tally.fail(work, error)
            this.journal.part_failed(work, error, outcome.trace)
            this.metrics.part_failed(tally, work)
            this.progress.failure(step.name, work.part, error, outcome.trace)
            bar.advance()
            if len(failures) >= MOST_FAILURES:
                break
    if failures:
        raise RunFailed(_failure_text(step, failures, parts))


def _check_errors(step: Step, ordered: Receipts, recipe: Recipe, corpus: Folder) -> None:
    """A bug in a stage must not empty a corpus successfully: too many crashes, time-outs and exceptions fail the run. The parts
    with them are forgotten, so that they run again when the cause is mended."""
    broken: Counter[str] = Counter(error["stage"] for receipt in ordered for error in receipt.errors)
    documents: Counter[str] = Counter()
    for receipt in ordered:
        for count in receipt.counts:
            documents[count.stage] += count.documents_in
    for stage, number in broken.items():
        if number > recipe.max_errors and number > recipe.max_error_share * documents[stage]:
            for receipt in ordered:
                if any(error["stage"] == stage for error in receipt.errors):
                    corpus.delete(receipts.receipt_name(step.name, receipt.fingerprint))
            example = next(error for receipt in ordered for error in receipt.errors if error["stage"] == stage)
            raise RunFailed(
                f"{step.name}: stage {stage} broke on {number} of {documents[stage]} documents, more than max_error_share "
                f"{recipe.max_error_share:g} allows; the first: {example['id']}: {example['rule']}: {example['detail']}"
            )


def _finished_before(corpus: Folder, recipe: Recipe, wanted: str | None) -> Manifest | None:
    """The manifest that is there, if it is of this recipe and of the parts whose digest is `wanted`."""
    if wanted is None or not corpus.exists(MANIFEST):
        return None
    try:
        manifest = Manifest.load(corpus)
    except ManifestError:
        return None
    if manifest.run.get("plan") != wanted or manifest.content.recipe_sha256 != recipe.digest:
        return None
    there = {}
    for name in ("tokens", "logs"):
        if corpus.exists(name):
            there.update({f"{name}/{stamp.path}": stamp.size for stamp in corpus.folder(name).stamps()})
    for path, _, size in listed_files(manifest.content):
        found = there.get(path) if "/" in path else corpus.size(path) if corpus.exists(path) else None
        if found is None or (size is not None and found != size):
            return None
    return manifest


def _failure_text(step: Step, failures: list[tuple[Work, str]], parts: int) -> str:
    lines = [f"{step.name}: {len(failures)} of {parts} parts failed:"]
    lines += [f"  {work.part}: {error}" for work, error in failures[:SHOWN_FAILURES]]
    if len(failures) > SHOWN_FAILURES:
        lines.append(f"  and {len(failures) - SHOWN_FAILURES} more")
    lines.append("what is finished is kept: mend the cause and start the same command again to go on")
    return "\n".join(lines)
