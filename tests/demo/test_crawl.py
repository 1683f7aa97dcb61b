"""The demo's crawl: the same bytes each time, with everything in it that its stages are to show."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from warcio.archiveiterator import ArchiveIterator
from warcio.exceptions import ArchiveLoadFailed

from demo.crawl import HERE, PLANTED, SITE, TOWN, write_crawl


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "crawl"
    write_crawl(folder)
    return folder


@pytest.fixture(scope="module")
def answers(crawl: Path) -> dict[str, tuple[str, bytes]]:
    """URL → (status line, decoded body) of every response that another WARC reader finds."""
    seen = {}
    for path in sorted((crawl / "warc").glob("*.warc.gz")):
        with path.open("rb") as stream:
            try:
                for record in ArchiveIterator(stream):
                    if record.rec_type == "response":
                        url = record.rec_headers.get_header("WARC-Target-URI")
                        assert url not in seen, f"{url} was crawled twice"
                        seen[url] = (record.http_headers.statusline, record.content_stream().read())
            except ArchiveLoadFailed:
                assert path == max((crawl / "warc").glob("*.warc.gz")), "only the last file is damaged"
    return seen


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_another_process_writes_the_same_bytes_and_replaces_what_was_there(crawl: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    (again / "warc").mkdir(parents=True)
    (again / "warc" / "stale.warc.gz").write_bytes(b"old")
    code = "import sys; from pathlib import Path; from demo.crawl import write_crawl; write_crawl(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(again)], cwd=HERE.parent, check=True)
    assert digests(again) == digests(crawl)


def test_documentation_is_most_of_it(answers: dict[str, tuple[str, bytes]]) -> None:
    pages = [body for url, (_, body) in answers.items() if url.startswith(f"{SITE}/library/")]
    assert len(pages) >= 150
    assert sum(map(len, pages)) > 1_000_000


def test_everything_planted_is_there(answers: dict[str, tuple[str, bytes]]) -> None:
    assert {kind: url for kind, url in PLANTED.items() if url not in answers and kind != "truncated"} == {}


@pytest.mark.parametrize(
    ("kind", "charset", "words"),
    [
        ("personal data", "utf-8", "berths@oldharbour.example"),
        ("mojibake", "utf-8", "amis’ rÃ©union"),
        ("mojibake", "utf-8", "for them â€” he only"),
        ("benchmark item", "utf-8", "counted ten turns of the great lens every month"),
        ("unwanted language", "utf-8", "järvi jäätyy"),
        ("chinese", "utf-8", "采茶的人就上山了"),
        ("chinese in gb18030", "gb18030", "一座木桥的修理"),
        ("german in latin-1", "iso-8859-1", "fast alle lassen die Uhr trotzdem da"),
        ("chunked and compressed", "utf-8", "Warum Fahrpläne so schwierig sind"),
        ("lorem ipsum", "utf-8", "Lorem ipsum dolor sit amet"),
        ("braces", "utf-8", "server { listen 80;"),
    ],
)
def test_a_planted_page_says_what_it_should(answers: dict[str, tuple[str, bytes]], kind: str, charset: str, words: str) -> None:
    assert words in answers[PLANTED[kind]][1].decode(charset)


def test_copies_are_copies(answers: dict[str, tuple[str, bytes]]) -> None:
    original = answers[f"{TOWN}/stories/lighthouse"][1]
    assert answers[PLANTED["exact copy"]][1] == original
    near = answers[PLANTED["near copy"]][1]
    assert near != original
    words, near_words = original.split(), near.split()
    assert len(words) == len(near_words)
    assert 1 <= sum(a != b for a, b in zip(words, near_words, strict=True)) <= 5


def test_bad_answers_are_bad(answers: dict[str, tuple[str, bytes]]) -> None:
    assert answers[PLANTED["not found"]][0] == "404 Not Found"
    assert answers[PLANTED["empty"]][1] == b""
    assert answers[PLANTED["image"]][1].startswith(b"\x89PNG")


def test_the_last_record_is_cut_short(crawl: Path) -> None:
    data = max((crawl / "warc").glob("*.warc.gz")).read_bytes()
    with pytest.raises(EOFError):
        gzip.decompress(data)


def test_notes_are_distinct_texts_with_urls(crawl: Path) -> None:
    with gzip.open(crawl / "notes" / "reference.jsonl.gz", "rt", encoding="utf-8") as lines:
        notes = [json.loads(line) for line in lines]
    assert len(notes) >= 100
    assert len({note["url"] for note in notes}) == len(notes)
    assert all(note["text"].strip() for note in notes)


def test_the_benchmark_question_stands_in_the_planted_page(answers: dict[str, tuple[str, bytes]]) -> None:
    items = [json.loads(line) for path in (HERE / "benchmarks").glob("*.jsonl") for line in path.open("rb")]
    page = answers[PLANTED["benchmark item"]][1].decode().lower()
    found = [item for item in items if item["question"].lower() in page]
    assert [item["item"] for item in found] == ["q1"]
    assert len(found[0]["question"].split()) >= 13
    assert any(len(item["question"].split()) < 8 for item in items), "one is too short to be checked"


def test_the_recipe_uses_what_the_crawl_writes(crawl: Path) -> None:
    recipe = yaml.safe_load((HERE / "recipe.yaml").read_text("utf-8"))
    for component in recipe["components"].values():
        assert (crawl.parent / component["source"].removeprefix("out/")).is_dir()
    decontamination = next(stage for stage in recipe["stages"] if "decontamination" in stage)
    assert (HERE / decontamination["decontamination"]["benchmarks"]).is_dir()
