"""A recipe that cannot run says so before anything runs: file, line, and the nearest valid name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.commands import app
from pipeline.recipe import Recipe, RecipeError

GOOD = """\
corpus: small
components:
  docs:
    source: docs
    format: jsonl
    licence: PD
    stages:
      - repair
      - gopher_quality: {min_words: 1}
stages:
  - exact_dedup
"""
Writer = Callable[[str], Path]

CASES = {
    # what is wrong: (text to replace, by what, line, what the message says)
    "unknown stage": ("- repair", "- repare", 8, ["unknown stage 'repare'", "did you mean 'repair'?"]),
    "unknown corpus-wide stage": (
        "- exact_dedup",
        "- exact_dedupe",
        11,
        ["unknown stage 'exact_dedupe'", "did you mean 'exact_dedup'?"],
    ),
    "unknown option": ("min_words: 1", "min_word: 1", 9, ["unknown name 'min_word'", "did you mean 'min_words'?"]),
    "option of the wrong type": ("min_words: 1", "min_words: many", 9, ["min_words", "many"]),
    "unknown key of a component": (
        "    licence: PD",
        "    licence: PD\n    prioritty: 1",
        7,
        ["unknown name 'prioritty'", "did you mean 'priority'?"],
    ),
    "unknown key of the recipe": ("corpus: small", "corpus: small\nsede: 1", 2, ["unknown name 'sede'", "did you mean 'seed'?"]),
    "missing licence": ("    licence: PD\n", "", 3, ["components.docs", "needs a licence"]),
    "empty licence": ("licence: PD", "licence: ''", 6, ["licence"]),
    "missing source": ("    source: docs\n", "", 3, ["'source' is missing"]),
    "missing input": ("source: docs", "source: dcos", 4, ["dcos", "does not exist", "did you mean 'docs'?"]),
    "unknown format": ("format: jsonl", "format: jsonlines", 5, ["unknown format 'jsonlines'", "jsonl"]),
    "missing data file": ("- exact_dedup", "- decontamination: {benchmarks: items.jsonl}", 11, ["items.jsonl", "does not exist"]),
    "WARC without extraction": ("format: jsonl", "format: warc", 3, ["gives pages", "extraction"]),
    "text stage before extraction": ("- repair", "- repair\n      - extraction", 7, ["'repair' needs text", "before extraction"]),
    "corpus-wide stage in a component": ("- repair", "- minhash", 8, ["minhash looks at the whole corpus"]),
    "shards without a tokenizer": (
        "- exact_dedup",
        "- split: {validation: 0.1, test: 0.1}\n  - shards",
        12,
        ["shards is out of place", "split, tokenizer, shards"],
    ),
    "deduplication after the split": (
        "- exact_dedup",
        "- split: {validation: 0.1, test: 0.1}\n  - exact_dedup",
        12,
        ["exact_dedup cannot stand after split"],
    ),
    "the same key twice": ("    format: jsonl", "    format: jsonl\n    format: warc", 6, ["'format' stands here twice"]),
    "YAML that is none": ("corpus: small", "corpus: [small", 2, ["not YAML"]),
    "a component's name": ("  docs:", "  Docs/1:", 3, ["name", "lower-case"]),
    "a corpus's name": ("corpus: small", "corpus: ../small", 1, ["corpus"]),
    "options that are no mapping": ("- repair", "- repair: yes", 8, ["the options of repair are a mapping"]),
    "a stage that is a list": ("- repair", "- [repair]", 8, ["a stage is a name"]),
    "a language that no model knows": ("- repair", "- language: {keep: [english]}", 8, ["english", "no label"]),
    "a domain that is none": ("- repair", "- url_filter: {domains: ['..']}", 8, ["'..' is no domain"]),
    "a number that is not finite": (
        "gopher_quality: {min_words: 1}",
        "gopher_quality: {max_mean_word_length: .nan}",
        9,
        ["max_mean_word_length", "finite"],
    ),
    "a share that leaves nothing": ("- exact_dedup", "- split: {validation: 0.6, test: 0.6}", 11, ["nothing to train on"]),
    "a stage twice": ("- repair", "- repair\n      - repair", 9, ["repair stands here twice", "stages[0]"]),
    "the name of the corpus-wide steps": ("  docs:", "  corpus:", 3, ["`corpus` is taken"]),
    "a reader's option": (
        "    licence: PD",
        "    licence: PD\n    reader: {text_feild: body}",
        7,
        ["unknown name 'text_feild'", "did you mean 'text_field'?"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_error_names_file_and_line_and_what_would_be_right(recipe_file: Writer, case: str) -> None:
    old, new, line, expected = CASES[case]
    assert GOOD.count(old) == 1
    path = recipe_file(GOOD.replace(old, new))
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: "), message
    assert all(words in message for words in expected), message
    assert "\n" not in message


def test_all_mistakes_are_told_at_once_in_the_order_of_their_lines(recipe_file: Writer) -> None:
    """Each once: a name that is nearly right is not missing too, a list with a mistake is not judged by what is left of it, and an
    alias has no mistakes of its own."""
    text = """\
corpus: ../small
sede: 1
components:
  docs:
    source: dcos
    format: warc
    licens: PD
    stages: &stages
      - repare
      - gopher_quality: {min_word: 1, max_words: many, max_mean_word_length: .5}
      - language: {keep: [english, de]}
  more: {source: docs, format: jsonlines, license: PD, stages: *stages}
  Other: {source: docs, format: jsonl, text_field: body, licence: PD, files: 3}
stages:
  - minhash: {bands: 0, rows: x, threshold: 2}
  - decontamination: {benchmarks: nowhere.jsonl}
  - split
  - exact_dedup: {scop: corpus}
"""
    path = recipe_file(text)
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path)
    told = [line.removeprefix(f"{path}:").split(": ", 2) for line in str(caught.value).splitlines()]
    assert [(int(line), where) for line, where, _ in told] == [
        (1, "corpus"),
        (2, "sede"),
        (5, "components.docs.source"),
        (7, "components.docs.licens"),
        (9, "components.docs.stages[0]"),
        (10, "components.docs.stages[1].gopher_quality.max_words"),
        (10, "components.docs.stages[1].gopher_quality.min_word"),
        (11, "components.docs.stages[2].language"),
        (12, "components.more.license"),
        (12, "components.more.format"),
        (13, "components.Other"),
        (15, "stages[0].minhash.bands"),
        (15, "stages[0].minhash.rows"),
        (15, "stages[0].minhash.threshold"),
        (16, "stages[1].decontamination.benchmarks"),
        (18, "stages[3].exact_dedup.scop"),
    ], str(caught.value)
    for wrong, right in (
        ("sede", "seed"),
        ("licens", "licence"),
        ("license", "licence"),
        ("min_word", "min_words"),
        ("scop", "scope"),
    ):
        assert f"unknown name {wrong!r}; did you mean {right!r}?" in str(caught.value)


@pytest.mark.parametrize("command", ["run", "plan"])
def test_the_command_line_ends_with_code_2_and_one_line(recipe_file: Writer, tmp_path: Path, command: str) -> None:
    path = recipe_file(GOOD.replace("- repair", "- repare"))
    result = CliRunner().invoke(app, [command, str(path), "--corpus", str(tmp_path / "corpus")])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"error: {path}:8: components.docs.stages[0]: unknown stage 'repare'; did you mean 'repair'?"
    ]
    assert not (tmp_path / "corpus").exists()


def test_a_recipe_that_is_right_loads_with_its_paths_resolved(recipe_file: Writer) -> None:
    path = recipe_file(GOOD)
    recipe = Recipe.load(path)
    assert recipe.components["docs"].source == str(path.parent / "docs")
    assert recipe.components["docs"].written_source == "docs"
    assert [stage.name for stage in recipe.components["docs"].stages] == ["repair", "gopher_quality"]


def test_language_files_of_a_recipe_reach_every_stage_that_reads_them(recipe_file: Writer, tmp_path: Path) -> None:
    folder = tmp_path / "tongues"
    folder.mkdir()
    (folder / "tr.toml").write_text('name = "Turkish"\nsource = {}\n')
    text = GOOD.replace("corpus: small", "corpus: small\nlanguages: tongues").replace("- repair", "- repair\n      - c4")
    specs = {spec.name: spec for spec in Recipe.load(str(recipe_file(text))).components["docs"].stages}
    assert specs["gopher_quality"].data == specs["c4"].data == {"languages": str(folder)}
    assert "languages/tr.toml" in specs["c4"].build().identity()
    assert not specs["repair"].data
    (folder / "tr.toml").write_text("name = 1\n")
    with pytest.raises(RecipeError, match=r"recipe\.yaml:10.*tr\.toml: name"):
        Recipe.load(str(recipe_file(text)))


def test_the_digest_of_a_recipe_is_that_of_what_it_says_not_of_how_it_is_laid_out(recipe_file: Writer) -> None:
    one = Recipe.load(recipe_file(GOOD)).digest
    assert (
        Recipe.load(
            recipe_file(GOOD.replace("{min_words: 1}", "\n          min_words: 1  # all").replace("licence: PD", "licence: 'PD'"))
        ).digest
        == one
    )
    assert Recipe.load(recipe_file(GOOD.replace("min_words: 1", "min_words: 2"))).digest != one


@pytest.mark.parametrize("text", ["", "- a list", "just words", "corpus: small", "\0", "corpus: \xff", "a: &a [*a]"])
def test_what_is_no_recipe_at_all_is_an_error_that_names_the_file(recipe_file: Writer, text: str) -> None:
    path = recipe_file(text)
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path)
    assert str(caught.value).startswith(f"{path}:")


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"none\.yaml: cannot be read: No such file"):
        Recipe.load(tmp_path / "none.yaml")


def test_a_recipe_that_multiplies_itself_is_refused(recipe_file: Writer) -> None:
    """Nine lists, each of nine times the one before it: 387 million names in 400 bytes."""
    bomb = "\n".join(f"x{level}: &x{level} [{', '.join([f'*x{level - 1}' if level else 'name'] * 9)}]" for level in range(9))
    with pytest.raises(RecipeError, match="more"):
        Recipe.load(recipe_file(bomb))


def test_dates_and_keys_of_any_kind_have_a_canonical_form(recipe_file: Writer) -> None:
    recipe = Recipe.load(recipe_file(GOOD.replace("licence: PD", "licence: PD\n    snapshot: '2026-11-20'")))
    assert recipe.components["docs"].snapshot == "2026-11-20"
    path = recipe_file(GOOD.replace("licence: PD", "licence: PD\n    snapshot: 2026-11-20"))
    assert Recipe.load(path).components["docs"].snapshot == "2026-11-20"


def test_a_corpus_that_is_a_file_or_of_an_unknown_kind_is_an_error_not_a_trace(recipe_file: Writer, tmp_path: Path) -> None:
    path = recipe_file(GOOD)
    (tmp_path / "taken").write_text("a file")
    for corpus in (str(tmp_path / "taken"), str(tmp_path / "taken" / "below"), "gopher://host/corpus"):
        result = CliRunner().invoke(app, ["run", str(path), "--corpus", corpus, "--executor", "inline"])
        assert result.exit_code == 1, (corpus, result.output)
        assert result.stderr.startswith("error: ")
        assert isinstance(result.exception, SystemExit)
    result = CliRunner().invoke(app, ["plan", str(path), "--corpus", "gopher://host/corpus"])
    assert (result.exit_code, result.stderr.startswith("error: ")) == (1, True)


def test_a_run_that_fails_ends_with_code_1_and_names_the_part(recipe_file: Writer, tmp_path: Path) -> None:
    path = recipe_file(GOOD.replace("- exact_dedup", "- exact_dedup\n  - split: {validation: 0.4, test: 0}"))
    result = CliRunner().invoke(app, ["run", str(path), "--corpus", str(tmp_path / "corpus"), "--executor", "inline", "--quiet"])
    assert result.exit_code == 1
    assert "split is empty" in result.stderr
    assert isinstance(result.exception, SystemExit)
