"""The funnel: what each stage took in, kept and removed, as the manifest counts it, which `verify` checks against the logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from manifests.blocks import MEASURE
from manifests.manifest import Content


def funnel_rows(content: Content) -> list[dict[str, Any]]:
    """One row each component and stage in running order: component, step, stage, documents_in, documents_kept, removed, share (of
    those that came in), rules (rule → documents), edited (rule → documents), bytes_in, bytes_kept."""
    rows = []
    for name in content.components:
        for count in (one for one in content.counts if one.component == name):
            gone = sum(count.removed.values())
            rows.append(
                {
                    "component": name,
                    "step": count.step,
                    "stage": count.stage,
                    "documents_in": count.documents_in,
                    "documents_kept": count.documents_kept,
                    "removed": gone,
                    "share": gone / count.documents_in if count.documents_in else None,
                    "rules": dict(sorted(count.removed.items(), key=lambda item: (-item[1], item[0]))),
                    "edited": dict(sorted(count.edited.items(), key=lambda item: (-item[1], item[0]))),
                    "bytes_in": count.bytes_in,
                    "bytes_kept": count.bytes_kept,
                }
            )
    return rows


def removed_by_rule(content: Content, component: str | None = None) -> dict[tuple[str, str], int]:
    """(stage, rule) → documents that went by it, in one component or in all; rules that removed most first, then by rule and
    stage."""
    sums: dict[tuple[str, str], int] = {}
    for count in (one for one in content.counts if component in (None, one.component)):
        for rule, number in count.removed.items():
            if number:
                sums[count.stage, rule] = sums.get((count.stage, rule), 0) + number
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0][1], item[0][0])))


def removed_by_name(content: Content, component: str | None = None) -> dict[str, int]:
    """Rule → documents that went by it, in whatever stages."""
    sums: dict[str, int] = {}
    for (_, rule), number in removed_by_rule(content, component).items():
        sums[rule] = sums.get(rule, 0) + number
    return sums


@dataclass
class StageTotal:
    """A stage over all components that have it: documents that came in and were removed, by rule and by component."""

    stage: str
    components: list[str] = field(default_factory=list)
    documents_in: int = 0
    removed: dict[str, int] = field(default_factory=dict)
    by_component: dict[str, int] = field(default_factory=dict)

    @property
    def gone(self) -> int:
        return sum(self.removed.values())

    @property
    def parts(self) -> list[str]:
        """What hides behind the name of a filter block: the first words of its rules, those that removed most first; nothing
        where that is the stage itself."""
        ranked = sorted(self.removed, key=lambda one: (-self.removed[one], one))
        parts = list(dict.fromkeys(rule.partition(".")[0] for rule in ranked))
        return parts if parts != [self.stage] else []


def stages_of(content: Content) -> list[StageTotal]:
    """Every stage in an order that agrees with that of each component, where there is one."""
    sequences: dict[str, list[str]] = {}
    for count in content.counts:
        sequences.setdefault(count.component, []).append(count.stage)
    totals = {stage: StageTotal(stage) for stage in _merged(list(sequences.values()))}
    for count in content.counts:
        total = totals[count.stage]
        total.documents_in += count.documents_in
        total.components.append(count.component)
        for rule, documents in count.removed.items():
            total.removed[rule] = total.removed.get(rule, 0) + documents
        gone = sum(count.removed.values())
        total.by_component[count.component] = total.by_component.get(count.component, 0) + gone
    return list(totals.values())


@dataclass
class Level:
    """A row of the funnel: what came in, what was left, and what removed the rest."""

    name: str
    before: int
    left: int
    note: str = ""


def levels_of(content: Content) -> list[Level]:
    """The funnel over all components: what came in, each stage that removed something, what was kept."""
    left = sum(component.documents_in for component in content.components.values())
    levels = [Level("came in", left, left)]
    for stage in stages_of(content):
        if stage.gone:
            levels.append(Level(stage.stage, left, left - stage.gone, ", ".join(stage.parts)))
            left -= stage.gone
    return [*levels, Level("kept", left, left)]


def quiet_stages(content: Content) -> list[str]:
    """Stages that removed nothing; those that only measure are no stages of their own."""
    return [one.stage for one in stages_of(content) if not one.gone and not one.stage.endswith(MEASURE)]


def _merged(sequences: Sequence[Sequence[str]]) -> list[str]:
    """All names once, each after what comes before it in a sequence; where sequences disagree, the first one wins."""
    before: dict[str, set[str]] = {}
    for sequence in sequences:
        for name in sequence:
            before.setdefault(name, set())
        for earlier, later in pairwise(sequence):
            if earlier != later:
                before[later].add(earlier)
    ordered: list[str] = []
    while len(ordered) < len(before):
        waiting = [name for name in before if name not in ordered]
        ordered.append(next((name for name in waiting if before[name] <= set(ordered)), waiting[0]))
    return ordered
