"""Filter blocks: which rules decided together, on which stored signals."""

from __future__ import annotations

from collections.abc import Iterator

from manifests.manifest import Content, StageRecord
from manifests.rules import Rule

MEASURE = ".measure"
"""Ends the name under which a block's measuring is counted; its rules are counted under the block's name."""


def deciding_rules(content: Content) -> Iterator[tuple[str, str, StageRecord, Rule]]:
    """(component, block, stage, rule) of every rule that decided from signals, in the order in which they did."""
    blocks = {
        (count.component, count.step): count.stage.removesuffix(MEASURE)
        for count in content.counts
        if count.stage.endswith(MEASURE)
    }
    for component, about in content.components.items():
        for record in (*about.stages, *content.stages):
            block = blocks.get((component, record.step))
            for rule in record.rules if block is not None else []:
                yield component, str(block), record, rule
