"""Where the positions of a sequence lie in the pages of the KV cache.

A loop over positions in turns of `block_n` reads the pages of a turn one turn ahead (`pages_of`, then `rows_at`): so the
compiler can start the loads of keys and values several turns ahead, none of which then waits for a page's number.
"""
# mypy: disallow-untyped-decorators=False
# (Triton's decorators carry no types.)

import triton
import triton.language as tl


@triton.jit
def pages_of(
    table: tl.tensor, start: tl.tensor, end: tl.tensor, page_size: tl.constexpr, block_n: tl.constexpr
) -> tl.tensor:
    """Pages of the turn from `start`: one where it lies within a page, else one a position; 0 from `end` on."""
    if page_size % block_n == 0:
        pages = tl.load(table + start // page_size, mask=start < end, other=0)
    else:
        position = start + tl.arange(0, block_n)
        pages = tl.load(table + position // page_size, mask=position < end, other=0)
    return pages


@triton.jit
def rows_at(
    base: tl.tensor,
    pages: tl.tensor,
    start: tl.tensor,
    kv_head: tl.tensor,
    num_kv_heads: tl.constexpr,
    dim: tl.constexpr,
    block: tl.constexpr,
    page_size: tl.constexpr,
    block_n: tl.constexpr,
) -> tl.tensor:
    """Pointers to one head's keys or values of the turn from `start`, [block_n, block]; `base` is [P, Z, K, dim]."""
    at = tl.arange(0, block)
    turn = tl.arange(0, block_n)
    if page_size % block_n == 0:  # one base, and offsets that never change
        first = (pages.to(tl.int64) * page_size + start % page_size) * num_kv_heads + kv_head
        pointers = base + first * dim + (turn[:, None] * (num_kv_heads * dim) + at[None, :])
    else:
        place = (pages.to(tl.int64) * page_size + (start + turn) % page_size) * num_kv_heads + kv_head
        pointers = base + place[:, None] * dim + at[None, :]
    return pointers


@triton.jit
def row_mask(is_row: tl.tensor, dim: tl.constexpr, block: tl.constexpr) -> tl.tensor:
    """Which elements of rows of `dim`, in a block, are there: [rows, block], or [rows, 1] where the block is full."""
    return is_row[:, None] if dim == block else is_row[:, None] & (tl.arange(0, block) < dim)[None, :]
