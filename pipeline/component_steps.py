"""Steps that look at each document alone: those of a component, and row-local stages that stand among the corpus-wide ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from manifests.manifest import StageRecord
from manifests.rules import Rule
from pipeline import inputs
from pipeline.inputs import Slice
from pipeline.provenance import versions
from pipeline.receipts import Receipts
from pipeline.recipe import Component, StageSpec
from pipeline.resources import Resources
from pipeline.steps import Done, Layout, is_filter, spec_of, state_of, work
from pipeline.work import Work
from stages import registry
from stages.stage import Filter


def add_component(layout: Layout, index: int, component: Component) -> None:
    """Cuts a component's stages into steps and adds them."""
    layout.plan.chains[component.name] = []
    layout.plan.blocks[component.name] = {}
    number = 0
    for stages, block in _cut(list(component.stages)):
        number += 1
        words = [*(["read"] if number == 1 else []), *(spec.name for spec in stages), *(["measure"] if block else [])]
        step = f"{component.name}.{number}.{words[-1]}"
        block_name = f"filters{len(layout.plan.blocks[component.name]) + 1}" if block else None
        described = _described(layout, step, component.name, stages, block, block_name)
        if number == 1:
            _add_reading(layout, step, " + ".join(words), index, component, *described)
        else:
            before = layout.latest[component.name]
            _add_deciding(layout, step, " + ".join(words), [before], _of(layout, before, index), *described)
        layout.plan.of_one_component.add(step)
        layout.decides(step, component.name)
        if block_name:
            number += 1
            rules = f"{component.name}.{number}.rules"
            layout.plan.blocks[component.name][block_name] = step
            _add_rules(layout, rules, step, block, block_name, _of(layout, step, index))
            layout.plan.of_one_component.add(rules)
            layout.decides(rules, component.name)


def add_row_local(layout: Layout, name: str, spec: StageSpec) -> None:
    """A row-local stage, or a filter, that stands among the corpus-wide ones: a step of its own over all parts."""
    before = dict(layout.latest)
    block_name = f"filters-{name}" if is_filter(spec) else None
    stages, block = ([], [spec]) if block_name else ([spec], [])
    described = _described(layout, name, "", stages, block, block_name)

    def everywhere(done: Done) -> Receipts:
        return layout.plan.everywhere(done, before)

    _add_deciding(layout, name, spec.name, list(before.values()), everywhere, *described)
    layout.decides(name, *layout.recipe.components)
    if block_name:
        for component in layout.recipe.components:
            layout.plan.blocks[component][block_name] = name
        _add_rules(layout, f"{name}.rules", name, block, block_name, lambda done: done[name])
        layout.decides(f"{name}.rules", *layout.recipe.components)


def _cut(specs: list[StageSpec]) -> list[tuple[list[StageSpec], list[StageSpec]]]:
    """(fused stages, filter block after them) of each step; the first step reads, and may have neither."""
    pieces: list[tuple[list[StageSpec], list[StageSpec]]] = []
    stages: list[StageSpec] = []
    block: list[StageSpec] = []
    for spec in specs:
        if block and not is_filter(spec):
            pieces.append((stages, block))
            stages, block = [], []
        if is_filter(spec):
            block.append(spec)
            continue
        stages.append(spec)
        if spec.name == "extraction":
            pieces.append((stages, []))
            stages = []
    if stages or block or not pieces:
        pieces.append((stages, block))
    return pieces


def _described(
    layout: Layout, step: str, component: str, stages: list[StageSpec], block: list[StageSpec], block_name: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what decides the step's output, what a worker builds the stages from)."""
    identities = [layout.identity(step, component, spec) for spec in stages]
    measured = [layout.identity(step, component, spec, measuring=True) for spec in block]
    arguments: dict[str, Any] = {"stages": identities, "filters": measured}
    if block_name:
        arguments["block"] = block_name
    given = {
        "stages": [spec_of(spec, identity) for spec, identity in zip(stages, identities, strict=True)],
        "filters": [spec_of(spec, identity) for spec, identity in zip(block, measured, strict=True)],
    }
    return arguments, given


def _resources(given: dict[str, Any]) -> Resources:
    """What a part takes whose stages and filters `given` builds."""
    needs = [registry.find(spec["name"]).needs for spec in (*given["stages"], *given["filters"])]
    cpus, memory, gpus = (sum(getattr(one, kind) for one in needs) for kind in ("cpus", "memory", "gpus"))
    whole = Resources()
    return Resources(whole.cpus + cpus, whole.memory + memory, whole.gpus + gpus)


def _add_reading(
    layout: Layout,
    step: str,
    about: str,
    index: int,
    component: Component,
    arguments: dict[str, Any],
    given: dict[str, Any],
) -> None:
    reader = component.reader
    options = {"format": component.format, **reader.options.model_dump(mode="json")}
    resources = _resources(given)
    libraries = versions(reader.libraries)
    shown = {"files": list(component.files), **options}
    record = StageRecord(step=step, stage="read", version=reader.version, options=shown, libraries=libraries)
    first = next((at for at, (name, _) in enumerate(layout.plan.records) if name == component.name), len(layout.plan.records))
    layout.plan.records.insert(first, (component.name, record))
    arguments = {
        **arguments,
        "component": component.name,
        "source": component.source,
        "reader": {"options": options, "version": reader.version, "libraries": libraries},
    }
    folder, _ = inputs.source_folder(component)
    given = {
        **given,
        "component": component.name,
        "format": component.format,
        "reader": reader.options.model_dump(mode="json"),
        "reader_libraries": libraries,
        "source": folder.url,
    }

    def works(done: Done) -> list[Work]:
        made = []
        for number, part in enumerate(layout.parts.slices[layout.parts.of(index)]):
            slices = {"slices": [one.as_json() for one in part]}
            made.append(work(step, _label(number, part), "read", {**arguments, **slices}, (), {**given, **slices}))
        return made

    layout.add(step, about, [], works, resources=resources)


def _add_deciding(
    layout: Layout,
    step: str,
    about: str,
    needs: list[str],
    receipts: Callable[[Done], Receipts],
    arguments: dict[str, Any],
    given: dict[str, Any],
) -> None:
    def works(done: Done) -> list[Work]:
        return [
            work(step, one.part, "read", arguments, (one.fingerprint,), {**given, "state": state_of(one)})
            for one in receipts(done)
        ]

    layout.add(step, about, needs, works, resources=_resources(given))


def _add_rules(
    layout: Layout,
    step: str,
    measured: str,
    block: list[StageSpec],
    block_name: str,
    receipts: Callable[[Done], Receipts],
) -> None:
    by_filter: dict[str, list[Rule]] = {spec.name: cast("Filter[Any]", spec.build()).rules() for spec in block}
    for _, record in layout.plan.records:
        if record.step == measured and record.stage in by_filter:
            record.rules = by_filter[record.stage]
    rules = [rule.model_dump(mode="json") for several in by_filter.values() for rule in several]

    def works(done: Done) -> list[Work]:
        return [
            work(
                step,
                one.part,
                "rules",
                {"block": block_name, "rules": rules},
                (one.fingerprint,),
                {"state": state_of(one), "signals": one.files["signals"].path},
            )
            for one in receipts(done)
        ]

    layout.add(step, f"decide by the rules of {block_name}: {', '.join(by_filter)}", [measured], works)


def _of(layout: Layout, step: str, index: int) -> Callable[[Done], Receipts]:
    return lambda done: layout.plan.receipts(done, step, index)


def _label(number: int, part: tuple[Slice, ...]) -> str:
    more = f" and {len(part) - 1} more" if len(part) > 1 else ""
    groups = f" [{part[0].row_groups[0]}:{part[0].row_groups[1]}]" if part[0].row_groups else ""
    return f"{number:05d} {part[0].path}{groups}{more}"
