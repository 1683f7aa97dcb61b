"""The logs of two million documents: answers of many files are those of a plain count, and few files are opened for one document."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from bench.audit_log import BLOCK, COMPONENT, LOG_ROWS, make
from manifests.audit.costs import rule_costs
from manifests.audit.whatif import changes_of, what_if
from manifests.life import lives
from manifests.logs import Logs
from manifests.manifest import Manifest
from manifests.storage import Folder

pytestmark = pytest.mark.slow
ROWS = 2_000_000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    make(folder, ROWS)
    return folder


def test_rules_cost_what_a_plain_count_says(corpus: Path) -> None:
    folder = Folder(corpus)
    with Logs(folder, Manifest.load(folder), ["removals", "documents"]) as logs:
        costs = {one.rule: one for one in rule_costs(logs)}
    table = ds.dataset(sorted(corpus.glob("logs/removals/*/*.parquet"))).to_table(columns=["rule", "language"])
    assert {rule: one.removed for rule, one in costs.items()} == Counter(table["rule"].to_pylist())
    largest = costs["minhash.near_duplicate"].by["language"][0]
    languages = Counter(
        language
        for rule, language in zip(table["rule"].to_pylist(), table["language"].to_pylist(), strict=True)
        if rule == "minhash.near_duplicate"
    )
    assert (largest.name, largest.removed) == languages.most_common(1)[0]


def test_what_if_is_what_a_plain_count_over_all_signals_says(corpus: Path) -> None:
    folder = Folder(corpus)
    manifest = Manifest.load(folder)
    with Logs(folder, manifest, ["removals", "signals"]) as logs:
        lower, higher = (what_if(logs, changes_of(manifest.content, [f"gopher.min_words={bound}"])) for bound in (30, 100))
        view = f"signals_{COMPONENT}_{BLOCK}"
        only = "failed_rules = ['gopher.min_words']"
        (kept,) = logs.sql(f'select count(*) as n from removals join "{view}" using (id) where {only} and "gopher.words" >= 30')
        (gone,) = logs.sql(
            f'select count(*) as n from "{view}" anti join (select id from removals where stage = ?) using (id) '
            'where "gopher.words" < 100',
            [BLOCK],
        )
    assert sum(one.documents for one in lower.newly_kept) == kept["n"] > 0
    assert sum(one.documents for one in higher.newly_removed) == gone["n"] > 0
    assert lower.measured == sum(log.rows for log in manifest.content.logs if log.kind == "signals")
    assert len(higher.examples["newly_removed"]) == 5


def test_one_file_of_signals_is_opened_for_one_document(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(corpus)
    manifest = Manifest.load(folder)
    opened: list[list[str]] = []
    view = Logs._view

    def counted(self: Logs, name: str, paths: list[str], schema: object) -> None:
        opened.append(paths)
        view(self, name, paths, schema)  # type: ignore[arg-type]

    for number in (0, 3, ROWS // LOG_ROWS - 1):
        path = corpus / f"logs/signals/{COMPONENT}/{BLOCK}/{number:05d}.parquet"
        wanted = pq.read_table(path, columns=["id", "gopher.words"])
        with Logs(folder, manifest, ["documents", "removals", "edits"]) as logs:
            monkeypatch.setattr(Logs, "_view", counted)
            for row in (0, wanted.num_rows // 2, wanted.num_rows - 1):
                (life,) = lives(logs, wanted["id"][row].as_py())
                assert life.signals[BLOCK]["gopher.words"] == wanted["gopher.words"][row].as_py()
            monkeypatch.undo()
    assert [len(paths) for paths in opened] == [1] * 9
