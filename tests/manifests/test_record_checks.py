"""verify holds the manifest against the recipe beside it and against itself: stages, options, rules, and what else was counted."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import annotated_types
import pytest
import yaml

from manifests.manifest import Content, Manifest, StageRecord
from manifests.storage import Folder
from manifests.verification.record_checks import SHARES, check_records, rules_of_options
from stages import registry
from stages.c4 import C4, C4Options
from stages.fineweb import FineWeb, FineWebOptions
from stages.gopher_quality import GopherQuality, GopherQualityOptions
from stages.gopher_repetition import GopherRepetition, GopherRepetitionOptions
from stages.quality_classifier import QualityClassifier, QualityClassifierOptions, Sampling

Raw = dict[str, Any]


def findings(finished: Path, change: Callable[[Raw], Any] = lambda raw: None) -> list[str]:
    """Of the corpus's manifest after `change`, sealed anew."""
    whole = Manifest.load(Folder(finished))
    raw = copy.deepcopy(whole.content.model_dump(mode="json"))
    change(raw)
    return list(check_records(Folder(finished), Manifest.seal(Content.model_validate(raw), whole.run)))


def stage(raw: Raw, name: str, component: str | None = None) -> Raw:
    records = raw["stages"] if component is None else raw["components"][component]["stages"]
    found: Raw = next(one for one in records if one["stage"] == name)
    return found


def option(name: str, key: str, value: Any, component: str | None = "books") -> Callable[[Raw], Any]:
    return lambda raw: stage(raw, name, component)["options"].update({key: value})


CHANGES: dict[str, tuple[Callable[[Raw], Any], str]] = {
    "a bound whose rule stays": (
        option("gopher_quality", "min_words", 51),
        "component books, stage gopher_quality: min_words is 51, and the rule gopher.min_words keeps what is ≥ 50",
    ),
    "a filter that is said to be off": (
        option("c4", "curly_brace", False),
        "has the rule c4.curly_brace, and no option that asks",
    ),
    "a bound that is said to be off": (option("fineweb", "min_lines", None), "component books"),
    "a rule less": (
        lambda raw: stage(raw, "gopher_quality", "books")["rules"].pop(0),
        "min_words is 50, and the rule gopher.min_words is missing",
    ),
    "a rule the other way round": (
        lambda raw: stage(raw, "gopher_quality", "books")["rules"][0].update(keep_if_at_least=None, keep_if_at_most=50.0),
        "the rule gopher.min_words keeps what is ≤ 50",
    ),
    "a rule that removes what has no value": (
        lambda raw: stage(raw, "gopher_quality", "books")["rules"][0].update(when_undefined="remove"),
        "the rule gopher.min_words would remove what has no value",
    ),
    "a threshold above all scores": (option("language", "threshold", 1.65), "threshold is 1.65, which is no share"),
    "the threshold of the split": (lambda raw: raw["split"].update(threshold=1.5), "split: threshold 1.5"),
    "shares of the split": (lambda raw: raw["split"]["shares"].update(test=1.0), "split: the shares"),
    "options of the split": (
        lambda raw: raw["split"]["options"].update(bands=31),
        "split: its options are not those of its stage",
    ),
    "the split's stage": (option("split", "validation", 0.25, None), "validation is 0.25, recipe.yaml says 0.15"),
    "what the recipe writes": (
        option("minhash", "threshold", 0.9, None),
        "stage minhash: threshold is 0.9, recipe.yaml says 0.7",
    ),
    "a list that the recipe writes": (option("language", "keep", ["de"]), "keep is ['de'], recipe.yaml says ['en']"),
    "a default, in one of several components": (
        option("repair", "control_characters", True),
        "control_characters is False, and True at component books, stage repair",
    ),
    "a version, in one of several components": (
        lambda raw: stage(raw, "c4", "books").update(version=9),
        "and 9 at component books, stage c4: both ran in one run",
    ),
    "a stage that does not exist": (
        lambda raw: stage(raw, "minhash").update(stage="minhashX"),
        "the whole corpus: its stages are exact_dedup, minhashX",
    ),
    "a stage less": (lambda raw: raw["components"]["web"]["stages"].pop(1), "component web: its stages are"),
    "a step that counted nothing": (
        lambda raw: stage(raw, "repair", "books").update(step="books.7"),
        "component books: stage repair of step books.7 is on record, and no documents are counted there",
    ),
    "a count of no stage": (
        lambda raw: next(one for one in raw["counts"] if one["stage"] == "repair").update(stage="repairs"),
        "documents are counted at stage repairs",
    ),
    "another licence": (lambda raw: raw["components"]["books"].update(licence="MIT"), "licence is 'MIT', recipe.yaml says 'PD'"),
    "another source": (lambda raw: raw["components"]["books"].update(source="x"), "source is 'x', recipe.yaml says 'books'"),
    "another snapshot": (
        lambda raw: raw["components"]["web"].update(snapshot=None),
        "snapshot is None, recipe.yaml says '2026-48'",
    ),
    "another priority": (lambda raw: raw["components"]["web"].update(priority=4), "priority is 4, recipe.yaml says 0"),
    "another name": (lambda raw: raw.update(name="large"), "the manifest's name is 'large', recipe.yaml says 'small'"),
    "another seed": (lambda raw: raw.update(seed=8), "the manifest's seed is 8, recipe.yaml says 7"),
    "the recipe's digest": (lambda raw: raw.update(recipe_sha256="0" * 64), "recipe.yaml: not the recipe of this corpus"),
    "the n of decontamination": (
        lambda raw: raw["decontamination"][0].update(n=12),
        "looked for 12-grams, and the option n of its stage is 13",
    ),
    "n-grams that were found": (
        lambda raw: raw["decontamination"][0]["benchmarks"][0]["found"].update({"17": [99, 11]}),
        "benchmark trains, item 17: 99 of its 11 n-grams were found at most",
    ),
    "items of a benchmark": (
        lambda raw: raw["decontamination"][0]["benchmarks"][0].update(items=1),
        "has 1 items, and tells of 3",
    ),
    "no record of decontamination": (lambda raw: raw["decontamination"].clear(), "the manifest does not say what it looked for"),
    "a summary of no stage": (lambda raw: raw["summaries"][0].update(stage="languages"), "there is no such stage on record"),
    "a summary twice": (lambda raw: raw["summaries"].append(raw["summaries"][0]), "stands there twice"),
    "copies that were removed": (
        lambda raw: raw["deduplication"][0].update(removed=77),
        "77 removed, the counts of its step say",
    ),
    "pairs that were verified": (
        lambda raw: raw["deduplication"][1].update(verified_pairs=10**6),
        "more pairs are verified than there were candidates",
    ),
    "what a tokenizer was trained on": (
        lambda raw: raw["tokenizer"]["training"].update(bytes=1),
        "1 bytes, its components add up to",
    ),
    "a component that it was trained on": (
        lambda raw: raw["tokenizer"]["training"]["components"]["books"].update(documents=1),
        "tokenizer, training: ",
    ),
    "a share that it had": (
        lambda raw: raw["tokenizer"]["training"]["components"]["books"].update(share_got=0.9),
        "are not the share 0.9",
    ),
    "a share that was wanted": (
        lambda raw: raw["tokenizer"]["training"]["components"]["books"].update(share_wanted=0.9),
        "do not add up to 1",
    ),
    "what it was offered": (
        lambda raw: raw["tokenizer"]["training"]["components"]["books"].update(offered_bytes=1),
        "bytes of 1 that there were",
    ),
    "no training": (lambda raw: raw["tokenizer"].update(training=None), "was given by its record, and the option file"),
    "an engine that is none": (lambda raw: raw["tokenizer"].update(engine="abacus"), "the engine 'abacus' is none of"),
    "pairs at the threshold": (lambda raw: raw["split"]["closest"].update(pairs_at_threshold=3), "3 pairs at the threshold 0.5"),
    "documents that were compared": (lambda raw: raw["split"]["closest"].update(documents=1), "1 documents were compared"),
    "held-out documents": (
        lambda raw: raw["split"]["closest"].update(held_out_documents=99),
        "99 held-out documents were compared",
    ),
    "no split": (lambda raw: raw.update(split=None), "split: the stage ran, and the manifest has no record of it"),
    "no closest pair": (lambda raw: raw["split"].update(closest=None), "the manifest does not tell of the closest pair"),
    "no summaries": (lambda raw: raw["summaries"].clear(), "the manifest has no summary of it"),
    "a summary less": (lambda raw: raw["summaries"].pop(), "the manifest has no summary of it"),
    "no deduplication": (lambda raw: raw["deduplication"].clear(), "the manifest does not say what it compared"),
    "a deduplication less": (
        lambda raw: raw.update(deduplication=[one for one in raw["deduplication"] if one["stage"] != "minhash"]),
        "deduplication, minhash (",
    ),
    "more words than bytes": (lambda raw: raw["token_usage"][0].update(words=10**9), "1000000000 words in"),
}


def test_the_records_of_a_corpus_agree(finished: Path) -> None:
    assert findings(finished) == []


@pytest.mark.parametrize("what", CHANGES)
def test_a_record_that_contradicts_the_recipe_or_another_record_is_found(finished: Path, what: str) -> None:
    change, said = CHANGES[what]
    found = findings(finished, change)
    assert any(said in one for one in found), found


RECIPES: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "recipe.yaml: missing"),
    "no YAML": (b"{", "recipe.yaml: no recipe"),
    "no mapping": (b"- 1", "recipe.yaml: no recipe"),
    "empty": (b"", "recipe.yaml: no recipe"),
    "not UTF-8": (b"\xff\xfe\x00", "recipe.yaml: no recipe"),
    "aliases without end": (
        ("a0: &a0 [1, 1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))).encode(),
        "recipe.yaml: no recipe",
    ),
    "deeper than a recipe": (b"[" * 5000 + b"]" * 5000, "recipe.yaml: no recipe"),
}


@pytest.mark.parametrize("what", RECIPES)
def test_a_recipe_that_is_none_is_told_in_words(finished: Path, tmp_path: Path, what: str) -> None:
    data, said = RECIPES[what]
    if data is not None:
        (tmp_path / "recipe.yaml").write_bytes(data)
    found = list(check_records(Folder(tmp_path), Manifest.load(Folder(finished))))
    assert found[0] == said, found


def test_another_recipe_and_a_comment_more_are_told_apart(finished: Path, tmp_path: Path) -> None:
    """The same recipe in other words is the same recipe; of the words the run section has the digest."""
    manifest = Manifest.load(Folder(finished))
    text = (finished / "recipe.yaml").read_text()
    (tmp_path / "recipe.yaml").write_text(f"# harmless\n{text}")
    assert "recipe.yaml: its SHA-256 is" in next(check_records(Folder(tmp_path), manifest))
    older = Manifest.seal(manifest.content, {key: one for key, one in manifest.run.items() if key != "recipe"})
    assert list(check_records(Folder(tmp_path), older)) == []
    raw = yaml.safe_load(text)
    raw["seed"] = 1
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(raw))
    assert "not the recipe of this corpus" in next(check_records(Folder(tmp_path), older))


def record(name: str, options: Any) -> StageRecord:
    return StageRecord(step="a", stage=name, version=1, options=json.loads(options.model_dump_json()))


QUALITY: dict[str, Any] = {"model": "m.bin", "min_known_words": 0.2}
FILTERS: dict[str, tuple[Any, Any]] = {
    "gopher_quality": (GopherQuality, GopherQualityOptions()),
    "gopher_quality, changed": (GopherQuality, GopherQualityOptions(min_words=9, max_bullet_lines=None, min_stop_words=None)),
    "gopher_repetition": (GopherRepetition, GopherRepetitionOptions()),
    "gopher_repetition, changed": (GopherRepetition, GopherRepetitionOptions(max_top_2_gram=None, max_duplicate_lines=0.5)),
    "c4": (C4, C4Options()),
    "c4, changed": (C4, C4Options(lorem_ipsum=False, min_sentences=None, max_characters=9, blocklist="words.txt")),
    "fineweb": (FineWeb, FineWebOptions()),
    "fineweb, changed": (FineWeb, FineWebOptions(max_newlines_per_word=None, min_terminal_lines=0.5)),
    "quality_classifier": (QualityClassifier, QualityClassifierOptions(threshold=0.5, **QUALITY)),
    "quality_classifier, sampling": (QualityClassifier, QualityClassifierOptions(sample=Sampling(pareto=9), **QUALITY)),
    "quality_classifier, power": (QualityClassifier, QualityClassifierOptions(sample=Sampling(power=2), **QUALITY)),
}


@pytest.mark.parametrize("what", FILTERS)
def test_the_rules_that_follow_from_options_are_those_of_the_filter(what: str) -> None:
    filter_, options = FILTERS[what]
    found = rules_of_options(record(filter_.name, options))
    built: Any = object.__new__(filter_)  # its rules follow from options alone, and need neither model nor lists
    built.options, built.compat = options, {}
    rules = {rule.name: (rule.condition, rule.bound) for rule in built.rules()}
    assert found is not None and {name: bound[:2] for name, bound in found.items()} == rules


def test_every_option_that_is_a_share_is_known_as_one() -> None:
    """At most 1, or below it, and a number: whoever adds one to a stage adds it here."""
    found: dict[str, set[str]] = {}
    types = {name: registry.find(name).options_type for name in registry.ROW_LOCAL}
    types |= {name: registry.corpus_wide_options(name) for name in registry.CORPUS_WIDE}
    rules = {"gopher_quality", "gopher_repetition", "c4", "fineweb"}  # whose bounds are their rules'
    for name, options in types.items():
        for field, about in options.model_fields.items() if name not in rules else ():
            tops: list[Any] = [mark.le for mark in about.metadata if isinstance(mark, annotated_types.Le)]
            tops += [mark.lt for mark in about.metadata if isinstance(mark, annotated_types.Lt)]
            if 1 in tops and field not in ("later_threshold",):
                found.setdefault(name, set()).add(field)
    assert found == {name: set(some) for name, some in SHARES.items()}
