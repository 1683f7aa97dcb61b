"""A small crawl with everything in it that a stage can find, and the recipes that run over it.

The prose is made of sentences whose words are drawn from lists by a seeded generator, so that two documents share hardly a run of
five words; what is planted is planted on purpose, and `Planted` says where it is.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from manifests.storage import Folder
from pipeline.execution import Executor, InlineExecutor
from pipeline.progress import Progress
from pipeline.recipe import Recipe
from pipeline.run import Result, run

ONE_FILE_A_PART = 4000
"""Bytes: every file of the crawl is larger than a quarter of it."""

PEOPLE = "baker carpenter doctor farmer gardener miller painter sailor teacher weaver printer shepherd captain merchant potter tailor".split()
PLACES = "harbour valley market mountain orchard village river island meadow castle workshop library garden forest quarry lighthouse".split()
THINGS = "lantern ladder basket letter barrel compass kettle hammer blanket mirror saddle candle bridge clock map violin".split()
VERBS = "carried mended painted borrowed measured counted polished described collected repaired lifted examined returned traded wrapped hid".split()
ADJECTIVES = "old narrow bright heavy quiet broken wooden early gentle crowded distant patient curious silver muddy warm".split()
TIMES = (
    "morning evening winter autumn spring afternoon night summer harvest holiday storm festival frost thaw drought flood".split()
)
TEMPLATES = (
    "The {a} {p} {v} a {t} near the {l} before {s} ended.",
    "In {s} every {p} of the {l} {v} that {a} {t} with care.",
    "Nobody knew why the {p} had {v} it, but the {l} was {a} and the {t} was gone.",
    "A {t} is {a} when {s} comes, and a {p} who {v} one will remember the {l}.",
    "To the {l} they walked, a {p} and a {q}, and {v} what was left of the {a} {t}.",
    "She {v} the {t} because {s} had made the {l} too {a} for any {p}.",
    "Some say the {q} {v} first; others have a {p} of the {l} to blame for the {a} {t}.",
    "With one {t} on the table, the {a} {p} {v} nothing until {s} was over in the {l}.",
    "There have been {p} and {q} in this {l} since the {t} was {a}, as {s} would show.",
    "From {l} to {k} the road is {a}, so a {p} {v} each {t} twice in {s}.",
    "He wrote that the {k} {v} by {s} looked {a} beside the {t} of a {q}.",
    "When the {p} left the {k}, an {a} {t} was all that the {q} of the {l} ever {v}.",
)
BENCHMARK = "A train of eleven green wagons leaves the northern depot at noon and meets seven yellow trams before it crosses the frozen lake"
SHORT_BENCHMARK = "Which of these nine planets has the largest moon"


def prose(seed: int | str, sentences: int = 12) -> list[str]:
    """Distinct sentences of plain English, the same for the same seed."""
    chance = random.Random(f"prose {seed}")
    found = []
    order = [template for _ in range(-(-sentences // len(TEMPLATES))) for template in chance.sample(TEMPLATES, len(TEMPLATES))]
    for template in order[:sentences]:
        place, other = chance.sample(PLACES, 2)
        person, second = chance.sample(PEOPLE, 2)
        words = {name: chance.choice(list_) for name, list_ in (("t", THINGS), ("v", VERBS), ("a", ADJECTIVES), ("s", TIMES))}
        found.append(template.format(p=person, q=second, l=place, k=other, **words))
    return found


def article(seed: int | str, sentences: int = 12) -> str:
    """`prose` as paragraphs of four sentences, one a line."""
    lines = prose(seed, sentences)
    return "\n".join(" ".join(lines[i : i + 4]) for i in range(0, len(lines), 4))


def near_copy(seed: int | str, replaced: int, sentences: int = 12) -> str:
    """The article of `seed` with its last `replaced` sentences taken from another one."""
    lines = prose(seed, sentences)
    lines[-replaced:] = prose(f"other {seed}", replaced)
    return "\n".join(" ".join(lines[i : i + 4]) for i in range(0, len(lines), 4))


def chain(seed: int | str) -> list[str]:
    """Three articles: the second resembles the other two, which resemble each other less."""
    lines, others = prose(seed), prose(f"chained {seed}", 4)
    texts = [lines, [*lines[:-1], others[0]], [*others[2:], *lines[2:-1], others[0]]]
    return ["\n".join(" ".join(one[i : i + 4]) for i in range(0, len(one), 4)) for one in texts]


@dataclass
class Planted:
    """Printed ids of what is in the crawl on purpose; a document may be in the place of several readers' rules."""

    exact: list[str] = field(default_factory=list)
    near: list[str] = field(default_factory=list)
    chain: list[str] = field(default_factory=list)
    """Three documents, of which the first and the last resemble each other only through the second."""
    contaminated: list[str] = field(default_factory=list)
    mojibake: str = ""
    personal: str = ""
    losses: dict[str, str] = field(default_factory=dict)
    """Id → the rule of the reader."""


@dataclass
class Crawl:
    folder: Path
    planted: Planted
    documents: int
    """Everything that is a document by the definition, readable or not."""

    def recipe(self, change: Any = None, name: str = "recipe.yaml") -> Path:
        """Writes the recipe, after `change` has had its way with the mapping, and returns its path."""
        written = recipe()
        if change is not None:
            change(written)
        path = self.folder / name
        path.write_text(yaml.safe_dump(written, sort_keys=False), encoding="utf-8")
        return path

    def load(self, change: Any = None, name: str = "recipe.yaml") -> Recipe:
        return Recipe.load(self.recipe(change, name))


def recipe() -> dict[str, Any]:
    pages = [
        {"url_filter": {"domains": ["casino.example"]}},
        "extraction",
        "repair",
        {"language": {"keep": ["en"]}},
        "gopher_quality",
        "gopher_repetition",
        "c4",
        "fineweb",
        "personal_data",
    ]
    texts: list[Any] = pages[2:]
    return {
        "corpus": "small",
        "seed": 7,
        "components": {
            "web": {"source": "web", "format": "warc", "licence": "CC0-1.0", "snapshot": "2026-48", "stages": pages},
            "books": {"source": "books", "format": "jsonl", "licence": "PD", "priority": 1, "stages": texts},
            "tables": {"source": "tables", "format": "parquet", "licence": "CC-BY-4.0", "stages": texts},
        },
        "stages": [
            "exact_dedup",
            {"minhash": {"bands": 20, "rows": 4, "threshold": 0.7}},
            {"decontamination": {"benchmarks": "benchmarks"}},
            {"split": {"validation": 0.15, "test": 0.15}},
            {"tokenizer": {"vocabulary": 600}},
            {"shards": {"target_tokens": 4000}},
        ],
    }


def build(
    recipe: Recipe,
    corpus: Path | str,
    part_bytes: int = 1 << 27,
    executor: Executor | None = None,
    changes_meant: bool = True,
) -> Result:
    """Runs a recipe, in this process unless an executor is given. Tests write their input anew as they like."""
    executor = executor or InlineExecutor()
    return run(recipe, Folder(corpus), executor, Progress(quiet=True), part_bytes, changes_meant=changes_meant)


def small_recipe(stages: list[Any], corpus_wide: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    """One component `docs` of JSON Lines."""
    component = {"source": "docs", "format": "jsonl", "licence": "PD", "stages": stages}
    return {"corpus": "small", "components": {"docs": component}, "stages": corpus_wide or [], **more}


def write_small(folder: Path, files: Mapping[str, Iterable[Mapping[str, Any] | str]], recipe: Mapping[str, Any]) -> Recipe:
    """Writes `files` below `folder`/docs, and the recipe beside them."""
    for name, records in files.items():
        path = folder / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lines_of(records))
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True), encoding="utf-8")
    return Recipe.load(path)


def write_crawl(folder: Path, shuffled: int | None = None) -> Crawl:
    """Writes the crawl below `folder`; `shuffled` seeds another order in which the files come to be."""
    planted = Planted()
    files: dict[str, bytes] = {}
    documents = 0
    for name, contents in _books(planted).items():
        files[f"books/{name}"] = lines_of(contents)
        documents += sum(bool(one) for one in contents)  # a blank line is no document
    for name, pages in _web(planted).items():
        data, positions = warc(pages)
        files[f"web/{name}"] = data
        documents += len(positions)
        for page, position in zip([one for one in pages if one.get("document", True)], positions, strict=True):
            if "rule" in page:
                planted.losses[f"web/{name}#{position}"] = f"read.{page['rule']}"
    table = pa.table(
        {"text": [article(f"table {i}") for i in range(16)], "url": [f"https://tables.example/{i}" for i in range(16)]}
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=4)
    files["tables/rows.parquet"] = sink.getvalue()
    documents += table.num_rows
    items = [
        {"benchmark": "trains", "item": "17", "text": BENCHMARK},
        {"benchmark": "trains", "item": "18", "question": SHORT_BENCHMARK, "answer": "The sixth"},
        {"benchmark": "trains", "item": "19", "question": "A."},
    ]
    files["benchmarks/trains.jsonl"] = lines_of(items)
    names = list(files)
    if shuffled is not None:
        random.Random(shuffled).shuffle(names)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(files[name])
    return Crawl(folder, planted, documents)


def lines_of(records: Iterable[Mapping[str, Any] | str]) -> bytes:
    """JSON Lines; a string stands for a line as it is."""
    return b"".join((record if isinstance(record, str) else json.dumps(record)).encode() + b"\n" for record in records)


def page(text: str, title: str = "A page") -> bytes:
    paragraphs = "".join(f"<p>{line}</p>" for line in text.split("\n"))
    menu = "<nav><a href='/'>Home</a> <a href='/about'>About us</a></nav>"
    return f"<!doctype html><html><head><title>{title}</title></head><body>{menu}<article>{paragraphs}</article></body></html>".encode()


def warc(pages: Iterable[Mapping[str, Any]]) -> tuple[bytes, list[int]]:
    """A WARC.gz of `pages` (url, body, and perhaps status, type, kind), and the byte offsets of its documents."""
    out, positions = io.BytesIO(), []
    writer = WARCWriter(out, gzip=True)
    for number, one in enumerate(pages):
        at, kind = out.tell(), one.get("kind", "response")
        fixed = {"WARC-Date": "2026-11-20T12:00:00Z", "WARC-Record-ID": f"<urn:uuid:00000000-0000-4000-8000-{number:012d}>"}
        if kind != "response":
            record = writer.create_warc_record(
                one["url"], kind, payload=io.BytesIO(one["body"]), warc_content_type="text/plain", warc_headers_dict=fixed
            )
        else:
            headers = [("Content-Type", one.get("type", "text/html; charset=utf-8")), ("Content-Length", str(len(one["body"])))]
            status = StatusAndHeaders(one.get("status", "200 OK"), headers, protocol="HTTP/1.1")
            record = writer.create_warc_record(
                one["url"], kind, payload=io.BytesIO(one["body"]), http_headers=status, warc_headers_dict=fixed
            )
        writer.write_record(record)
        if one.get("document", True):
            positions.append(at)
    return out.getvalue(), positions


def _books(planted: Planted) -> dict[str, list[dict[str, Any] | str]]:
    """Six files in two folders."""
    found: dict[str, list[dict[str, Any] | str]] = {}
    for shelf in ("north", "south"):
        for volume in range(3):
            texts = [article(f"{shelf} {volume} {i}") for i in range(9)]
            found[f"{shelf}/{volume}.jsonl"] = [
                {"text": text, "url": f"https://{shelf}.example/{volume}/{i}?session=secret{i}"} for i, text in enumerate(texts)
            ]

    def plant(file: str, text: str, url: str | None = None) -> str:
        found[file].append({"text": text, "url": url} if url else {"text": text})
        return f"books/{file}#{len(found[file]) - 1}"

    planted.exact += [
        plant("north/1.jsonl", article("north 0 1").upper().lower()),
        plant("south/2.jsonl", article("north 0 1").replace("\n", "\n\n  ")),
    ]
    for text, file in zip(chain("chain 5"), ("north/0.jsonl", "south/2.jsonl", "north/1.jsonl"), strict=True):
        planted.chain.append(plant(file, text))
    # The copies are longer or shorter than their originals by a few letters: which of them goes is asked of the texts.
    planted.near += [
        plant("north/2.jsonl", near_copy("north 0 2", 1)),
        plant("south/0.jsonl", near_copy("north 0 2", 2)),
        plant("south/1.jsonl", near_copy("south 0 3", 1)),
    ]
    plant("south/1.jsonl", near_copy("south 0 4", 3))  # below the threshold: kept, and in one split with its original
    lines = prose("contaminated", 12)
    planted.contaminated = [
        plant("north/0.jsonl", "\n".join([*lines[:6], f"{BENCHMARK}.", *lines[6:]])),
        plant("north/0.jsonl", "\n".join([*prose("quiz", 12), f"{SHORT_BENCHMARK}?"])),
    ]
    planted.mojibake = plant(
        "south/2.jsonl", article("mojibake") + "\nThe friends’ réunion in the café was a quiet one.".encode().decode("cp1252")
    )
    planted.personal = plant(
        "south/2.jsonl",
        article("personal")
        + "\nWrite to jane.roe@example.org or call +1 202 555 0143 about the server at 8.8.4.4 in the morning.",
        "https://jane:secret@private.example/page?token=1234",
    )
    for text in junk().values():
        plant("north/2.jsonl", text)
    found["south/0.jsonl"] += ["", '{"text": "cut off', '{"title": "no text"}', '{"text": "   "}', "[1, 2]"]
    return found


def junk() -> dict[str, str]:
    """Rule → a text that is removed by it first."""
    short = " ".join(prose("few", 2))
    return {
        "gopher.min_words": short,
        "gopher.max_hashes_per_word": _with_words("hashes", "# # #"),
        "gopher.max_bullet_lines": "\n".join(f"- {line}" for line in prose("bullets")),
        "gopher_repetition.max_duplicate_lines": "\n".join(prose("again", 6) * 2),
        "c4.curly_brace": article("curly") + "\nThe function { returns a value } to the one who called it.",
        "c4.lorem_ipsum": article("lorem") + "\nLorem ipsum dolor sit amet is what the printer set.",
    }


def _with_words(seed: str, words: str) -> str:
    return "\n".join(line.replace(" the ", f" the {words} ", 1).replace(" a ", f" a {words} ", 1) for line in prose(seed))


def _web(planted: Planted) -> dict[str, list[dict[str, Any]]]:
    german = (
        "Der alte Müller trug an jedem Morgen einen Korb voller Äpfel über die schmale Brücke in das Dorf. "
        "Dort warteten die Kinder schon auf ihn und freuten sich, denn er erzählte ihnen immer eine Geschichte vom Wald. "
        "Am Abend ging er zurück in seine Mühle und zählte die Münzen, die er für das Mehl bekommen hatte. "
        "Niemand wusste, wie alt er wirklich war, aber alle mochten seine ruhige Stimme und sein freundliches Lachen."
    )
    files: dict[str, list[dict[str, Any]]] = {}
    for volume in range(3):
        files[f"crawl-{volume}.warc.gz"] = [
            {"url": "urn:info", "kind": "warcinfo", "body": b"software: a test\r\n", "document": False},
            *(
                {"url": f"https://site{volume}.example/page/{i}?q={i}", "body": page(article(f"web {volume} {i}"))}
                for i in range(6)
            ),
        ]
    files["crawl-0.warc.gz"] += [
        {"url": "https://gone.example/", "status": "404 Not Found", "body": page("Nothing."), "rule": "status"},
        {
            "url": "https://pictures.example/a.png",
            "type": "image/png",
            "body": b"\x89PNG\r\n\x1a\n" + bytes(64),
            "rule": "media_type",
        },
        {"url": "https://empty.example/", "body": b"  \n", "rule": "empty_payload"},
        {"url": "https://play.casino.example/slots", "body": page(article("casino"))},
        {"url": "https://mueller.example/", "body": page(german)},
    ]
    files["crawl-1.warc.gz"] += [
        {"url": "https://copy.example/", "body": page(article("north 0 0"))},
        {"url": "https://near.example/", "body": page(near_copy("web 0 2", 1))},
        {"url": "https://site0.example/page/0?q=0", "body": page(article("seen again"))},
    ]
    return files
