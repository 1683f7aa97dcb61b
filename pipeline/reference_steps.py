"""Steps that read reference corpora: one part a shard."""

from __future__ import annotations

from pipeline import references
from pipeline.inputs import InputError
from pipeline.references import Reference, ReferenceCorpusError
from pipeline.steps import Done, Layout, work
from pipeline.work import Work


def add_references(layout: Layout) -> None:
    """A step for every reference of the recipe; InputError when one cannot be compared with."""
    for name, path in layout.recipe.references.items():
        try:
            reference = references.load(name, path)
        except ReferenceCorpusError as error:
            raise InputError(f"reference {name}: {error}") from None
        layout.references.append(_add(layout, reference))
        layout.plan.references[name] = reference


def _add(layout: Layout, reference: Reference) -> str:
    step = f"reference.{reference.name}"
    tokenizer = reference.tokenizer.model_dump(mode="json")

    def works(done: Done) -> list[Work]:
        given = {"corpus": reference.url}
        made = []
        for number, shard in enumerate(reference.shards):
            arguments = {"name": reference.name, "tokenizer": tokenizer, "shard": shard.model_dump(mode="json")}
            made.append(work(step, f"{number:05d} {shard.path}", "read_reference", arguments, (), given))
        return made

    return layout.add(step, f"documents of the reference corpus {reference.name}", [], works)
