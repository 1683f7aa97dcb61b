"""What differs between two corpora, and why: causes first (inputs, stages, options, libraries), then what came of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from manifests.audit.flow import removed_by_name
from manifests.manifest import ComponentRecord, Content, StageRecord

MOST_NAMES = 5
"""Input files that are named one by one."""


@dataclass(frozen=True)
class Change:
    """kind: "cause" (what decides) or "effect" (what came of it). where: corpus, component or stage. what: the thing that
    differs, with its value before and after; None where it is not there."""

    kind: Literal["cause", "effect"]
    where: str
    what: str
    before: Any
    after: Any

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def differences(before: Content, after: Content) -> list[Change]:
    """Causes and then effects, each in the order of components and stages; [] for the same content."""
    changes = [*_causes(before, after), *_effects(before, after)]
    return sorted(changes, key=lambda change: change.kind != "cause")


def _causes(before: Content, after: Content) -> Iterator[Change]:
    if before.seed != after.seed:
        yield Change("cause", "corpus", "seed", before.seed, after.seed)
    for name in _either(before.components, after.components):
        old, new = before.components.get(name), after.components.get(name)
        if old is None or new is None:
            yield Change("cause", name, "component", _size(old) or _dropped(before, name), _size(new) or _dropped(after, name))
            continue
        for what in ("source", "format", "licence", "snapshot", "priority"):
            if getattr(old, what) != getattr(new, what):
                yield Change("cause", name, what, getattr(old, what), getattr(new, what))
        yield from _inputs(name, old, new)
        yield from _stages(name, old.stages, new.stages)
    yield from _stages("corpus", before.stages, after.stages)
    for name in _either(before.references, after.references):
        mine, other = (content.references.get(name) for content in (before, after))
        if mine != other:
            yield Change("cause", "corpus", f"reference {name}", mine and mine.digest, other and other.digest)


def _inputs(name: str, old: ComponentRecord, new: ComponentRecord) -> Iterator[Change]:
    mine, other = ({one.path: one.sha256 for one in record.inputs} for record in (old, new))
    kinds = {
        "input files added": sorted(other.keys() - mine.keys()),
        "input files removed": sorted(mine.keys() - other.keys()),
        "input files changed": sorted(path for path in mine.keys() & other.keys() if mine[path] != other[path]),
    }
    for what, paths in kinds.items():
        if paths:
            shown = ", ".join(paths[:MOST_NAMES]) + (f", … {len(paths):,} in all" if len(paths) > MOST_NAMES else "")
            yield Change("cause", name, what, None if "added" in what else shown, None if "removed" in what else shown)


def _stages(where: str, old: list[StageRecord], new: list[StageRecord]) -> Iterator[Change]:
    mine, other = (_by_name(records) for records in (old, new))
    for name in _either(mine, other):
        one, two = mine.get(name), other.get(name)
        at = f"{where}: {name}"
        if one is None or two is None:
            yield Change("cause", at, "stage", one and "there", two and "there")
            continue
        if one.version != two.version:
            yield Change("cause", at, "version", one.version, two.version)
        for kind in ("options", "libraries", "data"):
            values, others = getattr(one, kind), getattr(two, kind)
            for key in _either(values, others):
                if values.get(key) != others.get(key):
                    yield Change("cause", at, f"{kind.removesuffix('s')} {key}", values.get(key), others.get(key))
    common = [name for name in mine if name in other]
    if common != [name for name in other if name in mine]:
        yield Change("cause", where, "order of stages", list(mine), list(other))


def _by_name(records: list[StageRecord]) -> dict[str, StageRecord]:
    """A stage that stands several times is told apart by number."""
    found: dict[str, StageRecord] = {}
    for record in records:
        name, number = record.stage, 1
        while name in found:
            number += 1
            name = f"{record.stage} ({number})"
        found[name] = record
    return found


def _effects(before: Content, after: Content) -> Iterator[Change]:
    for name in _either(before.components, after.components):
        old, new = before.components.get(name), after.components.get(name)
        if old is None or new is None:
            continue
        for what in ("documents_in", "documents_kept"):
            if getattr(old, what) != getattr(new, what):
                yield Change("effect", name, what.replace("_", " "), getattr(old, what), getattr(new, what))
        removed, others = (removed_by_name(content, name) for content in (before, after))
        for rule in _either(removed, others):
            if removed.get(rule, 0) != others.get(rule, 0):
                yield Change("effect", name, f"removed by {rule}", removed.get(rule, 0), others.get(rule, 0))
        for split in _either(old.tokens, new.tokens):
            if old.tokens.get(split, 0) != new.tokens.get(split, 0):
                yield Change("effect", name, f"{split} tokens", old.tokens.get(split, 0), new.tokens.get(split, 0))
    tokenizers = [content.tokenizer and content.tokenizer.sha256 for content in (before, after)]
    if tokenizers[0] != tokenizers[1]:
        yield Change("effect", "corpus", "tokenizer", *tokenizers)
    shards, other_shards = ({shard.path: shard.sha256 for shard in content.shards} for content in (before, after))
    same = sum(other_shards.get(path) == digest for path, digest in shards.items())
    if not same == len(shards) == len(other_shards):
        yield Change("effect", "corpus", f"shards, {same:,} of which are the same", len(shards), len(other_shards))


def _either(one: Any, other: Any) -> list[str]:
    return list(dict.fromkeys([*one, *other]))


def _dropped(content: Content, name: str) -> str | None:
    """Why a component is not there, where the manifest says so."""
    record = next((one for one in content.dropped if one["component"] == name), None)
    return f"dropped: {record['reason'] or 'no reason given'}" if record else None


def _size(record: ComponentRecord | None) -> str | None:
    return None if record is None else f"{record.documents_kept:,} documents kept"
