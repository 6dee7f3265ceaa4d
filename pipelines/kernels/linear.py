"""Projections of few tokens: the weights stream through once, as the tall operand of the tensor core, K split in fixed order.

What bounds a decode step is the reading of weights, so tiles are cut for that: a program holds `tile_rows` rows of the weight
and all tokens of a tile (16 to 128), and small weights are cut along K too, so that all of the device reads. Splits leave
float32 sums; the last of a tile's programs to arrive adds them in the order of the splits and does the epilogue.

Batch invariance: which rows a program holds, how K is split and in which order it is gone through follow from the weight's
shape alone (see `linear_tiling`); how many tokens share a tile changes no sum.

An RMS norm between two projections costs no kernel: it is linear but for one factor a token. So the projection in front
multiplies its output by the norm's weight and leaves the sums of squares of each of its tiles (`RESIDUAL_NORM`), and the one
behind applies the factor made of them to its result (`RowScale`).

Tokens and weight may be float8, each row of either with a scale (`Float8Scales`), which are factors of the result as well.

Shapes: M tokens, Nout rows of the weight, K columns, I = Nout / 2 for a fused gate.
"""
# mypy: disallow-untyped-decorators=False
# (Triton's decorators carry no types.)

from dataclasses import dataclass
from enum import StrEnum

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipelines.kernels.launch import launch_options, power_of_2, shared_bytes
from pipelines.kernels.linear_epilogue import add_splits, finish
from pipelines.kernels.linear_loop import fetch_ahead, multiply, read_ahead
from pipelines.kernels.linear_tiling import LinearTiling


class Epilogue(StrEnum):
    """What happens to the product before it is written."""

    PLAIN = "plain"  # output = product
    SILU = "silu"  # output [M, I] = silu(gate) * up, gate rows first in the weight
    RESIDUAL = "residual"  # residual += product; no output
    RESIDUAL_NORM = (
        "residual_norm"  # residual += product; output = residual * norm weight; squares = its sums of squares
    )


@dataclass(frozen=True, slots=True)
class RowScale:
    """The factor of an RMS norm, from what `RESIDUAL_NORM` left."""

    squares: Tensor  # [tiles, M capacity] float32
    size: int  # elements of a row
    epsilon: float


@dataclass(frozen=True, slots=True)
class Float8Scales:
    """What float8 rows were divided by."""

    tokens: Tensor  # [M] float32, contiguous
    weight: Tensor  # [Nout] float32, contiguous


@dataclass(frozen=True, slots=True)
class Residual:
    """What a projection is added to."""

    hidden: Tensor  # [M, Nout], replaced by the sum
    norm_weight: Tensor | None = None  # [Nout], of the norm behind
    squares: Tensor | None = None  # [tiles, M capacity] float32, written


@dataclass(frozen=True, slots=True)
class LinearScratch:
    """Where splits meet; shared by all projections of one stream. Arrivals are zero between launches."""

    sums: Tensor  # float32
    arrivals: Tensor  # int32

    @classmethod
    def allocate(cls, num_sums: int, num_tiles: int, device: torch.device) -> "LinearScratch":
        """Make the buffers; see `LinearTiling.num_sums` and `num_tiles`."""
        return cls(
            sums=torch.empty(num_sums, dtype=torch.float32, device=device),
            arrivals=torch.zeros(num_tiles, dtype=torch.int32, device=device),
        )


def skinny_linear(
    tokens: Tensor,
    weight: Tensor,
    output: Tensor | None,
    scratch: LinearScratch,
    tiling: LinearTiling,
    epilogue: Epilogue = Epilogue.PLAIN,
    *,
    float8: Float8Scales | None = None,
    bias: Tensor | None = None,
    scale: RowScale | None = None,
    residual: Residual | None = None,
    dependent: bool = False,
) -> None:
    """Write the product of tokens and a transposed weight.

    Args:
        tokens: [M, K], K contiguous.
        weight: [Nout, K], contiguous, of the tokens' type.
        output: [M, Nout], or [M, I] for `SILU`; None for `RESIDUAL`.
        scratch: see there.
        tiling: the weight's, see `LinearTiling.choose`.
        epilogue: see there.
        float8: the scales of tokens and weight that are float8.
        scale: of the rows of the product.
        bias: [Nout], added behind the scale.
        residual: for the epilogues that add.
        dependent: whether this is a dependent launch; the weight's first columns are then read before the wait.

    Raises:
        ValueError: the epilogue lacks what it writes to.
    """
    _check(output, tiling, epilogue, residual)
    num_tokens, size = tokens.shape
    block_m = tiling.block_m(num_tokens)
    tiling = tiling.fitted(num_tokens, weight.element_size(), shared_bytes(weight.device))
    grid = (tiling.num_row_tiles(weight.shape[0]), tiling.splits, triton.cdiv(num_tokens, block_m))
    written = tokens if output is None else output
    hidden = tokens if residual is None else residual.hidden
    norm_weight = residual.norm_weight if residual else None
    left_squares = residual.squares if residual else None
    scale_squares = scale.squares if scale else scratch.sums
    _linear[grid](
        tokens,
        weight,
        scratch.sums if float8 is None else float8.tokens,
        scratch.sums if float8 is None else float8.weight,
        tokens if bias is None else bias,
        written,
        hidden,
        tokens if norm_weight is None else norm_weight,
        scratch.sums if left_squares is None else left_squares,
        scale_squares,
        scratch.sums,
        scratch.arrivals,
        num_tokens,
        weight.shape[0],
        tokens.stride(0),
        written.stride(0),
        hidden.stride(0),
        0 if left_squares is None else left_squares.stride(0),
        scale_squares.stride(0),
        scale.epsilon if scale else 0.0,
        size=size,
        split_size=tiling.split_size(size),
        splits=tiling.splits,
        is_full=num_tokens % block_m == 0,
        block_m=block_m,
        block_n=tiling.block_n,
        tile_rows=tiling.tile_rows,
        block_k=tiling.block_k,
        is_gated=tiling.is_gated,
        adds=residual is not None,
        leaves_norm=epilogue is Epilogue.RESIDUAL_NORM,
        has_bias=bias is not None,
        is_float8=float8 is not None,
        scale_tiles=scale.squares.shape[0] if scale else 0,
        scale_block=power_of_2(scale.squares.shape[0]) if scale else 1,
        scale_size=scale.size if scale else 1,
        prefetched=tiling.prefetched if dependent else 0,
        ahead=tiling.ahead,
        dependent=dependent,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages(num_tokens, weight.element_size(), shared_bytes(weight.device)),
        **launch_options(dependent=dependent),
    )


def _check(output: Tensor | None, tiling: LinearTiling, epilogue: Epilogue, residual: Residual | None) -> None:
    if tiling.is_gated != (epilogue is Epilogue.SILU):
        raise ValueError(
            f"the epilogue {epilogue.name} was asked of a tiling {'with' if tiling.is_gated else 'without'} a gate"
        )
    if (output is None) != (epilogue is Epilogue.RESIDUAL):
        raise ValueError(
            f"a projection with the epilogue {epilogue.name} has {'no' if output is None else 'an'} output"
        )
    adds = epilogue in {Epilogue.RESIDUAL, Epilogue.RESIDUAL_NORM}
    if (residual is not None) != adds:
        raise ValueError(f"a projection with the epilogue {epilogue.name} has {'a' if residual else 'no'} residual")
    if epilogue is Epilogue.RESIDUAL_NORM and residual and (residual.norm_weight is None or residual.squares is None):
        raise ValueError("a projection with the epilogue RESIDUAL_NORM needs the norm's weight and a place for squares")


@triton.jit(do_not_specialize=["num_tokens", "left_stride", "scale_stride"])
def _linear(
    tokens: tl.tensor,
    weight: tl.tensor,
    token_scales: tl.tensor,
    weight_scales: tl.tensor,
    bias: tl.tensor,
    output: tl.tensor,
    hidden: tl.tensor,
    norm_weight: tl.tensor,
    left_squares: tl.tensor,
    scale_squares: tl.tensor,
    sums: tl.tensor,
    arrivals: tl.tensor,
    num_tokens: tl.tensor,
    num_rows: tl.tensor,
    tokens_stride: tl.tensor,
    output_stride: tl.tensor,
    hidden_stride: tl.tensor,
    left_stride: tl.tensor,
    scale_stride: tl.tensor,
    epsilon: tl.tensor,
    size: tl.constexpr,
    split_size: tl.constexpr,
    splits: tl.constexpr,
    is_full: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    tile_rows: tl.constexpr,
    block_k: tl.constexpr,
    is_gated: tl.constexpr,
    adds: tl.constexpr,
    leaves_norm: tl.constexpr,
    has_bias: tl.constexpr,
    is_float8: tl.constexpr,
    scale_tiles: tl.constexpr,
    scale_block: tl.constexpr,
    scale_size: tl.constexpr,
    prefetched: tl.constexpr,
    ahead: tl.constexpr,
    dependent: tl.constexpr,
) -> None:
    rows_out = num_rows // 2 if is_gated else num_rows
    first_row = tl.program_id(0) * tile_rows
    first_token = tl.program_id(2) * block_m
    first_column = tl.program_id(1) * split_size
    # Rows beyond the end repeat the last one: no mask in the loop, and what they yield is not written.
    row = first_row + tl.minimum(tl.arange(0, block_n), tile_rows - 1)
    row = tl.minimum(row, rows_out - 1).to(tl.int64)
    second_row = row + rows_out if is_gated else row
    head = read_ahead(weight, row, first_column, size, ahead)
    second_head = read_ahead(weight, second_row, first_column, size, ahead)
    if prefetched > 0:
        fetch_ahead(weight, row, first_column + ahead, size, prefetched)
        if is_gated:
            fetch_ahead(weight, second_row, first_column + ahead, size, prefetched)
    if dependent:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = (first_token + tl.arange(0, block_m)).to(tl.int64)
    product, second = multiply(
        tokens, weight, row, second_row, token, token < num_tokens, first_column, tokens_stride, head, second_head,
        size, split_size, splits * split_size == size, is_full, block_m, block_n, block_k, is_gated, ahead,
    )  # fmt: skip
    is_last = True
    if splits > 1:
        tile = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
        halves: tl.constexpr = 2 if is_gated else 1
        place = tl.arange(0, block_n)[:, None] * block_m + tl.arange(0, block_m)[None, :]
        base = sums + tile.to(tl.int64) * (halves * splits * block_n * block_m)
        second_base = base + splits * block_n * block_m
        tl.store(base + tl.program_id(1) * block_n * block_m + place, product)
        if is_gated:
            tl.store(second_base + tl.program_id(1) * block_n * block_m + place, second)
        tl.debug_barrier()  # all of this program's stores come before its arrival
        is_last = tl.atomic_add(arrivals + tile, 1, sem="acq_rel", scope="gpu") == splits - 1
        if is_last:
            tl.store(arrivals + tile, 0)
            product = add_splits(base, place, splits, block_n, block_m)
            if is_gated:
                second = add_splits(second_base, place, splits, block_n, block_m)
    if is_last:
        finish(
            product, second, first_row, first_token, token_scales, weight_scales, bias, output, hidden, norm_weight,
            left_squares, scale_squares, num_tokens, rows_out, output_stride, hidden_stride, left_stride, scale_stride, epsilon,
            block_m, block_n, tile_rows, is_gated, adds, leaves_norm, has_bias, is_float8,
            scale_tiles, scale_block, scale_size,
        )  # fmt: skip
