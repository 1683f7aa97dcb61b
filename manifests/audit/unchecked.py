"""What was not checked, by the manifest: stages that a corpus lacks, limits of those that it has, and what they left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from manifests.manifest import Content
from manifests.wording import counted, some

COMPONENTS_NAMED = 12


@dataclass(frozen=True)
class Gap:
    """about: the stage, component or benchmark. said: a sentence. items: of a benchmark, the ids that were not looked for."""

    about: str
    said: str
    items: tuple[str, ...] = ()


ABSENT_STAGES = {
    "language": "No language was told apart.",
    "exact_dedup": "Exact duplicates were not looked for.",
    "minhash": "Near-duplicates were not looked for.",
    "decontamination": "No benchmark was looked for.",
    "personal_data": "Personal data were not looked for.",
    "split": "Nothing was held out.",
}


def unchecked(content: Content) -> list[Gap]:
    """Stages that are not there first, then limits of those that are, what was left unread, and last items of benchmarks."""
    return list(dict.fromkeys([*_absent(content), *_limits(content), *_unread(content), *_always(content), *_items(content)]))


def _absent(content: Content) -> Iterator[Gap]:
    everywhere = {record.stage for record in content.stages}
    by_component = {name: {record.stage for record in one.stages} for name, one in content.components.items()}
    anywhere = everywhere.union(*by_component.values())
    for stage, sentence in ABSENT_STAGES.items():
        if stage not in anywhere:
            yield Gap(stage, sentence)
    for stage in ABSENT_STAGES:
        without = [name for name, stages in by_component.items() if stage not in stages]
        if stage in anywhere and stage not in everywhere and without:
            yield Gap(stage, f"{stage} did not run on {some(without, COMPONENTS_NAMED)}.")


def _limits(content: Content) -> Iterator[Gap]:
    for record in content.decontamination:
        limits = record.get("limits")
        for one in limits if isinstance(limits, list) else [limits] if limits else []:
            yield Gap("decontamination", f"Decontamination: {one}.")
    for one in content.deduplication:
        if one.get("skipped_pairs"):
            stage = str(one.get("stage", "?"))
            yield Gap(stage, f"{stage}: {one['skipped_pairs']:,} pairs of crowded buckets were not compared.")
    if content.split is not None and content.split.closest is None:
        yield Gap("split", "Documents of different splits were not compared with each other after the split.")


def _unread(content: Content) -> Iterator[Gap]:
    for name, component in content.components.items():
        if component.unread_files:
            kinds = ", ".join(f"{ending or 'no ending'} {count:,}" for ending, count in component.unread_files.items())
            yield Gap(name, f"{name}: files of the source that were not read: {kinds}.")
        if component.skipped_records:
            kinds = ", ".join(f"{kind} {count:,}" for kind, count in component.skipped_records.items())
            yield Gap(name, f"{name}: records that are no documents: {kinds}.")


def _always(content: Content) -> Iterator[Gap]:
    said = "Licences are those that the recipe states for each source; no document was asked for its own."
    yield Gap("licences", said)


def _items(content: Content) -> Iterator[Gap]:
    for record in content.decontamination:
        for one in record.get("benchmarks", []):
            if one.get("unchecked"):
                items = tuple(str(item) for item in one["unchecked"])
                name = str(one.get("benchmark", "?"))
                said = f"{name}: {counted(len(items), 'item')} of {one.get('items', 0):,} too short to be looked for."
                yield Gap(name, said, items)
