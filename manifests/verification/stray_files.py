"""Files that lie among the logs and tokens of a corpus, and that no manifest of it lists; and links in place of its files.

Who reads `logs/removals/*/*.parquet` reads them too. A manifest that was written beside another one (a takedown, a dropped
component) has files of its own in the same folders: those are listed, by that one. What a link leads to is not in the corpus: it
can change or go without it, and is left behind where the folder is moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from manifests.manifest import Content, Manifest, ManifestError
from manifests.storage import Folder, StorageError

FOLDERS = ("logs", "tokens")
LARGEST_MANIFEST = 1 << 30


def check_strays(corpus: Folder, manifest: Manifest) -> Iterator[str]:
    """Files below logs/ and tokens/ that neither this manifest nor another one in the folder lists."""
    listed = paths_of(manifest.content)
    left = {path for folder in FOLDERS for path in corpus.names(folder)} - listed - _folders(listed)
    if not left:
        return
    for other in other_manifests(corpus):
        left -= paths_of(other.content)
    for path in sorted(left):
        yield f"{path}: lies there, and no manifest in the folder lists it"


def check_links(corpus: Folder, paths: set[str]) -> Iterator[str]:
    """Of these files and the folders that they are in, those that are links; the corpus's own folder may be one."""
    if not corpus.local:
        return
    for path in sorted(paths | _folders(paths)):
        if Path(corpus.path(path)).is_symlink():
            yield f"{path}: is a symbolic link, and what it leads to is not in the corpus"


def _folders(paths: set[str]) -> set[str]:
    return {str(above) for path in paths for above in Path(path).parents} - {"."}


def paths_of(content: Content) -> set[str]:
    """Every file below logs/ and tokens/ that a manifest lists."""
    return {log.path for log in content.logs} | {path for shard in content.shards for path in (shard.path, shard.index)}


def other_manifests(corpus: Folder) -> Iterator[Manifest]:
    """Those in the corpus's folder that are whole, this one among them."""
    try:
        found = sorted(str(path).rpartition("/")[2] for path in corpus.fs.ls(corpus.root, detail=False))
    except OSError:
        return
    for name in found:
        if name.endswith(".json"):
            try:
                if corpus.size(name) <= LARGEST_MANIFEST:
                    yield Manifest.load(corpus, name)
            except (ManifestError, OSError, StorageError):
                continue
