"""What a report shows of a corpus, read from its manifest and logs: no text, no shard."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manifests.audit.costs import RuleCost, rule_costs
from manifests.logs import Logs
from manifests.manifest import Manifest
from manifests.storage import Folder, json_object
from manifests.trained_on import LEDGER, LedgerError, TrainedOn

SIZES = ((2, 2), (3, 3), (4, 4), (5, 5), (6, 10), (11, 20), (21, 50), (51, 100), (101, 1_000), (1_001, 10_000), (10_001, None))
"""Groups of cluster sizes, both ends included."""
MOST_NAMES = 1_000
"""Components and languages that are told of a rule."""
CURVE_LINES = 200_000
"""Lines of metrics.jsonl that are drawn; of more, every n-th."""


@dataclass
class RunFigures:
    """A training run as its folder tells it. `result` is empty where the run has not ended. `epochs`: how often it went through
    each component; `served`: whether these are counted from what its ledger says was served of each, or are as the run states
    them, by rows, where components that are served together have one figure."""

    name: str
    same_corpus: bool
    config: dict[str, Any]
    facts: dict[str, Any]
    result: dict[str, Any]
    epochs: dict[str, float]
    served: bool
    tokens: int
    losses: list[tuple[float, float]]


class RunError(Exception):
    """A folder that is no training run that can be read."""


def rules_of(logs: Logs) -> list[RuleCost]:
    """What every rule cost, the one that removed most first, with all components and languages."""
    return rule_costs(logs, ("component", "language"), largest=MOST_NAMES)


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


def run_figures(folder: Path, corpus: Folder, manifest: Manifest) -> RunFigures:
    """What a run's folder tells; RunError when it is none, or damaged. `manifest` is that of the corpus in question."""
    absent = f"{folder}: no training run: there is no"
    facts, config = (json_object(folder / name, RunError, f"{absent} {name}") for name in ("run.json", "config.json"))
    result = json_object(folder / "result.json", RunError, absent) if (folder / "result.json").exists() else {}
    rows = list(_metrics(folder / "metrics.jsonl"))
    epochs = result.get("epochs") or (rows[-1].get("epochs") if rows else None) or {}
    tokens = result.get("tokens") or (rows[-1].get("tokens") if rows else 0) or 0
    if not isinstance(epochs, dict) or not all(_finite(value) for value in epochs.values()) or not _finite(tokens):
        raise RunError(f"{folder}: its epochs or tokens are no numbers")
    losses = [
        (float(row["tokens"]), float(row["loss"])) for row in rows if _finite(row.get("loss")) and _finite(row.get("tokens"))
    ]
    same = facts.get("manifest_digest") == manifest.digest
    passes = _passes(folder, corpus, manifest, same)
    told = dict(epochs) if passes is None else passes
    return RunFigures(folder.name or str(folder), same, config, facts, result, told, passes is not None, int(tokens), losses)


def _passes(folder: Path, corpus: Folder, manifest: Manifest, same: bool) -> dict[str, float] | None:
    """By the run's ledger; None where it has none, or is of a corpus that is not at hand."""
    if not (folder / LEDGER).exists():
        return None
    try:
        return TrainedOn(folder, corpus, manifest, same_shards=True).passes()
    except LedgerError as error:
        if same:
            raise RunError(str(error)) from None
        return None


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


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
