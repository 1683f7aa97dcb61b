"""A manifest without one component: nothing is rewritten, and what the component has left behind elsewhere is said.

Its documents, shards and logs are no longer part of the corpus. But documents of other components may have been removed because
their twin was in it; and a tokenizer, a deduplication and a split that saw it stay as they are. The new manifest records both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from manifests.logs import Logs
from manifests.manifest import Content, Manifest, ManifestError
from manifests.storage import Folder

ORPHANS = """
select id, component, stage, kept_id, kept_jaccard from removals
where component <> ? and starts_with(kept_id, ?) order by component, file, position
"""


@dataclass(frozen=True)
class Dropped:
    """manifest: the new one, not yet saved. orphans: rows of documents elsewhere that were removed only because a twin in the
    dropped component stayed (id, component, stage, kept_id, kept_jaccard). saw_it: what was made with it and stays as it is."""

    manifest: Manifest
    orphans: list[dict[str, Any]]
    saw_it: list[str]


def drop(corpus: Folder, manifest: Manifest, component: str, reason: str | None = None) -> Dropped:
    """The corpus without `component`; ManifestError where there is no such component, or no other."""
    content = manifest.content
    if component not in content.components:
        raise ManifestError(f"there is no component {component!r}; there are {', '.join(content.components)}")
    if len(content.components) == 1:
        raise ManifestError(f"{component!r} is the only component: without it there is no corpus")
    with Logs(corpus, manifest, only=["removals"]) as logs:
        orphans = logs.sql(ORPHANS, [component, f"{component}/"])
    saw_it = [record.stage for record in content.stages]
    if content.tokenizer is not None and content.tokenizer.training:
        saw_it = ["the tokenizer, which was trained on its documents too" if one == "tokenizer" else one for one in saw_it]
    record = {
        "component": component,
        "reason": reason,
        "of": manifest.digest,
        "documents": content.components[component].documents_kept,
        "tokens": dict(content.components[component].tokens),
        "orphans": len(orphans),
        "saw_it": saw_it,
    }
    rest = {name: one for name, one in content.components.items() if name != component}
    raw = content.model_dump(mode="json")
    for name in ("summaries", "decontamination", "deduplication", "token_usage"):
        raw[name] = [one for one in raw[name] if one.get("component") != component]
    raw["components"] = {name: raw["components"][name] for name in rest}
    raw["counts"] = [one for one in raw["counts"] if one["component"] != component]
    raw["shards"] = [one for one in raw["shards"] if one["component"] != component]
    raw["logs"] = [one for one in raw["logs"] if one["path"].split("/")[2] != component]
    if raw["split"] is not None:
        documents: dict[str, int] = {}
        for shard in raw["shards"]:
            documents[shard["split"]] = documents.get(shard["split"], 0) + shard["documents"]
        raw["split"]["documents"] = dict(sorted(documents.items())) if raw["shards"] else raw["split"]["documents"]
    raw["dropped"] = [*raw["dropped"], record]
    return Dropped(Manifest.seal(Content.model_validate(raw), manifest.run), orphans, saw_it)
