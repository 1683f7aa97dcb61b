"""What the parts of a training step cost on a GPU: matrix products, attention, the loss, and whole steps by kernel.

`python -m bench.gpu_parts [matmul] [products[=ROWS,…]] [attention] [tuning] [tilings[=KERNEL,…]] [loss] [parity]
[model[=PRESET-documents-ROWS[-RECOMPUTE],…]] [speedrun[=VARIANT,…]]` prints tables; figures are medians of repeated runs, timed
with CUDA events after a warm-up. Rows are packed with made-up documents of log-normal length (median 400 tokens).

`speedrun` compares ways to run that preset: a step is four micro-batches of 131,072 or two of 262,144 tokens and Muon's update.
A variant that fails is one line, and none begins after SECONDS; the variants are the keys of VARIANTS.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.attention.varlen import varlen_attn
from torch.utils.checkpoint import checkpoint

from bench.gpu_ranks import drawn_on_device
from trainer.distributed.parallel import ALONE, Recompute, Spread
from trainer.network import fused, spans
from trainer.network.flops import causal_flops_per_token, mean_keys, palm_flops_per_token, peak_flops
from trainer.network.linear import add_product
from trainer.network.model import GPT, block_mask, row_masks, token_nats
from trainer.presets import PRESETS
from trainer.run.optimisation import build_adamw, build_optimiser, polar

CUDA = torch.device("cuda")
VOCABULARY = 32_768
SEVERAL = 8
"""Micro-batches of a step, where a step is spoken of."""
SHOWN = 22
"""Kernels of a step that are printed, the dearest first."""


def milliseconds(work: Callable[[], Any], repeats: int = 10, warm: int = 3) -> float:
    for _ in range(warm):
        work()
    torch.cuda.synchronize()
    found = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return float(np.median(found))


def made_up_segments(rows: int, length: int, seed: int = 0, median: float = 400) -> np.ndarray:
    """int32 (rows, length): the number of the document of each position."""
    random = np.random.default_rng(seed)
    segments = np.zeros((rows, length), np.int32)
    for row in range(rows):
        at = number = 0
        while at < length:
            size = int(np.clip(random.lognormal(np.log(median), 1.0), 16, length))
            segments[row, at : at + size] = number
            at, number = at + size, number + 1
    return segments


def boundaries(segments: np.ndarray) -> np.ndarray:
    """int32: where documents begin in the rows one after another, and the end."""
    flat = (segments + np.arange(len(segments), dtype=np.int64)[:, None] * segments.shape[1]).ravel()
    starts = np.flatnonzero(np.concatenate([[True], flat[1:] != flat[:-1]]))
    return np.concatenate([starts, [flat.size]]).astype(np.int32)


def matmul() -> None:
    print("\n## matmul, bf16, TFLOP/s")
    shapes = ((8192, 8192, 8192), (65536, 768, 2304), (65536, 768, 4096), (65536, 2048, 768), (65536, 768, VOCABULARY))
    for m, k, n in (*shapes, (32768, 2048, 14336)):
        a = torch.randn(m, k, device=CUDA, dtype=torch.bfloat16)
        b = torch.randn(n, k, device=CUDA, dtype=torch.bfloat16)
        took = milliseconds(partial(F.linear, a, b))
        print(f"{m}x{k}x{n}: {took:.3f} ms, {2 * m * k * n / took / 1e9:.0f}")


def products(rows: str = "16,32,33") -> None:
    """Of `1b`: each matrix product of a layer and of the head, and three ways to a weight's gradient."""
    a = PRESETS["1b"].build(VOCABULARY)
    shapes = {
        "projection": (a.width, (a.heads + 2 * a.kv_heads) * a.head_width), "output": (a.heads * a.head_width, a.width),
        "gate and up": (a.width, 2 * a.hidden), "down": (a.hidden, a.width), "head": (a.width, VOCABULARY),
    }  # fmt: skip
    for count in map(int, rows.split(",")):
        print(
            f"\n## products of 1b with {count} rows of 2,048, TFLOP/s\n| | x W | dy W | dW | dW float32 | dW added to float32 |"
        )
        whole = np.zeros(5)
        for name, (width, outputs) in shapes.items():
            x, of_y = (
                torch.randn(count * 2048, n, device=CUDA, dtype=torch.bfloat16) for n in (width, outputs)
            )  # fmt: skip
            weight = torch.randn(outputs, width, device=CUDA, dtype=torch.bfloat16)
            total = torch.zeros(outputs, width, device=CUDA)
            ways: list[Callable[[], Any]] = [
                partial(F.linear, x, weight), partial(torch.mm, of_y, weight), partial(torch.mm, of_y.T, x),
                partial(torch.ops.aten.mm.dtype, of_y.T, x, torch.float32), partial(add_product, total, of_y, x),
            ]  # fmt: skip
            took = np.array([milliseconds(way, repeats=20) for way in ways])
            whole += took * (1 if name == "head" else a.layers)
            print(f"| {name} | " + " | ".join(f"{2 * x.numel() * outputs / ms / 1e9:.0f}" for ms in took) + " |", flush=True)
        print(f"| ms of all layers | {' | '.join(f'{ms:.1f}' for ms in whole)} |")


@dataclass
class Attended:
    """A layer's queries, keys and values (rows, length, heads, width), and the documents of its rows."""

    query: Tensor
    key: Tensor
    value: Tensor
    gradient: Tensor
    segments: Tensor
    edges: Tensor
    keys: float
    """That an average query sees in its document."""

    @classmethod
    def drawn(cls, rows: int, length: int, heads: int, kv_heads: int, width: int, median: float = 400) -> Attended:
        segments = made_up_segments(rows, length, median=median)
        edges = boundaries(segments)
        sizes = np.diff(edges).astype(np.int64)
        query, key, value = (
            torch.randn(rows, length, number, width, device=CUDA, dtype=torch.bfloat16, requires_grad=True)
            for number in (heads, kv_heads, kv_heads)
        )
        keys = float((sizes * (sizes + 1) / 2).sum() / sizes.sum())
        print(f"\n{rows}x{length}, {heads}/{kv_heads} heads of {width}; {len(sizes)} documents, {keys:.0f} keys a query")
        on_device = torch.tensor(segments, device=CUDA), torch.tensor(edges, device=CUDA)
        return cls(query, key, value, torch.randn_like(query), *on_device, keys)

    @property
    def by_head(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query.transpose(1, 2), self.key.transpose(1, 2), self.value.transpose(1, 2)

    @property
    def grouped(self) -> bool:
        return self.query.shape[2] != self.key.shape[2]

    def flex(self, attend: Any, mask: BlockMask) -> Tensor:
        found = attend(*self.by_head, block_mask=mask, enable_gqa=self.grouped)
        return found.transpose(1, 2)

    def over_spans(self) -> Tensor:
        return spans.attend(self.query, self.key, self.value, spans.spans(self.segments))

    def compare(self, plain: Callable[[], Tensor], ours: Callable[[], Tensor]) -> None:
        """Outputs and gradients, by the norms of what differs."""
        found = []
        for work in (plain, ours):
            self.query.grad = self.key.grad = self.value.grad = None
            out = work()
            out.backward(self.gradient)
            found.append(
                [one.float() for one in (out.detach(), self.query.grad, self.key.grad, self.value.grad) if one is not None]
            )
        off = [((b - a).norm() / a.norm()).item() for a, b in zip(*found, strict=True)]
        print("spans beside flex, output and gradients of queries, keys, values: " + ", ".join(f"{share:.1e}" for share in off))

    def sdpa(self) -> Tensor:
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            found = F.scaled_dot_product_attention(*self.by_head, is_causal=True, enable_gqa=self.grouped)
        return found.transpose(1, 2)

    def varlen(self) -> Tensor:
        length = self.query.shape[1]
        flat = (one.flatten(0, 1) for one in (self.query, self.key, self.value))
        return varlen_attn(*flat, self.edges, self.edges, length, length, window_size=(-1, 0)).view_as(self.query)

    def both(self, work: Callable[[], Tensor]) -> None:
        self.query.grad = self.key.grad = self.value.grad = None
        work().backward(self.gradient)

    def report(self, name: str, work: Callable[[], Tensor], keys: float) -> None:
        try:
            forward, whole = milliseconds(work), milliseconds(partial(self.both, work))
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}")
            return
        tera = 12 * self.query.numel() * keys / whole / 1e9
        print(f"{name}: {forward:.2f}, {whole:.2f} ms ({tera:.0f} TFLOP/s of what is seen)")


SHAPES = ((32, 2048, 6, 6, 128), (16, 2048, 16, 8, 128))


def attention() -> None:
    print("\n## attention; forward and forward+backward in ms")
    for shape in SHAPES:
        one = Attended.drawn(*shape)
        mask = block_mask(one.segments, compiled=True)
        one.report("flex, documents", partial(one.flex, torch.compile(flex_attention), mask), one.keys)
        one.report("spans, documents", one.over_spans, one.keys)
        one.report("varlen (FlashAttention 2), documents", one.varlen, one.keys)
        one.report("sdpa (cuDNN), rows", one.sdpa, (shape[1] + 1) / 2)
        one.compare(partial(one.flex, torch.compile(flex_attention), mask), one.over_spans)


def tuning() -> None:
    """FlexAttention's tiles; the autotuner prints what it tried."""
    for shape in SHAPES:
        one = Attended.drawn(*shape)
        for block in (128, 64):
            torch._dynamo.reset()
            mask = block_mask(one.segments, compiled=True, block=block)
            tuned = torch.compile(flex_attention, mode="max-autotune-no-cudagraphs", dynamic=False)
            one.report(f"flex tuned, blocks of {block}", partial(one.flex, tuned, mask), one.keys)


KERNELS = {"FORWARD": "_forward_kernel", "OF_QUERIES": "_of_queries_kernel", "OF_KEYS": "_of_keys_kernel"}
TILINGS: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "FORWARD": (
        (64, 64, 4, 3), (64, 64, 4, 2), (128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2), (64, 32, 4, 3),
    ),
    "OF_QUERIES": (
        (64, 64, 4, 1), (64, 64, 4, 2), (128, 64, 8, 1), (128, 64, 8, 2), (64, 32, 4, 2), (128, 32, 8, 2),
    ),
    "OF_KEYS": (
        (64, 64, 4, 2), (64, 64, 4, 1), (64, 128, 8, 1), (64, 128, 8, 2), (32, 64, 4, 2), (32, 128, 8, 2),
    ),
}  # fmt: skip
"""Queries, keys, warps and stages that `tilings` tries for each kernel of `trainer.network.spans`."""
TILED = ((*SHAPES[0], 400), (*SHAPES[1], 400), (32, 2048, 4, 4, 128, 900))
"""Shapes, and the median length of their documents."""


def tilings(names: str = "") -> None:
    """Times each kernel of `trainer.network.spans` with other tiles, by the device's clock."""
    shapes = [Attended.drawn(*shape) for shape in TILED]
    kept = [(one, spans.spans(one.segments)) for one in shapes]
    saved = [spans._attended(one.query, one.key, one.value, *seen) for one, seen in kept]
    for name in names.split(",") if names else TILINGS:
        in_use = getattr(spans, name)
        found = []
        for numbers in TILINGS[name]:
            tiling = spans.Tiling(*numbers)
            setattr(spans, name, tiling)
            try:
                found.append(([_of_kernel(name, *pair) for pair in zip(kept, saved, strict=True)], tiling))
            except Exception as error:
                print(f"{name} {tuple(tiling)}: {type(error).__name__}: {str(error)[:120]}", flush=True)
        setattr(spans, name, in_use)
        for took, tiling in sorted(found):
            print(f"{name} {tuple(tiling)}: {', '.join(f'{ms:.3f}' for ms in took)} ms", flush=True)


def _of_kernel(name: str, kept: tuple[Attended, spans.Spans], saved: tuple[Tensor, Tensor], repeats: int = 8) -> float:
    one, seen = kept
    if name == "FORWARD":
        work = partial(spans._attended, one.query, one.key, one.value, *seen)
    else:
        work = partial(spans._attended_backward, one.gradient, one.query, one.key, one.value, *saved, *seen)
    with torch.no_grad():
        work()
        times = kernels_of(lambda: [work() for _ in range(repeats)])[KERNELS[name]]
    return float(np.median(times))


def loss() -> None:
    print(f"\n## head and loss, 65,536 x 768, vocabulary {VOCABULARY:,}: forward+backward in ms")
    stream = torch.randn(65536, 768, device=CUDA, dtype=torch.bfloat16, requires_grad=True)
    weight = (torch.randn(VOCABULARY, 768, device=CUDA) * 0.02).requires_grad_()
    targets = torch.randint(0, VOCABULARY, (65536,), device=CUDA)

    def nats(stream: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return token_nats(F.linear(stream, weight), targets)

    def run(function: Callable[..., Any], chunk: int = 65536) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            parts = zip(stream.split(chunk), targets.split(chunk), strict=True)
            if chunk == len(targets):
                total = function(stream, weight, targets)[0].sum()
            else:
                total = torch.stack([checkpoint(function, s, weight, t, use_reentrant=False)[0].sum() for s, t in parts]).sum()
        total.backward()
        stream.grad = weight.grad = None

    def plain(stream: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor]:
        return (F.cross_entropy(F.linear(stream, weight).float(), targets, reduction="none"),)

    product = milliseconds(partial(F.linear, stream.detach(), weight.detach().bfloat16()))
    print(f"three products: {3 * product:.2f}")
    print(f"fused: {milliseconds(partial(run, nats)):.2f}")
    print(f"fused, chunks of 8192: {milliseconds(partial(run, nats, 8192)):.2f}")
    print(f"cross entropy, compiled: {milliseconds(partial(run, torch.compile(plain))):.2f}")


PARITY: tuple[tuple[str, dict[str, Any], bool], ...] = (
    ("small", {"layers": 4, "kv_heads": 3}, False),
    ("speedrun", {"layers": 4, "window": 256}, False),
    ("speedrun", {"layers": 4, "window": 256}, True),
)
"""Presets, changes to them, and whether squared ReLU is within the products (in bfloat16 only)."""


def parity() -> None:
    """Loss and gradients of the fused kernels beside those of the plain operations."""
    print("\n## fused kernels beside plain operations, 4 layers")
    for preset, changes, products in PARITY:
        for dtype in (torch.float32, torch.bfloat16):
            _parity(preset, changes, products, dtype)
    fused.AVAILABLE, fused.PRODUCTS = True, True


def _parity(preset: str, changes: dict[str, Any], products: bool, dtype: torch.dtype) -> None:
    found: list[dict[str, Tensor]] = []
    for available in (False, True):
        fused.AVAILABLE, fused.PRODUCTS = available, available and products
        network = GPT(PRESETS[preset].build(VOCABULARY, **changes)).to(CUDA)
        network.initialise(0)
        random = torch.Generator(CUDA).manual_seed(1)
        with torch.no_grad():  # some weights begin as zero, and nothing would come through them
            for parameter in network.parameters():
                parameter.add_(torch.randn(parameter.shape, device=CUDA, generator=random), alpha=0.02)
        tokens = torch.randint(0, VOCABULARY, (4, 512), device=CUDA, generator=random)
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            nats, squares = network(tokens, None, tokens.roll(-1, 1))
        (nats.mean() + 1e-4 * squares.mean()).backward()
        found.append({"nats": nats.detach(), **{name: p.grad for name, p in network.named_parameters() if p.grad is not None}})
    plain, ours = found
    off = {name: ((ours[name] - plain[name]).norm() / plain[name].norm()).item() for name in plain}
    worst = max(off, key=off.__getitem__)
    most = (ours["nats"] - plain["nats"]).abs().max().item()
    print(
        f"{preset}{', products' if products else ''}, {dtype}: nats differ by at most {most:.1e}; gradients by {off[worst]:.1e} "
        f"of their norm at most ({worst})", flush=True,
    )  # fmt: skip


@dataclass
class Step:
    """A model with its optimiser, and a micro-batch of made-up tokens."""

    spread: Spread
    optimiser: torch.optim.Optimizer
    tokens: Tensor
    segments: Tensor
    masked: bool

    @classmethod
    def of(cls, preset: str, changes: dict[str, Any], masked: bool, micro: int, recompute: Recompute) -> Step:
        architecture = PRESETS[preset].build(VOCABULARY, **changes)
        with mock.patch.object(GPT, "initialise", drawn_on_device):  # the CPU would draw billions for minutes
            spread = Spread(architecture, ALONE, CUDA, "bfloat16", 0, recompute=recompute, compiled=True)
        spread.start()
        length = PRESETS[preset].sequence_length
        tokens = torch.randint(0, VOCABULARY, (micro, length), device=CUDA)
        segments = torch.tensor(made_up_segments(micro, length), device=CUDA)
        step = cls(spread, build_adamw(spread.model, 1e-4, 0.1), tokens, segments, masked)
        spread.begin()
        return step

    def micro_batch(self) -> None:
        mask = row_masks(self.spread.model.architecture, self.segments, self.masked, half=True)
        with torch.autocast("cuda", torch.bfloat16):
            nats, _ = self.spread.forward(self.tokens, mask, self.tokens)
        nats.mean().backward()

    def both(self) -> None:
        self.micro_batch()
        self.update()

    def update(self) -> None:
        """With what the next step begins with."""
        self.spread.clip(1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=False)
        self.spread.begin()


def model(preset: str, changes: dict[str, Any], masked: bool, micro: int, recompute: Recompute) -> None:
    torch._dynamo.reset()
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    step = Step.of(preset, changes, masked, micro, recompute)
    step.micro_batch()
    step.update()
    step.micro_batch()
    torch.cuda.synchronize()
    preparing = time.perf_counter() - began
    took, update = milliseconds(step.micro_batch), milliseconds(step.update)
    rate = step.tokens.numel() / took * 1e3
    architecture, length = step.spread.model.architecture, step.tokens.shape[1]
    peak = peak_flops(torch.cuda.get_device_name(), "bfloat16") or float("nan")
    palm = rate * palm_flops_per_token(architecture, length) / peak
    causal = rate * causal_flops_per_token(architecture, (length + 1) / 2) / peak
    seen = mean_keys([np.diff(boundaries(step.segments.cpu().numpy()))]) if masked else (length + 1) / 2
    computed = rate * causal_flops_per_token(architecture, seen) / peak
    whole = SEVERAL * took / (SEVERAL * took + update)
    print(
        f"\n## {preset} {changes} {'documents' if masked else 'rows'} x {micro}, recompute {recompute}: "
        f"{took:.1f} ms, update {update:.1f} ms apart, "
        f"{rate:,.0f} tok/s, MFU {palm:.1%} palm, {causal:.1%} causal, {computed:.1%} of what "
        f"masks leave (of a step of {SEVERAL} and an update "
        f"{palm * whole:.1%}, {causal * whole:.1%}); {torch.cuda.max_memory_allocated() / 1e9:.0f} GB; "
        f"ready after {preparing:.0f} s"
    )
    show_kernels(kernels_of(step.both))
    torch.cuda.empty_cache()


def models(names: str = "") -> None:
    for name in (names or "small-documents-32,small-rows-32,1b-documents-16,1b-documents-33").split(","):
        preset, kind, micro, *again = name.split("-")
        model(preset, {}, kind == "documents", int(micro), cast(Recompute, again[0] if again else "none"))


@dataclass(frozen=True)
class Variant:
    """A way to run the preset `speedrun`. `compiler` goes to torch.compile, `settings` to the compiler's own."""

    masked: bool = True
    micro: int = 128
    changes: dict[str, Any] = field(default_factory=dict)
    compiler: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    loss_chunk: int = 0
    products: bool = True
    spans: bool = True


WINDOW = 1_024
"""Half a row, as autoresearch has it."""
WHOLE: dict[str, Any] = {"windows": "", "window": 0}
TUNED: dict[str, Any] = {"mode": "max-autotune-no-cudagraphs"}
PERSISTENT: dict[str, Any] = {"triton.enable_persistent_tma_matmul": True}
VARIANTS: dict[str, Variant] = {
    "documents": Variant(),
    "rows": Variant(masked=False),
    "documents-whole": Variant(changes=WHOLE),
    "rows-whole": Variant(masked=False, changes=WHOLE),
    "documents-blocks": Variant(spans=False),
    "documents-whole-blocks": Variant(changes=WHOLE, spans=False),
    "documents-no-products": Variant(products=False),
    "documents-64": Variant(micro=64),
    "documents-tuned": Variant(compiler=TUNED),
    "documents-tuned-persistent": Variant(compiler=TUNED, settings=PERSISTENT),
    "rows-whole-tuned-persistent": Variant(masked=False, changes=WHOLE, compiler=TUNED, settings=PERSISTENT),
    "documents-coordinates": Variant(settings={"coordinate_descent_tuning": True}),
    "documents-chunked-loss": Variant(loss_chunk=65_536),
    # what each option costs
    "no-values": Variant(changes={"value_embeddings": False}),
    "no-lambdas": Variant(changes={"lambdas": False}),
    "no-cap": Variant(changes={"soft_cap": 0.0}),
    "gains": Variant(changes={"norm_gains": True}),
    "swiglu": Variant(changes={"feed": "swiglu", "hidden": 1_408}),
    "short-window": Variant(changes={"window": 512}),
}
SPEEDRUN_VOCABULARY = 8_192
AUTORESEARCH_BATCH = 524_288
SECONDS = 480
"""After which no other variant begins: a call to a lent machine ends at 600."""
REFERENCE = 1.63e6
"""Tokens/s of autoresearch's own script on one H200 with SDPA and full windows."""


def speedrun(names: str = "") -> None:
    print(
        "\n## speedrun, vocabulary 8,192: ms of a micro-batch's forward and backward, and of the update; a step's tokens/s, "
        f"beside {REFERENCE / 1e6:.2f}M; MFU palm / causal-exact", flush=True,
    )  # fmt: skip
    began = time.perf_counter()
    for name in names.split(",") if names else VARIANTS:
        if time.perf_counter() - began > SECONDS:
            print(f"{name}: not begun after {SECONDS} s", flush=True)
            continue
        try:
            _speedrun(name, VARIANTS[name], shown=name in ("documents", "rows-whole") or bool(names))
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:400]}", flush=True)
        finally:
            torch.cuda.empty_cache()
    try:
        _muon()
    except Exception as error:
        print(f"muon: {type(error).__name__}: {str(error)[:400]}", flush=True)


def _speedrun(name: str, variant: Variant, shown: bool) -> None:
    torch._dynamo.reset()
    torch.cuda.reset_peak_memory_stats()
    fused.PRODUCTS = variant.products
    preset, began = PRESETS["speedrun"], time.perf_counter()
    length = preset.sequence_length
    network = GPT(preset.build(SPEEDRUN_VOCABULARY, **{"window": WINDOW, **variant.changes}), variant.loss_chunk).to(CUDA)
    network.initialise(0)
    optimiser = build_optimiser("muon", network, preset.muon_rate, preset.weight_decay, compiled=True)
    tokens = torch.randint(0, SPEEDRUN_VOCABULARY, (variant.micro, length), device=CUDA)
    made_up = made_up_segments(variant.micro, length)
    segments = torch.tensor(made_up, device=CUDA)
    with torch._inductor.config.patch(variant.settings):
        compiled = torch.compile(network, **variant.compiler)

        def micro_batch() -> None:
            mask = row_masks(network.architecture, segments, variant.masked, half=variant.spans)
            with torch.autocast("cuda", torch.bfloat16):
                nats, _ = compiled(tokens, mask, tokens)
            nats.mean().backward()

        def update() -> None:
            torch.nn.utils.clip_grad_norm_(network.parameters(), float("inf"))
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

        for _ in range(2):
            micro_batch()
            micro_batch()
            update()
        torch.cuda.synchronize()
        preparing = time.perf_counter() - began
        several = AUTORESEARCH_BATCH // tokens.numel()

        def step() -> None:
            for _ in range(several):
                micro_batch()
            update()

        whole = milliseconds(step, repeats=8, warm=2)
        each = milliseconds(micro_batch)
        of_update = max(0.0, whole - several * each)
    sizes = np.diff(boundaries(made_up)).astype(np.int64) if variant.masked else np.array([length])
    rate = AUTORESEARCH_BATCH / whole * 1e3
    a, peak = network.architecture, peak_flops(torch.cuda.get_device_name(), "bfloat16") or float("nan")
    palm = rate * palm_flops_per_token(a, length) / peak
    causal = rate * causal_flops_per_token(a, mean_keys([sizes]), mean_keys([sizes], a.window)) / peak
    print(
        f"{name}: {each:.1f} ms x {several}, update {of_update:.1f}: {rate:,.0f} tok/s, {rate / REFERENCE:.2f}x, MFU {palm:.1%} "
        f"/ {causal:.1%}; {torch.cuda.max_memory_allocated() / 1e9:.0f} GB; ready after {preparing:.0f} s", flush=True,
    )  # fmt: skip
    if shown:
        show_kernels(kernels_of(step))


def _muon() -> None:
    """The polar factors of the preset's matrices alone, eager and compiled."""
    stacks = [torch.randn(32, 512, 512, device=CUDA), torch.randn(8, 2_048, 512, device=CUDA)]
    for name, function in (("eager", polar), ("compiled", torch.compile(polar, dynamic=False))):

        def both(function: Any = function) -> None:
            for stack in stacks:
                function(stack, torch.bfloat16)

        print(f"polar factors of 32 x 512x512 and 8 x 2048x512, {name}: {milliseconds(both):.2f} ms", flush=True)


def kernels_of(work: Callable[[], Any]) -> dict[str, list[float]]:
    """Milliseconds of each kernel's calls."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    kernels: dict[str, list[float]] = defaultdict(list)
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kernels[event.name].append(event.device_time_total / 1e3)
    return kernels


def show_kernels(kernels: dict[str, list[float]]) -> None:
    if kernels:
        print(f"kernels: {sum(map(sum, kernels.values())):.1f} ms")
    for name, times in sorted(kernels.items(), key=lambda item: -sum(item[1]))[:SHOWN]:
        print(f"{sum(times):8.2f} ms x{len(times):<4} {name[:150]}")


PARTS: dict[str, Callable[..., None]] = {
    "matmul": matmul, "products": products, "attention": attention, "tuning": tuning, "loss": loss, "parity": parity,
    "model": models, "speedrun": speedrun, "tilings": tilings,
}  # fmt: skip

if __name__ == "__main__":
    if not torch.cuda.is_available():
        raise SystemExit(f"{__doc__}\nA GPU is needed. Parts: {', '.join(PARTS)}")
    torch.set_float32_matmul_precision("high")
    print(torch.__version__, torch.cuda.get_device_name(), torch.backends.cudnn.version())
    for part in sys.argv[1:] or PARTS:
        try:
            name, _, chosen = part.partition("=")
            PARTS[name](*([chosen] if chosen else []))
        except Exception:
            traceback.print_exc()
