"""Where numba keeps what it has compiled, so that it notices a change in any file that went into it.

By itself numba looks at the file that defines a function, and not at those whose functions are compiled into it: after an
upgrade that changed only those, it would go on with what it compiled of the older ones. `stages/__init__.py` names these classes
to numba, which asks one after the other as it would ask its own (numba.core.caching).
"""

from __future__ import annotations

import ast
import hashlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from numba.core.caching import InTreeCacheLocator, UserProvidedCacheLocator, UserWideCacheLocator


class _OfAllSources:
    _py_file: str

    def get_source_stamp(self) -> Any:
        """Equal as long as no file has changed."""
        return source_digest(self._py_file)


class Given(_OfAllSources, UserProvidedCacheLocator):
    """NUMBA_CACHE_DIR, where that is set."""


class InTree(_OfAllSources, InTreeCacheLocator):
    """`__pycache__` beside the file, where it can be written."""


class UserWide(_OfAllSources, UserWideCacheLocator):
    """The user's cache."""


def source_digest(path: str) -> str:
    """Hex SHA-256 of a Python file and of all files of its own package that it imports, directly or not."""
    found: dict[str, bytes] = {}
    waiting = [os.path.abspath(path)]
    while waiting:
        one = waiting.pop()
        if one not in found:
            status = os.stat(one)
            found[one], imported = _read(one, status.st_mtime_ns, status.st_size)
            waiting += imported
    return hashlib.sha256(b"".join(found[one] for one in sorted(found))).hexdigest()


@lru_cache(maxsize=256)
def _read(path: str, modified: int, size: int) -> tuple[bytes, tuple[str, ...]]:
    """The digest of a file, and the files beside it that it imports."""
    content = Path(path).read_bytes()
    folder = Path(path).parent
    names: set[str] = set()
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".") if not node.level else [folder.name, *(node.module or "").split(".")]
            if module[0] == folder.name:
                names.update(module[1:2] if module[1:2] != [""] else [], *[[alias.name for alias in node.names]])
        elif isinstance(node, ast.Import):
            parts = [alias.name.split(".") for alias in node.names]
            names.update(part[1] for part in parts if len(part) > 1 and part[0] == folder.name)
    files = sorted(folder / f"{name}.py" for name in names)
    return hashlib.sha256(content).digest(), tuple(str(file) for file in files if file.is_file())
