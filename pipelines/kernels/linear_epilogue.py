"""What a projection does with its product: add up splits, scales, factor of a norm, bias, gate or residual, write.

Shapes: M tokens, Nout rows of the weight.
"""
# mypy: disallow-untyped-decorators=False
# (Triton's decorators carry no types.)

import triton
import triton.language as tl


@triton.jit
def add_splits(
    sums: tl.tensor, place: tl.tensor, splits: tl.constexpr, block_n: tl.constexpr, block_m: tl.constexpr
) -> tl.tensor:
    """Sum the splits of one tile in their order; `place` points at each element within a split."""
    total = tl.zeros([block_n, block_m], tl.float32)
    for split in tl.static_range(splits):
        total += tl.load(sums + split * block_n * block_m + place, cache_modifier=".cg")
    return total


@triton.jit
def _factors(
    squares: tl.tensor,
    token: tl.tensor,
    stride: tl.tensor,
    epsilon: tl.tensor,
    tiles: tl.constexpr,
    tiles_block: tl.constexpr,
    size: tl.constexpr,
) -> tl.tensor:
    """The factor of an RMS norm for each token, [block_m] float32."""
    tile = tl.arange(0, tiles_block)
    parts = tl.load(squares + tile[:, None] * stride + token[None, :], mask=(tile < tiles)[:, None], other=0.0)
    return tl.rsqrt(tl.sum(parts, 0) / size + epsilon)


@triton.jit
def finish(
    product: tl.tensor,
    second: tl.tensor,
    first_row: tl.tensor,
    first_token: tl.tensor,
    token_scales: tl.tensor,
    weight_scales: tl.tensor,
    bias: tl.tensor,
    output: tl.tensor,
    hidden: tl.tensor,
    norm_weight: tl.tensor,
    left_squares: tl.tensor,
    scale_squares: tl.tensor,
    num_tokens: tl.tensor,
    num_rows: tl.tensor,
    output_stride: tl.tensor,
    hidden_stride: tl.tensor,
    left_stride: tl.tensor,
    scale_stride: tl.tensor,
    epsilon: tl.tensor,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    tile_rows: tl.constexpr,
    is_gated: tl.constexpr,
    adds: tl.constexpr,
    leaves_norm: tl.constexpr,
    has_bias: tl.constexpr,
    is_float8: tl.constexpr,
    scale_tiles: tl.constexpr,
    scale_block: tl.constexpr,
    scale_size: tl.constexpr,
) -> None:
    """Do the epilogue of one tile and write it; rows are those of the output, `second` is the gate's other half."""
    place = tl.arange(0, block_n)
    row = first_row + place
    token = first_token + tl.arange(0, block_m)
    is_row = (place < tile_rows) & (row < num_rows)
    is_there = is_row[:, None] & (token < num_tokens)[None, :]
    if is_float8:
        token_scale = tl.load(token_scales + token, mask=token < num_tokens, other=0.0)[None, :]
        product *= tl.load(weight_scales + row, mask=is_row, other=0.0)[:, None] * token_scale
        if is_gated:
            second *= tl.load(weight_scales + num_rows + row, mask=is_row, other=0.0)[:, None] * token_scale
    if scale_tiles > 0:
        own_token = tl.minimum(token, num_tokens - 1)
        factor = _factors(scale_squares, own_token, scale_stride, epsilon, scale_tiles, scale_block, scale_size)
        product *= factor[None, :]
        if is_gated:
            second *= factor[None, :]
    if has_bias:
        product += tl.load(bias + row, mask=is_row, other=0.0).to(tl.float32)[:, None]
        if is_gated:
            second += tl.load(bias + num_rows + row, mask=is_row, other=0.0).to(tl.float32)[:, None]
    at_output = output + token[None, :].to(tl.int64) * output_stride + row[:, None]
    kind = output.dtype.element_ty
    if is_gated:
        tl.store(at_output, (product / (1.0 + tl.exp(-product)) * second).to(kind), mask=is_there)
    elif not adds:
        tl.store(at_output, product.to(kind), mask=is_there)
    else:
        at_hidden = hidden + token[None, :].to(tl.int64) * hidden_stride + row[:, None]
        total = product + tl.load(at_hidden, mask=is_there, other=0.0).to(tl.float32)
        rounded = total.to(hidden.dtype.element_ty)
        tl.store(at_hidden, rounded, mask=is_there)
        if leaves_norm:
            wide = tl.where(is_there, rounded.to(tl.float32), 0.0)
            gain = tl.load(norm_weight + row, mask=is_row, other=0.0).to(tl.float32)
            tl.store(at_output, (wide * gain[:, None]).to(kind), mask=is_there)
            at_square = left_squares + first_row // tile_rows * left_stride + token
            tl.store(at_square, tl.sum(wide * wide, 0), mask=token < num_tokens)
