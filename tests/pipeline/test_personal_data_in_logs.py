"""No log, manifest or receipt holds an e-mail address, a phone number or an IP address of a page, whatever became of the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.repair import Repair
from stages.stage import Verdict
from tests.pipeline.crawl import BENCHMARK, article, build, near_copy, prose, small_recipe, write_small

EMAIL, PHONE, ADDRESS = "anna.schmidt@example.org", "(212) 555-0142", "81.169.145.70"
DATA = ("annaschmidtexampleorg", "2125550142", "8116914570")
"""As they read without anything that is neither letter nor digit, so that no other spelling gets past."""
SENTENCE = f"Write to {EMAIL} or call {PHONE} from {ADDRESS} before the harvest is over."
GERMAN = (
    f"Der alte Müller ({EMAIL}, {PHONE}, {ADDRESS}) trug an jedem Morgen einen Korb voller Äpfel über die schmale Brücke in das Dorf, "
    "und die Kinder warteten dort schon auf ihn, denn er erzählte ihnen immer eine Geschichte aus dem großen Wald hinter dem Fluss."
)
ITEM = f"Asked by {EMAIL} or {PHONE} at {ADDRESS}: {BENCHMARK}."
STRANGE = "STRANGE PAGE"
QUERY = f"?mail={EMAIL}&phone=212-555-0142&from={ADDRESS}"


def with_data(name: str, *more: str) -> str:
    return "\n".join([article(name), SENTENCE, *more])


def documents() -> dict[str, dict[str, Any] | str]:
    """Rule → a document that it removes; `kept` is kept."""
    twin = prose("twin", 12)
    return {
        "read.bad_json": f'{{"text": "{SENTENCE}", "mail": {EMAIL}}}',
        "read.missing_text": json.dumps({"text": {"mail": EMAIL, "phone": PHONE}}),
        "url_filter.domain": {"text": with_data("a"), "url": f"http://{EMAIL}:212-555-0142@bad.example/{QUERY}"},
        "url_filter.url": {"text": with_data("b"), "url": f"http://page.example/{EMAIL}/x{QUERY}"},
        "url_filter.word": {"text": with_data("c"), "url": f"http://c.example/casino/{EMAIL}{QUERY}"},
        "url_filter.soft_words": {"text": with_data("d"), "url": f"http://d.example/hot/dice/{EMAIL.replace('@', '%40')}{QUERY}"},
        "url_filter.subword": {"text": with_data("e"), "url": f"http://e.example/x-slotmachines/{EMAIL}{QUERY}"},
        "repair.error": {"text": f"{STRANGE} {SENTENCE}"},
        "language.undetermined": {"text": "+1 212 555 0142 … 81.169.145.70"},
        "language.unwanted": {"text": GERMAN},
        "gopher.min_words": {"text": SENTENCE},
        "gopher_repetition": {"text": "\n".join([SENTENCE] * 6 + prose("g", 6))},
        "c4.curly_brace": {"text": with_data("h", f"The function {{ {EMAIL} }} returned {PHONE} to whoever called it.")},
        "c4.lorem_ipsum": {"text": with_data("i", f"Lorem ipsum {EMAIL} {PHONE} is what the printer set.")},
        "c4.blocklist": {"text": with_data("j", f"There was a zebra at {EMAIL} in the old market.")},
        "decontamination.ngram": {"text": with_data("k", ITEM)},
        "kept": {"text": with_data("l")},
        "exact_dedup.duplicate": {"text": with_data("l")},
        "near": {"text": "\n".join([*twin, SENTENCE])},
        "minhash.near_duplicate": {"text": "\n".join([*twin[:-1], SENTENCE, "And that was all."])},
        "also kept": {"text": near_copy("m", 2) + "\n" + SENTENCE, "url": f"http://u:p@kept.example/~{EMAIL}/{QUERY}#{EMAIL}"},
    }


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("personal")
    (folder / "block.txt").write_text("zebra\n", encoding="utf-8")
    (folder / "urls.txt").write_text(f"http://page.example/{EMAIL}/x{QUERY}\n", encoding="utf-8")
    item = {"benchmark": "trains", "item": "1", "text": ITEM}
    (folder / "items.jsonl").write_text(json.dumps(item), encoding="utf-8")
    lists = {
        "domains": ["bad.example"],
        "url_list": "urls.txt",
        "words": ["casino"],
        "soft_words": ["hot", "dice"],
        "subwords": ["slotmachine"],
    }
    stages: list[Any] = [
        {"url_filter": lists},
        "repair",
        {"language": {"keep": ["en"], "sample_characters": 200, "compare": 1}},
        "gopher_quality",
        "gopher_repetition",
        {"c4": {"blocklist": "block.txt"}},
        "fineweb",
        {"decontamination": {"benchmarks": "items.jsonl"}},
        "personal_data",
    ]
    recipe = small_recipe(stages, ["exact_dedup", {"minhash": {"bands": 20, "rows": 4, "threshold": 0.7}}])
    decide = Repair.decide

    def failing(self: Repair, batch: pa.RecordBatch) -> Verdict:
        for text in batch["text"].to_pylist():
            if text.startswith(STRANGE):
                raise ValueError(f"cannot read {text!r}")
        return decide(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Repair, "decide", failing)
        build(write_small(folder, {"all.jsonl": list(documents().values())}, recipe), folder / "corpus")
    return folder / "corpus"


def removals(corpus: Path) -> dict[int, dict[str, Any]]:
    return {
        row["position"]: row
        for path in (corpus / "logs" / "removals").rglob("*.parquet")
        for row in pq.read_table(path).to_pylist()
    }


def test_every_document_met_the_rule_that_it_was_written_for(corpus: Path) -> None:
    rows = removals(corpus)
    for position, rule in enumerate(documents()):
        if position in rows:
            assert rows[position]["rule"].startswith(rule), (rule, rows[position])
        else:
            assert rule in ("kept", "also kept", "near"), rule
    assert "cannot read" in rows[list(documents()).index("repair.error")]["detail"]
    assert rows[list(documents()).index("decontamination.ngram")]["evidence"].startswith(
        "Asked by <EMAIL> or <PHONE> at <IP>: A train"
    )


def cells(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, one in value.items() for text in (*cells(key), *cells(one))]
    if isinstance(value, list):
        return [text for one in value for text in cells(one)]
    return [str(value)] if isinstance(value, (str, bytes)) else []


def written(corpus: Path) -> dict[str, list[str]]:
    """Every string in every file that says what happened; `steps` holds the texts on their way."""
    found: dict[str, list[str]] = {}
    for path in sorted(corpus.rglob("*")):
        name = str(path.relative_to(corpus))
        if not path.is_file() or path.suffix == ".npy":
            continue
        if path.suffix == ".parquet":
            found[name] = cells(pq.read_table(path).to_pylist())
        elif not name.startswith("steps/") or path.suffix in (".json", ".jsonl"):
            found[name] = path.read_bytes().decode("utf-8", "replace").split("\n")
    return found


def test_no_log_holds_the_data(corpus: Path) -> None:
    files = written(corpus)
    assert {name.split("/")[0] for name in files} >= {"logs", "manifest.json", "receipts"}
    assert sum(name.endswith(".parquet") for name in files) >= 4
    for name, texts in files.items():
        for text in texts:
            plain = re.sub(r"[\W_]+", "", text.casefold())
            for datum in DATA:
                assert datum not in plain, (name, text[max(0, text.find("@") - 200) :][:400])


def test_every_replacement_in_a_kept_document_is_an_edit_row_with_its_count(corpus: Path) -> None:
    rows = [row for path in (corpus / "logs" / "edits").rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    counts = {(row["position"], row["rule"]): row["count"] for row in rows if row["stage"] == "personal_data"}
    # Duplicates are found among texts that have no personal data any more.
    positions = [
        list(documents()).index(name) for name in ("kept", "exact_dedup.duplicate", "near", "minhash.near_duplicate", "also kept")
    ]
    kinds = ("personal_data.email", "personal_data.phone", "personal_data.ip")
    assert counts == {(position, kind): 1 for position in positions for kind in kinds}
