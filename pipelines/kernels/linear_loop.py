"""The columns of a projection: what is asked for before a dependent launch waits, and the loop over the rest.

Shapes: K columns.
"""
# mypy: disallow-untyped-decorators=False
# (Triton's decorators carry no types.)

import triton
import triton.language as tl


@triton.jit
def fetch_ahead(weight: tl.tensor, row: tl.tensor, column: tl.tensor, size: tl.constexpr, lines: tl.constexpr) -> None:
    """Ask for the first `lines` of 128 bytes of each row from `column` on to be brought into L2; nobody waits for them."""
    line: tl.constexpr = 128 // (weight.dtype.element_ty.primitive_bitwidth // 8)
    pointers = weight + row[:, None] * size + (column + tl.arange(0, lines) * line)[None, :]
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _dot(weight: tl.tensor, tokens: tl.tensor, sums: tl.tensor) -> tl.tensor:
    """Add a product; of float8 the tensor cores, whose sums are short of bits, sum up one turn's columns alone."""
    if weight.dtype.is_fp8():
        return tl.dot(weight, tokens, sums, max_num_imprecise_acc=weight.shape[1])
    return tl.dot(weight, tokens, sums, input_precision="ieee")


@triton.jit
def read_ahead(
    weight: tl.tensor, row: tl.tensor, column: tl.tensor, size: tl.constexpr, ahead: tl.constexpr
) -> tl.tensor:
    """The first `ahead` columns of each row from `column` on, [block_n, ahead]; of none a single one."""
    columns: tl.constexpr = ahead if ahead > 0 else 1
    return tl.load(weight + row[:, None] * size + (column + tl.arange(0, columns))[None, :])


@triton.jit
def multiply(
    tokens: tl.tensor,
    weight: tl.tensor,
    row: tl.tensor,
    second_row: tl.tensor,
    token: tl.tensor,
    is_token: tl.tensor,
    first_column: tl.tensor,
    tokens_stride: tl.tensor,
    head: tl.tensor,
    second_head: tl.tensor,
    size: tl.constexpr,
    split_size: tl.constexpr,
    is_even: tl.constexpr,
    is_full: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    is_gated: tl.constexpr,
    ahead: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Go over the columns of one split: [block_n, block_m] float32 for `row`, and for `second_row` of a gate.

    `is_even`: the turns are whole. `is_full`: all tokens of the tile are there; else only those that `is_token` are read, since
    whatever all programs read at once is slow to come, and the more so the fewer tokens there are. Rows may be there more than
    once. `head` and `second_head` are the rows' first `ahead` columns, which have been read already.
    """
    column = first_column + tl.arange(0, block_k)
    at_weight = weight + row[:, None] * size + column[None, :]
    at_second = weight + second_row[:, None] * size + column[None, :]
    at_tokens = tokens + token[None, :] * tokens_stride + column[:, None]
    product = tl.zeros([block_n, block_m], tl.float32)
    second = tl.zeros([block_n, block_m], tl.float32)
    if ahead > 0:
        early = first_column + tl.arange(0, ahead)
        at_early = tokens + token[None, :] * tokens_stride + early[:, None]
        early_part = tl.load(at_early) if is_full else tl.load(at_early, mask=is_token[None, :], other=0.0)
        product = _dot(head, early_part, product)
        if is_gated:
            second = _dot(second_head, early_part, second)
        at_weight += ahead
        at_second += ahead
        at_tokens += ahead
    for start in range(ahead, split_size, block_k):
        if is_even:
            part = tl.load(at_tokens) if is_full else tl.load(at_tokens, mask=is_token[None, :], other=0.0)
            product = _dot(tl.load(at_weight), part, product)
            if is_gated:
                second = _dot(tl.load(at_second), part, second)
        else:
            is_inside = column + start < size
            part = tl.load(at_tokens, mask=is_inside[:, None] & is_token[None, :], other=0.0)
            each = tl.load(at_weight, mask=is_inside[None, :], other=0.0)
            product = _dot(each, part, product)
            if is_gated:
                each = tl.load(at_second, mask=is_inside[None, :], other=0.0)
                second = _dot(each, part, second)
        at_weight += block_k
        at_second += block_k
        at_tokens += block_k
    return product, second
