"""What a plan is made of: steps, the parts of the input, and the layout that steps are added to.

A module `pipeline.*_steps` adds the steps of one kind of stage. A step lists its parts when the steps that it needs are done,
since some follow from their counts; each part is a `Work` (see pipeline.work), run by the function that `FUNCTIONS` names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from manifests.manifest import StageRecord
from pipeline.corpus_log import LOG_ROWS
from pipeline.inputs import Slice
from pipeline.lists import Listed
from pipeline.provenance import data_digests, versions
from pipeline.receipts import Receipt, Receipts
from pipeline.recipe import Recipe, StageSpec
from pipeline.references import Reference
from pipeline.resources import GIB, ResourceError, Resources
from pipeline.work import Work
from stages.stage import Filter, Stage

if TYPE_CHECKING:
    from pipeline.relay_steps import Relay

PARTITION_BYTES, EVEN_PARTITIONS = 128 << 20, 512
"""UTF-8 bytes of text for each partition of a shuffle, until there are so many: enough tasks for any cluster."""
FULL_PARTITION_BYTES, FULL_PARTITION_DOCUMENTS = 384 << 20, 1 << 17
"""What a partition has at most where there are more, so that its tasks stay below the gibibyte that they declare: see
docs/scale.md."""
MOST_PARTITIONS = 1 << 16
"""Each is a part of a dozen steps, and 2 ms of the driver's time in each."""
EXPECTED_TEXT, EXPECTED_DOCUMENT = 4, 2000
"""Bytes of text that a byte of input may be, and that a document has, before anything is read: which relays a plan has follows
from these, and no byte of the corpus."""

REFERENCE_PRIORITY = 1 << 31
"""Above that of any component: documents of a reference corpus win."""

FUNCTIONS: dict[str, tuple[str, int]] = {
    "read": ("pipeline.row_local:read_and_decide", 3),
    "rules": ("pipeline.row_local:apply_rules", 3),
    "read_reference": ("pipeline.references:read_reference", 1),
    "exact_keys": ("pipeline.duplicates:exact_keys", 2),
    "exact_groups": ("pipeline.duplicates:exact_groups", 2),
    "remove": ("pipeline.duplicates:remove", 2),
    "line_keys": ("pipeline.repeated_lines:line_keys", 1),
    "line_groups": ("pipeline.repeated_lines:line_groups", 1),
    "line_remove": ("pipeline.repeated_lines:line_remove", 1),
    "find_substrings": ("pipeline.repeated_substrings:find_substrings", 1),
    "cut_substrings": ("pipeline.repeated_substrings:cut_substrings", 1),
    "sign": ("pipeline.near_duplicates:sign", 3),
    "candidates": ("pipeline.near_duplicates:candidates", 3),
    "fetch": ("pipeline.near_duplicates:fetch", 2),
    "verify": ("pipeline.near_duplicates:verify", 2),
    "unite": ("pipeline.near_duplicates:unite", 1),
    "spread": ("pipeline.near_duplicates:spread", 1),
    "cluster": ("pipeline.near_duplicates:cluster", 3),
    "group": ("pipeline.near_duplicates:group", 2),
    "assign": ("pipeline.splitting:assign_splits", 4),
    "pick_held_out": ("pipeline.splitting:pick_held_out", 1),
    "compare_held_out": ("pipeline.splitting:compare_held_out", 1),
    "sample": ("pipeline.tokenizer_sample:sample", 2),
    "make_tokenizer": ("pipeline.tokenizer_sample:make_tokenizer", 4),
    "encode": ("pipeline.tokens:encode", 5),
    "pack": ("pipeline.tokens:pack", 1),
    "logs": ("pipeline.corpus_log:write_logs", 1),
    "relay": ("pipeline.relays:relay", 1),
}
"""What runs a part, and its version: bump it whenever the function writes something else for the same arguments."""

RESOURCES: dict[str, Resources] = {
    "find": Resources(memory=3 * GIB),
}
"""What a part takes where it is not one processor and a gibibyte, by the last word of the step's name. Row-local steps add what
their stages declare (`stages.stage.Needs`). Measured peaks stand in docs/scale.md."""

Done = dict[str, Receipts]
"""Receipts of finished steps, in the order of their parts."""


@dataclass(frozen=True)
class Step:
    name: str
    about: str
    needs: tuple[str, ...]
    works: Callable[[Done], list[Work]]
    check: Callable[[Receipts], None] | None = None
    """Looks at the finished parts together; raises when the corpus cannot go on from them."""
    resources: Resources = field(default_factory=Resources)
    """Of each of its parts."""
    memory: Callable[[Done], int] | None = None
    """Bytes that a part takes, where that follows from counts: what is declared if it is more."""

    def counted(self, done: Done) -> Step:
        """The step as it is declared once the counts are there."""
        if self.memory is None or self.memory(done) <= self.resources.memory:
            return self
        return replace(self, resources=replace(self.resources, memory=self.memory(done)))


@dataclass(frozen=True)
class Parts:
    """All parts of the corpus in id order, and what each component has of them."""

    slices: tuple[tuple[Slice, ...], ...]
    component: tuple[int, ...]
    names: tuple[str, ...]
    unread: tuple[dict[str, int], ...]
    """For each component, the files of its source that match none of its patterns, by ending."""

    def of(self, component: int) -> slice:
        first = self.component.index(component)
        return slice(first, first + self.component.count(component))

    def __len__(self) -> int:
        return len(self.slices)


@dataclass
class Plan:
    recipe: Recipe
    parts: Parts
    steps: list[Step] = field(default_factory=list)
    records: list[tuple[str, StageRecord]] = field(default_factory=list)
    """(component or "", record) in running order."""
    chains: dict[str, list[str]] = field(default_factory=dict)
    """Component → its steps that decide on documents, in order, the corpus-wide ones included."""
    blocks: dict[str, dict[str, str]] = field(default_factory=dict)
    """Component → filter block → the step that measured it."""
    ends: dict[str, str] = field(default_factory=dict)
    """What later steps ask for: split, tokenizer, pack, logs → step name."""
    specs: dict[str, StageSpec] = field(default_factory=dict)
    """Step and stage, joined by a space → how the recipe sets the row-local stage up."""
    references: dict[str, Reference] = field(default_factory=dict)
    of_one_component: set[str] = field(default_factory=set)
    """Steps whose parts are those of one component, and not of the whole corpus."""
    cut: tuple[int, int] = (1, LOG_ROWS)
    """Bytes of each partition of a shuffle, and records of each log file."""

    def declare(self, needs: Mapping[str, str]) -> None:
        """Changes what parts take: step, stage or word of a step's name → `cpus=2,memory=4GiB`. ResourceError for a name that no
        step has."""
        for name, written in needs.items():
            found = False
            for index, step in enumerate(self.steps):
                stages = {record.stage for _, record in self.records if record.step == step.name}
                if name in {step.name, *step.name.split("."), *stages}:
                    self.steps[index] = replace(step, resources=step.resources.changed(written))
                    found = True
            if not found:
                raise ResourceError(
                    f"{name}: no step or stage of this recipe; its steps are {', '.join(step.name for step in self.steps)}"
                )

    def receipts(self, done: Done, step: str, component: int | None = None) -> Receipts:
        """A per-part step's receipts, for one component or for all parts."""
        if component is None or step in self.of_one_component:
            return done[step]
        return done[step][self.parts.of(component)]

    def everywhere(self, done: Done, steps: dict[str, str], references: Sequence[str] = ()) -> Receipts:
        """One receipt for every part of the corpus, from each component's own step; and behind them, those of the steps that read
        reference corpora."""
        own = (self.receipts(done, steps[name], index) for index, name in enumerate(self.parts.names))
        return sum((*own, *(done[step] for step in references)), Receipts())


T = TypeVar("T")


def once(step: str, compute: Callable[[Done], T]) -> Callable[[Done], T]:
    """`compute`, which reads receipts of `step`, done once for the same receipts: works that ask again for every component would
    read those of all components each time."""
    held: list[tuple[Receipts, T]] = []

    def of(done: Done) -> T:
        if not held or held[0][0] is not done[step]:
            held[:] = [(done[step], compute(done))]
        return held[0][1]

    return of


class Layout:
    """A plan while steps are added to it. `latest` says, for each component, which step its documents come from now."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.recipe = plan.recipe
        self.parts = plan.parts
        self.latest: dict[str, str] = {}
        self.expected_bytes = EXPECTED_TEXT * sum(one.size for part in self.parts.slices for one in part)
        self.log_rows = LOG_ROWS
        self.plan.cut = (PARTITION_BYTES, self.log_rows)
        self.placed: Relay | None = None
        """How the places of tokens get from shards to logs."""
        self.references: list[str] = []
        """Steps that read reference corpora."""
        self.priorities = [component.priority for component in self.recipe.components.values()]

    def add(
        self,
        name: str,
        about: str,
        needs: list[str],
        works: Callable[[Done], list[Work]],
        check: Callable[[Receipts], None] | None = None,
        resources: Resources | None = None,
        memory: Callable[[Done], int] | None = None,
    ) -> str:
        resources = resources or RESOURCES.get(name.rpartition(".")[2], Resources())
        self.plan.steps.append(Step(name, about, tuple(dict.fromkeys(needs)), works, check, resources, memory))
        return name

    def decides(self, step: str, *components: str) -> None:
        """`step` decides on the documents of `components`: what comes after reads its state."""
        if len(components) == 1 and step.startswith(f"{components[0]}."):
            self.plan.of_one_component.add(step)
        for component in components:
            self.latest[component] = step
            self.plan.chains[component].append(step)

    def record(self, step: str, spec: StageSpec, version: int, libraries: tuple[str, ...] = ()) -> None:
        """Notes a corpus-wide stage for the manifest."""
        record = StageRecord(
            step=step,
            stage=spec.name,
            version=version,
            options=_options(spec),
            libraries=versions(libraries),
            data=data_digests(spec.data),
        )
        self.plan.records.append(("", record))

    def identity(self, step: str, component: str, spec: StageSpec, measuring: bool = False) -> dict[str, Any]:
        """Notes a row-local stage for the manifest, and returns what its output depends on beside its input. A filter's
        thresholds are left out where it only measures."""
        implementation = spec.implementation
        assert implementation is not None
        extra = {}
        if implementation.identity not in (Stage.identity, Filter.identity):
            built = spec.build()
            extra = built.identity()
            if isinstance(built, Stage):
                built.close()
        record = StageRecord(
            step=step,
            stage=spec.name,
            version=implementation.version,
            options=_options(spec),
            libraries=versions(implementation.libraries),
            data={**data_digests(spec.data), **extra},
        )
        self.plan.records.append((component, record))
        self.plan.specs[f"{step} {spec.name}"] = spec
        described = record.model_dump(mode="json", exclude={"rules", "step"})
        if measuring:
            thresholds = cast("type[Filter[Any]]", implementation).threshold_options
            described["options"] = {key: value for key, value in described["options"].items() if key not in thresholds}
        return described

    def identity_of_parts(self, references: Sequence[str] = ()) -> dict[str, Any]:
        """What decides among documents of several components, beside the parts themselves."""
        priorities = [*self.priorities, *(REFERENCE_PRIORITY for _ in references)]
        return {"priorities": priorities, "components": [*self.parts.names, *references]}

    def numbering(self, done: Done, before: dict[str, str], references: Sequence[str] = ()) -> dict[str, Any]:
        """Numbers of documents over the corpus, and of those of references behind them: where each part starts, whose it is, and
        how many parts are the corpus's own."""
        bases, total = [], 0
        for receipt in self.plan.everywhere(done, before, references):
            assert receipt.state is not None
            bases.append(total)
            total += receipt.state.rows
        components = list(self.parts.component)
        for number, step in enumerate(references, len(self.parts.names)):
            components += [number] * len(done[step])
        return {"bases": Listed(bases), "components": Listed(components), "own": len(self.parts)}

    def partitions(self, done: Done, before: dict[str, str], references: Sequence[str] = ()) -> int:
        """Of a shuffle of these documents: a power of two."""
        number = size = 0
        for receipt in self.plan.everywhere(done, before):
            assert receipt.state is not None
            number, size = number + receipt.state.documents_kept, size + text_bytes_of(receipt)
        for step in references:
            for shard in self.plan.references[step.partition(".")[2]].shards:
                number, size = number + shard.documents, size + shard.text_bytes
        return partitions_of(number, size)

    def expected_partitions(self, references: Sequence[str] = ()) -> int:
        """More than there will be, as far as the input's size tells."""
        known = [shard for step in references for shard in self.plan.references[step.partition(".")[2]].shards]
        size = self.expected_bytes + sum(shard.text_bytes for shard in known)
        return partitions_of(self.expected_bytes // EXPECTED_DOCUMENT + sum(shard.documents for shard in known), size)

    def number_of_parts(self, references: Sequence[str] = ()) -> int:
        """Those of the corpus and of references."""
        return len(self.parts) + sum(len(self.plan.references[step.partition(".")[2]].shards) for step in references)

    def record_bases(self, done: Done) -> list[int]:
        """For every part, the number of its first record within its component."""
        bases = []
        for index, component in enumerate(self.parts.names):
            total = 0
            for receipt in self.plan.receipts(done, self.plan.chains[component][0], index):
                bases.append(total)
                total += receipt.files["catalogue"].rows
        return bases

    def chunks(self, done: Done, index: int) -> int:
        """How many log files a component has."""
        first = self.plan.chains[self.parts.names[index]][0]
        records = sum(receipt.files["catalogue"].rows for receipt in self.plan.receipts(done, first, index))
        return max(1, -(-records // self.log_rows))

    def over_parts(
        self,
        done: Done,
        before: dict[str, str],
        step: str,
        function: str,
        arguments: dict[str, Any],
        partitions: int,
        references: Sequence[str] = (),
    ) -> list[Work]:
        """One work for every part of the corpus, which reads the part's documents and nothing else, and shuffles by the remainder
        of a key.

        It is known by them and not by the steps that led to them, and how finely its shuffle files are cut is no part of what it
        is: so a corpus can grow without touching what its older parts wrote.
        """
        works = []
        for index, receipt in enumerate(self.plan.everywhere(done, before, references)):
            state = state_of(receipt)
            given = {"state": state, "partitions": partitions}
            works.append(work(step, f"{index:05d}", function, arguments, (state["digest"],), given))
        return works

    def over_partitions(
        self,
        step: str,
        function: str,
        arguments: dict[str, Any],
        upstream: tuple[str | Listed, ...],
        shared: dict[str, Any],
        partitions: int,
    ) -> list[Work]:
        """One work for every partition of a shuffle."""
        return [
            work(
                step,
                f"{index:05d}",
                function,
                {**arguments, "partition": index, "partitions": partitions},
                upstream,
                shared,
            )
            for index in range(partitions)
        ]


def partitions_of(documents: int, text_bytes: int) -> int:
    """Into how many partitions so much text is shuffled: a power of two."""
    full = max(documents // FULL_PARTITION_DOCUMENTS, text_bytes // FULL_PARTITION_BYTES)
    return min(MOST_PARTITIONS, max(_power(full), min(EVEN_PARTITIONS, _power(text_bytes // PARTITION_BYTES))))


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << number.bit_length()


def work(
    step: str,
    part: str,
    function: str,
    arguments: dict[str, Any],
    upstream: tuple[str | Listed, ...],
    inputs: dict[str, Any],
) -> Work:
    """A part that the function of this name in `FUNCTIONS` runs."""
    path, version = FUNCTIONS[function]
    return Work(step, part, path, version, arguments, upstream, inputs)


def is_filter(spec: StageSpec) -> bool:
    implementation = spec.implementation
    return implementation is not None and issubclass(implementation, Filter)


def spec_of(spec: StageSpec, identity: dict[str, Any]) -> dict[str, Any]:
    """What a worker builds a stage from, and checks what it has against."""
    return {
        "name": spec.name,
        "options": spec.options.model_dump(mode="json"),
        "paths": spec.data,
        "data": identity["data"],
        "libraries": identity["libraries"],
    }


def state_of(receipt: Receipt) -> dict[str, Any]:
    assert receipt.state is not None, f"{receipt.step} has no documents"
    return receipt.state.model_dump(mode="json")


def text_bytes_of(receipt: Receipt) -> int:
    """UTF-8 bytes of the documents of a part, after its step."""
    size: int = receipt.values["text_bytes"] if "text_bytes" in receipt.values else receipt.counts[-1].bytes_kept
    return size


def path_of(receipt: Receipt, role: str) -> str | None:
    return receipt.files[role].path if role in receipt.files else None


def prints(receipts: Sequence[Receipt]) -> Listed:
    return Listed(receipts.fingerprints if isinstance(receipts, Receipts) else tuple(receipt.fingerprint for receipt in receipts))


def paths(receipts: Sequence[Receipt], role: str) -> Listed:
    """The files of this role, one of each part."""
    return Listed([path_of(receipt, role) for receipt in receipts])


def _options(spec: StageSpec) -> dict[str, Any]:
    """Every option with its value, paths as the recipe writes them."""
    return {**spec.options.model_dump(mode="json"), **{key: spec.written[key] for key in spec.data if key in spec.written}}
