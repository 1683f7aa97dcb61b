"""The documents of a step: which pieces of which documents stood in its rows, and what a checkpoint loses on each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from manifests.packing import Int64
from manifests.storage import StorageError
from manifests.trained_on import LedgerError, TrainedOn

if TYPE_CHECKING:
    from trainer.data.corpus import Corpus
    from trainer.scores.scoring import Loaded

PIECES_AT_A_TIME = 8


@dataclass(frozen=True)
class Piece:
    """A piece of a document as a step had it. `row` is its row in the step, over all ranks, and `place` the piece in that row;
    `targets` of the document's `tokens` from `first_token` on, counted from its BOS. `loss` in nats a target, where asked for.
    """

    row: int
    place: int
    component: str
    epoch: int
    id: str
    first_token: int
    targets: int
    tokens: int
    loss: float | None = None


def pieces_of_step(joined: TrainedOn, step: int) -> list[Piece]:
    """Every piece of a step in the order of its rows. LedgerError for a step that the ledger does not have."""
    positions = _positions(joined, step)
    place = joined.order.locate(positions)
    found: list[tuple[int, int, int, int, int, int]] = []
    for n, (number, row) in enumerate(zip(place.component.tolist(), place.row.tolist(), strict=True)):
        plan = joined.order.plans[number]
        pieces = range(int(plan.first_piece[row]), int(plan.first_piece[row + 1]))
        found += [(n, nth, number, int(place.epoch[n]), int(plan.begin[p]), int(plan.length[p])) for nth, p in enumerate(pieces)]
    components = joined.order.components
    begins = [np.array([one[4] for one in found if one[2] == number], np.int64) for number in range(len(components))]
    documents = [np.searchsorted(c.starts, begin, side="right") - 1 for c, begin in zip(components, begins, strict=True)]
    ids = [_ids(joined, number, of) for number, of in enumerate(documents)]
    taken = [0] * len(components)
    told = []
    for n, nth, number, epoch, begin, length in found:
        document = int(documents[number][taken[number]])
        component, id_ = components[number], ids[number][taken[number]]
        taken[number] += 1
        start, tokens = int(component.starts[document]), int(component.lengths[document])
        told.append(Piece(n, nth, component.name, epoch, id_, begin - start, length, tokens))
    return told


def with_losses(pieces: list[Piece], joined: TrainedOn, step: int, loaded: Loaded, corpus: Corpus, dtype: str) -> list[Piece]:
    """The pieces with the mean nats that a model loses on their targets, each alone in its row as under document masking; where
    the run let documents attend to their neighbours, each row as a whole."""
    import torch

    from trainer.data.loader import IGNORED, Loader, Phase
    from trainer.scores.evaluation import row_nats
    from trainer.scores.scoring import model_logits

    parameters = joined.ledger.header.loader
    loader = Loader(
        [corpus.component(name, "train") for name, _ in parameters.shards],
        parameters.sequence_length,
        parameters.seed,
        [Phase(weights, rows) for weights, rows in parameters.phases],
        parameters.window,
        packing=parameters.packing,
    )
    batch = loader.batch(_positions(joined, step))
    logits = model_logits(loaded.model, dtype)
    device = next(loaded.model.parameters()).device
    ends = np.cumsum([piece.targets for piece in pieces])
    begins = ends - [piece.targets for piece in pieces]
    row_begins = {piece.row: int(at) for piece, at in zip(reversed(pieces), begins[::-1], strict=True)}
    spans = [(piece.row, int(at) - row_begins[piece.row], piece.targets) for piece, at in zip(pieces, begins, strict=True)]
    together = loaded.config.attention != "masked"
    units = [(row, 0, parameters.sequence_length) for row in sorted(row_begins)] if together else spans
    sums: dict[tuple[int, int], np.ndarray] = {}
    with torch.inference_mode():
        for at in range(0, len(units), PIECES_AT_A_TIME):
            some = units[at : at + PIECES_AT_A_TIME]
            longest = max(length for _, _, length in some)
            tokens = np.full((len(some), longest), corpus.tokenizer.bos_id, np.int64)
            targets = np.full((len(some), longest), IGNORED, np.int64)
            for n, (row, first, length) in enumerate(some):
                tokens[n, :length] = batch.tokens[row, first : first + length]
                targets[n, :length] = batch.targets[row, first : first + length]
            nats = (
                row_nats(logits(torch.from_numpy(tokens).to(device)), torch.from_numpy(targets).to(device)).double().cpu().numpy()
            )
            sums |= {(row, first): nats[n] for n, (row, first, _) in enumerate(some)}
    lost = []
    for row, first, length in spans:
        nats = sums[row, 0][first : first + length] if together else sums[row, first][:length]
        lost.append(float(nats.sum()) / length)
    return [replace(piece, loss=loss) for piece, loss in zip(pieces, lost, strict=True)]


def is_skipped(joined: TrainedOn, step: int) -> bool:
    """Whether the run passed over a step."""
    return joined.ledger.passed_over(int(_positions(joined, step)[0]))


def _positions(joined: TrainedOn, step: int) -> Int64:
    ledger = joined.ledger
    if not 1 <= step <= ledger.last_step:
        raise LedgerError(f"{ledger.path}: it has steps 1 to {ledger.last_step:,}, and not step {step:,}")
    return np.arange(ledger.position_after(step - 1), ledger.position_after(step))


def _ids(joined: TrainedOn, number: int, documents: Int64) -> list[str]:
    """The ids of a component's documents, given by their number; of a shard that has none of them nothing is read."""
    component = joined.order.components[number]
    edges = np.concatenate([[0], np.cumsum([shard.documents for shard in component.shards])])
    found = [""] * len(documents)
    for n, shard in enumerate(component.shards):
        mine = np.flatnonzero((documents >= edges[n]) & (documents < edges[n + 1]))
        if not len(mine):
            continue
        try:
            table = pq.read_table(pa.BufferReader(joined.corpus.read(shard.index)), columns=["id"])
        except (StorageError, OSError, pa.ArrowException) as error:
            raise LedgerError(f"{joined.corpus.url}/{shard.index}: cannot be read: {error}") from None
        for place, id_ in zip(mine.tolist(), table["id"].take(documents[mine] - edges[n]).to_pylist(), strict=True):
            found[place] = id_
    return found
