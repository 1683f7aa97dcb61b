"""What the input looked like to the last run of a corpus, finished or not.

Parts that were done before and parts that are done now would otherwise be made of two states of the same source, and nobody would
be told. A file that was read and has changed since is refused by name, until the user says that this is meant. Files that are new
or gone are another matter: the manifest lists what was read, and `corpusmill plan` names them.
"""

from __future__ import annotations

import json

from manifests.storage import Folder
from pipeline.inputs import InputError
from pipeline.receipts import RECEIPTS
from pipeline.steps import Plan

KNOWN = f"{RECEIPTS}/inputs.json"
SHOWN = 5

Seen = dict[str, dict[str, list[str | int]]]
"""Component, with the folder it reads → path → [size, version], as `Folder.stamps` tells them."""


def check(corpus: Folder, plan: Plan, changes_meant: bool = False) -> None:
    """InputError when a file that the last run saw is now another one, unless that is meant; then keeps what is seen now."""
    now, before = _seen(plan), _kept(corpus)
    others = _changed(now, before)
    if others and not changes_meant:
        more = f"\n  and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        files_have = "file has" if len(others) == 1 else "files have"
        raise InputError(
            f"{len(others)} input {files_have} changed since the last run on this corpus:\n  "
            + "\n  ".join(others[:SHOWN])
            + f"{more}\nif that is meant, start again with --changed-inputs: parts with these files are read again"
        )
    if now != before:
        corpus.write(KNOWN, json.dumps(now, ensure_ascii=False, separators=(",", ":")).encode())


def changed(corpus: Folder, plan: Plan) -> list[str]:
    """Files that are others than the last run saw, and how they differ."""
    return _changed(_seen(plan), _kept(corpus))


def _changed(now: Seen, before: Seen) -> list[str]:
    return [
        f"{_place(component, path)} ({_how(before[component][path], stamp)})"
        for component, files in now.items()
        for path, stamp in files.items()
        if before.get(component, {}).get(path, stamp) != stamp
    ]


def _seen(plan: Plan) -> Seen:
    found: Seen = {f"{name} {component.source}": {} for name, component in plan.recipe.components.items()}
    keys = list(found)
    for part, owner in zip(plan.parts.slices, plan.parts.component, strict=True):
        found[keys[owner]].update({one.path: [one.size, one.version] for one in part})
    return found


def _kept(corpus: Folder) -> Seen:
    try:
        kept = json.loads(corpus.read(KNOWN))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    whole = isinstance(kept, dict) and all(isinstance(files, dict) for files in kept.values())
    return kept if whole and all(_is_stamp(one) for files in kept.values() for one in files.values()) else {}


def _is_stamp(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and type(value[0]) is int


def _place(component: str, path: str) -> str:
    source = component.partition(" ")[2].rstrip("/")
    return source if source.endswith(f"/{path}") else f"{source}/{path}"


def _how(before: list[str | int], now: list[str | int]) -> str:
    return (
        f"{before[0]:,} bytes, now {now[0]:,}" if before[0] != now[0] else f"of the same size, {now[0]:,} bytes, but written anew"
    )
