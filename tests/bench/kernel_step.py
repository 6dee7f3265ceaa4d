"""Times of whole decode steps and of the small kernels within them."""

import itertools
from functools import partial

import torch
from kernel_projections import linear_cuts, weights_of
from kernel_timing import (
    BF16,
    DEVICE,
    EPSILON,
    HEAD,
    HEADS,
    HIDDEN,
    INTER,
    KV_HEADS,
    LAYER_WEIGHTS,
    LAYERS,
    QKV,
    READ_TERABYTES,
    STEP_CASES,
    VOCAB,
    WEIGHTS,
    Pages,
    microseconds,
    rows_of,
    shape_of,
    time_graph,
)
from torch import Tensor

from pipelines.kernels.attention_plan import StepLimits, WorkLists, plan_attention
from pipelines.kernels.attention_shape import DecodeTiling
from pipelines.kernels.decode_attention import DecodeScratch, attend_decodes
from pipelines.kernels.elementwise import add_rms_norm, silu_and_mul
from pipelines.kernels.greedy import GreedyScratch, sample_greedy
from pipelines.kernels.linear import Epilogue, LinearScratch, Residual, RowScale, skinny_linear
from pipelines.kernels.rope import TokenPlaces, rotate_and_cache, rotation_table
from pipelines.kernels.step_inputs import SeatState, StagedStep, StepInputs, begin_step


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
        self.count = torch.tensor([batch, 0], dtype=torch.int32, device=DEVICE)
        self.tokens, self.last = index.clone()[None], torch.zeros(batch, dtype=torch.int64, device=DEVICE)

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
        launches = {
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
        count = torch.tensor([num_rows, 0], dtype=torch.int32, device=DEVICE)
        launch = partial(sample_greedy, logits, index, count, scratch, index.clone()[None], seats.last_tokens)
        plain = microseconds(partial(torch.argmax, logits, -1), 16)
        print(
            f"small, sample_greedy of {num_rows} rows: {microseconds(launch, 16):.2f} us, torch.argmax {plain:.2f} us"
        )
