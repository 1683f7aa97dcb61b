"""The manifest: what it says is sealed, and what is not a manifest is refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from manifests.manifest import Manifest, ManifestError, digest, json_schema
from manifests.schemas import LOG_SCHEMAS
from manifests.storage import Folder


def load(folder: Path, raw: Any) -> Manifest:
    data = raw if isinstance(raw, bytes) else json.dumps(raw).encode()
    (folder / "manifest.json").write_bytes(data)
    return Manifest.load(Folder(folder))


def resealed(raw: dict[str, Any]) -> dict[str, Any]:
    return {**raw, "digest": digest(raw["content"]), "run_digest": digest(raw["run"])}


@pytest.fixture
def raw(finished: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((finished / "manifest.json").read_text())
    return loaded


def test_a_manifest_that_was_saved_loads_as_it_was(manifest: Manifest, tmp_path: Path) -> None:
    manifest.save(Folder(tmp_path))
    assert Manifest.load(Folder(tmp_path)) == manifest


def test_the_digest_is_of_the_content_whatever_the_order_of_keys_and_the_layout(raw: dict[str, Any], tmp_path: Path) -> None:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(value[key]) for key in reversed(value)}
        return [turned(one) for one in value] if isinstance(value, list) else value

    assert list(turned(raw)) != list(raw)
    assert load(tmp_path, json.dumps(turned(raw), indent=7).encode()).digest == raw["digest"] == digest(raw["content"])


def test_times_and_hosts_are_not_part_of_the_digest(manifest: Manifest) -> None:
    other = Manifest.seal(manifest.content, {"host": "another", "started": 0})
    assert other.digest == manifest.digest
    assert other.run_digest != manifest.run_digest


TAMPERED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "content": lambda raw: raw["content"].update(seed=8),
    "content.counts": lambda raw: raw["content"]["counts"].pop(),
    "run": lambda raw: raw["run"].update(host="another"),
    "digest": lambda raw: raw.update(digest="0" * 64),
    "no digest": lambda raw: raw.pop("digest"),
    "no run digest": lambda raw: raw.pop("run_digest"),
    "no content": lambda raw: raw.pop("content"),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_a_manifest_that_was_changed_is_refused(raw: dict[str, Any], tmp_path: Path, case: str) -> None:
    TAMPERED[case](raw)
    section = "run" if "run" in case else "content"
    with pytest.raises(ManifestError, match=f"section '{section}' does not have the digest"):
        load(tmp_path, raw)


MALFORMED: dict[str, bytes] = {
    "nothing": b"",
    "text": b"not JSON",
    "cut off": b'{"format": "corpusmill/1", "content": {',
    "not UTF-8": b'{"format": "\xff"}',
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep in content": b'{"format": "corpusmill/1", "content": ' + b"[" * 900 + b"]" * 900 + b', "digest": "x"}',
    "a list": b"[]",
    "null": b"null",
    "another format": b'{"format": "corpusmill/2"}',
    "no format": b"{}",
    "NaN": b'{"format": "corpusmill/1", "content": {"seed": NaN}, "digest": "x"}',
    "half a character": b'{"format": "corpusmill/1", "content": {"name": "\\ud800"}, "digest": "x"}',
    "a number of many digits": b'{"format": "corpusmill/1", "content": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("case", MALFORMED)
def test_what_is_no_manifest_is_refused_with_the_file_s_name(tmp_path: Path, case: str) -> None:
    with pytest.raises(ManifestError, match=r"manifest\.json: "):
        load(tmp_path, MALFORMED[case])


def test_a_folder_without_a_manifest_says_so(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ManifestError, match="there is no manifest; has the run finished"):
            Manifest.load(Folder(folder))


def test_a_file_in_the_place_of_a_corpus_s_folder_is_told_from_one(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("corpus: one\n")
    with pytest.raises(ManifestError, match=r"recipe\.yaml is a file; name a corpus's folder, or its manifest"):
        Manifest.load(Folder(tmp_path / "recipe.yaml"))


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a path elsewhere": (lambda content: content["shards"][0].update(path="../../etc/passwd"), r"content\.shards\.0\.path"),
    "a log elsewhere": (lambda content: content["logs"][0].update(path="/etc/passwd"), r"content\.logs\.0\.path"),
    "a dtype too narrow": (lambda content: content["tokenizer"].update(vocabulary=65_537), r"65537 is not stored as uint16"),
    "an unknown key": (lambda content: content.update(surprise=1), "content.surprise"),
    "a count that is text": (lambda content: content["counts"][0].update(documents_in="many"), "documents_in"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_sealed_manifest_of_another_shape_is_refused_by_the_place(raw: dict[str, Any], tmp_path: Path, case: str) -> None:
    change, place = WRONG[case]
    change(raw["content"])
    with pytest.raises(ManifestError, match=place):
        load(tmp_path, resealed(raw))


def test_the_published_schema_describes_a_real_manifest(raw: dict[str, Any]) -> None:
    validator = jsonschema.validators.validator_for(json_schema())
    validator.check_schema(json_schema())
    validator(json_schema()).validate(raw)
    for spoil in (lambda: raw["content"]["counts"][0].pop("documents_in"), lambda: raw.update(format="corpusmill/2")):
        spoil()
        with pytest.raises(jsonschema.ValidationError):
            validator(json_schema()).validate(raw)


def test_every_stage_is_recorded_with_all_its_parameters(manifest: Manifest) -> None:
    web = {record.stage: record for record in manifest.content.components["web"].stages}
    assert next(iter(web)) == "read"
    assert web["url_filter"].options["domains"] == ["casino.example"]
    assert web["gopher_quality"].options["min_words"] == 50
    assert [rule.name for rule in web["gopher_quality"].rules][:2] == ["gopher.min_words", "gopher.max_words"]
    assert web["language"].data, "the digest of the model"
    wide = {record.stage: record for record in manifest.content.stages}
    assert wide["minhash"].options["bands"] == 20
    assert wide["decontamination"].options["benchmarks"] == "benchmarks", "as the recipe names it, not as this machine does"
    assert len(wide["decontamination"].data["benchmarks"]) == 64


def test_inputs_are_listed_with_their_digests(crawl: Any, manifest: Manifest) -> None:
    import hashlib

    for name, component in manifest.content.components.items():
        for one in component.inputs:
            data = (crawl.folder / name / one.path).read_bytes()
            assert (one.bytes, one.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert len(component.inputs) == sum(path.is_file() for path in (crawl.folder / name).rglob("*"))


def test_the_page_about_a_corpus_lists_every_column_of_every_log() -> None:
    page = (Path(__file__).parents[2] / "docs" / "corpus.md").read_text()
    for kind, schema in LOG_SCHEMAS.items():
        line = next(line for line in page.splitlines() if line.startswith(f"| {kind} |"))
        assert line.partition("| ")[2].partition("| ")[2].rstrip(" |").split() == [f"`{name}`" for name in schema.names]


def test_the_published_schema_is_the_one_of_this_version() -> None:
    published = json.loads((Path(__file__).parents[2] / "docs" / "manifest.schema.json").read_text())
    assert published == json_schema()


def test_token_usage_adds_up_to_the_shards(manifest: Manifest) -> None:
    content = manifest.content
    assert content.token_usage
    for name, component in content.components.items():
        mine = [row for row in content.token_usage if row.component == name]
        assert sum(row.tokens + row.documents for row in mine) == sum(component.tokens.values())  # a BOS a document
        shards = [shard for shard in content.shards if shard.component == name]
        assert sum(row.bytes for row in mine) == sum(shard.text_bytes for shard in shards)
        assert sum(row.documents for row in mine) == component.documents_kept
        assert all(row.words > 0 for row in mine)
