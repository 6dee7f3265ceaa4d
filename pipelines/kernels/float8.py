"""Float8 (e4m3): rows of tokens, each with a scale of its own, for a float8 projection behind; and values of it made wide.

Shapes: T tokens, K dims.
"""
# mypy: disallow-untyped-decorators=False
# (Triton's decorators carry no types.)

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipelines.kernels.launch import launch_options, power_of_2

_ELEMENTS_A_WARP = 512  # 16 a thread


class Float8Rows:
    """Where the rows of a float8 projection lie; one for all projections of a stream."""

    def __init__(self, max_tokens: int, max_size: int, device: torch.device, *, dependent: bool) -> None:
        self._kept = torch.zeros(max_tokens * max_size, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
        self._scales = torch.zeros((max_tokens if max_size else 0, 1), dtype=torch.float32, device=device)
        self._dependent = dependent

    def quantize(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows [T, K] as float8, and their scales [T, 1]; the next call overwrites them."""
        kept, scales = self._kept[: rows.numel()].view(rows.shape), self._scales[: rows.shape[0]]
        quantize_rows(rows, kept, scales, dependent=self._dependent)
        return kept, scales


def quantize_rows(rows: Tensor, kept: Tensor, scales: Tensor, *, dependent: bool = False) -> None:
    """Write each row divided by its scale, and the scales: its highest magnitude over 448.

    Args:
        rows: [T, K], K contiguous.
        kept: [T, K] float8, K contiguous.
        scales: [T, 1] float32, contiguous.
        dependent: whether this is a dependent launch.
    """
    size = rows.shape[1]
    block = power_of_2(size)
    _quantize_rows[(rows.shape[0],)](
        rows,
        kept,
        scales,
        rows.stride(0),
        kept.stride(0),
        size=size,
        block=block,
        dependent=dependent,
        num_warps=max(1, min(16, block // _ELEMENTS_A_WARP)),
        **launch_options(dependent=dependent),
    )


@triton.jit
def _quantize_rows(
    rows: tl.tensor,
    kept: tl.tensor,
    scales: tl.tensor,
    rows_stride: tl.tensor,
    kept_stride: tl.tensor,
    size: tl.constexpr,
    block: tl.constexpr,
    dependent: tl.constexpr,
) -> None:
    if dependent:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    is_there = at < size
    values = tl.load(rows + row * rows_stride + at, mask=is_there, other=0.0).to(tl.float32)
    highest = tl.max(tl.abs(values), 0)
    highest = tl.where(highest == 0.0, 448.0, highest)
    scaled = values * tl.div_rn(448.0, highest)
    scaled = tl.clamp(scaled, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)  # what failed is to show
    tl.store(kept + row * kept_stride + at, scaled.to(kept.dtype.element_ty), mask=is_there)
    tl.store(scales + row, tl.div_rn(highest, 448.0))


@triton.jit
def widened(values: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """Return float8 values in a wider type, none of them rounded.

    A GPU makes float16 of two at a time and float32 of that at full speed, and bfloat16 of float32 likewise; straight to bfloat16
    it goes through a unit of a quarter of the speed, which keeps the memory waiting.
    """
    return values.to(tl.float16).to(tl.float32).to(kind)
