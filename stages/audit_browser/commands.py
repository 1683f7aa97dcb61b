"""`corpusmill audit serve`: the corpus in a browser. It joins the group of `manifests.audit`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from manifests.audit.commands import audit
from manifests.corpus_argument import CorpusArgument
from manifests.terminal import fail, user_name, visible
from stages.audit_commands import AsItWasOption, SourceOption, sources_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manifests.audit.reviews import ReviewFile

NEEDED = "the browser needs Starlette, uvicorn and Jinja2, which are not installed: pip install 'corpusmill[audit]'"
LOCAL = "127.0.0.1"
PORT = 8765
KEEP_ALIVE_SECONDS = 5
ENDING_SECONDS = 3
CONNECTIONS = 64
"""At the same time; more are told to come again."""
ReviewsOption = Annotated[
    str | None, typer.Option(help="file of reviews; default: in your data folder (XDG_DATA_HOME), one for each corpus")
]


@audit.command()
def serve(
    corpus: CorpusArgument,
    host: Annotated[str, typer.Option(help="address to listen on; by default only this machine reaches it")] = LOCAL,
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to listen on; 0 takes a free one")] = PORT,
    token: Annotated[
        bool,
        typer.Option(
            "--token/--no-token",
            help="whether your own browsers on this machine need the printed address or the token, as others always do",
        ),
    ] = True,
    show: Annotated[bool, typer.Option("--open", help="open it in your browser")] = False,
    also_host: Annotated[
        list[str] | None, typer.Option(help="another host name by which it is called, behind a proxy say; may be repeated")
    ] = None,
    reviews: ReviewsOption = None,
    reviewer: Annotated[str | None, typer.Option(help="name that reviews begin with; default: the user of this machine")] = None,
    source: SourceOption = None,
    run: Annotated[
        list[str] | None, typer.Option(help="folder of a training run, to say what it had of the corpus; may be repeated")
    ] = None,
    personal_data: AsItWasOption = False,
    seconds: Annotated[float, typer.Option(min=1, help="that one question may take")] = 60.0,
    memory: Annotated[str, typer.Option(help="that one question to the logs may take, of which two run at a time")] = "1GB",
) -> None:
    """Show a corpus in a browser: removals to be filtered, texts with the evidence marked, copies side by side, thresholds
    to be moved, samples to be reviewed, takedowns looked at, training runs asked, and the report. It never changes the corpus.

    Listens on this machine only unless --host says otherwise. The address that it prints lets one browser in; every other
    one needs the token that is printed below."""
    try:
        import uvicorn

        from stages.audit_browser.access import ENTER, Access, host_names, is_loopback
        from stages.audit_browser.application import application
        from stages.audit_browser.browser import Browser
        from stages.audit_browser.connections import within
        from stages.audit_browser.questions import CorpusUnreadable, Questions
        from stages.audit_browser.runs import Runs
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] in ("uvicorn", "starlette", "jinja2", "markupsafe", "anyio"):
            fail(NEEDED)
        raise
    from manifests.audit.reviews import ReviewError, review_file
    from manifests.trained_on import LedgerError

    try:
        questions = Questions(corpus, seconds, memory)
        stored: ReviewFile = review_file(questions.folder, questions.manifest.digest, reviews)
        stored.read()
        runs = Runs.of(run or (), questions.folder, questions.manifest)
    except (CorpusUnreadable, ReviewError, LedgerError) as error:
        fail(str(error))
    here = is_loopback(host)
    if not (here or token):
        raise typer.BadParameter(f"others reach {host}, so they need the token", param_hint="--no-token")
    names = frozenset(one.lower() for one in also_host or []) | (frozenset() if here else host_names(host))
    access = Access(trusts_own=here and not token, names=names)
    browser = Browser(questions, stored, access, sources_named(source), personal_data, reviewer or user_name(), runs)
    config = uvicorn.Config(
        application(browser),
        host=host,
        port=port,
        access_log=False,
        log_level="warning",
        server_header=False,
        date_header=False,
        proxy_headers=False,
        http=within(),
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=ENDING_SECONDS,
        limit_concurrency=CONNECTIONS,
        ws="none",
        lifespan="off",
    )
    try:
        listening = config.bind_socket()
        listening.listen(CONNECTIONS)  # from here on the address that is printed can be called
    except (SystemExit, OSError):
        fail(f"port {port} of {host} cannot be listened on: take another with --port")
    home = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/"
    address = home if access.trusts_own else f"{home.rstrip('/')}{ENTER}?once={access.once}"
    typer.echo(visible(f"{address}  (Ctrl+C ends it)"))
    if access.trusts_own:
        typer.echo(f"token, for browsers that are not your own on this machine: {access.token}")
    else:
        typer.echo(visible(f"this address lets one browser in, once; token for others, at {home}: {access.token}"))
    typer.echo(visible(f"reviews: {stored.path}"))
    if not here:
        typer.echo(
            "warning: other machines can reach this, and HTTP shows what it carries to those between; an SSH tunnel does not",
            err=True,
        )
    try:
        with _opened(address) if show else contextlib.nullcontext():
            uvicorn.Server(config).run(sockets=[listening])
    finally:
        browser.report.end()


def leading_to(address: str) -> str:
    """A page that leads to another at once."""
    from html import escape

    return (
        f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={escape(address)}">'
        f'<title>corpusmill</title><a href="{escape(address)}">Open the corpus</a>\n'
    )


@contextlib.contextmanager
def _opened(address: str) -> Iterator[None]:
    """The user's browser is sent to `address` by a page that nobody else can read: what programs are called with, all can see."""
    import tempfile
    import threading
    import webbrowser
    from pathlib import Path

    def call() -> None:
        if not webbrowser.open(page.as_uri()):
            typer.echo("no browser could be opened: open the address yourself", err=True)

    with tempfile.TemporaryDirectory(prefix="corpusmill-") as folder:  # for this user alone, and so is the page
        page = Path(folder) / "open.html"
        page.touch(0o600)
        page.write_text(leading_to(address), encoding="utf-8")
        threading.Thread(target=call, daemon=True).start()  # a browser of the terminal returns when it ends
        yield
