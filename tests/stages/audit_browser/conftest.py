"""Fixtures of the browser's tests, where its libraries are installed; without, each module says that it is skipped."""

from importlib.util import find_spec

if find_spec("starlette") is not None:
    from tests.stages.audit_browser.fixtures import gone, hostile, served, tab_of, with_hostile_texts

    __all__ = ["gone", "hostile", "served", "tab_of", "with_hostile_texts"]
