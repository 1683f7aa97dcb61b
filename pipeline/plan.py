"""From a recipe to steps.

The plan is the DAG in the order in which it runs. Row-local stages of a component are fused, but the chain is cut after
extraction (its text is kept) and between signals and rules (a changed threshold re-decides from stored signals). Corpus-wide
stages run over all parts of all components.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline import inputs
from pipeline.component_steps import add_component, add_row_local
from pipeline.duplicate_steps import add_exact_dedup, add_line_dedup, add_minhash, add_substring_dedup
from pipeline.inputs import PART_BYTES, Slice
from pipeline.log_steps import add_logs
from pipeline.recipe import Recipe, StageSpec
from pipeline.reference_steps import add_references
from pipeline.split_steps import add_split
from pipeline.steps import Layout, Parts, Plan
from pipeline.token_steps import add_shards, add_tokenizer

CORPUS_WIDE: dict[str, Callable[[Layout, str, StageSpec], None]] = {
    "exact_dedup": add_exact_dedup,
    "line_dedup": add_line_dedup,
    "paragraph_dedup": add_line_dedup,
    "substring_dedup": add_substring_dedup,
    "minhash": add_minhash,
    "split": add_split,
    "tokenizer": add_tokenizer,
    "shards": add_shards,
}
"""What adds the steps of a stage that needs every document; its options are in stages.registry.CORPUS_WIDE."""


def make_plan(recipe: Recipe, part_bytes: int = PART_BYTES) -> Plan:
    """Lists the inputs and lays out the steps; InputError when there is nothing to read."""
    slices: list[tuple[Slice, ...]] = []
    owner: list[int] = []
    listings = [inputs.discover(component) for component in recipe.components.values()]
    for index, (component, listing) in enumerate(zip(recipe.components.values(), listings, strict=True)):
        for part in inputs.parts(component, listing, part_bytes):
            slices.append(tuple(part))
            owner.append(index)
    unread = tuple(listing.unread for listing in listings)
    layout = Layout(Plan(recipe, Parts(tuple(slices), tuple(owner), tuple(recipe.components), unread)))
    for index, component in enumerate(recipe.components.values()):
        add_component(layout, index, component)
    add_references(layout)
    for number, spec in enumerate(recipe.stages, 1):
        CORPUS_WIDE.get(spec.name, add_row_local)(layout, f"corpus.{number}.{spec.name}", spec)
    add_logs(layout)
    return layout.plan
