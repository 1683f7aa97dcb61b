"""What happens to documents: one module a stage, pure functions on Arrow batches.

A stage decides, it never drops a row (see `stages.stage`). This package imports `manifests` only.
"""

import os

# numba reads it when it is imported, which some module of this package does (see stages.kernel_cache).
os.environ.setdefault(
    "NUMBA_CACHE_LOCATOR_CLASSES", ",".join(f"stages.kernel_cache.{name}" for name in ("Given", "InTree", "UserWide"))
)
