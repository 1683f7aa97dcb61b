"""The tokenizer of a corpus: a sample of its training documents, and what is trained on it or read from a file.

Each part offers documents with small keys (`sample_key`), of every component as many as its budget asks for
(`pipeline.sample_budget`). Of what a component's parts offer, the documents with the smallest keys are taken until the budget
is used up; the last is cut to what is left of it. They are trained on in id order. So which documents are in, and where each
is cut, follows from the set of training documents alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from manifests.identity import printed_ids
from manifests.manifest import SPLITS
from manifests.storage import Folder
from pipeline import documents
from pipeline.provenance import check_data, check_libraries
from pipeline.receipts import State
from pipeline.sample_budget import WHOLE, budgets
from pipeline.shuffle import IPC
from pipeline.splitting import PartSplits
from pipeline.work import Task
from stages.distinct_words import LEVELS, DistinctWords
from stages.tokenizer import (
    LONGEST_PIECE,
    PARITY_BYTES,
    Encoder,
    TokenizerError,
    TokenizerOptions,
    choose_engine,
    cut,
    sample_key,
    train_tokenizer,
)

SAMPLE = pa.schema(
    [
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
    ]
)


def sample(task: Task) -> None:
    """Per part: training documents with keys up to a bound, in id order, each cut to the cap. inputs: `state`, `split`;
    arguments: `seed`, `bound` (below 0: none), `cap` in bytes of UTF-8."""
    state = State.model_validate(task.inputs["state"])
    bound, count = task.arguments["bound"], 0
    with task.corpus.writer(task.file("sample.arrow")) as out, pa.ipc.new_file(out, SAMPLE, options=IPC) as sink:
        for batch in _training(task, state) if bound >= 0 else ():
            keys = [sample_key(task.arguments["seed"], one) for one in printed_ids(batch).to_pylist()]
            rows = [row for row, key in enumerate(keys) if key <= bound]
            texts = pa.array([cut(batch["text"][row].as_py(), task.arguments["cap"]) for row in rows], pa.large_string())
            columns = [pa.array([keys[row] for row in rows], pa.uint64()), pa.array(documents.text_bytes(texts)), texts]
            sink.write_batch(pa.record_batch(columns, schema=SAMPLE))
            count += len(rows)
    task.receipt.add("sample", out.written, count)


def make_tokenizer(task: Task) -> None:
    """Trains on the sample, or takes the given file. inputs: `samples`, component → files in the order of its parts; `options`,
    `paths`; arguments: `options`, and `shares`, component → billionths of the sample."""
    options = TokenizerOptions.model_validate(task.inputs["options"])
    check_libraries(task.arguments["libraries"])
    check_data(task.inputs["paths"], task.arguments["data"])
    offered, shares = Offered(task.corpus, task.inputs["samples"]), task.arguments["shares"]
    training: dict[str, Any] | None = None  # of a sample of its own, a given tokenizer knows nothing
    if options.file is not None:
        try:
            text = read_input(options.file).decode()
        except UnicodeDecodeError:
            raise TokenizerError(f"{options.file}: not a tokenizer.json: it is not UTF-8") from None
    else:
        taken, training = draw(offered, options, shares)
        text = train_tokenizer(offered.texts(taken), options)
    encoder = Encoder(text, options.bos)
    engine, note = "tokenizers", None
    if options.engine == "auto":
        tried = offered.take(budgets(PARITY_BYTES, shares, offered.bytes))
        engine, note = choose_engine(text, options.bos, offered.texts(tried))
    task.receipt.add("tokenizer", task.corpus.write(task.file("tokenizer.json"), text.encode()), 1)
    task.receipt.values = {
        "vocabulary": encoder.vocabulary,
        "dtype": np.dtype(encoder.dtype).name,
        "bos_id": encoder.bos_id,
        "special_tokens": encoder.special_tokens,
        "training": training,
        "engine": engine,
        "engine_note": note,
    }


def draw(offered: Offered, options: TokenizerOptions, shares: dict[str, int]) -> tuple[Taken, dict[str, Any]]:
    """What is trained on, and what the manifest says of it (manifests.manifest.TokenizerTraining); TokenizerError when there is
    nothing. `shares`: component → billionths.

    Where the sample has more than `distinct_bytes` of distinct words, the budget of every component is cut in the same proportion
    to so many 256ths that it has not.
    """
    full = budgets(options.sample_bytes, shares, offered.bytes)
    if not sum(full.values()):
        without = ", ".join(name for name, share in shares.items() if share) or "no component"
        raise TokenizerError(f"no training text for a tokenizer: its sample is of {without}, without training documents")
    distinct = DistinctWords(options.distinct_bytes, LONGEST_PIECE)
    for component, before, text in offered.placed_texts(offered.take(full)):
        for part, level in _parts(text.encode(), before, full[component]):
            distinct.add(part, level)
    taken = offered.take({component: budget * distinct.levels // LEVELS for component, budget in full.items()})
    limits = {"distinct_bytes": distinct.size, "reduced_to": distinct.levels / LEVELS}
    return taken, {**_record(offered, taken, options, shares), **limits}


@dataclass
class Taken:
    """Of every document that is offered: the bytes that are taken, and those of the documents with smaller keys; int64, by
    component, documents in id order."""

    bytes: dict[str, np.ndarray]
    before: dict[str, np.ndarray]


class Offered:
    """What the parts of each component offer. Texts are read when they are asked for, a batch at a time; of each document 16
    bytes are held, 16 more in each `Taken`, and while `take` looks at a component, 32 more of each of its own."""

    def __init__(self, corpus: Folder, samples: dict[str, list[str]]) -> None:
        self._corpus, self._samples = corpus, samples
        self._keys: dict[str, np.ndarray] = {}
        self._sizes: dict[str, np.ndarray] = {}
        for component, names in samples.items():
            tables = [documents.read_table(corpus, name, ["key", "bytes"]) for name in names]
            keys = [np.empty(0, np.uint64), *(table["key"].to_numpy() for table in tables)]
            sizes = [np.empty(0, np.int64), *(table["bytes"].to_numpy() for table in tables)]
            self._keys[component], self._sizes[component] = np.concatenate(keys), np.concatenate(sizes)

    @property
    def bytes(self) -> dict[str, int]:
        """Component → bytes, each document cut to the cap."""
        return {component: int(sizes.sum()) for component, sizes in self._sizes.items()}

    def take(self, budget: dict[str, int]) -> Taken:
        """`budget` bytes of each component, from the documents with the smallest keys (of equal keys, the first in id order)."""
        found = Taken({}, {})
        for component, keys in self._keys.items():
            order = np.argsort(keys, kind="stable")
            sizes = self._sizes[component][order]
            before = np.cumsum(sizes) - sizes
            found.bytes[component], found.before[component] = np.empty_like(sizes), np.empty_like(sizes)
            found.bytes[component][order] = np.clip(budget[component] - before, 0, sizes)
            found.before[component][order] = before
        return found

    def texts(self, taken: Taken) -> Iterator[str]:
        """The texts of which anything is taken, cut between characters; component by component, in id order."""
        return (text for _, _, text in self.placed_texts(taken))

    def placed_texts(self, taken: Taken) -> Iterator[tuple[str, int, str]]:
        """The same, each behind its component and the bytes that are before it there."""
        for component, names in self._samples.items():
            start = 0
            for name in names:
                with self._corpus.open(name) as file:
                    reader = pa.ipc.open_file(file)
                    for index in range(reader.num_record_batches):
                        batch = reader.get_batch(index)
                        rows = slice(start, start + batch.num_rows)
                        wanted, before = taken.bytes[component][rows], taken.before[component][rows]
                        start += batch.num_rows
                        for row in np.flatnonzero(wanted).tolist():
                            yield component, int(before[row]), cut(batch["text"][row].as_py(), int(wanted[row]))


def read_input(path: str) -> bytes:
    """A whole file that the recipe names."""
    parent, _, name = path.rpartition("/")
    return Folder(parent or "/").read(name)


def _training(task: Task, state: State) -> Iterator[pa.RecordBatch]:
    """The training documents of a part."""
    split_of = PartSplits(task.corpus, task.inputs["split"])
    for rows, batch in documents.read_state(task.corpus, state, ["component", "file", "position", "text"]):
        yield batch.filter(pa.array([split == SPLITS[0] for split in split_of.of(rows)["split"].to_pylist()], pa.bool_()))


def _parts(text: bytes, before: int, budget: int) -> Iterator[tuple[bytes, int]]:
    """A text by the `LEVELS` equal parts of the budget that it lies in, `before` being where it begins."""
    at = 0
    while at < len(text):
        level = min((before + at) * LEVELS // budget, LEVELS - 1)
        end = -(-(level + 1) * budget // LEVELS) - before if level < LEVELS - 1 else len(text)
        yield text[at:end], level
        at = end


def _record(offered: Offered, taken: Taken, options: TokenizerOptions, shares: dict[str, int]) -> dict[str, Any]:
    """What the manifest says of the sample: manifests.manifest.TokenizerTraining."""
    sizes = {component: int(of_each.sum()) for component, of_each in taken.bytes.items()}
    total = sum(sizes.values())
    components = {
        component: {
            "documents": int(np.count_nonzero(of_each)),
            "bytes": sizes[component],
            "offered_bytes": offered.bytes[component],
            "share_wanted": shares[component] / WHOLE,
            "share_got": round(sizes[component] / max(1, total), 9),
        }
        for component, of_each in taken.bytes.items()
    }
    documents_taken = sum(one["documents"] for one in components.values())
    return {"documents": documents_taken, "bytes": total, "wanted_bytes": options.sample_bytes, "components": components}
