"""What a report shows of a corpus, read from its manifest and logs: no text, no shard."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from manifests.logs import Logs
from manifests.manifest import Content

SIZES = ((2, 2), (3, 3), (4, 4), (5, 5), (6, 10), (11, 20), (21, 50), (51, 100), (101, 1_000), (1_001, 10_000), (10_001, None))
"""Groups of cluster sizes, both ends included."""
CURVE_LINES = 200_000
"""Lines of metrics.jsonl that are drawn; of more, every n-th."""


@dataclass
class StageTotal:
    """A stage over all components that have it: documents that came in and were removed, by rule."""

    stage: str
    components: list[str] = field(default_factory=list)
    documents_in: int = 0
    removed: dict[str, int] = field(default_factory=dict)
    by_component: dict[str, int] = field(default_factory=dict)

    @property
    def gone(self) -> int:
        return sum(self.removed.values())


@dataclass
class RuleTotal:
    """Documents that a rule removed; `alone`: of those, the ones that failed no other rule of its block."""

    rule: str
    stage: str
    documents: int
    alone: int


@dataclass
class RunFigures:
    """A training run as its folder tells it. `result` is empty where the run has not ended."""

    name: str
    same_corpus: bool
    config: dict[str, Any]
    facts: dict[str, Any]
    result: dict[str, Any]
    epochs: dict[str, float]
    tokens: int
    losses: list[tuple[float, float]]


class RunError(Exception):
    """A folder that is no training run that can be read."""


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


def rules_of(logs: Logs) -> list[RuleTotal]:
    """Every rule that removed a document, the one that removed most first."""
    rows = logs.sql(
        "select rule, any_value(stage) as stage, count(*) as documents, "
        "count(*) filter (coalesce(len(failed_rules), 0) <= 1) as alone from removals group by rule order by documents desc, rule"
    )
    return [RuleTotal(row["rule"], row["stage"], row["documents"], row["alone"]) for row in rows]


def rules_by(logs: Logs, column: Literal["component", "language"]) -> dict[str, list[tuple[str, int]]]:
    """Rule → (component or language, documents removed), most first."""
    rows = logs.sql(
        f"select rule, coalesce({column}, 'not known') as name, count(*) as documents from removals group by all order by rule, "
        "documents desc, name"
    )
    found: dict[str, list[tuple[str, int]]] = {}
    for row in rows:
        found.setdefault(row["rule"], []).append((row["name"], row["documents"]))
    return found


def languages_of(logs: Logs) -> list[dict[str, Any]]:
    """language (null: not known), documents, kept, bytes and tokens of the kept; the one with most documents first."""
    return logs.sql(
        "select language, count(*) as documents, count(*) filter (removed_by is null) as kept, "
        "coalesce(sum(text_bytes) filter (removed_by is null), 0)::bigint as bytes, coalesce(sum(tokens), 0)::bigint as tokens "
        "from documents group by language order by documents desc, language nulls last"
    )


def domains_of(logs: Logs, most: int) -> list[dict[str, Any]]:
    """The domains with most documents: how many came in, and how many were kept."""
    return logs.sql(
        "select domain, count(*) as documents, count(*) filter (removed_by is null) as kept from documents "
        f"where domain is not null group by domain order by documents desc, domain limit {int(most)}"
    )


def clusters_of(logs: Logs) -> dict[str, dict[int, int]]:
    """Stage → cluster size → clusters, as the removals of near-duplicates name them."""
    rows = logs.sql(
        "select stage, size, count(*) as clusters from (select stage, cluster, max(cluster_size) as size from removals "
        "where cluster is not null and cluster_size is not null group by stage, cluster) group by all order by stage, size"
    )
    found: dict[str, dict[int, int]] = {}
    for row in rows:
        found.setdefault(row["stage"], {})[row["size"]] = row["clusters"]
    return found


def contaminated_of(logs: Logs) -> dict[str, int]:
    """Benchmark → documents removed for it."""
    rows = logs.sql("select benchmark, count(*) as documents from removals where benchmark is not null group by 1 order by 1")
    return {row["benchmark"]: row["documents"] for row in rows}


def grouped_sizes(sizes: dict[int, int]) -> list[tuple[str, int]]:
    """(name of a group of SIZES, clusters), from the first to the last that has any."""
    found = []
    for low, high in SIZES:
        clusters = sum(count for size, count in sizes.items() if size >= low and (high is None or size <= high))
        found.append((f"{low:,}" if low == high else f"{low:,} and more" if high is None else f"{low:,} to {high:,}", clusters))
    while found and not found[-1][1]:
        found.pop()
    return found


def run_figures(folder: Path, digest: str) -> RunFigures:
    """What a run's folder tells; RunError when it is none, or damaged. `digest` is that of the corpus in question."""
    facts = _json(folder / "run.json")
    config = _json(folder / "config.json")
    result = _json(folder / "result.json") if (folder / "result.json").exists() else {}
    rows = list(_metrics(folder / "metrics.jsonl"))
    epochs = result.get("epochs") or (rows[-1].get("epochs") if rows else None) or {}
    tokens = result.get("tokens") or (rows[-1].get("tokens") if rows else 0) or 0
    if not isinstance(epochs, dict) or not all(_finite(value) for value in epochs.values()) or not _finite(tokens):
        raise RunError(f"{folder}: its epochs or tokens are no numbers")
    losses = [
        (float(row["tokens"]), float(row["loss"])) for row in rows if _finite(row.get("loss")) and _finite(row.get("tokens"))
    ]
    same = facts.get("manifest_digest") == digest
    return RunFigures(folder.name or str(folder), same, config, facts, result, dict(epochs), int(tokens), losses)


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path.parent}: no training run: there is no {path.name}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: unreadable: {error}") from None
    if not isinstance(found, dict):
        raise RunError(f"{path}: not what a training run writes")
    return found


def _metrics(path: Path) -> Iterable[dict[str, Any]]:
    """Complete lines; a killed run can leave half a line. Of more than CURVE_LINES every n-th, and the last."""
    if not path.exists():
        return
    try:
        with open(path, encoding="utf-8") as file:
            lines = sum(1 for _ in file)
        every = -(-lines // CURVE_LINES) or 1
        with open(path, encoding="utf-8") as file:
            for n, line in enumerate(file):
                if (n % every == 0 or n == lines - 1) and line.endswith("\n"):
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise ValueError(f"line {n + 1} is no object")
                    yield row
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: unreadable: {error}") from None


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
