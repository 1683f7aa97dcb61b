"""SQL from a stranger: it reads the views of one corpus, and reaches nothing else."""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from manifests.audit.sandbox import Sandbox, SandboxError
from manifests.manifest import Manifest
from manifests.storage import Folder

SECRET = "the secret of another file"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "secret.csv").write_text(f"a\n{SECRET}\n")
    return tmp_path / "secret.csv"


@pytest.fixture(scope="module")
def sandbox(finished: Path, manifest: Manifest) -> Iterator[Sandbox]:
    with Sandbox(Folder(finished), manifest) as opened:
        yield opened


READS = (
    "select * from read_csv('{file}')",
    "select * from '{file}'",
    "select * from read_text('{file}')",
    "select * from read_blob('{file}')",
    "select * from read_parquet('{folder}/*.parquet')",
    "select * from glob('{folder}/*')",
    "select * from sniff_csv('{file}')",
    "select * from query('from read_text(''{file}'')')",
    "select * from query_table('{file}')",
    "select getenv('HOME')",
    "select * from secret",
    "select * from duckdb_secrets()",
    "from parquet_metadata('{log}')",
)
OTHERS = (
    "copy (select 1) to '{folder}/out.csv'",
    "copy documents to '{folder}/out.parquet' (format parquet)",
    "copy documents from '{file}'",
    "export database '{folder}/out'",
    "attach '{folder}/out.db'",
    "install httpfs",
    "load httpfs",
    "set enable_external_access = true",
    "set allowed_directories = ['/']",
    "reset enable_external_access",
    "pragma database_list",
    "pragma enable_object_cache",
    "call pragma_version()",
    "create table mine as select 1",
    "create macro mine(a) as a",
    "drop view documents",
    "insert into documents values (1)",
    "delete from removals",
    "update documents set id = ''",
    "explain analyze copy (select 1) to '{folder}/out.csv'",
    "prepare mine as select 1",
    "execute mine",
    "begin transaction",
    "use other",
    "checkpoint",
    "select 1; copy (select 1) to '{folder}/out.csv'",
    "",
    "; ;",
    "selec",
    "\\0",
)


@pytest.mark.parametrize("statement", [*READS, *OTHERS])
def test_what_is_no_question_to_the_logs_is_refused(sandbox: Sandbox, secret: Path, finished: Path, statement: str) -> None:
    log = next(finished.glob("logs/removals/*/*.parquet"))
    with pytest.raises(SandboxError) as refused:
        sandbox.ask(statement.format(file=secret, folder=secret.parent, log=log))
    assert SECRET not in str(refused.value)
    assert sorted(os.listdir(secret.parent)) == ["secret.csv"]
    assert sandbox.ask("select count(*) from documents").rows == [(119,)]


def test_no_variable_of_the_program_is_a_table(sandbox: Sandbox) -> None:
    import pyarrow as pa

    hidden = pa.table({"a": [SECRET]})
    with pytest.raises(SandboxError):
        sandbox.ask("select * from hidden")
    assert hidden.num_rows == 1


def test_a_statement_that_takes_too_long_or_too_much_is_stopped(finished: Path, manifest: Manifest) -> None:
    with Sandbox(Folder(finished), manifest, memory="100MB") as sandbox:
        with pytest.raises(SandboxError, match=r"stopped after 0\.2 seconds"):
            sandbox.ask("select count(*) from range(100000000000) a, range(10) b", seconds=0.2)
        with pytest.raises(SandboxError, match="Out of Memory"):
            sandbox.ask("select list(a) from range(100000000) t(a)")
        assert sandbox.ask("select 1").rows == [(1,)]
    with pytest.raises(SandboxError, match="memory"):
        Sandbox(Folder(finished), manifest, memory="a lot")


def test_what_functions_on_lists_and_texts_take_is_counted_and_their_time_too(finished: Path, manifest: Manifest) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Sandbox(Folder(finished), manifest, memory="100MB") as sandbox:
        for statement in (
            "select list_aggregate(range(100000000), 'sum')",
            "select damerau_levenshtein(repeat('a', 30000), repeat('b', 30000))",
            "select repeat(chr(1), 1000000) from range(50)",  # six characters each in JSON
        ):
            with pytest.raises(SandboxError, match=r"Out of Memory|more than 100MB"):
                sandbox.ask(statement)
        assert sandbox.ask("select 1").rows == [(1,)]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB
    with Sandbox(Folder(finished), manifest) as sandbox:
        assert sandbox.ask("select 1").rows == [(1,)]
        running = sandbox.process_id
        with pytest.raises(SandboxError, match=r"stopped after 0\.2 seconds"):
            sandbox.ask("select levenshtein(repeat('a', 200000), repeat('b', 200000))", seconds=0.2)
        assert running is not None and not Path(f"/proc/{running}").exists()


def test_nothing_goes_on_when_who_asked_is_gone(finished: Path) -> None:
    asking = """
import sys, threading
from manifests.audit.sandbox import Sandbox
from manifests.manifest import open_corpus
with Sandbox(*open_corpus(sys.argv[1])) as sandbox:
    threading.Thread(target=sandbox.ask, args=["select count(*) from range(100000000000) a, range(10) b"], daemon=True).start()
    print(sandbox.process_id, flush=True)
    sys.stdin.read()
"""
    caller = subprocess.Popen([sys.executable, "-c", asking, finished], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert caller.stdout is not None
    running = os.pidfd_open(int(caller.stdout.readline()))
    caller.kill()
    caller.communicate()
    assert select.select([running], [], [], 60)[0]
    os.close(running)


def test_no_module_beside_the_corpus_is_run(finished: Path, tmp_path: Path) -> None:
    for name in ("duckdb", "pyarrow", "json", "select", "manifests"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'taken')!r}, 'w')\n")
    program = str(Path(sys.executable).parent / "corpusmill")
    command = [program, "audit", "sql", str(finished), "select count(*) as n from documents", "--json"]
    asked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (json.loads(asked.stdout), asked.stderr) == ([{"n": 119}], "")
    assert not (tmp_path / "taken").exists()


def test_values_of_every_kind_come_through(sandbox: Sandbox) -> None:
    asked = (
        "select 9223372036854775807::hugeint * 1000 as a, 1.50::decimal(4, 2) as b, timestamp '2020-01-02 03:04:05' as c, "
        "'\\xAA'::blob as d, map {date '2020-01-01': [1, null]} as e, {'k': 'é'} as f, true as g, null as h, 'inf'::double as i, "
        "'a' || chr(10) || chr(55) as j"
    )
    (row,) = sandbox.ask(asked).as_rows()
    assert row == {
        "a": 9223372036854775807000,
        "b": "1.50",
        "c": "2020-01-02 03:04:05",
        "d": "aa",
        "e": {"2020-01-01": [1, None]},
        "f": {"k": "é"},
        "g": True,
        "h": None,
        "i": float("inf"),
        "j": "a\n7",
    }


def test_every_column_of_every_log_is_there_with_its_type(sandbox: Sandbox) -> None:
    from manifests.schemas import LOG_SCHEMAS

    for view, schema in LOG_SCHEMAS.items():
        assert [name for name, _ in sandbox.columns(view)] == schema.names
    types = dict(sandbox.columns("removals"))
    assert (types["kept_jaccard"], types["failed_rules"], types["cluster_size"]) == ("DOUBLE", "VARCHAR[]", "BIGINT")
    assert dict(sandbox.columns("signals_web_filters1"))["gopher.hashes_per_word"].startswith("STRUCT")


def test_counts_and_rules_are_those_of_the_manifest(sandbox: Sandbox, manifest: Manifest) -> None:
    counts = sandbox.ask("select component, stage, documents_in, documents_kept, removed from counts").rows
    assert counts == [
        (one.component, one.stage, one.documents_in, one.documents_kept, sum(one.removed.values()))
        for one in manifest.content.counts
    ]
    rules = {rule.name: rule.threshold for stage in manifest.content.components["web"].stages for rule in stage.rules}
    assert dict(sandbox.ask("select rule, bound from rules where component = 'web'").rows) == rules
    assert sandbox.ask("describe select * from components").rows
    assert sandbox.ask("summarize documents").rows
    assert sandbox.ask("show tables").rows


def test_rows_beyond_the_limit_are_said_to_be_there(sandbox: Sandbox) -> None:
    found = sandbox.ask("select id from documents", limit=5)
    assert (len(found.rows), found.more) == (5, True)
    assert not sandbox.ask("select id from documents", limit=119).more


def test_columns_of_one_name_do_not_hide_each_other(sandbox: Sandbox) -> None:
    assert sandbox.ask("select 1 as a, 2 as a").as_rows() == [{"a": 1, "a_2": 2}]
