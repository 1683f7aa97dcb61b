"""What a corpus consists of, in figures: documents, bytes and tokens by component, licence and source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from manifests.manifest import Content


@dataclass
class Figures:
    """Sums over some shards. tokens: split → tokens, BOS included. bytes: UTF-8 of the texts. sources, snapshots: of what."""

    name: str
    components: list[str] = field(default_factory=list)
    documents: int = 0
    bytes: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    shards: int = 0

    @property
    def all_tokens(self) -> int:
        return sum(self.tokens.values())

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "all_tokens": self.all_tokens}


def by_component(content: Content) -> list[Figures]:
    """One row a component, in the manifest's order; a component whose documents were all removed has zeros."""
    return _grouped(content, lambda name: name)


def by_licence(content: Content) -> list[Figures]:
    """One row a licence, the one with most tokens first."""
    return _largest_first(_grouped(content, lambda name: content.components[name].licence))


def by_source(content: Content) -> list[Figures]:
    """One row a source, with its snapshot where it names one, the one with most tokens first."""

    def source(name: str) -> str:
        component = content.components[name]
        return component.source + (f" ({component.snapshot})" if component.snapshot else "")

    return _largest_first(_grouped(content, source))


def _grouped(content: Content, group: Callable[[str], str]) -> list[Figures]:
    found: dict[str, Figures] = {}
    for name in content.components:
        row = found.setdefault(group(name), Figures(group(name)))
        row.components.append(name)
    for shard in content.shards:
        row = found[group(shard.component)]
        row.documents += shard.documents
        row.bytes += shard.text_bytes
        row.tokens[shard.split] = row.tokens.get(shard.split, 0) + shard.tokens
        row.shards += 1
    return list(found.values())


def _largest_first(rows: list[Figures]) -> list[Figures]:
    return sorted(rows, key=lambda row: (-row.all_tokens, row.name))
