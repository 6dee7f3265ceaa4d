"""Times of projections of few tokens and of many, beside what cuBLAS makes of them."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from kernel_timing import BF16, DEVICE, LAYERS, MANY_TOKENS, WEIGHTS, error, measure_all, show, time_graph
from torch import Tensor

from pipelines.kernels.linear import Epilogue, LinearScratch, skinny_linear
from pipelines.kernels.linear_tiling import LinearTiling


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
