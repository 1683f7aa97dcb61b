"""The funnel: what each stage took in, kept and removed, as the manifest counts it, which `verify` checks against the logs."""

from __future__ import annotations

from typing import Any

from manifests.manifest import Content

MEASURE = ".measure"


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
