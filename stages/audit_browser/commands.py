"""`corpusmill audit serve`: the corpus in a browser. It joins the group of `manifests.audit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from manifests.audit.commands import CorpusArgument, audit, fail
from manifests.terminal import visible
from stages.audit_commands import AsItWasOption, SourceOption, sources_named

if TYPE_CHECKING:
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
    host: Annotated[str, typer.Option(help="address to listen on; any but this machine's own needs the token")] = LOCAL,
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to listen on; 0 takes a free one")] = PORT,
    token: Annotated[bool, typer.Option("--token", help="demand the token of everybody, also of your own browser here")] = False,
    also_host: Annotated[
        list[str] | None, typer.Option(help="another host name by which it is called, behind a proxy say; may be repeated")
    ] = None,
    reviews: ReviewsOption = None,
    reviewer: Annotated[str | None, typer.Option(help="name that reviews begin with; default: the user of this machine")] = None,
    source: SourceOption = None,
    personal_data: AsItWasOption = False,
    seconds: Annotated[float, typer.Option(min=1, help="that one question may take")] = 60.0,
    memory: Annotated[str, typer.Option(help="that one question to the logs may take, of which two run at a time")] = "1GB",
) -> None:
    """Show a corpus in a browser: removals to be filtered, texts with the evidence marked, copies side by side, thresholds
    to be moved, and samples to be reviewed. It never changes the corpus.

    Listens on this machine only unless --host says otherwise. There, your own browser needs nothing; other users of the
    machine, and everybody with another --host, need the token that is printed when it starts."""
    try:
        import uvicorn

        from stages.audit_browser.access import Access, host_names, is_loopback
        from stages.audit_browser.application import application
        from stages.audit_browser.browser import Browser
        from stages.audit_browser.connections import within
        from stages.audit_browser.questions import CorpusUnreadable, Questions
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] in ("uvicorn", "starlette", "jinja2", "markupsafe", "anyio"):
            fail(NEEDED)
        raise
    from manifests.audit.commands import user_name
    from manifests.audit.reviews import ReviewError, review_file

    try:
        questions = Questions(corpus, seconds, memory)
        stored: ReviewFile = review_file(questions.folder, questions.manifest.digest, reviews)
        stored.read()
    except (CorpusUnreadable, ReviewError) as error:
        fail(str(error))
    here = is_loopback(host)
    names = frozenset(one.lower() for one in also_host or []) | (frozenset() if here else host_names(host))
    access = Access(trusts_own=here and not token, names=names)
    browser = Browser(questions, stored, access, sources_named(source), personal_data, reviewer or user_name())
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
    shown = f"[{host}]" if ":" in host else host
    typer.echo(visible(f"http://{shown}:{listening.getsockname()[1]}/  (Ctrl+C ends it)"))
    typer.echo(visible(f"reviews: {stored.path}"))
    if access.trusts_own:
        typer.echo(f"token, for browsers that are not your own on this machine: {access.token}")
    else:
        typer.echo(f"token: {access.token}")
    if not here:
        typer.echo(
            "warning: other machines can reach this, and HTTP shows what it carries to those between; an SSH tunnel does not",
            err=True,
        )
    uvicorn.Server(config).run(sockets=[listening])
