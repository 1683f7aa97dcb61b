"""recipe.yaml: what to build, validated as a whole before anything runs.

A `RecipeError` tells all mistakes at once, each with the file, the line, and the nearest valid name. Relative paths are relative
to the recipe's folder.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from manifests.identity import COMPONENT_NAME
from manifests.manifest import digest
from manifests.mixture import MixtureError
from manifests.storage import is_remote
from pipeline.sample_budget import check_mixture
from stages import registry
from stages.readers import find_reader
from stages.readers.reader import Reader
from stages.registry import CORPUS_WIDE
from stages.stage import DataFile, Filter, Options, Stage

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
MOST_NODES = 100_000
"""Values in a recipe; aliases of aliases can stand for billions."""
COMPARING = ("exact_dedup", "minhash")
"""Stages that compare with reference corpora."""
ONCE_IN_ORDER = ("split", "tokenizer", "shards")


class RecipeError(Exception):
    """A recipe that cannot run: each of its mistakes in a line that begins with file and line."""

    def __init__(self, *mistakes: str) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


@dataclass(frozen=True)
class StageSpec:
    """One stage of a recipe: `options` are validated, with data paths resolved; `written` are the recipe's own words."""

    name: str
    options: Options
    written: dict[str, Any]
    data: dict[str, str]
    """Option → resolved path, for options that name files."""

    @property
    def implementation(self) -> type[Stage[Any]] | type[Filter[Any]] | None:
        return None if self.name in CORPUS_WIDE else registry.find(self.name)

    def build(self) -> Stage[Any] | Filter[Any]:
        implementation = self.implementation
        assert implementation is not None
        return implementation(self.options)


@dataclass(frozen=True)
class Component:
    name: str
    source: str
    """The resolved folder or file."""
    written_source: str
    format: str
    files: tuple[str, ...]
    licence: str
    snapshot: str | None
    priority: int
    reader: Reader[Any]
    reader_options: dict[str, Any]
    stages: tuple[StageSpec, ...]


@dataclass(frozen=True)
class Recipe:
    path: str
    corpus: str
    seed: int
    max_error_share: float
    max_errors: int
    components: dict[str, Component]
    stages: tuple[StageSpec, ...]
    references: dict[str, str]
    """Name → resolved path of a finished corpus whose documents win over those of this one."""
    written_references: dict[str, str]
    digest: str
    text: bytes

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Recipe:
        """Reads and validates a recipe; RecipeError when it cannot run."""
        return _Loader(os.fspath(path)).load()


class _Written(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _WrittenComponent(_Written):
    source: str
    format: str
    licence: str = Field(min_length=1)
    files: str | list[str] | None = None
    snapshot: str | None = None
    priority: int = Field(0, ge=-(2**31), lt=2**31)
    reader: dict[str, Any] = Field(default_factory=dict)
    stages: list[Any] = Field(default_factory=list)


class _WrittenRecipe(_Written):
    corpus: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    seed: int = 0
    max_error_share: float = Field(0.01, ge=0, le=1, description="crashes, time-outs and exceptions per document of a stage")
    max_errors: int = Field(10, ge=0, description="a share above the limit fails the run only above this number")
    languages: str | None = Field(None, description="folder of language files, for every stage that has the option `languages`")
    references: dict[str, str] = Field(default_factory=dict)
    components: dict[str, Any] = Field(min_length=1)
    stages: list[Any] = Field(default_factory=list)


class _Loader:
    def __init__(self, path: str) -> None:
        self.path = path
        self.folder = Path(path).resolve().parent
        self.lines: dict[tuple[str | int, ...], int] = {}
        self.nodes = 0
        self.languages: str | None = None
        self.mistakes: dict[tuple[int, str], str] = {}
        """Line and what is wrong there → the mistake as it is told: once, though aliases have it in many places."""
        self._places: dict[str, tuple[int, str]] = {}

    def load(self) -> Recipe:
        try:
            text = Path(self.path).read_bytes()
        except OSError as error:
            raise RecipeError(f"{self.path}: cannot be read: {error.strerror}") from None
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            raw = yaml.safe_load(text)
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or str(error).splitlines()[0]
            raise RecipeError(f"{self.path}:{mark.line + 1 if mark else 1}: not YAML: {problem}") from None
        if not isinstance(raw, dict) or node is None:
            raise RecipeError(f"{self.path}:1: a recipe is a mapping with corpus, components and stages")
        self._note_lines(node, ())
        raw = _plain(raw)
        written = self._noted(lambda: self._validate(_WrittenRecipe, raw, ()))
        languages = raw.get("languages")
        self.languages = languages if isinstance(languages, str) else None
        given = raw.get("components")
        components = {name: self._noted(partial(self._component, name, value)) for name, value in _mapping(given).items()}
        stages = self._stages(raw.get("stages"), ("stages",), corpus_wide=True)
        if stages is not None:
            self._noted(partial(self._check_order, stages))
            if written is not None:
                self._noted(partial(self._check_mixture, stages, written.components))
        paths = written.references if written is not None and stages is not None else {}
        references = {name: self._noted(partial(self._reference, name, path, stages or ())) for name, path in paths.items()}
        if self.mistakes:
            raise RecipeError(*(self.mistakes[key] for key in sorted(self.mistakes, key=lambda key: key[0])))
        assert written is not None and stages is not None
        return Recipe(
            path=self.path,
            corpus=written.corpus,
            seed=written.seed,
            max_error_share=written.max_error_share,
            max_errors=written.max_errors,
            components={name: one for name, one in sorted(components.items()) if one is not None},
            stages=stages,
            references={name: one for name, one in sorted(references.items()) if one is not None},
            written_references=written.references,
            digest=digest(raw),
            text=text,
        )

    def error(self, at: tuple[str | int, ...], message: str) -> RecipeError:
        known = at
        while known and known not in self.lines:
            known = known[:-1]
        dotted = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in at).lstrip(".")
        line = self.lines.get(known, 1)
        told = f"{self.path}:{line}: {dotted + ': ' if dotted else ''}{message}"
        self._places[told] = (line, message)
        return RecipeError(told)

    def _noted(self, look: Callable[[], T]) -> T | None:
        """What `look` finds; where it finds a mistake, that is kept and the rest is looked at."""
        try:
            return look()
        except RecipeError as error:
            for told in error.mistakes:
                self.mistakes.setdefault(self._places[told], told)
            return None

    def _note_lines(self, node: yaml.Node, at: tuple[str | int, ...], depth: int = 0) -> None:
        self.lines.setdefault(at, node.start_mark.line + 1)
        self.nodes += 1
        if self.nodes > MOST_NODES:
            line = node.start_mark.line + 1
            raise RecipeError(
                f"{self.path}:{line}: more than {MOST_NODES:,} values, each alias counted as all that it stands for"
            )
        if isinstance(node, yaml.ScalarNode):
            self._check_scalar(node, at)
        if depth > 32:
            raise RecipeError(f"{self.path}:{node.start_mark.line + 1}: nested deeper than a recipe can be")
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if key.value in seen:
                    raise RecipeError(f"{self.path}:{key.start_mark.line + 1}: {key.value!r} stands here twice")
                seen.add(key.value)
                self.lines[(*at, key.value)] = key.start_mark.line + 1
                self._note_lines(value, (*at, key.value), depth + 1)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self._note_lines(value, (*at, index), depth + 1)

    def _check_scalar(self, node: yaml.ScalarNode, at: tuple[str | int, ...]) -> None:
        """What has no canonical JSON: half a character, and numbers without end."""
        if any("\ud800" <= character <= "\udfff" for character in node.value):
            raise self.error(at, "an escape of half a character is no text")
        plain = node.value.lower().replace("_", "").lstrip("+-")
        if node.tag.endswith(":float") and (plain in (".inf", ".nan") or (":" not in plain and math.isinf(float(plain)))):
            raise self.error(at, f"{node.value} is not a finite number")

    def _validate(self, model: type[M], raw: Any, at: tuple[str | int, ...]) -> M:
        try:
            return model.model_validate(raw)
        except ValidationError as error:
            first = {_place(one): one for one in reversed(error.errors())}  # of the branches of a union, the first
            meant = {_meant(str(one["loc"][-1]), model) for one in first.values() if one["type"] == "extra_forbidden"}
            told = [one for one in first.values() if one["type"] != "missing" or one["loc"][-1] not in meant]
            raise RecipeError(*(str(self._mistake(model, raw, at, one)) for one in reversed(told))) from None

    def _mistake(self, model: type[BaseModel], raw: Any, at: tuple[str | int, ...], one: ErrorDetails) -> RecipeError:
        """One of pydantic's errors, in the words of a recipe."""
        where, name = (*at, *one["loc"]), str(one["loc"][-1]) if one["loc"] else ""
        if one["type"] == "extra_forbidden":
            if model is _WrittenComponent and name in _reader_options(raw):
                return self.error(where, f"{name!r} is an option of the format: it stands under `reader:`")
            near = _meant(name, model)
            known = f"known: {', '.join(sorted(model.model_fields))}"
            return self.error(where, f"unknown name {name!r}; {f'did you mean {near!r}?' if near else known}")
        if one["type"] == "missing" and name == "licence":
            return self.error(where[:-1], "a component needs a licence (an SPDX name where there is one)")
        if one["type"] == "missing":
            return self.error(where[:-1], f"{name!r} is missing")
        if one["type"] in ("tuple_type", "list_type"):
            return self.error(where, f"a list is needed, such as [{one.get('input')}]")
        return self.error(where, f"{one['msg']} (here: {one.get('input')!r})")

    def _component(self, name: str, raw: Any) -> Component | None:
        """None, or a RecipeError, where there are mistakes."""
        at = ("components", name)
        if name == "corpus":
            raise self.error(at, "the name `corpus` is taken by the steps that see the whole corpus")
        if not COMPONENT_NAME.fullmatch(name):
            raise self.error(at, "a component's name is lower-case letters, digits, '-' and '_', at most 64")
        if not isinstance(raw, dict):
            raise self.error(at, "a component is a mapping with source, format, licence and stages")
        before = len(self.mistakes)
        stages = self._stages(raw.get("stages"), (*at, "stages"), corpus_wide=False)
        written = self._noted(lambda: self._validate(_WrittenComponent, raw, at))
        source = self._noted(partial(self._source, raw.get("source"), (*at, "source")))
        reader = self._noted(partial(self._reader, raw, at))
        if written is None or source is None or reader is None:
            return None
        if stages is None:
            return None
        names = [stage.name for stage in stages]
        if reader.yields_pages and "extraction" not in names:
            raise self.error(at, f"format {written.format} gives pages, so the stages need `extraction`")
        early = names[: names.index("extraction")] if "extraction" in names else []
        if late := [one for one in early if one not in ("url_filter", "pre_check")]:
            raise self.error((*at, "stages"), f"{late[0]!r} needs text, and stands before extraction")
        self._check_chain(stages, (*at, "stages"))
        files = [written.files] if isinstance(written.files, str) else written.files or list(reader.default_files)
        if len(self.mistakes) > before:
            return None
        return Component(
            name=name,
            source=source,
            written_source=written.source,
            format=written.format,
            files=tuple(files),
            licence=written.licence,
            snapshot=written.snapshot,
            priority=written.priority,
            reader=reader,
            reader_options=written.reader,
            stages=stages,
        )

    def _source(self, written: Any, at: tuple[str | int, ...]) -> str | None:
        """The resolved folder or file; None where nothing is written that could be one."""
        if not isinstance(written, str):
            return None
        source = self.resolve(written)
        if not is_remote(source) and not os.path.exists(source):
            raise self.error(at, f"{source} does not exist{self._nearest_path(source)}")
        return source

    def _reader(self, raw: dict[str, Any], at: tuple[str | int, ...]) -> Reader[Any] | None:
        """The reader with its options; None where no format is written."""
        if not isinstance(raw.get("format"), str):
            return None
        try:
            reader_type = find_reader(raw["format"])
        except KeyError as error:
            raise self.error((*at, "format"), str(error.args[0])) from None
        return reader_type(self._validate(reader_type.options_type, _mapping(raw.get("reader")), (*at, "reader")))

    def _reference(self, name: str, path: str, stages: tuple[StageSpec, ...]) -> str:
        at = ("references", name)
        if not COMPONENT_NAME.fullmatch(name):
            raise self.error(at, "a reference's name is lower-case letters, digits, '-' and '_', at most 64")
        if not any(getattr(stage.options, "scope", None) == "corpus" and stage.name in COMPARING for stage in stages):
            raise self.error(at, f"nothing compares with it: {' or '.join(COMPARING)} with `scope: corpus` would")
        return self.resolve(path)

    def _check_chain(self, stages: tuple[StageSpec, ...], at: tuple[str | int, ...]) -> None:
        """Counts and signals of a component go by the names of its stages, so each stands once; one filter of a block edits."""
        seen: dict[str, int] = {}
        signals: dict[str, str] = {}
        editor: str | None = None
        for index, spec in enumerate(stages):
            if spec.name in seen:
                raise self.error((*at, index), f"{spec.name} stands here twice (before: stages[{seen[spec.name]}])")
            seen[spec.name] = index
            implementation = spec.implementation
            if implementation is None or not issubclass(implementation, Filter):
                signals, editor = {}, None
                continue
            for signal in implementation.signals:
                if signal in signals:
                    raise self.error((*at, index), f"{spec.name} and {signals[signal]} both measure {signal} in one filter block")
                signals[signal] = spec.name
            if implementation.edits_text and editor is not None:
                raise self.error((*at, index), f"{spec.name} and {editor} both edit the text in one filter block")
            editor = spec.name if implementation.edits_text else editor

    def _stages(self, raw: Any, at: tuple[str | int, ...], corpus_wide: bool) -> tuple[StageSpec, ...] | None:
        """None where one of them has a mistake, so that nothing is said of their order."""
        written = raw if isinstance(raw, list) else []
        specs = [self._noted(partial(self._stage, value, (*at, index), corpus_wide)) for index, value in enumerate(written)]
        found = tuple(one for one in specs if one is not None)
        return found if len(found) == len(specs) else None

    def _stage(self, raw: Any, at: tuple[str | int, ...], corpus_wide: bool) -> StageSpec:
        written: dict[str, Any] = {}
        if isinstance(raw, str):
            name = raw
        elif isinstance(raw, dict) and len(raw) == 1:
            name, written = next(iter(raw.items()))
            name, written = str(name), {} if written is None else written
        else:
            raise self.error(at, "a stage is a name, or a name with its options: `- language: {keep: [en]}`")
        if not isinstance(written, dict):
            raise self.error(at, f"the options of {name} are a mapping")
        if name in CORPUS_WIDE:
            if not corpus_wide:
                raise self.error(at, f"{name} looks at the whole corpus: it stands under the recipe's own `stages`")
            options_type = registry.corpus_wide_options(name)
        else:
            try:
                options_type = registry.find(name).options_type
            except registry.UnknownStage:
                known = [*registry.names(), *(CORPUS_WIDE if corpus_wide else ())]
                raise self.error(at, f"unknown stage {name!r}{_nearest(name, known)}") from None
        if self.languages is not None and "languages" in options_type.model_fields:
            written = {"languages": self.languages, **written}
        options = self._validate(options_type, written, (*at, name))
        data = {}
        for option in _data_options(options_type):
            value = getattr(options, option)
            if value is not None:
                data[option] = self.resolve(value)
                if not is_remote(data[option]) and not os.path.exists(data[option]):
                    raise self.error((*at, name, option), f"{data[option]} does not exist")
        spec = StageSpec(name, options.model_copy(update=data), _plain(written), data)
        if name not in CORPUS_WIDE:
            self._check_builds(spec, (*at, name))
        return spec

    def _check_builds(self, spec: StageSpec, at: tuple[str | int, ...]) -> None:
        """Options that are well formed can still ask for what there is not: a language, a domain, a list without entries."""
        try:
            built = spec.build()
        except Exception as error:
            raise self.error(at, " ".join(str(error).split()) or type(error).__name__) from None
        if isinstance(built, Stage):
            built.close()

    def _check_order(self, stages: tuple[StageSpec, ...]) -> None:
        last = -1
        for index, stage in enumerate(stages):
            place = ONCE_IN_ORDER.index(stage.name) if stage.name in ONCE_IN_ORDER else -1
            if place == -1 and last >= 0:
                raise self.error(("stages", index), f"{stage.name} cannot stand after {ONCE_IN_ORDER[last]}")
            if place != -1 and place != last + 1:
                order = ", ".join(ONCE_IN_ORDER)
                raise self.error(
                    ("stages", index), f"{stage.name} is out of place: the last stages are {order}, once each in this order"
                )
            last = max(last, place)

    def _check_mixture(self, stages: tuple[StageSpec, ...], components: Collection[str]) -> None:
        """The mixture that the tokenizer's sample follows is one of these components."""
        for index, stage in enumerate(stages):
            if "mixture" in stage.data:
                try:
                    check_mixture(stage.data["mixture"], components)
                except MixtureError as error:
                    raise self.error(("stages", index, stage.name, "mixture"), f"{stage.written['mixture']}: {error}") from None

    def _nearest_path(self, path: str) -> str:
        beside = os.path.dirname(path)
        near = difflib.get_close_matches(os.path.basename(path), os.listdir(beside) if os.path.isdir(beside) else [], 1)
        return f"; did you mean {near[0]!r}?" if near else ""

    def resolve(self, path: str) -> str:
        return path if is_remote(path) else str(self.folder / path)


def _reader_options(raw: dict[str, Any]) -> set[str]:
    try:
        return set(find_reader(str(raw.get("format"))).options_type.model_fields)
    except KeyError:
        return set()


def _place(error: ErrorDetails) -> tuple[str | int, ...]:
    """What a mistake is known by: the option, with the numbers of its entries, and not the branches of what it may be."""
    where = error["loc"]
    if error["type"] in ("extra_forbidden", "missing"):
        return where
    inner = next((n for n, step in enumerate(where[1:], 1) if not isinstance(step, int)), len(where))
    return where[:inner]


def _meant(name: str, model: type[BaseModel]) -> str | None:
    """The known name that an unknown one comes near."""
    if name == "license" and "licence" in model.model_fields:
        return "licence"
    return next(iter(difflib.get_close_matches(name, list(model.model_fields), 1)), None)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _data_options(options_type: type[Options]) -> Iterator[str]:
    for name, field in options_type.model_fields.items():
        if any(isinstance(mark, DataFile) for mark in field.metadata) or _names_a_file(field.annotation):
            yield name


def _names_a_file(annotation: Any) -> bool:
    marks = getattr(annotation, "__metadata__", ())
    return any(isinstance(mark, DataFile) for mark in marks) or any(_names_a_file(inner) for inner in get_args(annotation))


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(known))}"


def _plain(value: Any) -> Any:
    """YAML's dates become the text they were, so that every recipe has a canonical JSON."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
