"""The life of a document in tables, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from manifests.terminal import terminal, visible

if TYPE_CHECKING:
    from manifests.life import Life
    from manifests.manifest import Manifest


def show_life(life: Life, manifest: Manifest) -> None:
    """Prints it."""
    from rich.table import Table
    from rich.text import Text

    console = terminal()
    document, removal = life.document, life.removal
    component = manifest.content.components[document["component"]]
    table = Table(show_header=False, title=Text(visible(document["id"])), title_justify="left", box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")

    def row(name: str, *values: Any) -> None:
        shown = [str(value) for value in values if value is not None]
        if shown:
            table.add_row(name, Text(visible(" ".join(shown))))

    row("came from", document["url"], document["date"], document["media_type"])
    row("file", f"{document['file']} at {document['position']}, of {component.source}, licence {component.licence}")
    if document["language"]:
        score = document["language_score"]
        row("language", document["language"], None if score is None else f"(score {score:.3f})")
    by_stage: dict[str, list[dict[str, Any]]] = {}
    for edit in life.edits:
        by_stage.setdefault(edit["step"] + " " + edit["stage"], []).append(edit)
    for edits in by_stage.values():
        kinds = ", ".join(f"{edit['rule'].partition('.')[2]} {edit['count']:,}×" for edit in edits)
        row("edited", f"{edits[0]['stage']}: {kinds}; {edits[0]['bytes_before']:,} → {edits[0]['bytes_after']:,} bytes")
        for edit in edits:
            if edit.get("detail"):  # logs of an earlier version have no such column
                row("", f"{edit['rule'].partition('.')[2]}: {edit['detail']}")
    if removal is None:
        row("kept", f"{document['text_bytes']:,} bytes of text, sha256 {document['text_sha256'][:16]}…")
        if document["split"]:
            row("split", document["split"], f"(cluster {document['split_cluster']})")
        if document["shard"]:
            row("tokens", f"{document['shard']} from {document['start']:,}, {document['tokens']:,} tokens")
    else:
        row("removed by", f"{removal['rule']} (stage {removal['stage']}, step {removal['step']})")
        if removal["value"] is not None:
            bound = "" if removal["threshold"] is None else f", threshold {removal['threshold']:g}"
            row("measured", f"{removal['value']:.6g}{bound}")
        row("detail", removal["detail"])
        others = [rule for rule in removal["failed_rules"] or [] if rule != removal["rule"]]
        row("also failed", ", ".join(others) or None)
        if removal["kept_id"]:
            row(f"kept by {removal['stage']}", removal["kept_id"], _jaccard(removal["kept_jaccard"]))
            if removal["linked_id"] != removal["kept_id"]:
                row("linked by", removal["linked_id"], _jaccard(removal["linked_jaccard"]))
            row("cluster", removal["cluster"], f"of {removal['cluster_size']} documents")
            if life.stand_in and (life.stand_in["id"] != removal["kept_id"] or not life.stand_in["in_corpus"]):
                row("today", life.stand_in["told"], _jaccard(life.stand_in["jaccard"]) if life.stand_in["in_corpus"] else None)
        if removal["benchmark"]:
            row("benchmark", removal["benchmark"], "item", removal["item"])
            row("evidence", removal["evidence"])
    for twin in life.twins[:10]:
        through = None if twin["kept_id"] == document["id"] else f"through {twin['kept_id']}"
        row("removed for it", twin["id"], f"({twin['stage']})", _jaccard(twin["kept_jaccard"]), through)
    console.print(table)
    if life.rules:
        failed = set((removal or {}).get("failed_rules") or [])
        rules = Table(title="what the filters measured", title_justify="left", box=None, pad_edge=False)
        for heading in ("rule", "value", "keep if", ""):
            rules.add_column(heading, justify="right" if heading == "value" else "left")
        for one in life.rules:
            if one["value"] is None and one["rule"] not in failed:
                continue  # a rule for another kind of script
            value = (
                "undefined"
                if one["value"] is None
                else f"{one['value']:.4g}"
                if isinstance(one["value"], float)
                else str(one["value"])
            )
            bound = f"{one['bound']:g}" if isinstance(one["bound"], float) else str(one["bound"])
            needed = f"{one['keep_if'].replace('_', ' ')} {bound}"
            # Names, labels and lists of words are the manifest's, and so a stranger's.
            rules.add_row(*map(visible, (one["rule"], value, needed)), "failed" if one["rule"] in failed else "")
        console.print(rules)


def _jaccard(value: float | None) -> str | None:
    return None if value is None else f"(Jaccard {value:.4f})"
