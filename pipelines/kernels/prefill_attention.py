"""Attention of prefill chunks: tiles of queries against the pages, causal by absolute position.

A persistent grid takes (tile, KV head) pairs from the plan's list. The rows of a tile are queries times the heads of one KV
head, so a key is read once for all of them, and a short chunk still fills a tile.

Batch invariance: a query sees the keys in turns of `block_n` positions that start at multiples of it, wherever its chunk
starts; a turn in which it sees nothing changes nothing in its sums, and a turn's arithmetic is the same with a mask and without.
So neither the cut into chunks nor the batch can change a result, except that a chunk of one token is a decode.

Shapes: T tokens, N query heads, K KV heads, H key dim, Hv value dim, P pages, Z page size.
"""
# mypy: disallow-untyped-decorators=False
# (Triton's decorators carry no types.)

import triton
import triton.language as tl
from torch import Tensor

from pipelines.kernels.attention_plan import WorkLists
from pipelines.kernels.attention_shape import AttentionShape, PrefillTiling
from pipelines.kernels.float8 import widened
from pipelines.kernels.launch import launch_options, num_processors, power_of_2
from pipelines.kernels.pages import pages_of, row_mask, rows_at


def attend_chunks(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    lists: WorkLists,
    output: Tensor,
    shape: AttentionShape,
    tiling: PrefillTiling,
    *,
    scales: tuple[Tensor, Tensor] | None = None,
    dependent: bool = False,
) -> None:
    """Write the attention of the step's chunks; other rows are left alone.

    Args:
        query: [T, N, H], heads contiguous.
        keys: [P, Z, K, H], the chunks' own new keys among them.
        values: [P, Z, K, Hv].
        block_tables: [seats, blocks] int32.
        lists: the step's plan, whose tiles are those of `tiling`.
        output: [T, N, Hv], heads contiguous.
        shape: the layer's.
        tiling: see there.
        scales: [K] float32 each, of keys and values that are float8.
        dependent: whether this is a dependent launch.
    """
    _prefill[(num_processors(query.device) * tiling.programs_per_processor,)](
        query,
        keys,
        values,
        block_tables,
        lists.tiles,
        lists.counts,
        output,
        query if scales is None else scales[0],
        query if scales is None else scales[1],
        shape.scale_log2,
        query.stride(0),
        output.stride(0),
        block_tables.stride(0),
        window=lists.window or 0,
        num_kv_heads=shape.num_kv_heads,
        group=shape.group,
        key_dim=shape.key_dim,
        key_block=max(16, power_of_2(shape.key_dim)),
        value_dim=shape.value_dim,
        value_block=max(16, power_of_2(shape.value_dim)),
        page_size=shape.page_size,
        block_m=tiling.block_m,
        block_n=tiling.block_n,
        item_words=lists.tiles.shape[1],
        precision=shape.precision,
        is_scaled=scales is not None,
        dependent=dependent,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
        **launch_options(dependent=dependent),
    )


@triton.jit
def _turns(
    asked: tl.tensor,
    highest: tl.tensor,
    total: tl.tensor,
    result: tl.tensor,
    at_query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    kv_head: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    scale_log2: tl.tensor,
    window: tl.constexpr,
    num_kv_heads: tl.constexpr,
    key_dim: tl.constexpr,
    key_block: tl.constexpr,
    value_dim: tl.constexpr,
    value_block: tl.constexpr,
    page_size: tl.constexpr,
    block_n: tl.constexpr,
    precision: tl.constexpr,
    is_scaled: tl.constexpr,
    is_masked: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Go over the positions `first` .. `end` - 1; unmasked, all queries see all of them, and they are whole turns."""
    key_at = tl.arange(0, key_block)
    value_at = tl.arange(0, value_block)
    pages = pages_of(table, first, end, page_size, block_n)
    for start in range(first, end, block_n):
        position = start + tl.arange(0, block_n)
        is_there = position < end
        at_key = rows_at(keys, pages, start, kv_head, num_kv_heads, key_dim, key_block, page_size, block_n)
        at_value = rows_at(values, pages, start, kv_head, num_kv_heads, value_dim, value_block, page_size, block_n)
        pages = pages_of(table, start + block_n, end, page_size, block_n)
        if is_masked:
            key = tl.load(at_key, mask=row_mask(is_there, key_dim, key_block), other=0.0)
        elif key_dim == key_block:
            key = tl.load(at_key)
        else:
            key = tl.load(at_key, mask=(key_at < key_dim)[None, :], other=0.0)
        if is_scaled:
            key = widened(key, asked.dtype)
        score = tl.dot(asked, tl.trans(key), input_precision=precision)
        if is_masked:
            is_seen = position[None, :] <= at_query[:, None]
            if window > 0:
                is_seen = is_seen & (position[None, :] > at_query[:, None] - window)
            score = tl.where(is_seen, score, float("-inf"))
        higher = tl.maximum(highest, tl.max(score, 1) * scale_log2)
        weight = tl.exp2(tl.fma(score, scale_log2, -higher[:, None]))  # one rounding, masked or not: see above
        fade = tl.exp2(highest - higher)
        total = total * fade + tl.sum(weight, 1)
        if is_masked:
            value = tl.load(at_value, mask=row_mask(is_there, value_dim, value_block), other=0.0)
        elif value_dim == value_block:
            value = tl.load(at_value)
        else:
            value = tl.load(at_value, mask=(value_at < value_dim)[None, :], other=0.0)
        if is_scaled:
            value = widened(value, asked.dtype)
        result = tl.dot(weight.to(value.dtype), value, result * fade[:, None], input_precision=precision)
        highest = higher
    return highest, total, result


@triton.jit(do_not_specialize=["table_stride"])
def _prefill(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    block_tables: tl.tensor,
    items: tl.tensor,
    counts: tl.tensor,
    output: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    scale_log2: tl.tensor,
    query_stride: tl.tensor,
    output_stride: tl.tensor,
    table_stride: tl.tensor,
    window: tl.constexpr,
    num_kv_heads: tl.constexpr,
    group: tl.constexpr,
    key_dim: tl.constexpr,
    key_block: tl.constexpr,
    value_dim: tl.constexpr,
    value_block: tl.constexpr,
    page_size: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    item_words: tl.constexpr,
    precision: tl.constexpr,
    is_scaled: tl.constexpr,
    dependent: tl.constexpr,
) -> None:
    if dependent:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.arange(0, block_m)
    key_at = tl.arange(0, key_block)
    value_at = tl.arange(0, value_block)
    num_work = tl.load(counts + 1) * num_kv_heads
    for work in range(tl.program_id(0), num_work, tl.num_programs(0)):
        entry = items + work // num_kv_heads * item_words
        kv_head = work % num_kv_heads
        # The scales of a head are factors of its scores and of its result.
        factor = scale_log2 * tl.load(key_scales + kv_head) if is_scaled else scale_log2
        first_token = tl.load(entry).to(tl.int64)
        seat = tl.load(entry + 1).to(tl.int64)
        first_position = tl.load(entry + 2)
        num_tokens = tl.load(entry + 3)
        is_row = row < num_tokens * group
        token = first_token + row // group
        head = kv_head * group + row % group
        asked = tl.load(
            query + (token * query_stride + head * key_dim)[:, None] + key_at[None, :],
            mask=is_row[:, None] & (key_at < key_dim)[None, :],
            other=0.0,
        )
        at_query = first_position + row // group
        highest = tl.full([block_m], -1e38, tl.float32)
        total = tl.zeros([block_m], tl.float32)
        result = tl.zeros([block_m, value_block], tl.float32)
        table = block_tables + seat * table_stride
        end = first_position + num_tokens
        if window > 0:
            masked_from = tl.maximum(first_position - window + 1, 0) // block_n * block_n
        else:
            masked_from = (first_position + 1) // block_n * block_n
            highest, total, result = _turns(
                asked, highest, total, result, at_query, keys, values, table, kv_head, 0, masked_from, factor,
                window, num_kv_heads, key_dim, key_block, value_dim, value_block, page_size, block_n, precision,
                is_scaled, is_masked=False,
            )  # fmt: skip
        highest, total, result = _turns(
            asked, highest, total, result, at_query, keys, values, table, kv_head, masked_from, end, factor,
            window, num_kv_heads, key_dim, key_block, value_dim, value_block, page_size, block_n, precision,
            is_scaled, is_masked=True,
        )  # fmt: skip
        result = result / tl.maximum(total, 1e-30)[:, None]
        if is_scaled:
            result *= tl.load(value_scales + kv_head)
        tl.store(
            output + (token * output_stride + head * value_dim)[:, None] + value_at[None, :],
            result.to(output.dtype.element_ty),
            mask=is_row[:, None] & (value_at < value_dim)[None, :],
        )
