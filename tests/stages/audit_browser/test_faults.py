"""What breaks is said, and the next one is answered."""

from __future__ import annotations

import html
import http.client
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest
from typer.testing import CliRunner

from manifests.commands import app as program
from manifests.manifest import Manifest
from manifests.storage import Folder

pytest.importorskip("starlette", reason="the browser's libraries are not installed: pip install 'corpusmill[audit]'")


from stages.audit_browser import documents
from stages.audit_browser.pages import link
from stages.audit_browser.questions import ClientGone, CorpusUnreadable, Questions, TooLong
from tests.stages.audit_browser.pages import browser_of, client_of, page


def test_a_log_that_is_gone_or_broken_is_named(copied: Path, tmp_path: Path) -> None:
    client = client_of(browser_of(copied, tmp_path / "r"))
    log = next((copied / "logs" / "removals").rglob("*.parquet"))
    log.write_bytes(log.read_bytes()[:100])
    said = page(client, link("/removals", language="en"), 500).text
    assert "corpusmill verify" in said and "Traceback" not in said
    log.unlink()
    assert log.name in page(client, link("/removals", language="en"), 500).text
    assert page(client, "/").text  # of the manifest alone


def test_another_corpus_in_the_same_place_is_not_taken_for_the_first(copied: Path, tmp_path: Path) -> None:
    client = client_of(browser_of(copied, tmp_path / "r"))
    assert client.get("/removals").status_code == 200
    folder = Folder(copied)
    manifest = Manifest.load(folder)
    other = Manifest.seal(manifest.content.model_copy(update={"name": "other"}), manifest.run)
    other.save(folder)
    said = page(client, "/removals", 500).text
    assert "another corpus now" in said and other.digest in said
    (copied / "manifest.json").unlink()
    assert "no corpus that can be read" in page(client, "/removals", 500).text


def test_what_is_no_corpus_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(CorpusUnreadable, match="no corpus"):
        Questions(str(tmp_path))
    result = CliRunner().invoke(program, ["audit", "serve", str(tmp_path)])
    assert result.exit_code == 1 and "no corpus" in result.output


def test_reviews_inside_the_corpus_are_refused_at_the_start(finished: Path) -> None:
    result = CliRunner().invoke(program, ["audit", "serve", str(finished), "--reviews", str(finished / "reviews.jsonl")])
    assert result.exit_code == 1 and "lies in the corpus" in result.output


def test_without_its_libraries_the_command_says_what_to_install(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    result = CliRunner().invoke(program, ["audit", "serve", str(finished)])
    assert result.exit_code == 1 and "pip install 'corpusmill[audit]'" in result.output


def test_the_program_serves_until_it_is_interrupted(finished: Path, tmp_path: Path) -> None:
    program_ = str(Path(sys.executable).parent / "corpusmill")
    command = [program_, "audit", "serve", str(finished), "--port", "0", "--reviews", str(tmp_path / "r.jsonl")]
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\ncat "${{1#file://}}" > {tmp_path}/page\n')
    os.mkfifo(tmp_path / "page")
    browser.chmod(0o700)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "BROWSER": f"{browser} %s"}
    command.append("--open")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        first, second, third = (server.stdout.readline() for _ in range(3))
        assert "token for others" in second and third.startswith("reviews")
        opened = urlsplit(first.split()[0])
        address, secret = opened.netloc, opened.query.removeprefix("once=")
        assert secret
        connection = http.client.HTTPConnection(address, timeout=60)

        def asked(path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer, answer.read()

        assert asked("/removals")[0].status == 303
        entered, _ = asked(f"{opened.path}?{opened.query}")
        cookie = (entered.getheader("set-cookie") or "").partition(";")[0]
        answer, body = asked("/removals", cookie=cookie)
        assert answer.status == 200 and b"c4.curly_brace" in body
        connection.close()
        taken = subprocess.run([*command, "--port", address.rpartition(":")[2]], capture_output=True, text=True, check=False)
        assert taken.returncode == 1 and "cannot be listened on" in taken.stderr
        led_to = (tmp_path / "page").read_text()  # as soon as the browser that --open calls has written it
        server.send_signal(signal.SIGINT)
        said = server.communicate()
    assert "Traceback" not in said[1]
    called = (tmp_path / "called").read_text().strip()
    assert called.startswith("file://") and secret not in called  # every user sees what programs are called with
    assert first.split()[0] in html.unescape(led_to)
    assert not Path(called.removeprefix("file://")).exists()
    assert not Path(called.removeprefix("file://")).parent.exists()


def test_no_token_is_for_this_machine_alone(finished: Path) -> None:
    result = CliRunner().invoke(program, ["audit", "serve", str(finished), "--no-token", "--host", "0.0.0.0"])
    assert result.exit_code == 2 and "they need the token" in " ".join(result.output.split())


ENDLESS = "select count(*) from range(100000000000) a, range(1000000) b where a.range * b.range = 7"


def test_a_question_that_takes_too_long_is_stopped_and_the_next_is_answered(finished: Path) -> None:
    questions = Questions(str(finished), seconds=0.3)

    async def nobody_left() -> bool:
        return False

    async def ask() -> int:
        with pytest.raises(TooLong, match="stopped after"):
            await questions.ask(nobody_left, lambda logs, stop: logs.sql(ENDLESS))
        questions.seconds = 30.0
        return len(await questions.ask(nobody_left, lambda logs, stop: logs.sql("select id from removals")))

    assert anyio.run(ask) > 0


def test_a_question_ends_when_the_client_leaves(finished: Path) -> None:
    questions = Questions(str(finished))

    async def left() -> bool:
        return True

    async def ask() -> None:
        with pytest.raises(ClientGone):
            await questions.ask(left, lambda logs, stop: logs.sql(ENDLESS))

    anyio.run(ask)


def test_a_question_cannot_reach_other_files_or_more_memory(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    questions = Questions(str(finished), memory="50MB")

    async def nobody_left() -> bool:
        return False

    async def refused(statement: str) -> str:
        with pytest.raises(CorpusUnreadable) as error:
            await questions.ask(nobody_left, lambda logs, stop: logs.sql(statement))
        return str(error.value)

    for statement in (
        f"select * from read_csv('{tmp_path / 'secret.csv'}')",
        f"copy (select 1) to '{tmp_path / 'out'}'",
        "set memory_limit = '10GB'",
        "select list(range) from range(100000000)",
    ):
        assert anyio.run(refused, statement)
    assert not (tmp_path / "out").exists()


def test_a_page_that_fails_says_so_without_a_traceback(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("\x1b[31mat a place")

    monkeypatch.setattr(documents, "twins_of", broken)
    said = page(client_of(browser_of(finished, tmp_path / "r")), "/twins?id=a", 500).text
    assert "this page has failed: ZeroDivisionError" in said and "at a place" not in said
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("path", ["/", "/reviews", "/removals", "/whatif"])
def test_of_a_corpus_that_is_gone_nothing_is_shown(copied: Path, tmp_path: Path, path: str) -> None:
    client = client_of(browser_of(copied, tmp_path / "r"))
    assert client.get(path).status_code == 200
    (copied / "manifest.json").rename(copied / "gone.json")
    answer = client.get(path)
    assert answer.status_code == 500 and "is no corpus that can be read" in answer.text
    assert client.get("/static/style.css").status_code == 200
    (copied / "gone.json").rename(copied / "manifest.json")
    assert client.get(path).status_code == 200
