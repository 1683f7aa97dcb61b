"""Inputs: how files become parts, and that what was planned is what is read."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests.storage import Folder
from pipeline.inputs import (
    GROUP_CUT,
    PART_BYTES,
    HashingStream,
    InputError,
    Slice,
    check_unchanged,
    discover,
    parts,
    source_folder,
)
from pipeline.recipe import Component, Recipe
from pipeline.run import RunFailed
from stages.readers.jsonl import JsonLines
from tests.pipeline.crawl import article, build, small_recipe, write_small


def component_of(folder: Path, names: list[str], **more: Any) -> Component:
    recipe: Recipe = write_small(folder, {name: [{"text": name}] for name in names}, small_recipe([], **more))
    return recipe.components["docs"]


def cut(component: Component, part_bytes: int = PART_BYTES) -> list[tuple[Slice, ...]]:
    return [tuple(part) for part in parts(component, discover(component), part_bytes)]


def test_parts_hold_every_file_once_in_id_order(tmp_path: Path) -> None:
    names = [f"{folder}/{number}.jsonl" for folder in ("a", "a-b", "ab", "B") for number in range(50)]
    component = component_of(tmp_path, names)
    for part_bytes in (1, 100, 400, 1 << 27):
        made = [one.path for part in cut(component, part_bytes) for one in part]
        assert made == sorted(names)


def test_an_added_file_changes_one_group_and_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    names = [f"{number:04d}.jsonl" for number in range(6 * GROUP_CUT)]
    component = component_of(tmp_path, names)
    before = cut(component)
    assert len(before) > 3
    for added in ("0000a.jsonl", "0150a.jsonl", "9999.jsonl"):
        path = tmp_path / "docs" / added
        path.write_text('{"text": "new"}\n')
        after = cut(component)
        changed = [part for part in after if part not in before]
        assert len(changed) <= 2
        assert any(added == one.path for part in changed for one in part)
        assert sum(len(part) for part in changed) - 1 <= max(len(part) for part in before)
        path.unlink()
    assert cut(component) == before


def test_the_order_in_which_files_came_to_be_changes_no_part(tmp_path: Path) -> None:
    names = [f"{number:03d}.jsonl" for number in range(100)]
    forth = component_of(tmp_path / "forth", names)
    back = component_of(tmp_path / "back", names[::-1])
    assert [[one.path for one in part] for part in cut(forth)] == [[one.path for one in part] for part in cut(back)]


def test_files_of_other_names_are_not_inputs_and_a_source_may_be_one_file(tmp_path: Path) -> None:
    component = component_of(tmp_path, ["a.jsonl", "b.jsonl"])
    (tmp_path / "docs" / "readme.md").write_text("not this")
    assert [stamp.path for stamp in discover(component).files] == ["a.jsonl", "b.jsonl"]
    assert discover(component).unread == {".md": 1}
    recipe = small_recipe([])
    recipe["components"]["docs"]["source"] = "docs/b.jsonl"
    one = write_small(tmp_path, {}, recipe).components["docs"]
    assert [stamp.path for stamp in discover(one).files] == ["b.jsonl"]


def test_a_source_without_a_matching_file_is_an_error_that_names_the_patterns(tmp_path: Path) -> None:
    component = component_of(tmp_path, ["a.txt"])
    with pytest.raises(InputError, match=r"component docs: no file in .*docs matches .*\*\.jsonl"):
        discover(component)


class Changing(JsonLines):
    """Reads as usual, and changes the file while it does."""

    def read(self, stream: BinaryIO, component: str, file: str, *more: Any) -> Iterator[Any]:  # type: ignore[override]
        yield from super().read(stream, component, file, *more)
        change(Path(os.environ["CHANGED_INPUT"]))


def change(path: Path) -> None:
    """The same size, another content."""
    path.write_bytes(path.read_bytes().replace(b"harbour", b"mindful").replace(b"the", b"thy"))
    os.utime(path, ns=(1, 1))


def test_an_input_that_changes_between_planning_and_reading_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline import plan as planning
    from pipeline.execution import InlineExecutor
    from pipeline.work import Work

    recipe = write_small(tmp_path, {name: [{"text": article(name)}] for name in ("a.jsonl", "b.jsonl")}, small_recipe([]))

    class ChangesFirst(InlineExecutor):
        def run(self, corpus_url: str, works: list[Work]) -> Any:
            change(tmp_path / "docs" / "b.jsonl")
            yield from super().run(corpus_url, works)

    with pytest.raises(
        RunFailed, match=r"InputError: .*/docs/b\.jsonl has changed since the run was planned; start the run again"
    ):
        build(recipe, tmp_path / "corpus", 100, ChangesFirst())
    receipts = list((tmp_path / "corpus" / "receipts").glob("*/*.json"))
    assert len(receipts) == 1
    again = build(recipe, tmp_path / "corpus", 100)
    assert again.ran["docs.1.read"] == 1, "a.jsonl was done; b.jsonl as it is now is new"
    assert planning.make_plan(recipe, 100).parts.names == ("docs",)


def test_an_input_that_changes_while_it_is_read_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stages import readers

    recipe = write_small(tmp_path, {"a.jsonl": [{"text": article("a")}]}, small_recipe([]))
    monkeypatch.setenv("CHANGED_INPUT", str(tmp_path / "docs" / "a.jsonl"))
    monkeypatch.setitem(readers.FORMATS, "jsonl", f"{__name__}:Changing")
    with pytest.raises(RunFailed, match=r"/docs/a\.jsonl has changed since the run was planned"):
        build(recipe, tmp_path / "corpus")
    assert not list((tmp_path / "corpus" / "receipts").glob("*/*.json"))


def test_an_input_that_has_gone_is_refused_by_name(tmp_path: Path) -> None:
    component = component_of(tmp_path, ["a.jsonl"])
    ((planned,),) = cut(component)
    folder, _ = source_folder(component)
    check_unchanged(folder, planned)
    (tmp_path / "docs" / "a.jsonl").unlink()
    with pytest.raises(InputError, match=r"/docs/a\.jsonl has gone since the run was planned"):
        check_unchanged(folder, planned)


moves = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(-1, 40)),
        st.tuples(st.just("seek"), st.integers(0, 80)),
        st.tuples(st.just("end"), st.integers(-30, 0)),
        st.tuples(st.just("into"), st.integers(0, 30)),
    ),
    max_size=25,
)


@given(st.binary(max_size=60), moves)
@settings(max_examples=200, deadline=None)
def test_the_digest_of_a_file_is_the_same_however_its_reader_moves_about(data: bytes, moves: list[tuple[str, int]]) -> None:
    stream, plain = HashingStream(io.BytesIO(data)), io.BytesIO(data)
    for move, number in moves:
        if move == "read":
            assert stream.read(number) == plain.read(number)
        elif move == "into":
            one, other = bytearray(number), bytearray(number)
            assert stream.readinto(one) == plain.readinto(other)
            assert one == other
        else:
            offset, whence = (number, os.SEEK_SET) if move == "seek" else (max(number, -len(data)), os.SEEK_END)
            assert stream.seek(offset, whence) == plain.seek(offset, whence)
        assert stream.tell() == plain.tell()
    assert stream.finish() == (hashlib.sha256(data).hexdigest(), len(data))


def test_a_file_that_changed_after_a_finished_run_is_refused_until_that_is_meant(tmp_path: Path) -> None:
    recipe = write_small(tmp_path, {name: [{"text": article(name)}] for name in ("a.jsonl", "b.jsonl")}, small_recipe([]))
    corpus = tmp_path / "corpus"
    first = build(recipe, corpus, changes_meant=False).manifest
    os.utime(tmp_path / "docs" / "b.jsonl", ns=(1, 1))
    with pytest.raises(InputError, match=r"/docs/b\.jsonl \(of the same size, [\d,]+ bytes, but written anew\)"):
        build(recipe, corpus, changes_meant=False)
    assert build(recipe, corpus).manifest.digest == first.digest
    assert not any(build(recipe, corpus, changes_meant=False).ran.values()), "what was meant is what is known"


def test_files_that_are_new_or_gone_need_no_word(tmp_path: Path) -> None:
    files = {name: [{"text": article(name)}] for name in ("a.jsonl", "b.jsonl")}
    recipe = write_small(tmp_path, files, small_recipe([]))
    build(recipe, tmp_path / "corpus")
    (tmp_path / "docs" / "a.jsonl").rename(tmp_path / "docs" / "c.jsonl")
    again = build(recipe, tmp_path / "corpus", changes_meant=False).manifest
    assert [one.path for one in again.content.components["docs"].inputs] == ["b.jsonl", "c.jsonl"]


def test_many_changed_files_are_counted(tmp_path: Path) -> None:
    files = {f"{number}.jsonl": [{"text": article(str(number))}] for number in range(7)}
    recipe = write_small(tmp_path, files, small_recipe([]))
    build(recipe, tmp_path / "corpus")
    for name in files:
        change(tmp_path / "docs" / name)
    with pytest.raises(InputError, match=r"(?s)7 input files .*4\.jsonl .*and 2 more\nif that is meant, .*--changed-inputs"):
        build(recipe, tmp_path / "corpus", changes_meant=False)


@pytest.mark.parametrize(
    "kept", ["[" * 100_000, "[1]", '{"docs": null}', '{KEY: {"a.jsonl": null}}', '{KEY: {"a.jsonl": ["x", 1]}}']
)
def test_what_is_no_list_of_inputs_is_written_anew(kept: str, tmp_path: Path) -> None:
    recipe = write_small(tmp_path, {"a.jsonl": [{"text": article("a")}]}, small_recipe([]))
    corpus = Folder(tmp_path / "corpus")
    digest = build(recipe, tmp_path / "corpus").manifest.digest
    known = corpus.read("receipts/inputs.json")
    corpus.write("receipts/inputs.json", kept.replace("KEY", json.dumps(next(iter(json.loads(known))))).encode())
    corpus.write("receipts/standing.json", b"[" * 100_000)
    again = build(recipe, tmp_path / "corpus", changes_meant=False)
    assert (again.manifest.digest, any(again.ran.values())) == (digest, False)
    assert corpus.read("receipts/inputs.json") == known


def test_a_file_beside_the_input_may_have_a_name_that_is_no_utf_8(tmp_path: Path) -> None:
    recipe = write_small(tmp_path, {"a.jsonl": [{"text": article("a")}]}, small_recipe([]))
    (tmp_path / "docs" / os.fsdecode(b"x.\xff")).write_text("")
    built = build(recipe, tmp_path / "corpus").manifest
    assert built.content.components["docs"].unread_files == {".\\udcff": 1}
    assert not any(build(recipe, tmp_path / "corpus").ran.values())
