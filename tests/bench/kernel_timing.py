"""How kernels are timed and told, and the shapes of Llama-3.1-8B that they are timed on."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from pipelines.kernels.attention_plan import StepRows
from pipelines.kernels.attention_shape import AttentionShape

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
