"""Measures the Triton kernels on the shapes of Llama-3.1-8B against what the memory and cuBLAS reach; run by hand on a GPU.

    PYTHONPATH=. python tests/bench/bench_kernels.py [--sweep] [--rival FILE] [decode] [prefill] [linear] [many] [step] [small]

All times are medians of replays of a CUDA graph. Each decode case goes over 32 layers' own pages, each projection over copies
of its weight, so that the L2 does not help. Errors are against float32. `--sweep` tries other tilings, compiled beforehand by a
process a core; `--rival` measures another file's `attend_decodes` beside ours.
"""

import argparse
import importlib.util
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from pipelines.kernels.attention_plan import SplitRule, StepLimits, StepRows, WorkLists, plan_attention
from pipelines.kernels.attention_shape import AttentionShape, DecodeTiling, PrefillTiling
from pipelines.kernels.decode_attention import DecodeScratch, attend_decodes
from pipelines.kernels.elementwise import add_rms_norm, silu_and_mul
from pipelines.kernels.greedy import GreedyScratch, sample_greedy
from pipelines.kernels.linear import Epilogue, LinearScratch, Residual, RowScale, skinny_linear
from pipelines.kernels.linear_tiling import LinearTiling
from pipelines.kernels.prefill_attention import attend_chunks
from pipelines.kernels.rope import TokenPlaces, rotate_and_cache, rotation_table
from pipelines.kernels.step_inputs import SeatState, StagedStep, StepInputs, begin_step

DEVICE = torch.device("cuda:0")
BF16 = torch.bfloat16
LAYERS, HEADS, KV_HEADS, HEAD, HIDDEN, INTER, VOCAB = 32, 32, 8, 128, 4096, 14336, 128256
QKV = (HEADS + 2 * KV_HEADS) * HEAD
WEIGHTS = {
    "qkv": (QKV, HIDDEN, False),
    "o": (HIDDEN, HIDDEN, False),
    "gate_up": (2 * INTER, HIDDEN, False),
    "gate_up+silu": (2 * INTER, HIDDEN, True),
    "down": (HIDDEN, INTER, False),
    "lm_head": (VOCAB, HIDDEN, False),
}
LAYER_WEIGHTS = ("qkv", "o", "gate_up+silu", "down")
DECODE_CASES = ((1, 1168), (32, 1024), (32, 4096), (32, 8192), (256, 1168))
PREFILL_CASES = ((1, 4096, 4096), (8, 512, 512), (1, 4096, 16384))
STEP_CASES = ((32, 4096), (1, 1168), (8, 1168), (32, 1168), (64, 1168), (128, 1168))
MANY_TOKENS = (128, 192, 256, 320, 384, 448, 512, 576, 640, 768, 1024, 2048)
EPSILON = 1e-5
READ_TERABYTES = 4.66  # a second, of a read-only stream on an H200
WRONG = 0.01  # an error above is no rounding


def time_graph(launch: Callable[[], object], repeats: int = 7) -> float:
    """Return the median milliseconds of one replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    graph.replay()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[repeats // 2]


def microseconds(launch: Callable[[], object], count: int = 64) -> float:
    """Return the time of one of many launches in a row, so that their boundaries count as they do in a step."""
    return time_graph(lambda: [launch() for _ in range(count)]) / count * 1e3


def error(output: Tensor, reference: Tensor) -> float:
    return float((output.float() - reference.float()).norm() / reference.float().norm())


@dataclass(frozen=True)
class Result:
    """One way to cut a kernel, measured."""

    milliseconds: float
    wrong: float
    cut: Any


def measure_all(what: str, cuts: Sequence[Any], run: Callable[[Any], tuple[float, float]]) -> list[Result]:
    """Measure every cut that fits; the default comes first, then the others, the fastest first."""
    results = []
    for cut in cuts:
        try:
            results.append(Result(*run(cut), cut))
        except Exception as problem:  # noqa: BLE001  a cut that does not fit is a line of the table
            print(f"{what} {cut}: {str(problem).splitlines()[0][:90]}", flush=True)
    return [*results[:1], *sorted(results[1:], key=lambda result: result.milliseconds)]


def show(what: str, results: Sequence[Result], rate: Callable[[float], str], most: int = 4) -> None:
    for index, result in enumerate(results[: most + 1]):
        verdict = f"error {result.wrong:.1e}" if result.wrong < WRONG else f"WRONG by {result.wrong:.1e}"
        mark = " " if index else "*"
        print(f"{mark} {what}: {result.milliseconds * 1e3:.1f} us {rate(result.milliseconds)} {verdict} [{result.cut}]")
    sys.stdout.flush()


def shape_of(page_size: int) -> AttentionShape:
    return AttentionShape(HEADS, KV_HEADS, HEAD, HEAD, page_size, HEAD**-0.5, BF16)


@dataclass(frozen=True)
class Pages:
    """Random pages of some layers, and tables over them."""

    keys: list[Tensor]
    values: list[Tensor]
    page_size: int

    @classmethod
    def make(cls, num_tokens: int, layers: int, page_size: int = 64) -> "Pages":
        size = (num_tokens // page_size + 1, page_size, KV_HEADS, HEAD)
        kinds = [[torch.empty(size, device=DEVICE, dtype=BF16).normal_() for _ in range(layers)] for _ in range(2)]
        return cls(*kinds, page_size)

    def tables(self, batch: int, context: int) -> Tensor:
        blocks = -(-context // self.page_size)
        order = torch.randperm(self.keys[0].shape[0], device=DEVICE)[: batch * blocks]
        return order.view(batch, blocks).int().contiguous()


def rows_of(batch: int, num_tokens: int, context: int) -> StepRows:
    def filled(value: int) -> Tensor:
        return torch.full((batch,), value, dtype=torch.int32, device=DEVICE)

    index = torch.arange(batch, dtype=torch.int32, device=DEVICE)
    return StepRows(index * num_tokens, filled(num_tokens), filled(context), index)


def attend_reference(keys: Tensor, values: Tensor, table: Tensor, query: Tensor, context: int) -> Tensor:
    """Return the attention of one row's last tokens, [n, N, H] float32; `query` is [n, N, H]."""
    every_key = keys[table.long()].flatten(0, 1)[:context].float().transpose(0, 1)
    every_value = values[table.long()].flatten(0, 1)[:context].float().transpose(0, 1)
    at_query = torch.arange(context - query.shape[0], context, device=DEVICE)[:, None]
    hidden = torch.arange(context, device=DEVICE)[None] > at_query
    bias = torch.zeros(hidden.shape, device=DEVICE).masked_fill_(hidden, float("-inf"))
    asked = query.float().transpose(0, 1)
    output = F.scaled_dot_product_attention(asked, every_key, every_value, attn_mask=bias, enable_gqa=True)
    return output.transpose(0, 1)


@dataclass(frozen=True)
class DecodeCut:
    """One way to cut the decode kernel."""

    tiling: DecodeTiling
    rule: SplitRule
    rival: str | None = None  # file of another implementation

    def __str__(self) -> str:
        tiling, rule = self.tiling, self.rule
        return (
            f"n{tiling.block_n} w{tiling.num_warps} s{tiling.num_stages} p{tiling.programs_per_processor} "
            f"r{tiling.max_registers} splits {rule.smallest}..{rule.wide} x {rule.few}..{rule.most}"
            f"{' rival' if self.rival else ''}"
        )

    @property
    def attend(self) -> Callable[..., None]:
        if self.rival is None:
            return attend_decodes
        spec = importlib.util.spec_from_file_location("rival", self.rival)
        if spec is None or spec.loader is None:
            raise FileNotFoundError(self.rival)
        module = sys.modules.get("rival") or importlib.util.module_from_spec(spec)
        if "rival" not in sys.modules:
            sys.modules["rival"] = module
            spec.loader.exec_module(module)
        attend: Callable[..., None] = module.attend_decodes
        return attend


def default_decode() -> DecodeCut:
    return DecodeCut(DecodeTiling.choose(shape_of(64), DEVICE), SplitRule())


def decode_cuts(rival: str | None, *, sweep: bool) -> list[DecodeCut]:
    """What is measured; fewer programs with less in flight have been faster than more."""
    default = default_decode()
    rivals = [None, rival] if rival else [None]
    if not sweep:
        return [DecodeCut(default.tiling, default.rule, each) for each in rivals]
    tilings = [
        DecodeTiling(*cut)
        for cut in (
            (64, 4, 3, 1),
            (64, 4, 4, 1),
            (64, 4, 5, 1),
            (64, 4, 2, 2),
            (64, 4, 3, 2),
            (64, 4, 2, 3),
            (32, 4, 4, 2),
            (32, 4, 4, 3),
            (32, 4, 6, 2),
            (128, 4, 2, 1),
            (128, 4, 2, 2),
            (128, 8, 3, 1),
        )
    ]
    rules = [SplitRule(512, 1024, 8, 32), SplitRule(256, 1024, 8, 32), SplitRule(256, 512, 8, 32)]
    return [default, *(DecodeCut(*cut) for cut in itertools.product(tilings, rules, rivals))]


def run_decode(pages: Pages, batch: int, context: int, cut: DecodeCut, repeats: int = 7) -> tuple[float, float]:
    """Return milliseconds over all layers, and the largest error of three rows."""
    shape = shape_of(pages.page_size)
    limits = StepLimits(batch, batch, context)
    num_lanes = cut.tiling.num_lanes(shape, DEVICE)
    lists = WorkLists.allocate(limits, None, 1, DEVICE, cut.rule, num_lanes=num_lanes, turn=cut.tiling.block_n)
    scratch = DecodeScratch.allocate(lists.decodes.shape[0], HEADS, HEAD, DEVICE)
    tables = pages.tables(batch, context)
    plan_attention(rows_of(batch, 1, context), lists)
    query = torch.randn((batch, HEADS, HEAD), device=DEVICE, dtype=BF16)
    output = torch.full_like(query, float("nan"))
    others = (tables, lists, scratch, output, shape, cut.tiling)

    def attend(keys: Tensor, values: Tensor) -> None:
        cut.attend(query, keys, values, *others, num_rows=batch, dependent=True)

    torch.cuda.synchronize()
    attend(pages.keys[0], pages.values[0])
    wrong = max(
        error(
            output[row : row + 1],
            attend_reference(pages.keys[0], pages.values[0], tables[row], query[row : row + 1], context),
        )
        for row in {0, batch // 2, batch - 1}
    )
    return time_graph(lambda: [attend(*kv) for kv in zip(pages.keys, pages.values, strict=True)], repeats), wrong


def warm_decode(cut: DecodeCut) -> None:
    run_decode(Pages.make(4096, 1), 2, 600, cut, repeats=1)


def bench_decode(cuts: Sequence[DecodeCut]) -> None:
    pages = Pages.make(max(batch * (context + 64) for batch, context in DECODE_CASES), LAYERS)
    products: dict[DecodeCut, float] = {}
    for batch, context in DECODE_CASES:
        moved = LAYERS * 2 * batch * context * KV_HEADS * HEAD * 2 / 1e9
        what = f"decode, 32 layers, batch {batch} context {context}"
        results = measure_all(what, cuts, partial(run_decode, pages, batch, context))
        show(what, results, lambda milliseconds: f"{moved / milliseconds:.2f} TB/s")  # noqa: B023  called at once
        for result in results:
            products[result.cut] = products.get(result.cut, 1.0) * result.milliseconds
    for cut in sorted(products, key=products.__getitem__)[:5] if len(cuts) > 1 else ():
        print(f"decode, product of all cases: {products[cut]:.1f} [{cut}]")


def prefill_cuts(*, sweep: bool) -> list[PrefillTiling]:
    default = PrefillTiling.choose(shape_of(64), DEVICE)
    others = ((128, 64, 8, 2, 1), (128, 64, 8, 4, 1), (128, 128, 8, 2, 1), (64, 64, 4, 3, 2), (64, 64, 4, 2, 2))
    return [default, *(PrefillTiling(*cut) for cut in others)] if sweep else [default]


def run_prefill(pages: Pages, batch: int, num_tokens: int, context: int, cut: PrefillTiling) -> tuple[float, float]:
    """Return milliseconds a layer, and the error of one row."""
    shape = shape_of(pages.page_size)
    limits = StepLimits(batch, batch * num_tokens, context)
    tile_tokens = cut.tile_tokens(shape)
    lists = WorkLists.allocate(limits, None, tile_tokens, DEVICE, num_lanes=1)
    tables = pages.tables(batch, context)
    plan_attention(rows_of(batch, num_tokens, context), lists)
    query = torch.randn((batch * num_tokens, HEADS, HEAD), device=DEVICE, dtype=BF16)
    output = torch.full_like(query, float("nan"))

    def launch() -> None:
        for keys, values in zip(pages.keys, pages.values, strict=True):
            attend_chunks(query, keys, values, tables, lists, output, shape, cut)

    launch()
    own = query[:num_tokens]
    wrong = error(output[:num_tokens], attend_reference(pages.keys[-1], pages.values[-1], tables[0], own, context))
    return time_graph(launch) / len(pages.keys), wrong


def warm_prefill(cut: PrefillTiling) -> None:
    run_prefill(Pages.make(4096, 1), 1, 100, 200, cut)


def bench_prefill(cuts: Sequence[PrefillTiling]) -> None:
    pages = Pages.make(20000, 4)
    for batch, num_tokens, context in PREFILL_CASES:
        operations = 4 * batch * num_tokens * (context - (num_tokens - 1) / 2) * HEADS * HEAD / 1e9
        what = f"prefill of a layer, {batch} x {num_tokens} tokens to context {context}"
        results = measure_all(what, cuts, partial(run_prefill, pages, batch, num_tokens, context))
        show(what, results, lambda milliseconds: f"{operations / milliseconds:.0f} TFLOP/s")  # noqa: B023  called at once


def linear_cuts(name: str, num_tokens: int, *, sweep: bool) -> list[LinearTiling]:
    num_rows, size, is_gated = WEIGHTS[name]
    cuts = [LinearTiling.choose(num_rows, size, num_tokens, is_gated=is_gated)]
    blocks = ((64, 128, 4), (64, 64, 4), (64, 256, 4), (128, 64, 8), (128, 128, 8))
    for (block_n, block_k, warps), splits in itertools.product(blocks if sweep else (), (1, 2, 4)):
        units = splits * num_rows // (block_n * (2 if is_gated else 1))
        if 90 <= units <= (2100 if splits == 1 else 400):
            cuts += [
                LinearTiling(block_n, block_k, splits, warps, sharers, is_gated, max(128, block_k))
                for sharers in (1, 2, 3)
            ]
    return cuts


def linear_launch(
    weights: Sequence[Tensor], num_tokens: int, cut: LinearTiling, *, dependent: bool
) -> tuple[Callable[[], None], tuple[Tensor, Tensor]]:
    """Return what goes over all weights, its tokens and its output."""
    num_rows, size = weights[0].shape
    tokens = torch.randn((num_tokens, size), device=DEVICE, dtype=BF16)
    scratch = LinearScratch.allocate(cut.num_sums(num_rows, num_tokens), cut.num_tiles(num_rows, num_tokens), DEVICE)
    width = num_rows // 2 if cut.is_gated else num_rows
    output = torch.full((num_tokens, width), float("nan"), device=DEVICE, dtype=BF16)
    epilogue = Epilogue.SILU if cut.is_gated else Epilogue.PLAIN

    def launch() -> None:
        for weight in weights:
            skinny_linear(tokens, weight, output, scratch, cut, epilogue, dependent=dependent)

    return launch, (tokens, output)


def run_linear(
    weights: Sequence[Tensor], num_tokens: int, cut: LinearTiling, *, dependent: bool = False
) -> tuple[float, float]:
    """Return milliseconds a projection, and the error."""
    launch, (tokens, output) = linear_launch(weights, num_tokens, cut, dependent=dependent)
    launch()
    expected = tokens.float() @ weights[-1].float().T
    if cut.is_gated:
        gate, up = expected.chunk(2, dim=1)
        expected = F.silu(gate) * up
    return time_graph(launch) / len(weights), error(output, expected)


def weights_of(name: str, num_bytes: float = 1.2e9) -> list[Tensor]:
    num_rows, size, _ = WEIGHTS[name]
    copies = max(2, int(num_bytes // (num_rows * size * 2))) if num_bytes > 1 else 1
    return [torch.empty((num_rows, size), device=DEVICE, dtype=BF16).normal_(0, 0.02) for _ in range(copies)]


def warm_linear(name: str, num_tokens: int, cut: LinearTiling, dependent: bool) -> None:
    linear_launch(weights_of(name, 1), num_tokens, cut, dependent=dependent)[0]()
    torch.cuda.synchronize()


def time_cublas(weights: Sequence[Tensor], num_tokens: int) -> float:
    tokens = torch.randn((num_tokens, weights[0].shape[1]), device=DEVICE, dtype=BF16)
    return time_graph(lambda: [F.linear(tokens, weight) for weight in weights]) / len(weights)


def bench_linear(*, sweep: bool) -> None:
    for name in WEIGHTS:
        bench_projection(name, weights_of(name), sweep=sweep)
        torch.cuda.empty_cache()


def bench_projection(name: str, weights: Sequence[Tensor], *, sweep: bool) -> None:
    moved = weights[0].numel() * 2 / 1e9
    for num_tokens in (32, 64, 128) if sweep else ():
        what = f"projection {name}, {num_tokens} tokens, dependent"
        cuts = linear_cuts(name, num_tokens, sweep=True)
        results = measure_all(what, cuts, partial(run_linear, weights, num_tokens, dependent=True))
        show(what, results, lambda milliseconds: f"{moved / milliseconds:.2f} TB/s", 6)
    for num_tokens in (1, 8, 32, 64, 128):
        cut = linear_cuts(name, num_tokens, sweep=False)[0]
        own, wrong = run_linear(weights, num_tokens, cut)
        chained, _ = run_linear(weights, num_tokens, cut, dependent=True)
        print(
            f"projection {name}, {num_tokens} tokens: cuBLAS {moved / time_cublas(weights, num_tokens):.2f}, "
            f"ours {moved / own:.2f}, dependent {moved / chained:.2f} TB/s; error {wrong:.1e}",
            flush=True,
        )


def bench_many() -> None:
    """What cuBLAS makes of steps that prompts fill: a layer's products by the number of tokens."""
    weights = {name: weights_of(name) for name in ("qkv", "o", "gate_up", "down")}
    for num_tokens in MANY_TOKENS:
        times = {name: time_cublas(each, num_tokens) for name, each in weights.items()}
        rates = {
            name: 2 * num_tokens * each[0].numel() / times[name] / 1e9 for name, each in weights.items()
        }  # a millisecond of one product
        whole = sum(times.values())
        shown = ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
        print(
            f"many, {num_tokens} tokens: {shown} TFLOP/s; {LAYERS * whole / num_tokens * 1e3:.1f} us a token in 32 layers",
            flush=True,
        )


class StepBench:
    """A whole decode step of random weights: seven kernels a layer, the norms inside of the projections."""

    def __init__(self, batch: int, context: int, weights: list[dict[str, Tensor]], lm_head: Tensor) -> None:
        self.batch, self.weights, self.lm_head = batch, weights, lm_head
        self.pages = Pages.make(batch * (context + 64), len(weights))
        self.rows = rows_of(batch, 1, context)
        index = self.rows.seats
        self.shape, self.tiling = shape_of(64), DecodeTiling.choose(shape_of(64), DEVICE)
        limits, num_lanes = StepLimits(batch, batch, context), self.tiling.num_lanes(self.shape, DEVICE)
        self.lists = WorkLists.allocate(limits, None, 1, DEVICE, num_lanes=num_lanes, turn=self.tiling.block_n)
        self.meeting = DecodeScratch.allocate(self.lists.decodes.shape[0], HEADS, HEAD, DEVICE)
        self.places = TokenPlaces(index * 0 + context - 1, index, self.pages.tables(batch, context))
        self.table = rotation_table(torch.rand(HEAD // 2, device=DEVICE), context)
        self.cuts = {name: linear_cuts(name, batch, sweep=False)[0] for name in WEIGHTS}
        self.scratch = LinearScratch.allocate(
            max(cut.num_sums(WEIGHTS[name][0], batch) for name, cut in self.cuts.items()),
            max(cut.num_tiles(WEIGHTS[name][0], batch) for name, cut in self.cuts.items()),
            DEVICE,
        )
        self.gain = torch.ones(HIDDEN, device=DEVICE, dtype=BF16)
        self.hidden, self.scaled = (torch.randn((batch, HIDDEN), device=DEVICE, dtype=BF16) for _ in range(2))
        self.projected = torch.zeros((batch, QKV), device=DEVICE, dtype=BF16)
        self.attended = torch.zeros((batch, HEADS, HEAD), device=DEVICE, dtype=BF16)
        self.gated = torch.zeros((batch, INTER), device=DEVICE, dtype=BF16)
        tiles = {name: self.cuts[name].num_row_tiles(HIDDEN) for name in ("o", "down")}
        self.squares = {name: torch.ones((count, batch), device=DEVICE) for name, count in tiles.items()}
        self.logits = torch.zeros((batch, VOCAB), device=DEVICE, dtype=BF16)
        self.greedy = GreedyScratch.allocate(batch, VOCAB, DEVICE)
        self.count = torch.tensor([batch], dtype=torch.int32, device=DEVICE)
        self.tokens, self.last = index.clone(), torch.zeros(batch, dtype=torch.int64, device=DEVICE)

    def launch(self, *, dependent: bool, with_attention: bool = True) -> None:
        plan_attention(self.rows, self.lists, dependent=dependent)
        for number, weights in enumerate(self.weights):
            self.project("qkv", weights["qkv"], self.scaled, self.projected, dependent, scale="down")
            self.attend(number, dependent, with_attention)
            self.add("o", weights["o"], self.attended.view(self.batch, -1), dependent)
            self.project("gate_up+silu", weights["gate_up+silu"], self.scaled, self.gated, dependent, scale="o")
            self.add("down", weights["down"], self.gated, dependent)
        self.project("lm_head", self.lm_head, self.scaled, self.logits, dependent, scale="down")
        seats = self.rows.seats
        sample_greedy(self.logits, seats, self.count, self.greedy, self.tokens, self.last, dependent=dependent)

    def attend(self, number: int, dependent: bool, with_attention: bool) -> None:
        keys, values = self.pages.keys[number], self.pages.values[number]
        query = self.projected.view(self.batch, -1, HEAD)[:, :HEADS]
        rotate_and_cache(self.projected, self.table, self.places, keys, values, query, dependent=dependent)
        if with_attention:
            others = (self.places.block_tables, self.lists, self.meeting, self.attended, self.shape, self.tiling)
            attend_decodes(query, keys, values, *others, num_rows=self.batch, dependent=dependent)

    def project(
        self, name: str, weight: Tensor, tokens: Tensor, output: Tensor, dependent: bool, *, scale: str
    ) -> None:
        cut = self.cuts[name]
        skinny_linear(
            tokens,
            weight,
            output,
            self.scratch,
            cut,
            Epilogue.SILU if cut.is_gated else Epilogue.PLAIN,
            scale=RowScale(self.squares[scale], HIDDEN, EPSILON),
            dependent=dependent,
        )

    def add(self, name: str, weight: Tensor, tokens: Tensor, dependent: bool) -> None:
        skinny_linear(
            tokens,
            weight,
            self.scaled,
            self.scratch,
            self.cuts[name],
            Epilogue.RESIDUAL_NORM,
            residual=Residual(self.hidden, self.gain, self.squares[name]),
            dependent=dependent,
        )


def step_weights(layers: int) -> tuple[list[dict[str, Tensor]], Tensor]:
    each = [{name: weights_of(name, 1)[0] for name in LAYER_WEIGHTS} for _ in range(layers)]
    return each, weights_of("lm_head", 1)[0]


def warm_step(batch: int, dependent: bool) -> None:
    StepBench(batch, 600, *step_weights(1)).launch(dependent=dependent)
    torch.cuda.synchronize()


def bench_step() -> None:
    weights = step_weights(LAYERS)
    sizes = [WEIGHTS[name][0] * WEIGHTS[name][1] * 2 for name in LAYER_WEIGHTS]
    weight_bytes = LAYERS * sum(sizes) + VOCAB * HIDDEN * 2
    for batch, context in STEP_CASES:
        step = StepBench(batch, context, *weights)
        floor = (weight_bytes + LAYERS * 4 * batch * context * KV_HEADS * HEAD) / READ_TERABYTES / 1e9
        plain, dependent = (time_graph(partial(step.launch, dependent=dependent)) for dependent in (False, True))
        bare = time_graph(partial(step.launch, dependent=True, with_attention=False))
        print(
            f"step, batch {batch} context {context}: {plain:.3f} ms, dependent {dependent:.3f} ms "
            f"(without attention {bare:.3f}); the bytes alone {floor:.3f} ms",
            flush=True,
        )
        del step
        torch.cuda.empty_cache()


def bench_small() -> None:
    for num_tokens, dependent in itertools.product((32, 256, 4096), (False, True)):
        projected = torch.randn((num_tokens, QKV), device=DEVICE, dtype=BF16)
        hidden = torch.randn((num_tokens, HIDDEN), device=DEVICE, dtype=BF16)
        residual, normed = torch.randn_like(hidden), torch.empty_like(hidden)
        gate_up = torch.randn((num_tokens, 2 * INTER), device=DEVICE, dtype=BF16)
        gated = torch.empty((num_tokens, INTER), device=DEVICE, dtype=BF16)
        gain = torch.ones(HIDDEN, device=DEVICE, dtype=BF16)
        pages = Pages.make(num_tokens * 64, 1)
        index = torch.arange(num_tokens, dtype=torch.int32, device=DEVICE)
        places = TokenPlaces(index % 64, index, pages.tables(num_tokens, 64))
        table = rotation_table(torch.rand(HEAD // 2, device=DEVICE), 64)
        query = projected.view(num_tokens, -1, HEAD)[:, :HEADS]
        kv = (pages.keys[0], pages.values[0])
        launches: dict[str, Callable[[], object]] = {
            "rotate_and_cache": partial(rotate_and_cache, projected, table, places, *kv, query, dependent=dependent),
            "add_rms_norm": partial(add_rms_norm, hidden, residual, gain, EPSILON, normed, dependent=dependent),
            "silu_and_mul": partial(silu_and_mul, gate_up, gated, dependent=dependent),
        }
        times = ", ".join(f"{name} {microseconds(launch):.2f} us" for name, launch in launches.items())
        print(f"small, {num_tokens} tokens{', dependent' if dependent else ''}: {times}", flush=True)
    bench_step_kernels()


def bench_step_kernels() -> None:
    rows = rows_of(256, 1, 1168)
    lists = WorkLists.allocate(StepLimits(256, 8192, 8192), None, 32, DEVICE, num_lanes=33)
    print(f"small, plan_attention of 256 rows: {microseconds(partial(plan_attention, rows, lists)):.2f} us")

    def words(count: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.zeros(count, dtype=dtype, device=DEVICE)

    counts = torch.tensor([256, 16, 512], dtype=torch.int32, device=DEVICE)
    staged = StagedStep(counts, *(words(512) for _ in range(10)), words(1024))
    seats = SeatState(
        words(256, torch.int64),
        words(256 * 128).view(256, 128),
        words(256, torch.float32),
        words(256, torch.int64),
        words(256, torch.float32),
        words(256, torch.int64),
    )
    inputs = StepInputs(words(512, torch.int64), words(512), words(512))
    print(f"small, begin_step: {microseconds(partial(begin_step, staged, seats, inputs)):.2f} us")
    for num_rows in (32, 256):
        logits = torch.randn((num_rows, VOCAB), device=DEVICE, dtype=BF16)
        scratch = GreedyScratch.allocate(num_rows, VOCAB, DEVICE)
        index = torch.arange(num_rows, dtype=torch.int32, device=DEVICE)
        count = torch.tensor([num_rows], dtype=torch.int32, device=DEVICE)
        launch = partial(sample_greedy, logits, index, count, scratch, index.clone(), seats.last_tokens)
        plain = microseconds(partial(torch.argmax, logits, -1), 16)
        print(
            f"small, sample_greedy of {num_rows} rows: {microseconds(launch, 16):.2f} us, torch.argmax {plain:.2f} us"
        )


def warm_tasks(parts: set[str], rival: str | None, *, sweep: bool) -> Iterable[Callable[[], None]]:
    """What the tables need compiled."""
    decodes = decode_cuts(rival, sweep=sweep) if "decode" in parts else []
    yield from (partial(warm_decode, cut) for cut in {(cut.tiling, cut.rival): cut for cut in decodes}.values())
    yield from (partial(warm_prefill, cut) for cut in (prefill_cuts(sweep=sweep) if "prefill" in parts else ()))
    yield from (
        partial(warm_step, batch, each) for batch in (1, 32, 64, 128) for each in (False, True) if "step" in parts
    )
    for name in WEIGHTS if "linear" in parts else ():
        for num_tokens, dependent in itertools.product((1, 32, 64, 128), (False, True)):
            tried = sweep and dependent and num_tokens > 1
            for cut in linear_cuts(name, num_tokens, sweep=tried):
                yield partial(warm_linear, name, num_tokens, cut, dependent)


def attempt(task: Callable[[], None]) -> None:
    try:
        task()
    except Exception as problem:  # noqa: BLE001  the table says it again, in its place
        print(f"compiling: {str(problem).splitlines()[0][:90]}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["decode", "prefill", "linear", "many", "step", "small"])
    parser.add_argument("--sweep", action="store_true", help="try other tilings")
    parser.add_argument("--rival", metavar="FILE", help="another attend_decodes")
    args = parser.parse_args()
    parts = set(args.parts)
    with ProcessPoolExecutor(min(15, os.cpu_count() or 1), mp_context=get_context("spawn")) as pool:
        list(pool.map(attempt, warm_tasks(parts, args.rival, sweep=args.sweep)))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    if "decode" in parts:
        bench_decode(decode_cuts(args.rival, sweep=args.sweep))
    if "prefill" in parts:
        bench_prefill(prefill_cuts(sweep=args.sweep))
    if "linear" in parts:
        bench_linear(sweep=args.sweep)
    if "many" in parts:
        bench_many()
    if "step" in parts:
        bench_step()
    if "small" in parts:
        bench_small()


if __name__ == "__main__":
    main()
