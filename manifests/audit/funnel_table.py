"""The funnel as tables, one a component."""

from __future__ import annotations

from rich.table import Table

from manifests.blocks import MEASURE
from manifests.manifest import Manifest
from manifests.terminal import terminal, visible


def show_funnel(manifest: Manifest) -> None:
    """Prints what each stage took in, kept, removed and edited; what a block measured stands with the block."""
    content = manifest.content
    console = terminal()
    for name, component in content.components.items():
        table = Table(
            title=visible(f"{name} ({component.licence})"), title_justify="left", caption_justify="left", box=None, pad_edge=False
        )
        for heading in ("stage", "in", "kept", "removed", "%"):
            table.add_column(heading, justify="left" if heading == "stage" else "right", no_wrap=True)
        table.add_column("by rule")
        table.add_column("edited")
        measured: dict[str, int] = {}
        for count in (one for one in content.counts if one.component == name):
            gone = sum(count.removed.values())
            if count.stage.endswith(MEASURE) and not gone:
                measured = count.edited
                continue
            share = f"{100 * gone / count.documents_in:.1f}" if count.documents_in and gone else ""
            table.add_row(
                visible(count.stage),
                f"{count.documents_in:,}",
                f"{count.documents_kept:,}",
                f"{gone:,}" if gone else "",
                share,
                _by_rule(count.removed, count.stage),
                _by_rule({**measured, **count.edited}, count.stage),
            )
            measured = {}
        tokens = ", ".join(f"{split} {number:,}" for split, number in component.tokens.items())
        skipped = ", ".join(f"{kind} {number:,}" for kind, number in component.skipped_records.items())
        unread = ", ".join(f"{ending} {number:,}" for ending, number in component.unread_files.items())
        console.print(table)
        for line in (
            tokens and f"tokens: {tokens}",
            skipped and f"records that are no documents: {skipped}",
            unread and f"files not read: {unread}",
        ):
            if line:
                console.print(visible(line))
        console.print()
    console.print(f"digest {manifest.digest}")


def _by_rule(numbers: dict[str, int], stage: str) -> str:
    ordered = sorted(numbers.items(), key=lambda item: (-item[1], item[0]))
    return visible("\n".join(f"{rule.removeprefix(stage + '.')} {number:,}" for rule, number in ordered))
