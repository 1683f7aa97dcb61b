"""The card of a released model: facts of its run and of its corpus, and nothing that was not measured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from manifests.manifest import Manifest
from manifests.overview import by_component
from manifests.terminal import visible

_SPECIAL = re.compile(r"([\\`*_{}\[\]#!|<>~&$])")


Rows = Sequence[tuple[str, ...]]


def card(
    manifest: Manifest,
    config: dict[str, Any],
    facts: dict[str, Any],
    result: dict[str, Any],
    scores: dict[str, dict[str, Any]],
) -> str:
    """Markdown. `config`, `facts` and `result` are what a run writes as config.json, run.json and result.json; `scores` are
    further ones, by the name of their file."""
    content = manifest.content
    parts = [
        f"# A model trained on {_plain(content.name)}",
        "Everything here was read from the files beside it: the run's own records and the manifest of its corpus. "
        "What is not written was not measured.",
        "## Model",
        _table(("", ""), _model(config, facts)),
        "## Data",
        f"Corpus {_plain(content.name)}, digest `{_code(manifest.digest)}`. Tokens are those of the training split; an epoch is "
        "one pass through them.",
        _table(("component", "source", "licence", "documents in", "kept", "training tokens", "epochs"), _data(manifest, result)),
    ]
    licences = sorted({component.licence for component in content.components.values()})
    parts.append(f"Licences that the recipe states for these sources: {', '.join(map(_plain, licences))}.")
    if content.dropped:
        named = ", ".join(_plain(one.get("component", "?")) for one in content.dropped)
        parts.append(f"Left out of the corpus after it was made: {named}.")
    parts += [
        "`ledger.jsonl` says which rows were consumed at which step; with the corpus, `corpusmill audit trained-on` tells which "
        "documents these were.",
        "## Training",
        _table(("", ""), _training(config, facts, result)),
    ]
    if result.get("exhausted"):
        parts.append(f"The run ended before its budget: {_plain(result['exhausted'])}.")
    parts += [
        "## Scores",
        *_scores(result, scores),
        *_gate(result),
        "## Decontamination",
        *_decontamination(manifest),
        "## Held out",
        *_split(manifest),
    ]
    parts += [
        "## Not known",
        "What the model writes was not looked at. It was not checked for harm, bias, personal data it may have memorised, or "
        "fitness for any use. The licence of the weights is for whoever releases them to state.",
        "## Files",
        _table(("file", "what it is"), _FILES),
        "`corpusmill release --check FOLDER` hashes every file and compares what they say of one another; "
        "`sha256sum -c SHA256SUMS` hashes them.",
    ]
    return "\n\n".join(parts) + "\n"


_FILES = (
    ("`weights/`", "a checkpoint without its optimiser, as safetensors; `corpusmill evaluate weights --manifest …` scores it"),
    ("`tokenizer.json`", "the tokenizer of model and corpus"),
    ("`config.json`, `run.json`, `result.json`", "options, facts, and the end of the run; paths of the machine are left out"),
    ("`metrics.jsonl`, `loss.png`", "one line a step: loss, rate, gradient norm, epochs; drawn where the run drew it"),
    ("`ledger.jsonl`", "what was consumed, by steps"),
    ("`manifest.json`", "what the corpus is: inputs, stages, rules, counts, digests"),
    ("`decontamination.json`", "which benchmark items were looked for, found, and not checked"),
    ("`scores/`", "further scores, where there are any"),
)


def _model(config: dict[str, Any], facts: dict[str, Any]) -> Rows:
    architecture = facts.get("architecture") if isinstance(facts.get("architecture"), dict) else {}
    rows = [("parameters", _number(facts.get("parameters"))), ("preset", _plain(config.get("preset", "")))]
    rows += [(name.replace("_", " "), _plain(value)) for name, value in (architecture or {}).items()]
    return [(name, value) for name, value in rows if value]


def _data(manifest: Manifest, result: dict[str, Any]) -> Rows:
    epochs = result.get("epochs") if isinstance(result.get("epochs"), dict) else {}
    rows: list[tuple[str, ...]] = []
    for one in by_component(manifest.content):
        component = manifest.content.components[one.name]
        passes = (epochs or {}).get(one.name)
        source = component.source + (f" ({component.snapshot})" if component.snapshot else "")
        rows.append(
            (
                _plain(one.name),
                _plain(source),
                _plain(component.licence),
                f"{component.documents_in:,}",
                f"{component.documents_kept:,}",
                f"{one.tokens.get('train', 0):,}",
                f"{passes:.3f}" if isinstance(passes, (int, float)) else "0",
            )
        )
    return rows


def _training(config: dict[str, Any], facts: dict[str, Any], result: dict[str, Any]) -> Rows:
    versions = facts.get("versions") if isinstance(facts.get("versions"), dict) else {}
    seconds = result.get("training_seconds")
    rows = [
        ("steps", _number(result.get("steps"))),
        ("tokens", _number(result.get("tokens"))),
        ("time", f"{seconds:,.0f} s" if isinstance(seconds, (int, float)) else ""),
        ("device", f"{_plain(facts.get('device', ''))} × {_plain(facts.get('ranks', 1))}"),
        ("precision", _plain(facts.get("dtype", ""))),
        ("seed", _plain(config.get("seed", ""))),
        ("software", ", ".join(f"{_plain(name)} {_plain(version)}" for name, version in (versions or {}).items())),
        ("code", f"`{_code(facts.get('code_sha256', ''))}`"),
    ]
    shown = ("sequence_length", "batch_tokens", "learning_rate", "warmup", "final_rate", "weight_decay", "clip", "z_loss")
    rows += [(name.replace("_", " "), _plain(config[name])) for name in shown if config.get(name) is not None]
    lineage = facts.get("lineage")
    if isinstance(lineage, list) and lineage:
        rows.append(("went on from", ", ".join(_plain(one) for one in lineage)))
    parent = _object(_object(facts.get("continued")).get("parent"))
    if parent:
        step = f", step {_number(parent['step'])}" if "step" in parent else ""
        rows.append(("began with", f"{_plain(parent.get('run', ''))}{step}, weights `{_code(parent.get('weights_sha256', ''))}`"))
    return [(name, value) for name, value in rows if value]


def _scores(result: dict[str, Any], scores: dict[str, dict[str, Any]]) -> list[str]:
    own = {"at the end of the run": result["score"]} if isinstance(result.get("score"), dict) else {}
    average = _object(result.get("ema"))
    if isinstance(average.get("score"), dict):
        own["the running average of its weights"] = average["score"]
    rows = []
    for name, score in {**own, **scores}.items():
        interval = score.get("interval")
        ends = [f"{one:.4f}" for one in interval if isinstance(one, float)] if isinstance(interval, list) else []
        bpb = score.get("val_bpb")
        rows.append(
            (
                _plain(name),
                _plain(score.get("split", "")),
                f"{bpb:.4f}" if isinstance(bpb, float) else "",
                " to ".join(ends),
                _number(score.get("documents")),
                _plain(score.get("sequence_length", "")),
                f"`{_code(score.get('evaluator_sha256', ''))[:16]}`",
            )
        )
    if not rows:
        return ["The model was not scored on held-out documents."]
    headings = ("score", "split", "bits per byte", "95 % over documents", "documents", "T", "evaluator")
    said = [_table(headings, rows), "Bits per byte of held-out text of the same corpus. Figures at another T do not compare."]
    if average:
        said.append(
            f"The running average (decay {_plain(average.get('decay', ''))}, of the weights after "
            f"{_number(average.get('updates'))} updates) is in `weights/ema.safetensors`; what else is told here is of the "
            "weights themselves. `corpusmill average FOLDER --ema --out …` takes it out of this folder."
        )
    parts = own.get("at the end of the run", {}).get("components")
    if isinstance(parts, dict) and parts:
        figures = ", ".join(f"{_plain(name)} {bpb:.4f}" for name, bpb in parts.items() if isinstance(bpb, float))
        said.append(f"By component: {figures}.")
    return said


def _gate(result: dict[str, Any]) -> list[str]:
    """What the gate that was written before the run says of it."""
    gate = _object(result.get("gate"))
    if not gate:
        return []
    rows = []
    for name, asked in (("domain", "falls by {:g} at least"), ("general", "rises by {:g} at most")):
        side = _object(gate.get(name))
        interval, limit = side.get("interval"), side.get("limit")
        ends = [f"{one:+.4f}" for one in interval if isinstance(one, float)] if isinstance(interval, list) else []
        figures = [f"{one:.4f}" if isinstance(one, float) else "" for one in (side.get("before"), side.get("after"))]
        change = side.get("change")
        rows.append(
            (
                name,
                _plain("; ".join(map(str, side["texts"]))) if isinstance(side.get("texts"), list) else "",
                _number(side.get("documents")),
                *figures,
                f"{change:+.4f}" if isinstance(change, float) else "",
                " to ".join(ends),
                asked.format(abs(limit)) if isinstance(limit, (int, float)) else "",
                "pass" if side.get("passed") is True else "fail",
            )
        )
    headings = ("side", "held out", "documents", "before", "after", "change", "95 % over documents", "asked", "")
    by = "the worse end of the interval decides" if gate.get("decided_by") == "interval" else "the change itself decides"
    return [
        "### Gate",
        f"Written before the run (SHA-256 `{_code(gate.get('gate_sha256', ''))}`), in {_plain(gate.get('unit', ''))}; {by}. "
        f"The run's decision: {'pass' if gate.get('passed') is True else 'fail'}.{_earlier(result.get('earlier_gates'))}",
        _table(headings, rows),
    ]


def _earlier(decisions: object) -> str:
    """What was decided before the run went on."""
    said = ""
    for one in map(_object, decisions if isinstance(decisions, list) else []):
        word = "pass" if _object(one.get("gate")).get("passed") is True else "fail"
        said += f" After {_number(one.get('steps'))} steps, before it went on: {word}."
    return said


def _decontamination(manifest: Manifest) -> list[str]:
    said = []
    for record in manifest.content.decontamination:
        rows = [
            (
                _plain(one.get("benchmark", "?")),
                _number(one.get("items")),
                f"{len(one.get('found', {})):,}",
                f"{len(one.get('unchecked', [])):,}",
            )
            for one in record.get("benchmarks", [])
        ]
        said.append(_table(("benchmark", "items", "found in the corpus before removal", "too short to be looked for"), rows))
        limits = record.get("limits")
        said += [f"{_plain(one)}." for one in (limits if isinstance(limits, list) else [limits] if limits else [])]
    return said or ["No benchmark was looked for in the corpus."]


def _split(manifest: Manifest) -> list[str]:
    split = manifest.content.split
    if split is None:
        return ["Nothing was held out."]
    counts = ", ".join(f"{_plain(name)} {count:,}" for name, count in split.documents.items())
    said = (
        f"Documents by split: {counts}. Those that resemble each other (Jaccard {split.threshold:g} or more) are in the same one."
    )
    if split.closest is None:
        return [f"{said} How alike documents of different splits are was not measured."]
    pair = split.closest
    return [f"{said} Of {pair.held_out_documents:,} held-out documents and {pair.documents:,} others the nearest pair has "
            f"a Jaccard similarity of {pair.jaccard:.3f}."]  # fmt: skip


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _plain(value: object) -> str:
    """A stranger's words on one line, none of them Markdown or HTML."""
    return _SPECIAL.sub(r"\\\1", " ".join(visible(value).split())).replace("\\<", "&lt;").replace("\\&", "&amp;")


def _code(value: object) -> str:
    return re.sub(r"[^0-9A-Za-z._-]", "", str(value))


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else ""
