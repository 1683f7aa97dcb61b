"""`python -m demo`: makes a crawl, builds a corpus from it, asks it questions, and trains on it for a minute.

Every step is a command that you could type yourself; it is shown before it runs.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import duckdb

from demo.crawl import write_crawl

HERE = Path(__file__).parent
RECIPE = "demo/recipe.yaml"
CORPUS = "demo/out/corpus"
RUN = "demo/out/run"
TRAINING_SECONDS = 60
MEASURED = "what the filters measured"

BUILD = (
    ("What will run:", ["plan", RECIPE, "--corpus", CORPUS]),
    ("Build the corpus:", ["run", RECIPE, "--corpus", CORPUS]),
    ("How many documents each stage got, and kept:", ["funnel", CORPUS]),
)
VERIFY = ("Hash and count everything again:", ["verify", CORPUS])
TRAIN = ["train", "--manifest", f"{CORPUS}/manifest.json", "--out", RUN, "--preset", "tiny"]

# One document of each kind, found in the logs as an auditor would.
FILTERED = "a document that a filter removed"
QUESTIONS = (
    (
        "a document that was kept",
        "select url from documents where removed_by is null and url like '%/library/%' order by text_bytes desc, id limit 1",
    ),
    (
        FILTERED,
        "select url from removals where rule like 'gopher%' or rule like 'c4.%' or rule like 'fineweb.%' "
        "order by url not like '%town.example%', rule not like 'gopher_repetition.%', id limit 1",
    ),
    (
        "a near-duplicate",
        "select url from removals where rule = 'minhash.near_duplicate' "
        "order by url not like '%town.example%', linked_jaccard, id limit 1",
    ),
    (
        "a document that holds a benchmark's question",
        "select url from removals where rule like 'decontamination.%' order by id limit 1",
    ),
    (
        "a document whose text was edited",
        "select url from edits join documents using (id) where removed_by is null "
        "order by url not like '%town.example%', rule not like 'personal_data.%', id limit 1",
    ),
)

NEXT = f"""
What to look at next:
  {RECIPE}
      the recipe: change a threshold, and see what depends on it:
      .venv/bin/corpusmill plan {RECIPE} --corpus {CORPUS}
      .venv/bin/corpusmill run {RECIPE} --corpus {CORPUS}
  report.html
      the corpus in pictures, after .venv/bin/corpusmill report {CORPUS}
  .venv/bin/corpusmill audit serve {CORPUS}
      the same in a browser, where each document can be asked about
  .venv/bin/corpusmill generate {RUN} "Returns the"
      what the model says (after a minute of training: no sentences)
  {CORPUS}/manifest.json
      what was built from what, by which rules, with every file's digest
  {CORPUS}/logs/removals/
      one row for every removed document, in Parquet: open it with any engine
  {CORPUS}/logs/edits/
      one row for every change to a text
  docs/
      how to write a recipe, audit a corpus, and train on it
"""


def main() -> int:
    options = argparse.ArgumentParser("python -m demo", description="A corpus and a model in a few minutes.")
    options.add_argument("--seconds", type=float, default=TRAINING_SECONDS, help="time to train (default: 60)")
    seconds = options.parse_args().seconds
    began = time.monotonic()
    say("Write a crawl from this Python's own documentation, with a few pages that ought not to be kept:")
    write_crawl(HERE / "out" / "crawl")
    for file in sorted((HERE / "out" / "crawl").glob("*/*")):
        print(f"  {file.relative_to(HERE.parent)}  {file.stat().st_size / 1e6:.2f} MB")
    for why, arguments in BUILD:
        corpusmill(why, arguments)
    for kind, url in found(HERE.parent / CORPUS):
        # The table of signals is shown where it matters most.
        shown_until = None if kind == FILTERED else MEASURED
        corpusmill(f"Ask about {kind}:", ["why", CORPUS, url], shown_until)
    corpusmill(*VERIFY)
    # The trainer wants a new folder: it does not mix two runs.
    shutil.rmtree(HERE.parent / RUN, ignore_errors=True)
    output = corpusmill(
        f"Train a tiny model for {seconds:g} seconds, knowing nothing but the manifest:",
        [*TRAIN, "--seconds", f"{seconds:g}"],
    )
    score = re.search(r"val_bpb=([0-9.]+)", output)
    if score is None:
        print("the training printed no val_bpb", file=sys.stderr)
        return 1
    say(f"val_bpb={score[1]}: the bits that the model needs for a byte of documents it has not seen.")
    print("Eight would be no knowledge at all; a general-purpose compressor needs about two or three.")
    print(NEXT)
    print(f"{time.monotonic() - began:.0f} seconds in all.")
    return 0


def found(corpus: Path) -> list[tuple[str, str]]:
    """(kind, URL) for each of QUESTIONS, from the corpus's logs; every kind must be there."""
    logs = duckdb.connect()
    for name in ("documents", "removals", "edits"):
        files = f"{corpus}/logs/{name}/**/*.parquet"
        logs.execute(f"create view {name} as select * from read_parquet('{files}', union_by_name = true)")
    answers = []
    for kind, question in QUESTIONS:
        row = logs.execute(question).fetchone()
        if row is None:
            raise SystemExit(f"the demo's corpus should hold {kind}, and its logs show none")
        answers.append((kind, row[0]))
    return answers


def corpusmill(why: str, arguments: list[str], shown_until: str | None = None) -> str:
    """Shows a command, runs it, and returns what it printed; the demo ends with its exit code if it fails.

    What follows a line `shown_until` is counted rather than shown.
    """
    say(why)
    print(f"$ {shlex.join(['corpusmill', *arguments])}", flush=True)
    command = [str(Path(sys.executable).with_name("corpusmill")), *arguments]
    process = subprocess.Popen(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    assert process.stdout is not None
    lines: list[str] = []
    hidden = 0
    for line in process.stdout:
        lines.append(line)
        if hidden or (shown_until is not None and line.startswith(shown_until)):
            hidden += 1
        else:
            print(line, end="", flush=True)
    if hidden:
        print(f"(and {hidden} lines about {shown_until})")
    if process.wait() != 0:
        raise SystemExit(process.returncode)
    return "".join(lines)


def say(text: str) -> None:
    print(f"\n{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
