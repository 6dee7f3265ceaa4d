"""Attention of decode rows: each item of the plan's list by one program, then the items of a row are joined.

A program has one KV head of one of the plan's lanes and goes through the items dealt to that. The query heads of one KV head are
the rows of a tile, so keys and values are read once. All items are gone through in one loop over all their turns, so that the
memory never rests between two of them: the first keys of the next item are on their way while the last of this one are worked on.

An item is one split of a row or all of them. A split ends as its normalised sum and the logarithm of its weight, in float32.
Those of a whole row are joined as they come. Others are left in memory, and a second kernel joins them in their order. (One
kernel, in which the last split to arrive joins, was slower: the fence in front of each arrival waits for the memory that the
others keep busy.)

Shapes: T tokens, N query heads, K KV heads, H key dim, Hv value dim, P pages, Z page size, I items of the list, R rows.
"""
# mypy: disallow-untyped-decorators=False
# (Triton's decorators carry no types.)

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipelines.kernels.attention_plan import WorkLists
from pipelines.kernels.attention_shape import AttentionShape, DecodeTiling, dot_rows
from pipelines.kernels.float8 import widened
from pipelines.kernels.launch import launch_options, power_of_2
from pipelines.kernels.pages import pages_of, row_mask, rows_at

_JOINED_AT_ONCE = 8  # items
_ROWS_JOINED_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class DecodeScratch:
    """What splits leave; shared by all layers and steps of one stream."""

    sums: Tensor  # [I * N * Hv] float32
    weights: Tensor  # [I * N] float32, logarithms to the base 2

    @classmethod
    def allocate(cls, max_items: int, num_heads: int, value_dim: int, device: torch.device) -> "DecodeScratch":
        """Make the buffers for the largest list and the layer with the most heads."""
        return cls(
            sums=torch.empty(max_items * num_heads * value_dim, dtype=torch.float32, device=device),
            weights=torch.empty(max_items * num_heads, dtype=torch.float32, device=device),
        )


def attend_decodes(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    lists: WorkLists,
    scratch: DecodeScratch,
    output: Tensor,
    shape: AttentionShape,
    tiling: DecodeTiling,
    *,
    num_rows: int,
    splits: bool = True,
    scales: tuple[Tensor, Tensor] | None = None,
    dependent: bool = False,
) -> None:
    """Write the attention of the step's decode rows; other rows are left alone.

    Args:
        query: [T, N, H], heads contiguous.
        keys: [P, Z, K, H], the row's own new key among them.
        values: [P, Z, K, Hv].
        block_tables: [seats, blocks] int32.
        lists: the step's plan.
        scratch: see there.
        output: [T, N, Hv], heads contiguous.
        shape: the layer's.
        tiling: see there.
        scales: [K] float32 each, of keys and values that are float8.
        num_rows: rows of the plan behind which there are no decodes.
        splits: whether the plan may have cut decodes into several items.
        dependent: whether these are dependent launches.
    """
    _decode[(lists.lanes.shape[0] * shape.num_kv_heads,)](
        query,
        keys,
        values,
        block_tables,
        lists.decodes,
        lists.lanes,
        scratch.sums,
        scratch.weights,
        output,
        query if scales is None else scales[0],
        query if scales is None else scales[1],
        shape.scale_log2,
        query.stride(0),
        output.stride(0),
        block_tables.stride(0),
        num_kv_heads=shape.num_kv_heads,
        group=shape.group,
        group_rows=dot_rows(shape.group),
        key_dim=shape.key_dim,
        key_block=max(16, power_of_2(shape.key_dim)),
        value_dim=shape.value_dim,
        value_block=max(16, power_of_2(shape.value_dim)),
        page_size=shape.page_size,
        block_n=tiling.block_n,
        item_words=lists.decodes.shape[1],
        lane_words=lists.lanes.shape[1],
        precision=shape.precision,
        is_scaled=scales is not None,
        dependent=dependent,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
        maxnreg=tiling.max_registers,
        **launch_options(dependent=dependent),
    )
    if not splits:
        return
    _join[(min(num_rows, _ROWS_JOINED_AT_ONCE), shape.num_kv_heads)](
        lists.joins,
        lists.counts,
        scratch.sums,
        scratch.weights,
        output,
        output.stride(0),
        num_kv_heads=shape.num_kv_heads,
        group=shape.group,
        group_block=power_of_2(shape.group),
        value_dim=shape.value_dim,
        value_block=power_of_2(shape.value_dim),
        at_once=_JOINED_AT_ONCE,
        join_words=lists.joins.shape[1],
        dependent=dependent,
        num_warps=4,
        **launch_options(dependent=dependent),
    )


@triton.jit
def _joined(
    highest: tl.tensor, total: tl.tensor, result: tl.tensor, weight: tl.tensor, part: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Join one more split to those before it: its weight [heads] (a logarithm) and normalised sum [heads, dims].

    What rounds is said outright, so that the compiler cannot round differently in different kernels.
    """
    higher = tl.maximum(highest, weight)
    fade = tl.exp2(highest - higher)
    share = tl.exp2(weight - higher)
    return higher, tl.fma(total, fade, share), tl.fma(result, fade[:, None], part * share[:, None])


@triton.jit
def _join(
    joins: tl.tensor,
    counts: tl.tensor,
    sums: tl.tensor,
    weights: tl.tensor,
    output: tl.tensor,
    output_stride: tl.tensor,
    num_kv_heads: tl.constexpr,
    group: tl.constexpr,
    group_block: tl.constexpr,
    value_dim: tl.constexpr,
    value_block: tl.constexpr,
    at_once: tl.constexpr,
    join_words: tl.constexpr,
    dependent: tl.constexpr,
) -> None:
    """Join the splits of rows and a KV head in their order, if they are an item each."""
    heads: tl.constexpr = num_kv_heads * group
    num_joins = tl.load(counts + 2)
    first = joins + tl.program_id(0) * join_words
    next_token = tl.load(first, mask=tl.program_id(0) < num_joins, other=0)
    next_entry = tl.load(first + 1, mask=tl.program_id(0) < num_joins, other=0)
    next_count = tl.load(first + 2, mask=tl.program_id(0) < num_joins, other=0)
    if dependent:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    head = tl.arange(0, group_block)
    dim = tl.arange(0, value_block)
    is_there = (head < group)[:, None] & (dim < value_dim)[None, :]
    for row in range(tl.program_id(0), num_joins, tl.num_programs(0)):
        token = next_token.to(tl.int64)
        base = next_entry.to(tl.int64) * heads + tl.program_id(1) * group
        count = next_count
        behind = joins + (row + tl.num_programs(0)) * join_words
        next_token = tl.load(behind, mask=row + tl.num_programs(0) < num_joins, other=0)
        next_entry = tl.load(behind + 1, mask=row + tl.num_programs(0) < num_joins, other=0)
        next_count = tl.load(behind + 2, mask=row + tl.num_programs(0) < num_joins, other=0)
        highest = tl.full([group_block], -1e38, tl.float32)
        total = tl.zeros([group_block], tl.float32)
        result = tl.zeros([group_block, value_block], tl.float32)
        for number in tl.range(0, count, num_stages=at_once):
            place = base + number * heads + head
            weight = tl.load(weights + place, mask=head < group, other=float("-inf"))
            part = tl.load(sums + place[:, None] * value_dim + dim[None, :], mask=is_there, other=0.0)
            highest, total, result = _joined(highest, total, result, weight, part)
        result = result / tl.where(head < group, total, 1.0)[:, None]
        tl.store(
            output + token * output_stride + (tl.program_id(1) * group + head)[:, None] * value_dim + dim[None, :],
            result.to(output.dtype.element_ty),
            mask=is_there,
        )


@triton.jit
def _read_item(
    items: tl.tensor, item: tl.tensor, item_words: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The numbers of an item as `WorkLists.decodes` has them, of none (-1) nothing to do."""
    entry = items + item * item_words
    token = tl.load(entry, mask=item >= 0, other=0)
    seat = tl.load(entry + 1, mask=item >= 0, other=0)
    low = tl.load(entry + 2, mask=item >= 0, other=0)
    high = tl.load(entry + 3, mask=item >= 0, other=0)
    num_items = tl.load(entry + 4, mask=item >= 0, other=0)
    size = tl.load(entry + 5, mask=item >= 0, other=1)
    after = tl.load(entry + 6, mask=item >= 0, other=-1)
    return token, seat, low, high, num_items, size, after


@triton.jit(do_not_specialize=["table_stride"])
def _decode(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    block_tables: tl.tensor,
    items: tl.tensor,
    lanes: tl.tensor,
    sums: tl.tensor,
    weights: tl.tensor,
    output: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    scale_log2: tl.tensor,
    query_stride: tl.tensor,
    output_stride: tl.tensor,
    table_stride: tl.tensor,
    num_kv_heads: tl.constexpr,
    group: tl.constexpr,
    group_rows: tl.constexpr,
    key_dim: tl.constexpr,
    key_block: tl.constexpr,
    value_dim: tl.constexpr,
    value_block: tl.constexpr,
    page_size: tl.constexpr,
    block_n: tl.constexpr,
    item_words: tl.constexpr,
    lane_words: tl.constexpr,
    precision: tl.constexpr,
    is_scaled: tl.constexpr,
    dependent: tl.constexpr,
) -> None:
    heads: tl.constexpr = num_kv_heads * group
    row = tl.arange(0, group_rows)
    key_at = tl.arange(0, key_block)
    value_at = tl.arange(0, value_block)
    is_asked = row_mask(row < group, key_dim, key_block)
    is_written = row_mask(row < group, value_dim, value_block)
    kv_head = tl.program_id(0) % num_kv_heads
    lane = lanes + tl.program_id(0) // num_kv_heads * lane_words
    num_turns = tl.load(lane + 1)

    # The item after the present one, whose numbers and first pages are read ahead.
    next_item = tl.load(lane)
    next_token, next_seat, next_low, next_high, next_items, next_size, after = _read_item(items, next_item, item_words)
    next_table = block_tables + next_seat.to(tl.int64) * table_stride
    next_pages = pages_of(next_table, next_low // block_n * block_n, next_high, page_size, block_n)
    if dependent:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    # The present item: over before it began. Triton 3.6 carries a variable around a loop only if its first value is no
    # other variable's, so these are values of their own that nobody reads.
    item = next_item - 1
    token, low, high, num_items, size = next_token - 1, next_low - 1, next_high - 1, next_items - 1, next_size + 1
    table, pages = next_table + 1, next_pages + 1
    start = high + 1
    highest = tl.full([group_rows], -1e38, tl.float32)
    total = tl.zeros([group_rows], tl.float32)
    result = tl.zeros([group_rows, value_block], tl.float32)
    # Those splits of a row that are joined already.
    joined_highest = tl.full([group_rows], -1e38, tl.float32)
    joined_total = tl.zeros([group_rows], tl.float32)
    joined = tl.zeros([group_rows, value_block], tl.float32)
    for _ in range(num_turns):
        is_next = start >= high
        is_first = is_next | (start % size == 0)  # of a split; a border carried along would end the loads' pipeline
        if is_next:
            item = next_item
            token, low, high, num_items, size = next_token, next_low, next_high, next_items, next_size
            table, pages = next_table, next_pages
            start = low // block_n * block_n
            next_item = after
            next_token, next_seat, next_low, next_high, next_items, next_size, after = _read_item(
                items, next_item, item_words
            )
            next_table = block_tables + next_seat.to(tl.int64) * table_stride
        position = start + tl.arange(0, block_n)
        is_seen = (position >= low) & (position < high)
        asked = tl.load(
            query + token.to(tl.int64) * query_stride + ((kv_head * group + row) * key_dim)[:, None] + key_at[None, :],
            mask=is_asked,
            other=0.0,
        )
        at_key = rows_at(keys, pages, start, kv_head, num_kv_heads, key_dim, key_block, page_size, block_n)
        key = tl.load(at_key, mask=row_mask(is_seen, key_dim, key_block), other=0.0)
        at_value = rows_at(values, pages, start, kv_head, num_kv_heads, value_dim, value_block, page_size, block_n)
        value = tl.load(at_value, mask=row_mask(is_seen, value_dim, value_block), other=0.0)
        start += block_n
        pages = pages_of(table, start, high, page_size, block_n)
        next_pages = pages_of(next_table, next_low // block_n * block_n, next_high, page_size, block_n)

        highest = tl.where(is_first, -1e38, highest)
        # The scales of a head are factors of its scores and of its result.
        factor = scale_log2 * tl.load(key_scales + kv_head) if is_scaled else scale_log2
        if is_scaled:
            key, value = widened(key, asked.dtype), widened(value, asked.dtype)
        score = tl.dot(asked, tl.trans(key), input_precision=precision)
        score = tl.where(is_seen[None, :], score, float("-inf"))
        higher = tl.maximum(highest, tl.max(score, 1) * factor)
        weight = tl.exp2(tl.fma(score, factor, -higher[:, None]))
        fade = tl.where(is_first, 0.0, tl.exp2(highest - higher))
        total = total * fade + tl.sum(weight, 1)
        result = tl.dot(weight.to(value.dtype), value, result * fade[:, None], input_precision=precision)
        highest = higher
        is_over = start >= high
        if is_over | (start % size == 0):
            normed = result / total[:, None]
            if is_scaled:
                normed *= tl.load(value_scales + kv_head)
            split_weight = highest + tl.log2(total)
            if num_items == 1:
                is_alone = (start - 1) // size * size <= low  # no split of the row came before this one
                before = tl.where(is_alone, -1e38, joined_highest)
                joined_highest, joined_total, joined = _joined(before, joined_total, joined, split_weight, normed)
                if is_over:
                    at_output = output + token.to(tl.int64) * output_stride + value_at[None, :]
                    tl.store(
                        at_output + (kv_head * group + row)[:, None] * value_dim,
                        (joined / joined_total[:, None]).to(output.dtype.element_ty),
                        mask=is_written,
                    )
            else:
                left = item.to(tl.int64) * heads + kv_head * group + row
                tl.store(sums + left[:, None] * value_dim + value_at[None, :], normed, mask=is_written)
                tl.store(weights + left, split_weight, mask=row < group)
