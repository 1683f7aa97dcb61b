"""What a request asks, read from its address: words, numbers and places within bounds, or BadQuestion."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.requests import Request

from manifests.audit.domains import normal_domain
from manifests.audit.removed import NOTHING, Conditions

SAMPLE = 20
LARGEST_SAMPLE = 500
LONGEST_WORD = 10_000
"""Characters of a parameter."""


class BadQuestion(Exception):
    """A request that means nothing; the message says what is wrong."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def word(asked: Mapping[str, str], name: str) -> str:
    """A parameter; the empty string where it is not given."""
    value = asked.get(name, "")
    if len(value) > LONGEST_WORD:
        raise BadQuestion(f"{name} has {len(value):,} characters; {LONGEST_WORD:,} are the most")
    return value.strip()


def whole(asked: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    """A whole number within both ends."""
    words = word(asked, name)
    if not words:
        return default
    try:
        value = int(words)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise BadQuestion(f"{name} is a whole number from {least:,} to {most:,}, not {words}")
    return value


def decimal(asked: Mapping[str, str], name: str, default: float | None = None) -> float | None:
    """A finite number; a comma may stand before its decimals."""
    words = word(asked, name).replace(",", ".")
    if not words:
        return default
    try:
        value = float(words)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadQuestion(f"{name} is a number, not {words}")
    return value


def conditions_of(asked: Mapping[str, str]) -> Conditions:
    """Which removals are asked for."""
    words = {name: word(asked, name) or None for name in ("component", "stage", "rule", "language", "domain")}
    domain = words["domain"]
    if domain not in (None, NOTHING):
        normal = normal_domain(domain)
        if normal is None:
            raise BadQuestion(f"{domain} is no domain")
        words["domain"] = normal
    return Conditions(**words, lowest=decimal(asked, "lowest"), highest=decimal(asked, "highest"))


def as_parameters(conditions: Conditions) -> dict[str, Any]:
    """What `conditions_of` reads back."""
    return {name: f"{value:.17g}" if isinstance(value, float) else value for name, value in conditions.__dict__.items()}


def place_of(asked: Mapping[str, str]) -> tuple[Any, ...] | None:
    """Where a page of removals begins: behind this one."""
    file = asked.get("at_file")
    if file is None:
        return None
    position = whole(asked, "at_position", 0, 0, (1 << 63) - 1)
    return decimal(asked, "at_measured"), asked.get("at_component", ""), file, position


class SampleAsked(NamedTuple):
    """A sample of `n` documents of a rule by a seed; `at`: the place in it, None where none is named."""

    rule: str
    seed: int
    n: int
    at: int | None


def sample_of(asked: Mapping[str, str]) -> SampleAsked:
    at = whole(asked, "at", 0, 1, LARGEST_SAMPLE) if word(asked, "at") else None
    seed = whole(asked, "seed", 0, -(1 << 31), (1 << 31) - 1)
    return SampleAsked(word(asked, "rule"), seed, whole(asked, "n", SAMPLE, 1, LARGEST_SAMPLE), at)


def start_of(asked: Mapping[str, str]) -> int | None:
    """Where the shown part of a text begins; None: where it is best seen."""
    return whole(asked, "from", 0, 0, 1 << 40) if word(asked, "from") else None


def own_path(to: str | None) -> str:
    """A path of this server, whatever was asked: another site is nowhere to be sent to."""
    if not to or not to.startswith("/") or to.startswith(("//", "/\\")) or any(ord(one) < 0x21 for one in to) or "\\" in to:
        return "/"
    return to


def export_kind(request: Request) -> str:
    kind = request.path_params["kind"]
    if kind not in ("csv", "json"):
        raise BadQuestion("files are .csv and .json", 404)
    return str(kind)
