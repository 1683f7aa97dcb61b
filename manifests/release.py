"""A finished run as a folder to hand on: weights, tokenizer, configuration, log, ledger, the manifest and decontamination
record of its corpus, scores, a card made of facts, and SHA256SUMS.

Nothing but these files is copied, each by its name and each looked at, and none of them holds a text of the corpus. Paths of the
machine that trained are left out. The folder appears when it is complete, or not at all.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from manifests.card import card
from manifests.manifest import MANIFEST, Manifest, ManifestError
from manifests.storage import TEMPORARY_PREFIX, Folder, StorageError, relative_name, sha256_of, sync_directory
from manifests.trained_on import LEDGER, LedgerError, read_ledger

SUMS = "SHA256SUMS"
CARD = "README.md"
WEIGHTS = "weights"
TOKENIZER = "tokenizer.json"
DECONTAMINATION = "decontamination.json"
SCORES = "scores"
CONFIG, FACTS, RESULT, METRICS, PICTURE = "config.json", "run.json", "result.json", "metrics.jsonl", "loss.png"
RECORD, STATE, INDEX = "complete.json", "state.json", "index.json"
OPTIMISER_FILES = "optimiser"
LARGEST_JSON = 1 << 28
LONGEST_WORD = 200
"""Characters of a text in a log of figures: longer ones are not what a trainer writes there."""
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SUM = re.compile(r"([0-9a-f]{64})  (.+)")
_PNG = b"\x89PNG\r\n\x1a\n"


class ReleaseError(Exception):
    """A run that is not complete, or does not belong to its corpus, or a folder that cannot be written."""


def release(run: Path, corpus: Folder, output: Path, manifest_name: str = MANIFEST, scores: Sequence[Path] = ()) -> list[str]:
    """Writes the release of `run` as the new folder `output`, and returns the names of its files. `manifest_name`: of the
    manifest in `corpus` that it was trained on. `scores`: files that `corpusmill evaluate --json` printed.

    ReleaseError says what is missing or does not agree, ManifestError what is wrong with the corpus; nothing is left then.
    """
    manifest = Manifest.load(corpus, manifest_name)
    config, facts, result = (_object(run / name, f"{run} is not a finished run") for name in (CONFIG, FACTS, RESULT))
    checkpoint, record = _checkpoint(run, result)
    _same(run, facts, result, manifest)
    tokenizer = manifest.content.tokenizer
    if tokenizer is None:
        raise ReleaseError(f"{corpus.url}: the corpus has no tokenizer")
    _outside(output, run, corpus)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ReleaseError(f"{output} is there already; name a new folder")
    told = [(path, _score(path)) for path in scores]
    if len({path.name for path, _ in told}) != len(told):
        raise ReleaseError("two files of scores have the same name")
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=output.parent))
    try:
        made = Folder(str(temporary.absolute()))
        _write_weights(made.folder(WEIGHTS), checkpoint, record)
        made.write_json(CONFIG, _without_paths(config))
        made.write_json(FACTS, facts)
        made.write_json(RESULT, result)
        _copy(run / LEDGER, made, LEDGER)
        made.write(METRICS, b"".join(_figures(run / METRICS)))
        if (run / PICTURE).exists():
            _copy(run / PICTURE, made, PICTURE, _PNG)
        made.write(MANIFEST, corpus.read(manifest_name))
        if Manifest.load(made).digest != manifest.digest:
            raise ReleaseError(f"{corpus.url}/{manifest_name}: changed while it was read")
        data = corpus.read(tokenizer.file)
        if hashlib.sha256(data).hexdigest() != tokenizer.sha256:
            raise ReleaseError(f"{corpus.url}/{tokenizer.file}: not the tokenizer that the manifest lists")
        made.write(TOKENIZER, data)
        made.write_json(DECONTAMINATION, manifest.content.decontamination)
        for path, score in told:
            made.write_json(f"{SCORES}/{path.name}", score)
        written = card(manifest, _without_paths(config), facts, result, {path.name: score for path, score in told})
        made.write(CARD, written.encode())
        names = [name for name in made.names() if name != SUMS]
        made.write(SUMS, "".join(f"{_digest(temporary / name)}  {name}\n" for name in names).encode())
        os.chmod(temporary, 0o755)
        if output.exists():
            output.rmdir()  # an empty folder
        os.rename(temporary, output)
        sync_directory(str(output.parent))
    except (StorageError, FileNotFoundError) as error:
        raise ReleaseError(str(error)) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return [*names, SUMS]


def check(folder: Path) -> Iterator[str]:
    """What is wrong with a release; nothing is said of one that is whole. Files are hashed, and what they say of one another is
    compared. Who can change a file can change SHA256SUMS too: keep its digest elsewhere."""
    listed: dict[str, str] = {}
    try:
        lines = _text(folder / SUMS).splitlines()
    except ReleaseError as error:
        yield str(error)
        return
    for number, line in enumerate(lines, 1):
        found = _SUM.fullmatch(line)
        try:
            name = relative_name(found[2]) if found else ""
        except StorageError:
            name = ""
        if not found or name != found[2] or name in listed or name == SUMS:
            yield f"{SUMS}: line {number} is not the digest of a file of this folder"
            return
        listed[name] = found[1]
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()} - {SUMS}
    for name in sorted(there - listed.keys()):
        yield f"{name}: is there and not listed"
    whole = True
    for name, digest in sorted(listed.items()):
        path = folder / name
        if any(one.is_symlink() for one in (path, *path.parents[: len(Path(name).parts) - 1])):
            yield f"{name}: is a link"
            whole = False
        elif not path.is_file():
            yield f"{name}: missing"
            whole = False
        elif _digest(path) != digest:
            yield f"{name}: is not what it was when it was released"
            whole = False
    needed = {CARD, CONFIG, FACTS, RESULT, LEDGER, METRICS, MANIFEST, TOKENIZER, DECONTAMINATION, f"{WEIGHTS}/{RECORD}"}
    for name in sorted(needed - listed.keys()):
        yield f"{name}: a release has this file, and it is not listed"
        whole = False
    if whole:
        yield from _disagreements(folder)


def _disagreements(folder: Path) -> Iterator[str]:
    """Files that are whole and do not belong together."""
    try:
        manifest = Manifest.load(Folder(str(folder.absolute())))
        facts, record = _object(folder / FACTS), _object(folder / WEIGHTS / RECORD)
        ledger = read_ledger(folder)
        result = _object(folder / RESULT)
        files = _listed_files(folder / WEIGHTS, record)
    except (ManifestError, ReleaseError, LedgerError) as error:
        yield str(error)
        return
    tokenizer = _digest(folder / TOKENIZER)
    if manifest.content.tokenizer is None or tokenizer != manifest.content.tokenizer.sha256:
        yield f"{TOKENIZER}: not the tokenizer of {MANIFEST}"
    if facts.get("tokenizer_sha256") != tokenizer:
        yield f"{FACTS}: the run had another tokenizer"
    if facts.get("manifest_digest") != manifest.digest or ledger.header.manifest_digest != manifest.digest:
        yield f"{FACTS}: the run was trained on another corpus than {MANIFEST} describes"
    for name, stated in files.items():
        path = folder / WEIGHTS / name
        if not path.is_file() or stated != _digest(path):
            yield f"{WEIGHTS}/{name}: not what {WEIGHTS}/{RECORD} says"
    if not record.get("step") == result.get("steps") == ledger.last_step:
        yield f"{WEIGHTS}: of step {record.get('step')}, and the run ended with step {result.get('steps')}"


def _checkpoint(run: Path, result: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """(the checkpoint of the run's last step, its record); ReleaseError when it is not there or not the end of the run."""
    steps = result.get("steps")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ReleaseError(f"{run / RESULT}: it does not say how many steps the run had")
    folder = run / "checkpoints" / f"step-{steps:08d}"
    record = _object(folder / RECORD, f"{run} has no complete checkpoint of its last step {steps:,}")
    if record.get("step") != steps:
        raise ReleaseError(f"{folder / RECORD}: of step {record.get('step')!r}, not {steps:,}")
    try:
        ledger = read_ledger(run)
    except LedgerError as error:
        raise ReleaseError(str(error)) from None
    if ledger.last_step != steps:
        raise ReleaseError(f"{run / LEDGER}: it ends with step {ledger.last_step:,}, and the run with step {steps:,}")
    return folder, record


def _same(run: Path, facts: dict[str, Any], result: dict[str, Any], manifest: Manifest) -> None:
    """ReleaseError unless run, ledger and corpus belong together."""
    ledger = read_ledger(run)
    for where, digest in ((run / FACTS, facts.get("manifest_digest")), (run / LEDGER, ledger.header.manifest_digest)):
        if digest != manifest.digest:
            raise ReleaseError(
                f"{where}: the run was trained on the corpus {str(digest)[:12]}…, and this is {manifest.digest[:12]}…"
            )
    if manifest.content.tokenizer is None or facts.get("tokenizer_sha256") != manifest.content.tokenizer.sha256:
        raise ReleaseError(f"{run / FACTS}: the run had another tokenizer than the corpus")
    if facts.get("loader_digest") != ledger.header.loader_digest:
        raise ReleaseError(f"{run / LEDGER}: the ledger is of another run than {FACTS}")
    if not isinstance(result.get("tokens"), int):
        raise ReleaseError(f"{run / RESULT}: it does not say how many tokens the run had")


def _write_weights(made: Folder, checkpoint: Path, record: dict[str, Any]) -> None:
    """A checkpoint without its optimiser: what `corpusmill evaluate` reads, and no run can go on from."""
    listed = _listed_files(checkpoint, record)
    kept = {name: digest for name, digest in listed.items() if not name.startswith(OPTIMISER_FILES)}
    if STATE not in kept or not any(name.endswith(".safetensors") for name in kept):
        raise ReleaseError(f"{checkpoint / RECORD} is not that of a checkpoint")
    files: dict[str, dict[str, Any]] = {}
    for name, digest in sorted(kept.items()):
        if name in (STATE, INDEX):
            if _digest(checkpoint / name) != digest:
                raise ReleaseError(f"{checkpoint / name} is not what the completion record says")
            found = _object(checkpoint / name)
            if name == INDEX:
                found["optimiser"] = {}
            elif isinstance(found.get("config"), dict):
                found["config"] = _without_paths(found["config"])
            written = made.write_json(name, found)
        elif name.endswith(".safetensors"):
            with _opened(checkpoint / name) as source, made.writer(name) as out:
                shutil.copyfileobj(source, out, 1 << 20)
            written = out.written
            if written.sha256 != digest:
                raise ReleaseError(f"{checkpoint / name} is not what the completion record says")
        else:
            raise ReleaseError(f"{checkpoint / name} is no file that a trainer writes")
        files[name] = {"bytes": written.size, "sha256": written.sha256}
    made.write_json(RECORD, {**{key: record[key] for key in ("format", "step") if key in record}, "files": files})


def _listed_files(checkpoint: Path, record: dict[str, Any]) -> dict[str, str]:
    files = record.get("files")
    if not isinstance(files, dict) or not files:
        raise ReleaseError(f"{checkpoint / RECORD} is not that of a checkpoint")
    found = {}
    for name, one in files.items():
        if not _FILE_NAME.fullmatch(name) or not isinstance(one, dict) or not isinstance(one.get("sha256"), str):
            raise ReleaseError(f"{checkpoint / RECORD} is not that of a checkpoint")
        found[name] = one["sha256"]
    return found


def _without_paths(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with the names of files that lie beside it in place of where they lay."""
    begun_with: dict[str, Any] = {name: None for name in ("parent", "gate") if name in config}  # run.json has their digests
    return {**config, "manifest": MANIFEST, "out": ".", "cache": None, **begun_with}


def _figures(path: Path) -> Iterator[bytes]:
    """The lines of a log of figures, each looked at; half a line at the end is left out."""
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
                if not isinstance(row, dict) or not all(_is_figure(value) for value in row.values()):
                    raise ValueError("it holds more than figures")
            except (ValueError, RecursionError) as error:
                raise ReleaseError(f"{path}: line {number}: {error}") from None
            yield _line(row)


def _is_figure(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_figure(one) and len(name) <= LONGEST_WORD for name, one in value.items())
    return value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))


def _score(path: Path) -> dict[str, Any]:
    """A score as `corpusmill evaluate --json` prints it."""
    found = _object(path)
    if not _FILE_NAME.fullmatch(path.name) or not isinstance(found.get("val_bpb"), float):
        raise ReleaseError(f"{path}: not a score that corpusmill evaluate --json printed")
    return found


def _outside(output: Path, run: Path, corpus: Folder) -> None:
    place = Path(os.path.realpath(output))
    for what, root in (("run", run), *((("corpus", Path(corpus.root)),) if corpus.local else ())):
        inside = Path(os.path.realpath(root))
        if place == inside or inside in place.parents:
            raise ReleaseError(f"{output} is inside the {what}; name another folder")


def _object(path: Path, missing: str | None = None) -> dict[str, Any]:
    try:
        found = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise ReleaseError(f"{path}: not JSON: {error}") from None
    except ReleaseError as error:
        raise ReleaseError(f"{missing}: {error}" if missing else str(error)) from None
    if not isinstance(found, dict):
        raise ReleaseError(f"{path}: not what a training run writes")
    return found


def _text(path: Path) -> str:
    try:
        with _opened(path) as file:
            data: bytes = file.read(LARGEST_JSON + 1)
        if len(data) > LARGEST_JSON:
            raise ReleaseError(f"{path}: too large to be what its name says")
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ReleaseError(f"{path}: {error}") from None


def _opened(path: Path) -> Any:
    """A file of the run for reading; links, pipes and what is not there are refused."""
    try:
        if path.is_symlink() or not path.is_file():
            raise ReleaseError(f"{path} is not there" if not os.path.lexists(path) else f"{path} is no regular file")
        return open(path, "rb")
    except OSError as error:
        raise ReleaseError(f"{path}: {error.strerror}") from None


def _copy(path: Path, made: Folder, name: str, begins: bytes = b"") -> None:
    with _opened(path) as source, made.writer(name) as out:
        first = source.read(len(begins))
        if first != begins:
            raise ReleaseError(f"{path}: not what its name says")
        out.write(first)
        shutil.copyfileobj(source, out, 1 << 20)


def _digest(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return sha256_of(file)[0]
    except OSError as error:
        raise ReleaseError(f"{path}: {error.strerror}") from None


def _line(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False) + "\n").encode()
