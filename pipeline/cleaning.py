"""Deleting what earlier recipes and runs left behind: parts are kept under their fingerprints and every run has a journal, so
that both would stay for ever."""

from __future__ import annotations

import json

from manifests.manifest import Manifest, receipt_list
from manifests.storage import TEMPORARY_PREFIX, FileStamp, Folder
from pipeline import lock
from pipeline.journal import LATEST, PROGRESS, RUNS
from pipeline.receipts import RECEIPTS
from pipeline.work import STEPS

KEPT_RUNS = 10
"""Journals that stay: those of the newest runs, and that of the run that made the corpus."""


def clean(corpus: Folder, work_files: bool = False) -> tuple[int, int]:
    """(files, bytes) deleted: work files and receipts of parts that the finished corpus is not made of, and journals of old runs;
    with `work_files` its own work files too, and then a changed recipe starts from the input again. ManifestError when the corpus
    is not finished."""
    Manifest.load(corpus)  # before a lock is put where no corpus is
    with lock.exclusive(corpus) as held:
        manifest = Manifest.load(corpus)
        current = {one["path"].removesuffix(".json").removeprefix(f"{RECEIPTS}/") for one in receipt_list(corpus, manifest) or []}
        doomed: list[tuple[str, int]] = []
        for root in (STEPS, RECEIPTS):
            for stamp in _stamps(corpus, root):
                part = "/".join(stamp.path.split("/")[:2]).removesuffix(".json")
                mine = (part in current or "/" not in stamp.path) and not _partial(stamp)
                if not mine or (work_files and root == STEPS):
                    doomed.append((f"{root}/{stamp.path}", stamp.size))
        # Nobody else writes while the lock is held: what was begun and not ended is of killed runs.
        doomed += [
            (f"{root}/{one.path}", one.size) for root in ("tokens", "logs") for one in _stamps(corpus, root) if _partial(one)
        ]
        doomed += _old_journals(corpus, manifest.digest)
        for name, _ in doomed:
            held.check()
            corpus.delete(name)
        return len(doomed), sum(size for _, size in doomed)


def _old_journals(corpus: Folder, digest: str) -> list[tuple[str, int]]:
    """Names and sizes of the files of all runs but the newest, the one that began last whatever its clock said, and the last of
    those that ended with the corpus that is there."""
    files: dict[str, list[FileStamp]] = {}
    for stamp in _stamps(corpus, RUNS):
        if "/" in stamp.path:  # what lies beside the runs says which is the latest
            files.setdefault(stamp.path.partition("/")[0], []).append(stamp)
    newest_first = sorted(files, reverse=True)  # names begin with the time
    latest = corpus.read(LATEST).decode(errors="replace") if corpus.exists(LATEST) else ""
    old = [run for run in newest_first[KEPT_RUNS:] if run != latest]
    if not any(_made(corpus, run, digest) for run in newest_first if run not in old):
        maker = next((run for run in old if _made(corpus, run, digest)), None)
        old = [run for run in old if run != maker]
    return [(f"{RUNS}/{stamp.path}", stamp.size) for run in old for stamp in files[run]]


def _made(corpus: Folder, run: str, digest: str) -> bool:
    """Did this run end with the manifest of that digest?"""
    try:
        said = json.loads(corpus.read(f"{RUNS}/{run}/{PROGRESS}"))
    except (FileNotFoundError, ValueError, RecursionError):
        return False
    return isinstance(said, dict) and said.get("digest") == digest


def _partial(stamp: FileStamp) -> bool:
    return stamp.path.rpartition("/")[2].startswith(TEMPORARY_PREFIX)


def _stamps(corpus: Folder, root: str) -> list[FileStamp]:
    return corpus.folder(root).stamps() if corpus.exists(root) else []
