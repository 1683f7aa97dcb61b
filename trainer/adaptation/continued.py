"""Continued pretraining: a run that begins with the weights of another, and the gate that it must pass.

The optimiser is fresh and the schedule begins anew. Before the first step the run's folder has `continued.json`: what the
weights are from, how many tokens the tokenizer needs for a word, and the gate as it was written, with its digest. Then the model
is scored on the gate's texts, and `gate/before-…` has what it loses on each document. Checkpoints hold the digests of all these,
so a run that is resumed is held to what was written when it began. When the budget is spent the same texts are scored again, by
the same evaluator, and the gate is decided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from torch import nn

from manifests.storage import Folder
from trainer.adaptation.gate import Decision, GateError, GateFile, HeldOut, check_texts, decide
from trainer.adaptation.gate_record import AFTER, BEFORE, FOLDER, RECORD, Record, RecordedGate
from trainer.adaptation.parent import Parent, told_passed_over
from trainer.adaptation.words import Words, count_words, together
from trainer.configuration import ConfigurationError, TrainConfig
from trainer.data.corpus import Corpus
from trainer.distributed.parallel import Layout
from trainer.distributed.ranks import Ranks
from trainer.presets import Architecture
from trainer.run_files.checkpoint_format import CheckpointError, State, in_a_line
from trainer.scores.document_scores import DocumentScores, DocumentScoresError
from trainer.scores.evaluation import EVALUATOR_SHA256, Logits, Scored, evaluate_documents
from trainer.scores.scoring import model_logits

MANY_MORE_TOKENS = 1.5
"""Times as many tokens for a word of the domain as for one of general text: then the tokenizer is said to shatter it."""

Note = Callable[[str], None]


class Sealed(BaseModel):
    """What each checkpoint holds of it."""

    model_config = ConfigDict(extra="forbid")

    parent: dict[str, Any]
    gate_sha256: str | None
    before: dict[str, str] | None

    @field_validator("parent")
    @classmethod
    def _is_a_parent(cls, parent: dict[str, Any]) -> dict[str, Any]:
        if not all(isinstance(parent.get(name), str) for name in ("run", "weights_sha256")):
            raise ValueError("it does not say what the run began with")
        if not isinstance(parent.get("step", 0), int):
            raise ValueError("its step is no number")
        return parent


@dataclass(frozen=True)
class Text:
    """A split of a corpus that the gate names: all of it is scored."""

    corpus: Corpus
    split: str

    @property
    def name(self) -> str:
        return f"{self.corpus.manifest.digest[:12]}-{self.split}"


class Continued:
    """What a run that goes on from other weights is held to; `of` makes one. ConfigurationError, GateError, CheckpointError and
    CorpusError say what cannot be continued, or not in this way."""

    def __init__(
        self, config: TrainConfig, corpus: Corpus, ranks: Ranks, folder: Path, dtype: str, state: State | None, note: Note
    ) -> None:
        self.corpus, self.ranks, self.folder, self.dtype, self.note = corpus, ranks, folder, dtype, note
        recorded = self._recorded()
        sealed = self._sealed(state)
        if sealed is not None and recorded is None:
            raise CheckpointError(f"{folder / RECORD} is not there: it has what this run was begun with")
        self.resumed = sealed is not None
        self.gate = self._gate(config, recorded, sealed)
        self.parent = self._parent(config, sealed)
        self.record: dict[str, Any] = sealed.parent if sealed else self.parent.record if self.parent else {}
        self.row_tokens = (self.gate.gate.sequence_length if self.gate else None) or config.row_tokens
        if self.gate and self.parent and not self.resumed:
            self._refuse_longer(self.gate, self.parent)
        self._corpora: dict[str | None, Corpus] = {None: corpus}
        self.texts = self._texts(config)
        self.before_sha256: dict[str, str] = dict(sealed.before or {}) if sealed else {}
        self.before: list[DocumentScores] = []
        self.words: list[dict[str, Any]] = recorded.words if sealed and recorded else []
        self.score_again = bool(self.gate) and not self._read_before()
        if self.resumed and self.score_again and self.parent is None:
            raise ConfigurationError(
                "the model that this run began with was scored by another version of the evaluator, or in another precision, and "
                f"has to be scored again for a fair gate: give --from {self.record['run']} (weights "
                f"{self.record['weights_sha256'][:12]}…) once more, or resume with the version and --dtype of the run's beginning"
            )

    @staticmethod
    def of(
        config: TrainConfig, corpus: Corpus, ranks: Ranks, folder: Path, dtype: str, state: State | None, note: Note
    ) -> Continued | None:
        """None of a run that begins with weights of its own."""
        if state is not None and state.continued is None:
            if config.parent or config.gate:
                raise ConfigurationError(
                    f"--out {config.out}: this run did not begin with other weights; --from and --gate belong to its first start"
                )
            return None
        if state is None and config.parent is None:
            if config.gate:
                raise ConfigurationError("--gate compares a model with the one it came from, so it needs --from")
            return None
        return Continued(config, corpus, ranks, folder, dtype, state, note)

    def check(self, architecture: Architecture) -> None:
        if self.parent:
            self.parent.check_architecture(architecture)

    def load(self, model: nn.Module, layout: Layout) -> list[str]:
        """Fills the model of a run that begins, and gives its lineage."""
        assert self.parent
        self.parent.load(model, layout)
        return self.parent.lineage

    def facts(self) -> dict[str, Any]:
        """For the run's record: no place of this machine is in it."""
        return {"parent": self.record, "words": self.words, "gate": self._told_gate()}

    def sealed(self) -> dict[str, Any]:
        """What each checkpoint holds."""
        gate = self.gate.sha256 if self.gate else None
        return Sealed(parent=self.record, gate_sha256=gate, before=self.before_sha256 or None).model_dump()

    def begin(self, trained: list[str]) -> None:
        """Counts tokens a word of the gate's texts (without a gate, of the components `trained` on), and writes the record,
        before anything is computed."""
        if self.resumed:
            return
        if self.parent:
            for warning in told_passed_over(self.record.get("passed_over", {}), self.parent.folder):
                self.note(warning)
        self.note(f"begins with {self.record['run']}, weights {self.record['weights_sha256']}; a fresh optimiser")
        sides = self._count_words(trained)
        self.words = [{"side": side, **one.as_json()} for side, parts in sides.items() for one in parts]
        for side, parts in sides.items():
            for one in parts:
                self.note(f"{side}: {one.describe()}")
        self._look_at_words(sides)
        if self.gate:
            self.note(f"gate {self.gate.sha256}: decided by the {self.gate.gate.decided_by}, in {self.gate.gate.unit}")
        self._write()

    def score_before(self, whole: Callable[[], Logits]) -> None:
        """Scores what the run begins with on the gate's texts; `whole` gives it, where the run is still at its beginning."""
        if not self.score_again:
            return
        again = " again: the evaluator or its precision changed" if self.resumed else ""
        self.note(f"scoring the gate's texts before the run{again}")
        if self.resumed:
            assert self.parent
            logits = model_logits(self.parent.whole().to(self.ranks.device), self.dtype)
        else:
            logits = whole()
        self.before = [self._score(text, logits) for text in self.texts]
        self.before_sha256 = self._keep(BEFORE, self.before)
        self.score_again = False
        self._write()

    def decide(self, logits: Callable[[], Logits], scored: Scored | None) -> Decision | None:
        """Scores the texts after the run, and decides. `scored`: the run's own score of its validation split, if there is one.
        None without a gate."""
        if self.gate is None:
            return None
        after, model = [], None
        for text in self.texts:
            own = text.corpus is self.corpus and text.split == "validation"
            if scored and own and scored.score.sequence_length == self.row_tokens:
                after.append(DocumentScores.of_evaluation(scored, text.corpus))
                continue
            model = model or logits()
            self.note(f"scoring the gate's texts after the run: {text.split} of {text.corpus.folder.url}")
            after.append(self._score(text, model))
        self._keep(AFTER, after)
        if not self.ranks.first:
            return None
        decision = decide(self.gate.gate, self.gate.sha256, self._digest_of, self.before, after)
        self.note(decision.describe())
        return decision

    # what was written when the run began

    def _sealed(self, state: State | None) -> Sealed | None:
        if state is None or state.continued is None:
            return None
        try:
            return Sealed.model_validate(state.continued)
        except ValidationError as error:
            raise CheckpointError(f"{self.folder}: a checkpoint that no run has written: {in_a_line(error)}") from None

    def _recorded(self) -> Record | None:
        text = ""
        if self.ranks.first and (self.folder / RECORD).exists():
            text = (self.folder / RECORD).read_text(encoding="utf-8", errors="replace")
        text = self.ranks.texts(text)[0]
        if not text:
            return None
        try:
            return Record.model_validate_json(text)
        except ValidationError as error:
            raise CheckpointError(f"{self.folder / RECORD}: not what a run writes: {in_a_line(error)}") from None

    def _gate(self, config: TrainConfig, recorded: Record | None, sealed: Sealed | None) -> GateFile | None:
        given = GateFile.read(Path(config.gate)) if config.gate else None
        if recorded is None:
            return given
        held = recorded.gate
        known = sealed.gate_sha256 if sealed else held.sha256 if held else None
        if given and given.sha256 != known:
            was = f"gate {known[:12]}… was written for it" if known else "none was"
            raise GateError(
                f"--gate {config.gate}: a gate is written before the run, and {was}, not {given.sha256[:12]}…; leave --gate "
                "out to go on with the run as it was begun, or begin another"
            )
        if given or not known:
            return given
        kept = GateFile.of(held.text, Path(held.folder), str(self.folder / RECORD)) if held else None
        if kept is None or kept.sha256 != known:
            raise GateError(f"{self.folder / RECORD}: the gate in it is not the one that the run began with, {known[:12]}…")
        return kept

    def _parent(self, config: TrainConfig, sealed: Sealed | None) -> Parent | None:
        """What --from names. A run that is resumed does not need it, but for scoring; if it is given, it must be the same."""
        if config.parent is None:
            return None
        path = Path(config.parent)
        if sealed is None:
            parent = Parent.find(path, self.ranks)
            parent.check_tokenizer(self.corpus)
            return parent
        record = sealed.parent
        same_step = path / "checkpoints" / f"step-{record.get('step', 0):08d}"
        try:
            parent = Parent.find(same_step if same_step.is_dir() else path, self.ranks)
        except CheckpointError:
            return None
        if parent.record["weights_sha256"] != record["weights_sha256"]:
            raise ConfigurationError(
                f"--from {config.parent}: the run began with weights {record['weights_sha256'][:12]}… of {record['run']}, and "
                f"these are {parent.record['weights_sha256'][:12]}…; leave --from out: a resumed run goes on from its checkpoint"
            )
        return parent

    def _refuse_longer(self, gate: GateFile, parent: Parent) -> None:
        """Beyond the T that it was trained at, a model's loss is that of positions it never saw, so almost any run would seem to
        have brought it down."""
        if self.row_tokens <= parent.row_tokens:
            return
        whose = f"sequence_length {self.row_tokens:,}" if gate.gate.sequence_length else f"the run's T, {self.row_tokens:,},"
        raise GateError(
            f"the gate is scored at {whose} and {parent.record['run']}, which the run begins with, was trained at T = "
            f"{parent.row_tokens:,}: beyond it, its loss is that of positions it never saw, and no measure of what is learned or "
            f"forgotten; give the gate sequence_length: {parent.row_tokens} or less"
        )

    def _write(self) -> None:
        if not self.ranks.first:
            return
        held = None
        if self.gate:
            held = RecordedGate(sha256=self.gate.sha256, text=self.gate.text, folder=str(self.gate.folder))
        record = Record(parent=self.record, words=self.words, gate=held, before=self.before_sha256 or None)
        Folder(str(self.folder.absolute())).write(RECORD, (record.model_dump_json(indent=1) + "\n").encode())

    def _told_gate(self) -> dict[str, Any] | None:
        """The gate with digests in place of where corpora lie."""
        if self.gate is None:
            return None
        told = self.gate.gate.model_dump(mode="json")
        for side in ("domain", "general"):
            for text in told[side]["text"]:
                text["corpus"] = self._digest_of(text["corpus"])
        return {"sha256": self.gate.sha256, **told}

    # texts and scores

    def _texts(self, config: TrainConfig) -> list[Text]:
        if self.gate is None:
            return []
        found: dict[tuple[str, str], Text] = {}
        for held in (*self.gate.gate.domain.text, *self.gate.gate.general.text):
            if held.corpus not in self._corpora:
                assert held.corpus
                self._corpora[held.corpus] = self._open(self.gate.place(held.corpus), config.cache)
            corpus = self._corpora[held.corpus]
            found.setdefault((corpus.manifest.digest, held.split), Text(corpus, held.split))
        check_texts(self.gate.gate, self._held)
        for text in found.values():
            if self.ranks.local_rank == 0:  # what will be wanted at the end is looked at before the beginning
                for name in text.corpus.components(text.split):
                    text.corpus.component(name, text.split)
        return list(found.values())

    def _open(self, place: str, cache: str | None) -> Corpus:
        corpus = Corpus.open(place, cache)
        if corpus.manifest.digest == self.corpus.manifest.digest:
            return self.corpus
        if corpus.tokenizer.sha256 != self.corpus.tokenizer.sha256:
            raise GateError(
                f"{place}: made with tokenizer {corpus.tokenizer.sha256[:12]}…, and the model's is "
                f"{self.corpus.tokenizer.sha256[:12]}…; a gate needs texts in tokens of the model: build that corpus with "
                "`tokenizer: {file: tokenizer.json}`"
            )
        return corpus

    def _held(self, text: HeldOut) -> tuple[str, dict[str, int]]:
        manifest = self._corpora[text.corpus].manifest
        counts: dict[str, int] = {}
        for shard in manifest.shards(text.split):
            counts[shard.component] = counts.get(shard.component, 0) + shard.documents
        return manifest.digest, counts

    def _digest_of(self, corpus: str | None) -> str | None:
        return self._corpora[corpus].manifest.digest

    def _count_words(self, trained: list[str]) -> dict[str, list[Words]]:
        if self.gate is None:
            return {"training": [count_words(self.corpus, self.corpus.component(name, "train", False)) for name in trained]}
        sides = {"domain": self.gate.gate.domain.text, "general": self.gate.gate.general.text}
        return {
            side: [
                count_words(corpus, corpus.component(name, text.split, False))
                for text in texts
                for corpus in [self._corpora[text.corpus]]
                for name in text.components or corpus.components(text.split)
            ]
            for side, texts in sides.items()
        }

    def _look_at_words(self, sides: dict[str, list[Words]]) -> None:
        if self.gate is None:
            return
        domain, general = together(sides["domain"]), together(sides["general"])
        limit = self.gate.gate.domain.max_tokens_per_word
        if limit is not None and (domain is None or domain > limit):
            told = "are not known" if domain is None else f"are {domain:.2f}"
            raise GateError(
                f"tokens for a word of the domain {told}, and the gate allows {limit:g}: a tokenizer made for such text would "
                "do, or a gate without max_tokens_per_word"
            )
        if domain and general and domain > MANY_MORE_TOKENS * general:
            self.note(
                f"warning: the tokenizer shatters the domain: {domain:.2f} tokens a word, {general:.2f} in general text; every "
                "word of it costs more, and T covers less"
            )

    def _read_before(self) -> bool:
        """Whether the scores that the run began with are there, and were made as those at the end will be. All ranks agree."""
        good = len(self.before_sha256) == len(self.texts)
        if self.ranks.first and good:
            for text in self.texts:
                path = self.folder / FOLDER / f"{BEFORE}-{text.name}.parquet"
                if (sha256 := self.before_sha256.get(path.name)) is None:
                    raise DocumentScoresError(f"{self.folder}: this run did not score {text.name} before it began")
                one = DocumentScores.read(path, sha256)
                now = (EVALUATOR_SHA256, self.dtype, self.row_tokens, text.corpus.split_digest(text.split))
                then = tuple(one.about[key] for key in ("evaluator_sha256", "dtype", "sequence_length", "documents_sha256"))
                good = good and now == then
                self.before.append(one)
        return not self.ranks.maximum([0.0 if good else 1.0])[0]

    def _score(self, text: Text, logits: Logits) -> DocumentScores:
        scored = evaluate_documents(logits, text.corpus, text.split, self.row_tokens, self.ranks, self.dtype)
        return DocumentScores.of_evaluation(scored, text.corpus)

    def _keep(self, when: str, scores: list[DocumentScores]) -> dict[str, str]:
        """Writes scores to the run's folder; the digests, on the first rank."""
        if not self.ranks.first:
            return {}
        folder = Folder(str((self.folder / FOLDER).absolute()))
        names = [f"{when}-{text.name}.parquet" for text in self.texts]
        return {name: one.write(folder, name) for name, one in zip(names, scores, strict=True)}
