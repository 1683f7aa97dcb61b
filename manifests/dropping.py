"""A manifest without some components: nothing is rewritten, and what these have left behind elsewhere is said.

Their documents, shards and logs are no longer part of the corpus. But documents of other components may have been removed because
their twin was in one; and a tokenizer, a deduplication and a split that saw them stay as they are. The new manifest records both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from manifests.logs import Logs
from manifests.manifest import Content, Manifest, ManifestError
from manifests.storage import Folder

ORPHANS = """
select id, component, stage, kept_id, kept_jaccard from removals
where not list_contains($dropped, component) and list_contains($dropped, split_part(kept_id, '/', 1))
order by component, file, position
"""
ALONE = frozenset({"decontamination", "shards"})
"""Stages of the whole corpus that treat each document, or each component, by itself."""


@dataclass(frozen=True)
class Dropped:
    """manifest: the new one, not yet saved. orphans: rows of documents elsewhere that were removed only because a twin in a
    dropped component stayed (id, component, stage, kept_id, kept_jaccard). saw_it: what was made with the dropped and stays as
    it is."""

    manifest: Manifest
    orphans: list[dict[str, Any]]
    saw_it: list[str]


def drop(corpus: Folder, manifest: Manifest, *components: str, reason: str | None = None) -> Dropped:
    """The corpus without `components`; ManifestError where one of them is not there, or no other is left."""
    content = manifest.content
    for name in components:
        if name not in content.components:
            raise ManifestError(f"there is no component {name!r}; there are {', '.join(content.components)}")
    gone = [name for name in content.components if name in components]
    if len(gone) == len(content.components):
        what = f"{gone[0]!r} is the only component" if len(gone) == 1 else f"{', '.join(gone)} are all components"
        raise ManifestError(f"{what}: without {'it' if len(gone) == 1 else 'them'} there is no corpus")
    with Logs(corpus, manifest, only=["removals"]) as logs:
        orphans = logs.sql(ORPHANS, {"dropped": gone})
    saw_it = [
        record.stage for record in content.stages if record.stage not in ALONE and record.options.get("scope") != "component"
    ]
    if content.tokenizer is not None and content.tokenizer.training:
        saw_it = ["the tokenizer, which was trained on its documents too" if one == "tokenizer" else one for one in saw_it]
    records = [
        {
            "component": name,
            "reason": reason,
            "of": manifest.digest,
            "documents": content.components[name].documents_kept,
            "tokens": dict(content.components[name].tokens),
            "orphans": sum(one["kept_id"].startswith(f"{name}/") for one in orphans),
            "saw_it": saw_it,
        }
        for name in gone
    ]
    raw = content.model_dump(mode="json")
    for name in ("summaries", "decontamination", "deduplication", "token_usage"):
        raw[name] = [one for one in raw[name] if one.get("component") not in gone]
    raw["components"] = {name: one for name, one in raw["components"].items() if name not in gone}
    raw["counts"] = [one for one in raw["counts"] if one["component"] not in gone]
    raw["shards"] = [one for one in raw["shards"] if one["component"] not in gone]
    raw["logs"] = [one for one in raw["logs"] if one["path"].split("/")[2] not in gone]
    if raw["split"] is not None:
        documents: dict[str, int] = {}
        for shard in raw["shards"]:
            documents[shard["split"]] = documents.get(shard["split"], 0) + shard["documents"]
        raw["split"]["documents"] = dict(sorted(documents.items())) if raw["shards"] else raw["split"]["documents"]
    raw["dropped"] = [*raw["dropped"], *records]
    return Dropped(Manifest.seal(Content.model_validate(raw), manifest.run), orphans, saw_it)
