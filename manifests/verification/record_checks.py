"""Does the manifest agree with itself and with the recipe beside it: stages, options, rules, and what else was counted?

Every option that the recipe writes is one of the stage on record, every bound of a filter is that of its rule, and a summary is
of a stage that ran. What an option was that the recipe does not write, nothing here can tell, but that it was the same
everywhere.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from manifests.blocks import MEASURE
from manifests.manifest import (
    RECIPE,
    TAKEDOWN,
    Content,
    Manifest,
    SplitRecord,
    StageRecord,
    TokenizerRecord,
    digest,
)
from manifests.storage import Folder, StorageError

LARGEST_RECIPE = 1 << 24
MOST_VALUES = 100_000
"""In a recipe, each alias counted as all that it stands for; the pipeline takes no more."""
DEEPEST = 64
NOT_COUNTED = frozenset({"split", "tokenizer", "shards"})
"""Stages of the whole corpus that remove nothing."""
SHARES: dict[str, tuple[str, ...]] = {
    "decontamination": ("min_share",),
    "language": ("threshold", "short_threshold", "compare"),
    "minhash": ("threshold", "recall"),
    "pre_check": ("threshold", "sample"),
    "quality_classifier": ("threshold", "min_known_words"),
    "split": ("threshold", "recall", "validation", "test"),
}
"""Stage → its options that are shares: from 0 to 1."""
DERIVED = {"recall": ("bands", "rows")}
"""Option → those that follow from it, whatever the recipe says of them."""
CHANGE_DEFAULTS = ("compat", "engine", "recall")
"""Options on which the defaults of others depend."""
ENGINES = ("tokenizers", "tiktoken")
ROUNDING = 1e-6
SUMMARISING = frozenset({"gopher_quality", "language", "pre_check"})
"""Stages of which the manifest has a summary, whatever they found."""
COMPARING = frozenset({"exact_dedup", "line_dedup", "paragraph_dedup", "minhash", "split"})
"""Stages that say under `deduplication` what they compared, whatever components there are."""
CLOSE = 1e-4
"""Bands that would miss a pair so seldom have kept it together, unless something went wrong."""


def check_records(corpus: Folder, manifest: Manifest) -> Iterator[str]:
    """Records of the manifest that contradict the recipe, each other, or what they can be."""
    content = manifest.content
    written: _Written | None = None
    try:
        written = _recipe(corpus, manifest)
    except _NoRecipe as error:
        yield f"{RECIPE}: {error}"
    if written is not None:
        yield from _check_recipe(content, written)
    yield from _check_stages(content, written)
    for where, record in _records(content):
        yield from _check_shares(where, record)
        yield from _check_rules(where, record)
    yield from _check_summaries(content)
    yield from _check_decontamination(content)
    yield from _check_deduplication(content)
    if content.split is not None:
        yield from _check_split(content, content.split)
    elif any(record.stage == "split" for record in content.stages):
        yield "split: the stage ran, and the manifest has no record of it"
    if content.tokenizer is not None:
        yield from _check_tokenizer(content, content.tokenizer)
    for usage in content.token_usage:
        if usage.words > usage.bytes:
            yield f"component {usage.component}, language {usage.language}: {usage.words} words in {usage.bytes} bytes"


def _records(content: Content) -> Iterator[tuple[str, StageRecord]]:
    """Every stage on record, and how it is called in a finding."""
    for name, component in content.components.items():
        for record in component.stages:
            yield f"component {name}, stage {record.stage}", record
    for record in content.stages:
        if record.stage != TAKEDOWN:
            yield f"stage {record.stage} ({record.step})", record


class _NoRecipe(Exception):
    """The recipe is not the one that the manifest names; the message says why."""


class _Written(NamedTuple):
    """raw: the recipe's own words; components: name → (stage, options), of each stage; stages: those of the whole corpus."""

    raw: dict[str, Any]
    components: dict[str, list[tuple[str, dict[str, Any]]]]
    stages: list[tuple[str, dict[str, Any]]]


def _recipe(corpus: Folder, manifest: Manifest) -> _Written:
    try:
        if corpus.size(RECIPE) > LARGEST_RECIPE:
            raise _NoRecipe("larger than a recipe can be")
        data = corpus.read(RECIPE)
    except FileNotFoundError:
        raise _NoRecipe("missing") from None
    except (OSError, StorageError) as error:
        raise _NoRecipe(f"cannot be read: {error}") from None
    try:
        node = yaml.compose(data, Loader=yaml.SafeLoader)
        _count(node, Counter(), 0)
        raw = _plain(yaml.safe_load(data))
        found = digest(raw)
        assert isinstance(raw, dict)
        stages = _named(raw.get("stages"))
        components = {name: _named(one.get("stages")) for name, one in raw["components"].items()}
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError, AssertionError, RecursionError):
        raise _NoRecipe("no recipe") from None
    if found != manifest.content.recipe_sha256:
        raise _NoRecipe(
            f"not the recipe of this corpus: its digest is {found}, the manifest says {manifest.content.recipe_sha256}"
        )
    about = manifest.run.get("recipe")  # of the text, comments included; an earlier version did not record it
    sha256 = hashlib.sha256(data).hexdigest()
    if isinstance(about, dict) and about.get("sha256", sha256) != sha256:
        raise _NoRecipe(f"its SHA-256 is {sha256}, the manifest says {about['sha256']}")
    return _Written(raw, components, stages)


def _count(node: yaml.Node | None, values: Counter[str], depth: int) -> None:
    """ValueError where a recipe stands for more values than there are in one; aliases of aliases could be billions."""
    values["all"] += 1
    if values["all"] > MOST_VALUES or depth > DEEPEST:
        raise ValueError("more values than a recipe has")
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            _count(key, values, depth + 1)
            _count(value, values, depth + 1)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _count(value, values, depth + 1)


def _plain(value: Any) -> Any:
    """As the pipeline makes JSON of a recipe: YAML's dates are the text that they were."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def _named(stages: Any) -> list[tuple[str, dict[str, Any]]]:
    """`- name` and `- name: {options}`, as pairs."""
    found: list[tuple[str, dict[str, Any]]] = []
    for one in stages or []:
        name, options = (one, {}) if isinstance(one, str) else next(iter(one.items()))
        found.append((str(name), dict(options or {})))
    return found


def _check_recipe(content: Content, written: _Written) -> Iterator[str]:
    """What the recipe writes stands in the manifest."""
    raw = written.raw
    for name, said in (("corpus", content.name), ("seed", content.seed)):
        if raw.get(name, 0) != said:
            yield f"the manifest's {'name' if name == 'corpus' else name} is {said!r}, {RECIPE} says {raw.get(name)!r}"
    dropped = {str(one.get("component")) for one in content.dropped}
    for name in sorted((written.components.keys() - dropped) ^ content.components.keys()):
        told = "the manifest does not list it" if name in written.components else f"{RECIPE} does not have it"
        yield f"component {name}: {told}"
    references = {name: one.corpus for name, one in content.references.items()}
    if references != (raw.get("references") or {}):
        yield f"the manifest's references are {references}, {RECIPE} says {raw.get('references') or {}}"
    shared = {"languages": raw["languages"]} if raw.get("languages") is not None else {}
    for name in sorted(written.components.keys() & content.components.keys()):
        component, about = content.components[name], raw["components"][name]
        for field, default in (("source", None), ("format", None), ("licence", None), ("snapshot", None), ("priority", 0)):
            said = getattr(component, field)
            if said != about.get(field, default):
                yield f"component {name}: {field} is {said!r}, {RECIPE} says {about.get(field, default)!r}"
        reader = {"format": about.get("format"), **(about.get("reader") or {})}
        if about.get("files"):
            reader["files"] = [about["files"]] if isinstance(about["files"], str) else about["files"]
        yield from _check_order(f"component {name}", component.stages, [("read", reader), *written.components[name]], shared)
    stages = [record for record in content.stages if record.stage != TAKEDOWN]
    yield from _check_order("the whole corpus", stages, written.stages, shared)


def _check_order(
    where: str, records: list[StageRecord], written: list[tuple[str, dict[str, Any]]], shared: dict[str, Any]
) -> Iterator[str]:
    ran, wanted = [record.stage for record in records], [name for name, _ in written]
    if ran != wanted:
        yield f"{where}: its stages are {', '.join(ran)}, {RECIPE} says {', '.join(wanted)}"
        return
    for record, (_, options) in zip(records, written, strict=True):
        follows = {name for option in DERIVED if options.get(option) is not None for name in DERIVED[option]}
        for name, value in {**{key: one for key, one in shared.items() if key in record.options}, **options}.items():
            if name not in follows and not _agrees(record.options.get(name), value):
                yield f"{where}, stage {record.stage}: {name} is {record.options.get(name)!r}, {RECIPE} says {value!r}"


def _agrees(said: Any, written: Any) -> bool:
    """Is a validated option what was written? `1e-3` is text to YAML, and what is left out of a mapping has its default."""
    if isinstance(said, dict) and isinstance(written, dict):
        return all(_agrees(said.get(key), value) for key, value in written.items())
    if isinstance(said, list) and isinstance(written, list):
        return len(said) == len(written) and all(map(_agrees, said, written))
    if isinstance(said, bool) or isinstance(written, bool):
        return said is written or (isinstance(said, bool) and str(written).lower() in _TRUTHS[said])
    if isinstance(said, int | float) and isinstance(written, str):
        try:
            return float(written.replace("_", "")) == float(said)
        except ValueError:
            return False
    return bool(said == written)


_TRUTHS = {True: ("1", "true", "t", "yes", "y", "on"), False: ("0", "false", "f", "no", "n", "off")}
"""What pydantic takes for a truth value."""


def _check_stages(content: Content, written: _Written | None) -> Iterator[str]:
    """Each stage was counted under its step, each count is of a stage, and one stage is the same wherever it ran."""
    counted = {(one.component, one.step, one.stage) for one in content.counts}
    known: set[tuple[str, str, str]] = set()
    for name, component in content.components.items():
        for record in component.stages:
            measured = {(name, record.step, one.stage) for one in content.counts if one.stage.endswith(MEASURE)} & counted
            mine = {(name, record.step, record.stage)} & counted
            if not mine and not measured and any(one.component == name for one in content.counts):
                where = f"component {name}: stage {record.stage} of step {record.step}"
                yield f"{where} is on record, and no documents are counted there"
            known |= mine or measured
    for record in content.stages:
        mine = {one for one in counted if one[2] == record.stage and _is_of(one[0], one[1], record.step)}
        measured = {one for one in counted if one[1] == record.step and one[2].endswith(MEASURE)}
        if not mine and not measured and counted and record.stage not in NOT_COUNTED:
            yield f"stage {record.stage} of step {record.step} is on record, and no documents are counted there"
        if record.stage in NOT_COUNTED and record.step.rpartition(".")[2] != record.stage:
            yield f"stage {record.stage} of step {record.step}: the step is of another stage"
        known |= mine or measured
    blocks = {(name, stage.removesuffix(MEASURE)) for name, _, stage in known if stage.endswith(MEASURE)}
    for name, step, stage in sorted(counted - known):
        if (name, stage) not in blocks:
            yield f"component {name}: documents are counted at stage {stage} (step {step}), which is not on record"
    yield from _check_alike(content, written)


def _is_of(component: str, counted: str, step: str) -> bool:
    """Is a step that counts one of a stage of the whole corpus? Some stages have steps for each component."""
    own = f"{component}.{step.removeprefix('corpus.')}"
    return counted == step or counted.startswith((f"{step}.", f"{own}."))


def _check_alike(content: Content, written: _Written | None) -> Iterator[str]:
    """A stage has one version in a run, and an option that no recipe writes has one default."""
    seen: dict[tuple[str, ...], tuple[str, Any]] = {}

    def once(key: tuple[str, ...], where: str, value: Any) -> Iterator[str]:
        first, said = seen.setdefault(key, (where, value))
        if said != value:
            yield f"{where}: {key[-1]} is {value!r}, and {said!r} at {first}: both ran in one run"

    for where, record in _records(content):
        kind = f"{record.stage} of {record.options.get('format')}" if record.stage == "read" else record.stage
        yield from once((kind, "version"), where, record.version)
        for library, version in record.libraries.items():
            yield from once(("", "library", library), where, version)
        for name, value in record.data.items():
            if name.startswith("languages/"):
                yield from once((str(record.options.get("languages")), "data", name), where, value)
            elif name not in record.options:
                yield from once(("", "data", name), where, value)
    if written is None:
        return
    for component, about in content.components.items():
        own = written.raw["components"].get(component, {})
        mine = [("read", {**(own.get("reader") or {}), **({"files": own["files"]} if own.get("files") else {})})]
        mine += written.components.get(component, [])
        if [name for name, _ in mine] != [record.stage for record in about.stages]:
            continue  # as was said already
        for record, (_, options) in zip(about.stages, mine, strict=True):
            where, format_ = f"component {component}, stage {record.stage}", str(record.options.get("format"))
            form = tuple(str(record.options.get(name)) for name in CHANGE_DEFAULTS)
            for name, value in record.options.items():
                if name not in options and (name != "languages" or written.raw.get("languages") is None):
                    yield from once((record.stage, format_, *(() if name in CHANGE_DEFAULTS else form), name), where, value)


def _check_shares(where: str, record: StageRecord) -> Iterator[str]:
    for name in SHARES.get(record.stage, ()):
        value = record.options.get(name)
        if value is not None and not (isinstance(value, int | float) and 0 <= value <= 1):
            yield f"{where}: {name} is {value!r}, which is no share"


def rules_of_options(record: StageRecord) -> dict[str, tuple[str, float, str]] | None:
    """Rule → condition, bound and option of it, as the options on record say; None of a stage that is not of this table."""
    options = record.options
    bounds: dict[str, tuple[str, Any, str]] = {}
    if record.stage in _PREFIXES:
        for name, value in options.items():
            if name.startswith(("min_", "max_")):
                condition = "keep_if_at_least" if name.startswith("min_") else "keep_if_at_most"
                bounds[f"{_PREFIXES[record.stage]}.{name}"] = condition, value, name
    elif record.stage == "c4":
        for name in ("lorem_ipsum", "curly_brace"):
            bounds[f"c4.{name}"] = "keep_if_at_most", 0 if options.get(name) else None, name
        bounds["c4.min_sentences"] = "keep_if_at_least", options.get("min_sentences"), "min_sentences"
        bounds["c4.max_characters"] = "keep_if_at_most", options.get("max_characters"), "max_characters"
        bounds["c4.blocklist"] = "keep_if_at_most", None if options.get("blocklist") is None else 0, "blocklist"
    elif record.stage == "quality_classifier":
        sample = options.get("sample") or {}
        for name in ("min_known_words", "threshold"):
            bounds[f"quality.{name}"] = "keep_if_at_least", options.get(name), name
        for name in ("pareto", "power"):
            bounds[f"quality.sample_{name}"] = "keep_if_at_least", sample.get(name), "sample"
    else:
        return None
    return {name: bound for name, bound in bounds.items() if bound[1] is not None}


_PREFIXES = {"gopher_quality": "gopher", "gopher_repetition": "gopher_repetition", "fineweb": "fineweb"}
"""Filters whose options `min_…` and `max_…` are bounds, each of the rule of its name."""


def _check_rules(where: str, record: StageRecord) -> Iterator[str]:
    """Of the filters of this package: the rules that decided are those that the options ask for."""
    wanted = rules_of_options(record)
    if wanted is None:
        return
    found = {rule.name: rule for rule in record.rules}
    if len(found) != len(record.rules):
        yield f"{where}: a rule stands there twice"
    for name in [*wanted, *(one for one in found if one not in wanted)]:
        rule, bound = found.get(name), wanted.get(name)
        if bound is None:
            yield f"{where}: has the rule {name}, and no option that asks for it"
        elif rule is None:
            yield f"{where}: {bound[2]} is {record.options.get(bound[2])!r}, and the rule {name} is missing"
        elif rule.condition != bound[0] or rule.bound != bound[1]:
            yield f"{where}: {bound[2]} is {record.options.get(bound[2])!r}, and the rule {name} keeps what is {rule.in_signs()}"
        elif record.options.get("compat") is None:
            undefined = "remove" if record.stage == "quality_classifier" else "keep"
            if rule.when_undefined != undefined:
                yield f"{where}: the rule {name} would {rule.when_undefined} what has no value, and its stage {undefined}s that"


def _check_summaries(content: Content) -> Iterator[str]:
    """Each is of a stage that ran, and each stage that has one has it."""
    ran = {(owner, record.step, record.stage) for owner, record in _owned(content)}
    places = Counter[tuple[Any, Any, Any]]()
    for one in (*content.summaries, *content.decontamination):
        place = one.get("component"), one.get("step"), one.get("stage")
        places[place] += 1
        where = f"summary of component {place[0]}, step {place[1]}, stage {place[2]}"
        if place not in ran:
            yield f"{where}: there is no such stage on record"
        elif places[place] > 1:
            yield f"{where}: stands there twice"
    for owner, step, stage in sorted(ran - places.keys(), key=str):
        if stage in SUMMARISING:
            yield f"component {owner}, stage {stage} ({step}): the manifest has no summary of it"


def _owned(content: Content) -> Iterator[tuple[str | None, StageRecord]]:
    """Every stage on record, with its component, or None where it is of the whole corpus."""
    for name, component in content.components.items():
        for record in component.stages:
            yield name, record
    for record in content.stages:
        yield None, record


def _check_decontamination(content: Content) -> Iterator[str]:
    told = {(one.get("component"), one.get("step")) for one in content.decontamination}
    options: dict[tuple[Any, Any], dict[str, Any]] = {}
    for owner, record in _owned(content):
        if record.stage == "decontamination":
            options[owner, record.step] = record.options
            if (owner, record.step) not in told:
                yield f"stage decontamination ({record.step}): the manifest does not say what it looked for"
    for one in content.decontamination:
        where = f"decontamination ({one.get('step')})"
        mine = options.get((one.get("component"), one.get("step")), {})
        try:
            if one["n"] != mine.get("n", one["n"]):
                yield f"{where}: looked for {one['n']}-grams, and the option n of its stage is {mine['n']}"
            for benchmark in one["benchmarks"]:
                found, unchecked = benchmark["found"], benchmark["unchecked"]
                named = f"{where}, benchmark {benchmark['benchmark']}"
                if len({*found, *unchecked}) > benchmark["items"]:
                    yield f"{named}: has {benchmark['items']} items, and tells of {len({*found, *unchecked})}"
                for item in sorted({*found} & {*unchecked}):
                    yield f"{named}: item {item} was found, and not looked for"
                for item, (most, total) in found.items():
                    if not 1 <= most <= total:
                        yield f"{named}, item {item}: {most} of its {total} n-grams were found at most"
        except (KeyError, TypeError, ValueError):
            yield f"{where}: no record of what was looked for and found"


def _check_deduplication(content: Content) -> Iterator[str]:
    ran = {(record.step, record.stage) for record in content.stages}
    removed: dict[str, int] = defaultdict(int)
    for count in content.counts:
        removed[count.step.rpartition(".")[0]] += sum(count.removed.values())
    told = {(one.get("step"), one.get("stage")) for one in content.deduplication}
    for record in content.stages:
        if record.stage in COMPARING and (record.step, record.stage) not in told:
            yield f"deduplication, {record.stage} ({record.step}): the stage ran, and the manifest does not say what it compared"
    for one in content.deduplication:
        where = f"deduplication, {one.get('stage')} ({one.get('step')})"
        if (one.get("step"), one.get("stage")) not in ran:
            yield f"{where}: there is no such stage on record"
        elif "removed" in one and not content.dropped and one["removed"] != removed[str(one["step"])]:
            yield f"{where}: {one['removed']} removed, the counts of its step say {removed[str(one['step'])]}"
        if one.get("verified_pairs", 0) > one.get("candidate_pairs", one.get("verified_pairs", 0)):
            yield f"{where}: more pairs are verified than there were candidates"


def _check_split(content: Content, split: SplitRecord) -> Iterator[str]:
    """Options, shares and threshold are one thing that is told three times; and no measured pair of two splits is so alike that
    it should have been in one cluster."""
    options = next((record.options for record in content.stages if record.stage == "split"), None)
    if options is None:
        yield "split: there is no such stage on record"
        return
    if split.options != options:
        names = sorted(name for name in {*options, *split.options} if options.get(name) != split.options.get(name))
        yield f"split: its options are not those of its stage: they differ in {', '.join(names)}"
    shares = {name: options.get(name) for name in ("validation", "test")}
    if split.threshold != options.get("threshold") or split.shares != shares:
        told = f"threshold {options.get('threshold')}, shares {shares}"
        yield f"split: threshold {split.threshold}, shares {split.shares}, and the options of its stage say {told}"
    if not 0 <= sum(split.shares.values()) < 1:
        yield f"split: the shares {split.shares} leave nothing to train on"
    pair = split.closest
    cut = content.dropped or any(record.stage == TAKEDOWN for record in content.stages)
    held_out = sum(number for name, number in split.documents.items() if name != "train")
    if pair is None:
        if held_out and options.get("check_sample") and not cut:
            yield "split: held-out documents were compared with the others, and the manifest does not tell of the closest pair"
        return
    if (pair.pairs_at_threshold > 0) != (pair.held_out is not None and pair.jaccard >= split.threshold):
        told = f"{pair.pairs_at_threshold} pairs at the threshold {split.threshold}"
        yield f"split, closest: {told}, and the highest Jaccard is {pair.jaccard:.3f}"
    if not cut and pair.documents != sum(split.documents.values()):
        yield f"split, closest: {pair.documents} documents were compared, and there are {sum(split.documents.values())}"
    most = min(held_out, int(options.get("check_sample") or held_out))
    if not cut and pair.held_out_documents > most:
        yield f"split, closest: {pair.held_out_documents} held-out documents were compared, of {most} at most"
    if pair.jaccard >= split.threshold and {"bands", "rows"} <= split.options.keys():
        bands, rows = split.options["bands"], split.options["rows"]
        missed = (1 - pair.jaccard**rows) ** bands
        if missed < CLOSE:
            told = f"{bands} bands of {rows} rows miss such a pair with probability {missed:.0e}"
            yield (
                f"split: {pair.held_out} and {pair.other} are in two splits, and their Jaccard is {pair.jaccard:.3f}: "
                f"{told}, and the threshold is {split.threshold}"
            )


def _check_tokenizer(content: Content, tokenizer: TokenizerRecord) -> Iterator[str]:
    """Sums and shares of what it was trained on."""
    record = next((one for one in content.stages if one.stage == "tokenizer"), None)
    if record is None:
        yield "tokenizer: there is no such stage on record"
        return
    options = record.options
    if record.data.get("file", tokenizer.sha256) != tokenizer.sha256:
        yield f"{tokenizer.file}: is not the file that was given, whose SHA-256 is {record.data['file']}"
    if tokenizer.engine not in ENGINES:
        yield f"tokenizer: the engine {tokenizer.engine!r} is none of {', '.join(ENGINES)}"
    if options.get("engine") == "tokenizers" and tokenizer.engine != "tokenizers":
        yield f"tokenizer: the engine is {tokenizer.engine}, and the option asked for tokenizers"
    training = tokenizer.training
    if (training is None) != (options.get("file") is not None):
        told = "given" if training is None else "trained"
        yield f"tokenizer: was {told} by its record, and the option file of its stage is {options.get('file')!r}"
    if training is None:
        return
    where = "tokenizer, training"
    if training.wanted_bytes is not None and training.wanted_bytes != options.get("sample_bytes", training.wanted_bytes):
        yield f"{where}: {training.wanted_bytes} bytes were wanted, and the option sample_bytes is {options['sample_bytes']}"
    if training.distinct_bytes is not None and training.distinct_bytes > options.get("distinct_bytes", training.distinct_bytes):
        most = options["distinct_bytes"]
        yield f"{where}: {training.distinct_bytes} bytes of distinct words, and {most} at most were asked for"
    if not 0 < training.reduced_to <= 1 or training.bytes > (training.wanted_bytes or training.bytes):
        yield f"{where}: {training.bytes} bytes, reduced to {training.reduced_to}, of {training.wanted_bytes} that were wanted"
    parts = training.components
    if not parts:
        return
    sums = sum(one.documents for one in parts.values()), sum(one.bytes for one in parts.values())
    if sums != (training.documents, training.bytes):
        told = f"its components add up to {sums[0]} and {sums[1]}"
        yield f"{where}: {training.documents} documents and {training.bytes} bytes, {told}"
    if abs(sum(one.share_wanted for one in parts.values()) - 1) > ROUNDING:
        yield f"{where}: the wanted shares of its components do not add up to 1"
    dropped = {str(one.get("component")) for one in content.dropped}
    for name, one in parts.items():
        if name not in content.components and name not in dropped:
            yield f"{where}: has a component {name}, which the manifest does not list"
        if abs(one.share_got - one.bytes / max(1, training.bytes)) > ROUNDING:
            yield f"{where}, component {name}: {one.bytes} of {training.bytes} bytes are not the share {one.share_got}"
        if one.bytes > one.offered_bytes:
            yield f"{where}, component {name}: {one.bytes} bytes of {one.offered_bytes} that there were"
