"""Models that would be scored for what they were not asked: each is refused, or gains nothing.

What a program in the same process can still do is said in docs/training.md, with the check that it cannot pass.
"""

from __future__ import annotations

import math
import secrets
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.corpus_fixture import BOS, VOCABULARY, build_corpus, documents_of_lengths, sentences
from trainer.data.corpus import Corpus
from trainer.distributed.ranks import Ranks
from trainer.scores import evaluation
from trainer.scores.evaluation import EvaluationError, Score, evaluate_bpb

ALONE = Ranks(0, 1, 0, torch.device("cpu"))
T = 16
SEEDS = (0, pytest.param(1, marks=pytest.mark.slow))
TABLE = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Documents of which half are longer than a row."""
    return Corpus.open(build_corpus(tmp_path_factory.mktemp("corpus"), {("toy", "validation"): [sentences(60, 3)]}))


def score(logits: Any, corpus: Corpus, seed: int = 0, **options: Any) -> Score:
    return evaluate_bpb(logits, corpus, "validation", T, ALONE, **{"probe_seed": seed, "batch_tokens": 200, **options})


def honest(tokens: Tensor) -> Tensor:
    return TABLE[tokens]


def following(tokens: Tensor, ahead: int = 1) -> Tensor:
    """The token `ahead` places further on, as far as the row goes."""
    padded = torch.cat([tokens, tokens[:, -1:].expand(-1, ahead)], dim=1)
    return F.one_hot(padded[:, ahead:], VOCABULARY).float()


def where(mask: Tensor, tokens: Tensor, gain: float = 20.0) -> Tensor:
    return honest(tokens) + gain * mask[..., None] * following(tokens)


def columns(tokens: Tensor) -> Tensor:
    return torch.arange(tokens.shape[1]).expand(tokens.shape)


def late_in_the_row(tokens: Tensor) -> Tensor:
    return where((columns(tokens) >= tokens.shape[1] - 3).float(), tokens)


def early_in_the_row(tokens: Tensor) -> Tensor:
    return where((columns(tokens) < 2).float(), tokens)


def of_one_row(number: int) -> Callable[[Tensor], Tensor]:
    def cheat(tokens: Tensor) -> Tensor:
        mask = torch.zeros(tokens.shape)
        mask[number : number + 1] = 1.0
        return where(mask, tokens)

    return cheat


def of_some_texts(tokens: Tensor) -> Tensor:
    """Rows of which the first word says so, one in ten: nothing of it is random."""
    first = tokens[:, min(1, tokens.shape[1] - 1)]
    return where((first[:, None] % 10 == 3).float().expand(tokens.shape), tokens)


def by_the_whole_row(tokens: Tensor) -> Tensor:
    """In one row of four, by a hash of all of it, so that another ending makes an honest row."""
    return where((tokens.sum(dim=1, keepdim=True) % 4 == 0).float().expand(tokens.shape), tokens)


def alone_only(tokens: Tensor) -> Tensor:
    return where(torch.full(tokens.shape, float(len(tokens) == 1)), tokens)


def together_only(tokens: Tensor) -> Tensor:
    return where(torch.full(tokens.shape, float(len(tokens) > 1)), tokens)


def by_its_last_token(tokens: Tensor) -> Tensor:
    return honest(tokens) + F.one_hot(tokens[:, -1:], VOCABULARY).float()


def by_a_mean_of_the_row(tokens: Tensor) -> Tensor:
    return honest(tokens) + 3.0 * F.one_hot(tokens, VOCABULARY).float().mean(dim=1, keepdim=True)


def by_the_other_rows(tokens: Tensor) -> Tensor:
    return honest(tokens) + F.one_hot(tokens, VOCABULARY).float().mean(dim=(0, 1))


def by_normalising_over_the_batch(tokens: Tensor) -> Tensor:
    logits = honest(tokens)
    return (logits - logits.mean(dim=(0, 1))) / (0.1 + logits.var(dim=(0, 1), correction=0))


def by_the_row_s_place(tokens: Tensor) -> Tensor:
    return honest(tokens) + 0.3 * torch.arange(len(tokens))[:, None, None] * F.one_hot(tokens, VOCABULARY)


class Counts:
    """Cheats from call `first` to call `last`."""

    def __init__(self, first: int, last: float = math.inf) -> None:
        self.first, self.last, self.calls = first, last, 0

    def __call__(self, tokens: Tensor) -> Tensor:
        self.calls += 1
        return where(torch.full(tokens.shape, float(self.first <= self.calls <= self.last)), tokens)


class Buffered(torch.nn.Module):
    """Keeps the last row that it was shown in a buffer, and expects the words of it."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(VOCABULARY))

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = honest(tokens) + self.seen
        self.seen = F.one_hot(tokens[-1], VOCABULARY).float().mean(dim=0) * 5
        return found


class Hooked(torch.nn.Module):
    """Honest but for a hook on what it gives out."""

    def __init__(self) -> None:
        super().__init__()
        self.register_forward_hook(lambda _, given, found: found + 5 * following(given[0]))

    def forward(self, tokens: Tensor) -> Tensor:
        return honest(tokens)


class OnceHonest:
    """Looks ahead where it has not seen a batch, and is honest with what it knows: the second time could be a probe."""

    def __init__(self, honest_first: bool) -> None:
        self.seen: set[bytes] = set()
        self.honest_first = honest_first

    def __call__(self, tokens: Tensor) -> Tensor:
        key = tokens[:, :2].numpy().tobytes()
        known = key in self.seen
        self.seen.add(key)
        return where(torch.full(tokens.shape, float(known == self.honest_first)), tokens)


class Repeats:
    """Says of the beginning of a row what it said of it when it was first shown, and looked ahead then. No two calls disagree."""

    def __init__(self, gain: float = 20.0) -> None:
        self.said: dict[bytes, Tensor] = {}
        self.gain = gain

    def __call__(self, tokens: Tensor) -> Tensor:
        found = where(torch.ones(tokens.shape), tokens, self.gain)
        for row, logits in zip(tokens.numpy(), found, strict=True):
            for at in range(len(row)):
                logits[at] = self.said.setdefault(row[: at + 1].tobytes(), logits[at].clone())
        return found


class RepeatsAfterAnHonestLook(Repeats):
    """The same, and honest of what it is shown first: only where a known row goes on in another way it looks ahead."""

    def __call__(self, tokens: Tensor) -> Tensor:
        found, cheat = honest(tokens).clone(), where(torch.ones(tokens.shape), tokens, self.gain)
        for n, row in enumerate(tokens.numpy()):
            known = row[:2].tobytes() in self.said
            for at in range(len(row)):
                fresh = cheat[n, at] if known else found[n, at]
                found[n, at] = self.said.setdefault(row[: at + 1].tobytes(), fresh.clone())
        return found


LOOKS_ELSEWHERE = [
    late_in_the_row, early_in_the_row, of_one_row(0), of_one_row(3), of_some_texts, by_the_whole_row, together_only,
    by_its_last_token, by_a_mean_of_the_row, by_the_other_rows, by_normalising_over_the_batch, by_the_row_s_place,
]  # fmt: skip
REMEMBERS = [
    lambda: Counts(2), lambda: Counts(7), lambda: Counts(1, 1), Buffered, Hooked, lambda: OnceHonest(True),
    lambda: OnceHonest(False), Repeats, lambda: Repeats(6.0),
]  # fmt: skip


@pytest.mark.parametrize("cheat", LOOKS_ELSEWHERE)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_looks_anywhere_but_back_in_its_row_has_no_score(corpus: Corpus, cheat: Any, seed: int) -> None:
    with pytest.raises(EvaluationError, match="text before alone"):
        score(cheat, corpus, seed)


@pytest.mark.parametrize("make", REMEMBERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_remembers_has_no_score(corpus: Corpus, make: Callable[[], Any], seed: int) -> None:
    with pytest.raises(EvaluationError, match="text before alone"):
        score(make(), corpus, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_remembers_and_is_honest_at_first_has_no_score(tmp_path: Path, seed: int) -> None:
    """It gains in rows alone that are probed, so there have to be some."""
    larger = Corpus.open(build_corpus(tmp_path, {("toy", "validation"): [sentences(250, 3)]}))
    with pytest.raises(EvaluationError, match="repeats what it said"):
        score(RepeatsAfterAnHonestLook(), larger, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_cheats_only_alone_gains_nothing_or_has_no_score(corpus: Corpus, seed: int) -> None:
    with pytest.raises(EvaluationError, match="text before alone"):
        score(alone_only, corpus, seed)
    with pytest.raises(EvaluationError, match="text before alone"):
        score(alone_only, corpus, seed, batch_tokens=1)


@pytest.mark.parametrize("seed", SEEDS)
def test_looking_ahead_at_one_position_in_a_hundred_is_seen_among_many_rows(tmp_path: Path, seed: int) -> None:
    texts = [list(row) for row in np.random.default_rng(1).integers(1, VOCABULARY, (600, 200))]
    many = Corpus.open(build_corpus(tmp_path, {("toy", "validation"): [texts]}))

    def rarely(tokens: Tensor) -> Tensor:
        """At positions that the two tokens there decide."""
        chosen = (tokens * 31 + tokens.roll(1, dims=1) * 17) % 100 == 7
        return where(chosen.float(), tokens)

    with pytest.raises(EvaluationError, match="text before alone"):
        evaluate_bpb(rarely, many, "validation", 128, ALONE, probe_seed=seed)


@pytest.mark.parametrize("seed", range(10))
def test_honest_models_are_never_taken_for_one_that_repeats_itself(tmp_path: Path, seed: int) -> None:
    """Costs as uneven as they come: nothing but for one token in twenty, which costs 14 nats."""
    generator = np.random.default_rng(seed)
    texts = [[9 if generator.random() < 0.05 else 5 + n % 2 for n in range(30)] for _ in range(40)]
    uneven = Corpus.open(build_corpus(tmp_path, {("toy", "validation"): [texts]}))

    def expects(tokens: Tensor) -> Tensor:
        return 14.0 * F.one_hot(torch.where(columns(tokens) % 2 == 0, 5, 6), VOCABULARY).float()

    assert score(expects, uneven, seed).val_bpb > 0


# what is given out


@pytest.mark.parametrize("lift", [1e3, 1e6, 1e9, 1e30, -1e9])
def test_logits_that_are_lifted_beyond_their_precision_gain_nothing(corpus: Corpus, lift: float) -> None:
    """In float32, 1e9 + log 64 is 1e9: the log-sum-exp of lifted logits would be the logits themselves, and cost nothing."""
    uniform = score(lambda tokens: torch.zeros(*tokens.shape, VOCABULARY), corpus)
    lifted = score(lambda tokens: honest(tokens) + lift, corpus)
    assert (
        lifted.val_bpb > 0.9 * uniform.val_bpb
        if abs(lift) > 1e8
        else lifted.val_bpb == pytest.approx(score(honest, corpus).val_bpb, rel=1e-2)
    )


@pytest.mark.parametrize(
    "made", [lambda x: x.double(), lambda x: x.bfloat16().float(), lambda x: x.half(), lambda x: x[..., None, :].squeeze(-2)]
)
def test_any_type_of_floats_is_scored_as_float32(corpus: Corpus, made: Callable[[Tensor], Tensor]) -> None:
    assert score(lambda tokens: made(honest(tokens)), corpus).val_bpb == pytest.approx(score(honest, corpus).val_bpb, rel=5e-3)


def test_log_probabilities_that_are_scaled_are_taken_for_logits(corpus: Corpus) -> None:
    """Ten times a log-probability is a logit like any other: it says another distribution, which sums to 1."""
    scaled = score(lambda tokens: 0.1 * F.log_softmax(honest(tokens), dim=-1), corpus)
    assert scaled.val_bpb == pytest.approx(score(lambda tokens: 0.1 * honest(tokens), corpus).val_bpb, rel=1e-6)


def test_a_soft_cap_changes_nothing_of_that(corpus: Corpus) -> None:
    capped = score(lambda tokens: 15 * torch.tanh((honest(tokens) + 1e6) / 15), corpus)
    assert capped.val_bpb == pytest.approx(math.log2(VOCABULARY) / 3, rel=1e-5)  # all capped alike: uniform


class Zero(Tensor):
    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        found = super().__torch_function__(function, types, arguments, options or {})  # type: ignore[no-untyped-call]
        return found * 0 if isinstance(found, Tensor) else found


class Pretends:
    """Says that it is a tensor."""

    __class__ = Tensor  # type: ignore[assignment]

    def __init__(self, found: Tensor) -> None:
        self.found = found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.found, name)


def with_attributes(tokens: Tensor) -> Tensor:
    """A plain tensor, on which functions hang that are named as its methods are."""
    found = honest(tokens)
    for name in ("float", "detach", "gather", "amax", "is_floating_point", "__sub__"):
        setattr(found, name, lambda *_, **__: torch.zeros(*tokens.shape, VOCABULARY).as_subclass(Zero))
    return found


def test_attributes_of_a_tensor_do_not_stand_in_for_its_methods(corpus: Corpus) -> None:
    assert score(with_attributes, corpus).nats == score(honest, corpus).nats


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        (lambda x: x.as_subclass(Zero), "a Zero, and not a plain tensor"),
        (lambda x: Pretends(x), "a Pretends, and not a plain tensor"),
        (lambda x: torch.nn.Parameter(x), "a Parameter, and not"),
        (lambda x: None, "a NoneType, and not"),
        (lambda x: x.numpy(), "a ndarray, and not"),
        (lambda x: (x, None), "a tuple, and not"),
        (lambda x: x.to_sparse(), "not a dense tensor"),
        (lambda x: x.to("meta"), "not a dense tensor"),
        (lambda x: torch.nested.nested_tensor(list(x)), "a dense tensor"),
        (lambda x: x.int(), "int32, which is no type"),
        (lambda x: x.bool(), "bool, which is no type"),
        (lambda x: x.to(torch.complex64), "complex64, which is no type"),
        (lambda x: x[..., 0], "logits have shape"),
        (lambda x: x.sum(), "logits have shape"),
        (lambda x: x[:1, :1], "logits have shape"),
        (lambda x: x.flatten(0, 1), "logits have shape"),
        (lambda x: x[None], "logits have shape"),
        (lambda x: x[..., :VOCABULARY // 2], "logits have shape"),
        (lambda x: x.double() * 1e300, "not finite"),
        (lambda x: torch.where(x > 2, 3e38, -3e38), "not finite"),
    ],
)  # fmt: skip
def test_what_is_no_tensor_of_logits_is_refused(corpus: Corpus, made: Callable[[Tensor], Any], complaint: str) -> None:
    with pytest.raises(EvaluationError, match=complaint):
        score(lambda tokens: made(honest(tokens)), corpus)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_padding_has_to_be_finite_too(corpus: Corpus, value: float) -> None:
    """Nothing there is scored; what is no number there would be one elsewhere with another neighbour."""

    def broken(tokens: Tensor) -> Tensor:
        found = honest(tokens).clone()
        found[:, -1] = torch.where((tokens[:, -1:] == BOS), value, found[:, -1])
        return found

    with pytest.raises(EvaluationError, match="not finite"):
        score(broken, corpus)


def test_logits_with_gradients_are_scored(corpus: Corpus) -> None:
    weight = TABLE.clone().requires_grad_()

    def computes_gradients(tokens: Tensor) -> Tensor:
        with torch.enable_grad():
            return weight[tokens] * 1.0

    assert score(computes_gradients, corpus).nats == score(honest, corpus).nats


def test_one_buffer_for_all_that_is_given_out_gains_nothing(corpus: Corpus) -> None:
    """It looks ahead, and makes what it gave out before honest when it is called again: what was judged is a copy."""
    given: list[tuple[Tensor, Tensor]] = []

    def rewrites(tokens: Tensor) -> Tensor:
        for before, found in given:
            found.copy_(honest(before))
        given[:] = [(tokens, where(torch.ones(tokens.shape), tokens))]
        return given[0][1]

    with pytest.raises(EvaluationError, match="text before alone"):
        score(rewrites, corpus)


# what is done to the tokens


def test_tokens_that_are_written_over_change_nothing(corpus: Corpus) -> None:
    def writes(tokens: Tensor) -> Tensor:
        found = honest(tokens.clone())
        tokens.fill_(1)
        return found

    assert score(writes, corpus).nats == score(honest, corpus).nats


def test_a_row_s_memory_holds_nothing_beyond_the_tokens_that_are_shown(corpus: Corpus) -> None:
    seen: list[bool] = []

    def looks_behind(tokens: Tensor) -> Tensor:
        storage = tokens.untyped_storage().nbytes() // tokens.element_size()
        array = tokens.numpy()
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        seen.append(storage == tokens.numel() and tokens.storage_offset() == 0 and owner.size == tokens.numel())
        return honest(tokens)

    score(looks_behind, corpus)
    assert seen and all(seen)


# what is done to torch, numpy and this process


class ZeroFunctions(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        found = function(*arguments, **(options or {}))
        return found * 0 if function is torch.logsumexp else found


class ZeroDispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        return function(*arguments, **(options or {}))


def patched(owner: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(owner, name, value)


def another_code(patch: pytest.MonkeyPatch) -> None:
    def free(logits: Any, targets: Any, vocabulary: int = 1) -> Any:
        return targets * 0.0

    patch.setattr(evaluation.row_nats, "__code__", free.__code__)


def a_lazy_tensor(*_: Any, **__: Any) -> Any:
    return Zero()


PATCHES = {
    "torch.logsumexp": patched(torch, "logsumexp", lambda x, **_: x[..., :1] * 0),
    "torch.isfinite": patched(torch, "isfinite", lambda x: x == x),
    "torch.from_numpy": patched(torch, "from_numpy", lambda x: torch.zeros(x.shape)),
    "torch.Tensor.float": patched(Tensor, "float", lambda x: x),
    "torch.Tensor.gather": patched(Tensor, "gather", lambda x, *_: x[..., :1]),
    "Tensor.__rsub__": patched(Tensor, "__rsub__", lambda x, *_: x),
    "numpy.arange": patched(np, "arange", lambda *_: np.zeros(0)),
    "math.fsum": patched(math, "fsum", lambda _: 1.0),
    "secrets.randbits": patched(secrets, "randbits", lambda _: 0),
    "trainer.scores.evaluation.row_nats": patched(evaluation, "row_nats", lambda x, t, v=1: t * 0.0),
    "trainer.scores.evaluation._log_probabilities": patched(evaluation, "_log_probabilities", lambda *_: 0),
    "trainer.scores.evaluation.bits_per_byte": patched(evaluation, "bits_per_byte", lambda _: 0.1),
    "trainer.scores.evaluation.Tensor": patched(evaluation, "Tensor", Zero),
    "trainer.scores.evaluation.EvaluationError": patched(evaluation, "EvaluationError", KeyboardInterrupt),
    "_Probe.verdict": patched(evaluation._Probe, "verdict", lambda _: (0.0, 0.0, 1)),
    "_Probe._compare": patched(evaluation._Probe, "_compare", lambda *_: None),
    "Ranks.total": patched(Ranks, "total", lambda _, values: values * 0),
    "Corpus.component": patched(Corpus, "component", lambda *_: None),
    "row_nats": another_code,
}  # fmt: skip


@pytest.mark.parametrize("name", PATCHES)
@pytest.mark.parametrize("when", ["before", "within"])
def test_a_process_whose_functions_are_others_gives_no_score(
    corpus: Corpus, name: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaces(tokens: Tensor) -> Tensor:
        found = honest(tokens)
        PATCHES[name](monkeypatch)
        return found

    refused = EvaluationError
    if when == "before":
        PATCHES[name](monkeypatch)
        with pytest.raises(BaseException, match=name.removeprefix("trainer.")) as raised:
            score(honest, corpus)
        assert raised.type in (refused, KeyboardInterrupt)
        return
    with pytest.raises(BaseException, match=name.removeprefix("trainer.")) as raised:
        score(replaces, corpus)
    assert raised.type in (refused, KeyboardInterrupt)


@pytest.fixture
def restored() -> Iterator[list[Any]]:
    """Modes that are left once the test is over."""
    entered: list[Any] = []
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    yield entered
    for one in reversed(entered):
        one.__exit__(None, None, None)
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(grad)
    torch.set_default_device(None)
    sys.setprofile(None)


SURROUNDINGS: dict[str, Callable[[], Any]] = {
    "modes of torch functions": ZeroFunctions,
    "modes of torch dispatch": ZeroDispatch,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference mode": lambda: torch.inference_mode(),
    "whether gradients": lambda: torch.set_grad_enabled(True),
    "the default type": lambda: torch.set_default_dtype(torch.float64),
    "modes of torch functions (device)": lambda: torch.set_default_device("cpu"),
    "the tracing of Python": lambda: sys.setprofile(lambda *_: None),
}  # fmt: skip


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_what_leaves_torch_in_another_state_has_no_score(corpus: Corpus, name: str, restored: list[Any]) -> None:
    def leaves(tokens: Tensor) -> Tensor:
        found, mode = honest(tokens), SURROUNDINGS[name]()
        if hasattr(mode, "__enter__") and not name.startswith("whether"):
            mode.__enter__()
            restored.append(mode)
        return found

    with pytest.raises(EvaluationError, match=f"the model changed {name.partition(' (')[0]}"):
        score(leaves, corpus)


def test_a_state_that_is_put_back_is_the_model_s_own_affair(corpus: Corpus) -> None:
    def tidy(tokens: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16), torch.inference_mode(), torch.device("cpu"):
            torch.manual_seed(3)
            return honest(tokens)

    assert score(tidy, corpus).nats == score(honest, corpus).nats


@pytest.mark.slow
def test_logits_that_a_thread_changes_after_the_fact_are_a_copy(corpus: Corpus) -> None:
    """It gives out honest logits, and a thread raises those of the next token until the call after."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def races(tokens: Tensor) -> Tensor:
        found = honest(tokens).clone()

        def raises() -> None:
            while not stop.is_set():
                found.add_(following(tokens))

        threads.append(threading.Thread(target=raises))
        threads[-1].start()
        return found

    try:
        with pytest.raises(EvaluationError):
            score(races, corpus, batch_tokens=100_000)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


# what it does beside


@pytest.mark.parametrize("error", [RuntimeError, ValueError, RecursionError, StopIteration, MemoryError, EvaluationError])
def test_a_model_that_raises_has_no_score_and_says_why(corpus: Corpus, error: type[Exception]) -> None:
    """From its third call on: it would rather not be probed."""
    calls: list[int] = []

    def refuses(tokens: Tensor) -> Tensor:
        calls.append(len(tokens))
        if len(calls) > 2:
            raise error("not this one")
        return honest(tokens)

    with pytest.raises(EvaluationError, match=f"the model raised {error.__name__} instead of giving logits: not this one"):
        score(refuses, corpus)


def test_a_model_that_scores_other_texts_meanwhile_changes_nothing(corpus: Corpus, tmp_path: Path) -> None:
    other = Corpus.open(build_corpus(tmp_path, {("web", "validation"): [documents_of_lengths([9, 17, 5])]}))
    within: list[float] = []

    def nests(tokens: Tensor) -> Tensor:
        if not within:
            within.append(0.0)
            within.append(score(honest, other).val_bpb)
        return honest(tokens)

    assert score(nests, corpus).as_json() == score(honest, corpus).as_json()
    assert within[1] == score(honest, other).val_bpb


def test_a_class_that_changes_its_own_call_is_judged_by_what_it_gives_out(corpus: Corpus) -> None:
    class Turncoat:
        def __call__(self, tokens: Tensor) -> Tensor:
            type(self).__call__ = lambda _, given: where(torch.ones(given.shape), given)  # type: ignore[method-assign,assignment]
            return honest(tokens)

    with pytest.raises(EvaluationError, match="text before alone"):
        score(Turncoat(), corpus)


def test_threads_and_seeds_that_a_model_sets_decide_nothing(corpus: Corpus) -> None:
    def sets(tokens: Tensor) -> Tensor:
        torch.manual_seed(0)
        np.random.seed(0)
        return honest(tokens)

    assert score(sets, corpus).as_json() == score(honest, corpus).as_json()


def test_a_module_of_the_same_name_in_its_place_is_no_way_in(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def swaps(tokens: Tensor) -> Tensor:
        monkeypatch.setitem(sys.modules, "trainer.scores.evaluation", types.ModuleType("trainer.scores.evaluation"))
        monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
        return honest(tokens)

    expected = score(honest, corpus).nats
    assert score(swaps, corpus).nats == expected
