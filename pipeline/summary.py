"""What a person should hear at the end of a run, or before one, beside its figures."""

from __future__ import annotations

from collections import Counter
from typing import Any

from manifests.manifest import MANIFEST, Content, Manifest, ManifestError, StageRecord, TokenizerTraining, listed_files
from manifests.storage import Folder, StorageError
from pipeline.steps import Done, Plan

SHOWN_RULES = 5
SHORT = 0.98
"""Of the tokenizer's sample, a component that has less of its share than this is worth a line."""
MOSTLY = 0.9
"""A component that loses more than this share to its reader was probably read with the wrong options."""


def remarks(content: Content) -> list[str]:
    """Lines about what looks wrong in a finished corpus, or was left out of it."""
    said = []
    for name, component in content.components.items():
        counts = [one for one in content.counts if one.component == name]
        lost = sum(counts[0].removed.values()) if counts else 0
        if component.documents_in and (not component.documents_kept or lost > MOSTLY * component.documents_in):
            rules = Counter({rule: number for one in counts for rule, number in one.removed.items()})
            said.append(
                f"warning: {name}: {component.documents_kept:,} of {component.documents_in:,} documents kept; {_top(rules)}"
            )
        if component.unread_files:
            files = ", ".join(f"{ending} {number:,}" for ending, number in component.unread_files.items())
            said.append(f"note: {name}: files of the source that no pattern takes: {files}")
    for summary in content.summaries:
        if without := summary.get("languages_without_file"):
            languages = ", ".join(f"{code} {number:,}" for code, number in Counter(without).most_common(SHOWN_RULES))
            said.append(f"note: {summary['component']}: no language file and so no rule on function words: {languages}")
    if content.tokenizer is not None and content.tokenizer.engine_note:
        said.append(f"note: encoded by tokenizers, which is slower: {content.tokenizer.engine_note}")
    wanted = next((record.options.get("vocabulary") for record in content.stages if record.stage == "tokenizer"), None)
    if content.tokenizer is not None and content.tokenizer.training and wanted and content.tokenizer.vocabulary < wanted:
        said.append(f"note: the sample gave a vocabulary of {content.tokenizer.vocabulary:,}, the recipe asked for {wanted:,}")
    if content.tokenizer is not None and content.tokenizer.training:
        said += _short_sample(content.tokenizer.training)
    return said


def outdated(corpus: Folder, manifest: Manifest) -> list[str]:
    """Lines about other manifests in the corpus's folder, such as `corpusmill manifest drop` writes, whose files have gone or are
    others since the corpus was built anew."""
    now = {path: sha256 for path, sha256, _ in listed_files(manifest.content)}
    said = []
    for place in sorted(corpus.fs.ls(corpus.root, detail=False)):
        name = str(place).rstrip("/").rpartition("/")[2]
        if not name.endswith(".json") or name == MANIFEST:
            continue
        try:
            other = Manifest.load(corpus, name)
        except (ManifestError, StorageError, OSError):
            continue
        if lost := [path for path, sha256, _ in listed_files(other.content) if now.get(path) != sha256]:
            said.append(
                f"warning: {name} no longer describes what is there: {len(lost):,} of its files have changed or gone, such as "
                f"{lost[0]}; make it anew with `corpusmill manifest drop`"
            )
    return said


def removals_so_far(done: Done) -> str:
    """The rules that removed most, from the receipts of the steps that are done."""
    rules: Counter[str] = Counter()
    for receipts in done.values():
        for receipt in receipts:
            for count in receipt.counts:
                rules.update(count.removed)
    return _top(rules)


def changes(content: Content, plan: Plan) -> list[str]:
    """What decides and is not as it was when the corpus was built: stages, options, versions, data, input files."""
    before = {(name, record.stage): record for name, one in content.components.items() for record in one.stages}
    before.update({("", record.stage): record for record in content.stages})
    now = {(name, record.stage): record for name, record in plan.records}
    said = []
    for (component, stage), record in now.items():
        where = f"{component}: {stage}" if component else stage
        if (component, stage) not in before:
            said.append(f"{where} is new")
        else:
            said += [f"{where}: {change}" for change in _differences(before[component, stage], record)]
    said += [
        f"{f'{component}: ' if component else ''}{stage} is gone" for component, stage in before if (component, stage) not in now
    ]
    for index, name in enumerate(plan.parts.names):
        if name not in content.components:
            said.append(f"component {name} is new")
            continue
        old = {one.path for one in content.components[name].inputs}
        new = {one.path for part in plan.parts.slices[plan.parts.of(index)] for one in part}
        said += [
            f"{name}: {kind} {len(files)} files, such as {min(files)}"
            for kind, files in (("new", new - old), ("gone", old - new))
            if files
        ]
    return said


def _differences(old: StageRecord, new: StageRecord) -> list[str]:
    found = [] if old.version == new.version else [f"version {old.version} → {new.version}"]
    for kind in ("options", "libraries", "data"):
        mine: dict[str, Any] = getattr(old, kind)
        theirs: dict[str, Any] = getattr(new, kind)
        for key in sorted(mine.keys() | theirs.keys()):
            if mine.get(key) != theirs.get(key):
                found.append(f"{key} has changed" if kind == "data" else f"{key} {mine.get(key)} → {theirs.get(key)}")
    return found


def _short_sample(training: TokenizerTraining) -> list[str]:
    """Where the tokenizer's sample was made smaller, or is not composed as the mixture says."""
    said = []
    if training.reduced_to < 1:
        said.append(
            f"note: the tokenizer's sample was reduced to {training.reduced_to:.1%}, {training.bytes:,} bytes, which have "
            "`distinct_bytes` of distinct words"
        )
    for name, one in training.components.items():
        if one.bytes == one.offered_bytes and one.share_got < SHORT * one.share_wanted:
            said.append(
                f"note: {name} is {one.share_got:.1%} of the tokenizer's sample, the mixture asked for {one.share_wanted:.1%}: "
                f"its training documents had {one.offered_bytes:,} bytes for it"
            )
    return said


def _top(rules: Counter[str]) -> str:
    shown = ", ".join(
        f"{rule} {number:,}" for rule, number in sorted(rules.items(), key=lambda one: (-one[1], one[0]))[:SHOWN_RULES]
    )
    return f"removed most by: {shown}" if shown else "nothing was removed"
