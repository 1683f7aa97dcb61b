"""Is a finished corpus what its recipe wants? Asked without reading one of its receipts, of which a large corpus has hundreds of
thousands.

What a run gives is decided by its plan: recipe, inputs as they are listed, stages, data, versions of libraries, and the code
itself. After a run, `receipts/standing.json` keeps a digest of all that, and of which receipts are there with which sizes. If
neither has changed, nothing is left to do. If anything has, receipts are read one by one, which costs time and changes no answer.
"""

from __future__ import annotations

import hashlib
import json
import platform
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from manifests.manifest import digest
from manifests.storage import Folder
from pipeline.finish import software
from pipeline.provenance import UNICODE
from pipeline.receipts import RECEIPTS
from pipeline.steps import FUNCTIONS, Plan

STANDING = f"{RECEIPTS}/standing.json"
PACKAGES = ("manifests", "pipeline", "stages")
LISTERS = 16


def save(corpus: Folder, plan: Plan, plan_digest: str) -> None:
    """Keeps that the corpus is finished, for a run of the same plan."""
    corpus.write(STANDING, json.dumps({"plan": plan_digest, "of": _plan(plan), "receipts": _receipts(corpus, plan)}).encode())


def same(corpus: Folder, plan: Plan) -> str | None:
    """The digest of all parts of the plan (see pipeline.finish) if nothing has changed since they were done."""
    try:
        kept = json.loads(corpus.read(STANDING))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    if not isinstance(kept, dict) or kept.get("of") != _plan(plan) or kept.get("receipts") != _receipts(corpus, plan):
        return None
    found = kept.get("plan")
    return found if isinstance(found, str) else None


def _plan(plan: Plan) -> str:
    listed = hashlib.sha256()
    for part, owner in zip(plan.parts.slices, plan.parts.component, strict=True):
        listed.update(repr((owner, [(one.path, one.size, one.version, one.row_groups) for one in part])).encode())
    decides = {
        "recipe": plan.recipe.digest,
        "components": [[one.name, one.source, list(one.files), one.reader.version] for one in plan.recipe.components.values()],
        "parts": listed.hexdigest(),
        "unread": list(plan.parts.unread),
        "stages": [[component, record.model_dump(mode="json")] for component, record in plan.records],
        "steps": [[step.name, list(step.needs)] for step in plan.steps],
        "references": [[name, one.url, one.digest] for name, one in plan.references.items()],
        "functions": FUNCTIONS,
        "cut": plan.cut,
        "software": [software(), platform.python_version(), UNICODE],
        "code": _code(),
    }
    return digest(decides)


def _receipts(corpus: Folder, plan: Plan) -> str:
    """Names and sizes of the receipts of the plan's steps."""

    def listed(step: str) -> str:
        folder = corpus.folder(f"{RECEIPTS}/{step}")
        found = hashlib.sha256()
        if folder.fs.exists(folder.root):
            for stamp in folder.stamps():
                found.update(f"{stamp.size} {stamp.path}\n".encode())
        return found.hexdigest()

    with ThreadPoolExecutor(1 if corpus.local else LISTERS) as pool:
        return digest(list(pool.map(listed, [step.name for step in plan.steps])))


@cache
def _code() -> str:
    """Of every module that can decide: a change of one is enough to look closely."""
    found = hashlib.sha256()
    root = Path(__file__).parents[1]
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            found.update(f"{path.relative_to(root)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return found.hexdigest()
