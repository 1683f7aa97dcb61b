"""Recipes whose documents give orders to the stage `obey` (plugin/faulty_stages.py), and the switch that arms them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.recipe import Recipe
from tests.pipeline.crawl import article, lines_of, write_small

PLUGIN = Path(__file__).parent / "plugin"
SWITCH = "CORPUSMILL_FAULTS"
COMPONENTS = "abcdef"


@dataclass(frozen=True)
class Faults:
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(PLUGIN), SWITCH: str(self.folder)}

    def arm(self, *names: str) -> None:
        """The order NAME is obeyed once."""
        for name in names:
            (self.folder / name).touch()

    def armed(self) -> set[str]:
        return set(os.listdir(self.folder))

    def reached(self, name: str) -> Path:
        """Is there when a part waits for `go`."""
        return self.folder / f"{name}.reached"

    def go(self, name: str) -> None:
        (self.folder / f"{name}.go").touch()


def order(verb: str, name: str = "") -> str:
    """The text of a document that gives an order."""
    return f"{article(f'{verb} {name}')}\nfault: {verb} {name}".rstrip()


def ordering_recipe(folder: Path, orders: dict[str, list[str]], **more: Any) -> Recipe:
    """Six components of a part each; `orders` are texts that come after the third document of a component."""
    components = {}
    for name in COMPONENTS:
        texts = [article(f"{name} {i}") for i in range(3)] + orders.get(name, []) + [article(f"{name} last")]
        (folder / name).mkdir(parents=True)
        (folder / name / f"{name}.jsonl").write_bytes(lines_of([{"text": text} for text in texts]))
        components[name] = {"source": name, "format": "jsonl", "licence": "PD", "stages": ["repair", "obey"]}
    return write_small(folder, {}, {"corpus": "orders", "components": components, "stages": ["exact_dedup"], **more})
