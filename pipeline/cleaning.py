"""Deleting what earlier recipes left behind: parts are kept under their fingerprints, so old ones would stay for ever."""

from __future__ import annotations

from manifests.manifest import Manifest, receipt_list
from manifests.storage import Folder
from pipeline import lock
from pipeline.receipts import RECEIPTS
from pipeline.work import STEPS


def clean(corpus: Folder, work_files: bool = False) -> tuple[int, int]:
    """(files, bytes) deleted: work files and receipts of parts that the finished corpus is not made of; with `work_files` its own
    work files too, and then a changed recipe starts from the input again. ManifestError when the corpus is not finished."""
    with lock.exclusive(corpus) as held:
        manifest = Manifest.load(corpus)
        current = {one["path"].removesuffix(".json").removeprefix(f"{RECEIPTS}/") for one in receipt_list(corpus, manifest) or []}
        deleted, size = 0, 0
        for root in (STEPS, RECEIPTS):
            if not corpus.exists(root):
                continue
            for stamp in corpus.folder(root).stamps():
                held.check()
                part = "/".join(stamp.path.split("/")[:2]).removesuffix(".json")
                mine = part in current or "/" not in stamp.path
                if not mine or (work_files and root == STEPS):
                    corpus.delete(f"{root}/{stamp.path}")
                    deleted, size = deleted + 1, size + stamp.size
        return deleted, size
