"""A worker decides with what the plan recorded, or it does not decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from pipeline import provenance
from pipeline.execution import InlineExecutor
from pipeline.run import RunFailed
from pipeline.work import Work
from stages import registry
from stages.stage import Options, Stage, Verdict
from tests.pipeline.crawl import article, build, small_recipe, write_small
from tests.pipeline.test_decisions import NoOptions


class Between(InlineExecutor):
    """Does something when the plan is made and before the first part runs."""

    def __init__(self, change: Any) -> None:
        self.change = change

    def run(self, corpus_url: str, works: list[Work]) -> Any:
        if self.change is not None:
            self.change()
            self.change = None
        yield from super().run(corpus_url, works)


class WithModel(Stage[NoOptions]):
    """Ships a model, which the test exchanges."""

    name: ClassVar[str] = "with_model"
    version: ClassVar[int] = 1
    options_type: ClassVar[type[Options]] = NoOptions
    model = "first"

    def identity(self) -> dict[str, str]:
        return {"model": type(self).model}

    def decide(self, batch: Any) -> Any:
        raise AssertionError("a worker with another model must not decide")


def test_a_data_file_that_is_another_one_when_a_part_runs_is_refused_by_name(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked.txt"
    blocked.write_text("casino.example\n")
    files = {"a.jsonl": [{"text": article("a"), "url": "http://town.example/a"}]}
    recipe = write_small(tmp_path, files, small_recipe([{"url_filter": {"domain_list": "blocked.txt"}}]))
    executor = Between(lambda: blocked.write_text("town.example\n"))
    with pytest.raises(RunFailed, match=r"domain_list: .*blocked\.txt is not the file that the run was planned with"):
        build(recipe, tmp_path / "corpus", executor=executor)
    again = build(recipe, tmp_path / "corpus")
    assert again.manifest.content.components["docs"].documents_kept == 0, "planned again, with the list as it is now"


def test_a_worker_with_another_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.ROW_LOCAL, "with_model", f"{__name__}:WithModel")
    recipe = write_small(tmp_path, {"a.jsonl": [{"text": article("a")}]}, small_recipe(["with_model"]))
    implementation: Any = registry.find("with_model")
    executor = Between(lambda: monkeypatch.setattr(implementation, "model", "second"))
    with pytest.raises(RunFailed, match="with_model: model on this machine is not what the run was planned with"):
        build(recipe, tmp_path / "corpus", executor=executor)


def test_a_worker_with_another_library_is_refused() -> None:
    planned = {**provenance.versions(("pyarrow",)), "numpy": "0.0.1"}
    with pytest.raises(provenance.ProvenanceError, match=r"numpy is \d.* on this machine, and 0\.0\.1 where the run was planned"):
        provenance.check_libraries(planned)


def test_a_folder_of_data_has_a_digest_of_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    first = provenance.data_digest(str(tmp_path))
    (tmp_path / "a").rename(tmp_path / "b")
    assert provenance.data_digest(str(tmp_path)) != first
    (tmp_path / "b").rename(tmp_path / "a")
    assert provenance.data_digest(str(tmp_path)) == first


def test_parts_that_broke_a_run_run_again_when_the_cause_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.ROW_LOCAL, "poisoned", "tests.pipeline.test_decisions:Poisoned")
    files = {"a.jsonl": [{"text": f"poison {article(str(number))}"} for number in range(12)], "b.jsonl": [{"text": article("b")}]}
    recipe = write_small(tmp_path, files, small_recipe(["poisoned"]))
    with pytest.raises(RunFailed, match="stage poisoned broke on 12 of 13 documents"):
        build(recipe, tmp_path / "corpus", part_bytes=1000)
    implementation: Any = registry.find("poisoned")
    monkeypatch.setattr(implementation, "decide", lambda self, batch: Verdict.keep_all(batch.num_rows))
    mended = build(recipe, tmp_path / "corpus", part_bytes=1000)
    assert mended.manifest.content.components["docs"].documents_kept == 13
    assert mended.ran["docs.1.poisoned"] == 1, "the part without a broken document was kept"


def test_a_step_with_many_failed_parts_is_not_tried_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.ROW_LOCAL, "with_model", f"{__name__}:WithModel")
    files = {f"{number:03}.jsonl": [{"text": article(str(number))}] for number in range(40)}
    recipe = write_small(tmp_path, files, small_recipe(["with_model"]))
    implementation: Any = registry.find("with_model")
    executor = Between(lambda: monkeypatch.setattr(implementation, "model", "second"))
    with pytest.raises(RunFailed, match="20 of 40 parts failed"):
        build(recipe, tmp_path / "corpus", part_bytes=100, executor=executor)
