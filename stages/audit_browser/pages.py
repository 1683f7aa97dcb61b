"""Templates filled with what strangers wrote: escaped as markup, and control and direction characters as escapes."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import BaseLoader, Environment, StrictUndefined, TemplateNotFound, Undefined
from markupsafe import Markup

from manifests.audit.answers import shown as cell
from manifests.audit.removed import NOTHING
from manifests.report.elements import markup
from manifests.report.style import STYLE
from manifests.terminal import visible
from manifests.wording import number, share

_FOLDER = files("stages.audit_browser")
ABSENT = "–"
"""In a cell without a value. As a name, of a language or domain that is none, `NOTHING` stands."""
STYLE_SHEET = "style.css"
STATIC = {STYLE_SHEET: "text/css; charset=utf-8", "keys.js": "text/javascript; charset=utf-8"}


def static_file(name: str) -> bytes | None:
    """A file that pages load, or None: the style of the report with what a browser needs beside it, and the script for keys."""
    if name not in STATIC:
        return None
    own = (_FOLDER / "static" / name).read_text(encoding="utf-8")
    return (STYLE + own if name == STYLE_SHEET else own).encode()


def link(path: str, **parameters: Any) -> str:
    """A path of ours with its parameters; those that are None or empty are left out."""
    given = {name.rstrip("_"): value for name, value in parameters.items() if value is not None and value != ""}
    return f"{path}?{urlencode(given)}" if given else path


class _Templates(BaseLoader):
    def get_source(self, environment: Environment, template: str) -> tuple[str, str | None, Any]:
        file = _FOLDER / "templates" / template
        if not file.is_file():
            raise TemplateNotFound(template)
        return file.read_text(encoding="utf-8"), None, None


def _finished(value: Any) -> Any:
    """What every `{{ … }}` goes through."""
    if isinstance(value, (Markup, Undefined)):
        return value
    return "" if value is None else visible(value)


_environment = Environment(
    loader=_Templates(), autoescape=True, undefined=StrictUndefined, finalize=_finished, trim_blocks=True, lstrip_blocks=True
)
_environment.filters |= {
    "cell": cell,
    "absent": lambda value: ABSENT if value is None else value,
    "count": lambda value: ABSENT if value is None else f"{value:,}",
    "figure": lambda value: ABSENT if value is None else f"{value:.6g}",
    "number": number,
    "percent": lambda value: ABSENT if value is None else f"{100 * value:.1f} %",
    "passes": lambda value: "none" if not value else "< 0.01" if value < 0.005 else f"{value:,.2f}",
    "encoded": lambda value: quote(value, safe=""),
    "zip": lambda ones, others: list(zip(ones, others, strict=True)),
    "markup": lambda element: Markup(markup(element)),
}
_environment.globals |= {"link": link, "share": share, "nothing": NOTHING}


def page(template: str, values: Mapping[str, Any]) -> str:
    """The page as HTML."""
    return _environment.get_template(template).render(values)
