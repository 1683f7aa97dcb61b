"""What happens to documents: one module a stage, pure functions on Arrow batches.

A stage decides, it never drops a row (see `stages.stage`). This package imports `manifests` only.
"""
