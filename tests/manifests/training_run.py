"""The folder that a training run leaves, without training: its ledger is written by the trainer's own."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from trainer.data.corpus import Corpus
from trainer.data.loader import Loader, Phase
from trainer.run_files.ledger import Ledger

ROWS = 6
STEPS = 40


def write_run(folder: Path, finished: Path, phases: list[Phase], steps: int = STEPS, every: int = 7, rows: int = ROWS) -> Path:
    """The files that a run of `steps` steps of `rows` rows leaves, a ledger line every `every` steps."""
    corpus = Corpus.open(finished)
    loader = Loader([corpus.component(name, "train") for name in corpus.components("train")], 64, 3, phases)
    folder.mkdir(parents=True)
    ledger = Ledger(folder, loader, corpus.manifest.digest, 0)
    for step in range(1, steps + 1):
        ledger.consumed(step, (step - 1) * rows, step * rows)
        if step % every == 0:
            ledger.commit()
    ledger.close()
    (folder / "config.json").write_text(json.dumps({"manifest": str(finished / "manifest.json")}))
    return folder


def finish_run(run: Path, finished: Path, steps: int = STEPS) -> Path:
    """Adds what the end of a run adds: facts, figures, a result, and a checkpoint of its last step."""
    corpus = Corpus.open(finished)
    header = json.loads((run / "ledger.jsonl").read_text().splitlines()[0])
    facts = {
        "manifest_digest": corpus.manifest.digest,
        "tokenizer_sha256": corpus.tokenizer.sha256,
        "loader_digest": header["loader_digest"],
        "architecture": {"vocabulary": 600, "layers": 2},
        "parameters": 1_234_567,
        "device": "a CPU",
        "ranks": 1,
        "dtype": "float32",
        "versions": {"python": "3.11"},
        "lineage": [],
    }
    result: dict[str, Any] = {
        "steps": steps,
        "tokens": 12_345,
        "training_seconds": 9.5,
        "epochs": {"web": 1.5},
        "exhausted": None,
        "score": {"val_bpb": 2.5, "split": "validation", "interval": [2.25, 2.75], "documents": 7, "components": {"web": 2.5}},
    }
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "out": str(run), "cache": "/somebody/cache", "seed": 3}))
    (run / "run.json").write_text(json.dumps(facts))
    (run / "result.json").write_text(json.dumps(result))
    lines = [{"step": n, "tokens": 300 * n, "loss": 9 - n / 20, "epochs": {"web": n / 27}} for n in range(1, steps + 1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    folder = run / "checkpoints" / f"step-{steps:08d}"
    folder.mkdir(parents=True)
    files = {
        "model.safetensors": b"weights" * 100,
        "optimiser.safetensors": b"moments" * 200,
        "index.json": json.dumps({"format": 2, "model": {}, "optimiser": {"random": {}}}).encode(),
        "state.json": json.dumps({"step": steps, "config": {"manifest": str(finished), "out": str(run), "cache": None}}).encode(),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    listed = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    (folder / "complete.json").write_text(json.dumps({"format": 2, "step": steps, "files": listed}))
    return run
