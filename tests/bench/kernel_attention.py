"""Times of the attention kernels, and of other ways to cut them."""

import importlib.util
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from kernel_timing import (
    BF16,
    DECODE_CASES,
    DEVICE,
    HEAD,
    HEADS,
    KV_HEADS,
    LAYERS,
    PREFILL_CASES,
    Pages,
    attend_reference,
    error,
    measure_all,
    rows_of,
    shape_of,
    show,
    time_graph,
)
from torch import Tensor

from pipelines.kernels.attention_plan import SplitRule, StepLimits, WorkLists, plan_attention
from pipelines.kernels.attention_shape import DecodeTiling, PrefillTiling
from pipelines.kernels.decode_attention import DecodeScratch, attend_decodes
from pipelines.kernels.prefill_attention import attend_chunks


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
