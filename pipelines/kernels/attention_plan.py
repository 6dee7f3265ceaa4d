"""Work lists of a step's attention, made on the device from the rows' lengths: two small kernels a step and window.

The grids of the attention kernels depend on capacities alone, so a captured graph serves every step; what there is to do
stands in two lists. A row of one token is a decode: its context is cut into splits. A row of more tokens is a chunk: its
queries are cut into tiles, an item each. A row of no token is padding and makes no item.

Splits are an item each, to be joined afterwards, so that few rows still fill the device. Rows of which each program can have as
many as any other are an item each, and their splits are joined on the way: nothing is left in memory in between. Where the host
sees that all of a step are such rows (`fills_lanes`), it says so, and the kernel that joins is not launched at all.

Lanes, a program a KV head each, share the decodes' items: the next longest goes to whoever has the least to do yet. That is what
the second kernel deals out, as a chain of items a lane.

Batch invariance: a split's size depends on the row's own context (and the layer's window) alone, never on the batch, splits
start at multiples of their size, and they are joined one after the other by the same arithmetic in either way.

Shapes: R rows.
"""
# mypy: disallow-untyped-decorators=False
# (Triton's decorators carry no types.)

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipelines.kernels.attention_dealing import deal
from pipelines.kernels.launch import launch_options, num_processors, power_of_2

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ITEM_WORDS = 8  # of one entry of a list: a 32-byte sector
JOIN_WORDS = 4
LANE_WORDS = 2

_NO_WINDOW = 2**31 - 1
_PROGRAMS = 16  # share the writing of the lists
_ADDED_AT_ONCE = 512  # items
_TOLERANCE = 1.0625  # times an even share are as good as that
_FULL = 15, 16  # so much of a round of lanes is as good as a whole one
_SPARED_POSITIONS = 128  # that a program reads in the time which rows in one piece save, measured on an H200


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Capacities that buffers are made for; a step beyond them would write outside of the lists."""

    max_rows: int
    max_tokens: int
    max_context: int  # positions of one row


@dataclass(frozen=True, slots=True)
class StepRows:
    """A step's rows on the device, [R] int32 each, padded to the capacity of a graph with rows of no token behind them."""

    first_tokens: Tensor  # index of a row's first token in the step
    num_tokens: Tensor  # 0 = padding
    context_lens: Tensor  # positions the last token attends to, itself included
    seats: Tensor  # row of the block tables


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How many splits a row has, all of one length but for the last.

    As many as there would be of the smallest, twice that, and so on until there are `few` or they are wide, and then until there
    are `most`. Measured on an H200 (docs/benchmarks.md). All are powers of two.
    """

    smallest: int = 512  # positions
    wide: int = 1024  # positions
    few: int = 8  # splits of one row
    most: int = 32
    unit: int = 64  # positions; a split is a multiple, and it is a multiple of a loop's turn

    def most_splits(self, max_context: int, window: int | None) -> int:
        """Splits that a row has at most; one more where a window's start cuts one in two."""
        length = max_context if window is None else min(window, max_context)
        return min(self.most, max(self.few, -(-length // self.wide))) + (window is not None)


@dataclass(frozen=True, slots=True)
class WorkLists:
    """Buffers of one plan; layers of the same window and tile share it."""

    window: int | None  # positions a token attends to, itself included; None = all before it
    tile_tokens: int  # queries of one tile of a chunk
    rule: SplitRule
    most_splits: int  # of a row
    turn: int  # positions that a lane works on at a time
    decodes: Tensor  # [R * most_splits, 8] int32: token, seat, first position, end, items of the row, length of a split, next
    lanes: Tensor  # [L, 2] int32: the first of its decodes, and the turns of all of them; "next" leads on, -1 = there is none
    tiles: Tensor  # [R + T / tile_tokens, 8] int32: first token, seat, position of that token, tokens
    counts: Tensor  # [3] int32: entries of `decodes`, `tiles` and `joins`
    joins: Tensor  # [R, 4] int32: token, first entry of its items, their number; the rows of more than one

    @classmethod
    def allocate(
        cls,
        limits: StepLimits,
        window: int | None,
        tile_tokens: int,
        device: torch.device,
        rule: SplitRule | None = None,
        *,
        num_lanes: int,
        turn: int = 64,
    ) -> "WorkLists":
        """Make the buffers for steps within `limits`."""
        rule = rule or SplitRule()
        most_splits = rule.most_splits(limits.max_context, window)
        max_tiles = limits.max_rows + -(-limits.max_tokens // tile_tokens)

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        return cls(
            window=window,
            tile_tokens=tile_tokens,
            rule=rule,
            most_splits=most_splits,
            turn=turn,
            decodes=zeros(limits.max_rows * most_splits, ITEM_WORDS),
            lanes=zeros(num_lanes, LANE_WORDS),
            tiles=zeros(max_tiles, ITEM_WORDS),
            counts=zeros(3),
            joins=zeros(limits.max_rows, JOIN_WORDS),
        )


def plan_attention(rows: StepRows, lists: WorkLists, *, splits: bool = True, dependent: bool = False) -> None:
    """Fill the work lists of a step; no host read. Without `splits` each decode is one item, however long."""
    max_rows = rows.num_tokens.shape[0]
    _plan[(min(_PROGRAMS, num_processors(rows.seats.device)),)](
        rows.first_tokens,
        rows.num_tokens,
        rows.context_lens,
        rows.seats,
        lists.decodes,
        lists.tiles,
        lists.counts,
        lists.joins,
        max_rows,
        _NO_WINDOW if lists.window is None else lists.window,
        row_block=power_of_2(max_rows),
        tile_tokens=lists.tile_tokens,
        smallest=lists.rule.smallest,
        wide=lists.rule.wide,
        few=lists.rule.few,
        most=lists.rule.most,
        unit=lists.rule.unit,
        num_lanes=lists.lanes.shape[0],
        spared=_SPARED_POSITIONS,
        tolerance=_TOLERANCE,
        full=_FULL[0],
        full_of=_FULL[1],
        may_split=splits,
        item_words=ITEM_WORDS,
        join_words=JOIN_WORDS,
        dependent=dependent,
        num_warps=4,
        **launch_options(dependent=dependent),
    )
    deal[(1,)](
        lists.decodes,
        lists.counts,
        lists.lanes,
        num_lanes=lists.lanes.shape[0],
        lane_block=power_of_2(lists.lanes.shape[0]),
        turn=lists.turn,
        at_once=_ADDED_AT_ONCE,
        item_words=ITEM_WORDS,
        lane_words=LANE_WORDS,
        dependent=dependent,
        num_warps=4,
        **launch_options(dependent=dependent),
    )


def fills_lanes(contexts: "NDArray[np.int32]", num_lanes: int) -> bool:
    """Return whether decodes of these contexts [R], R > 0, without a window, are best all in one piece: see `_are_whole`."""
    if not are_full_rounds(len(contexts), num_lanes):
        return False
    return bool(contexts.max() <= contexts.sum() / num_lanes * _TOLERANCE + _SPARED_POSITIONS)


def are_full_rounds(num_rows: int, num_lanes: int) -> bool:
    """Return whether so many rows, dealt out one by one, leave hardly a lane without one."""
    rest = num_rows % num_lanes
    return rest == 0 or rest * _FULL[1] >= num_lanes * _FULL[0]


@triton.jit
def _split_size(
    length: tl.tensor,
    smallest: tl.constexpr,
    wide: tl.constexpr,
    few: tl.constexpr,
    most: tl.constexpr,
    unit: tl.constexpr,
) -> tl.tensor:
    """See `SplitRule`."""
    size = tl.full(length.shape, smallest, tl.int32)
    for _ in tl.static_range(8):
        size = tl.where((size * few < length) & (size < wide), size * 2, size)
    for _ in tl.static_range(16):
        size = tl.where(size * most < length, size * 2, size)
    num_splits = tl.maximum(tl.cdiv(length, size), 1)
    return tl.maximum(tl.cdiv(tl.cdiv(length, num_splits), unit), 1) * unit


@triton.jit
def _are_whole(
    length: tl.tensor,
    is_decode: tl.tensor,
    num_lanes: tl.constexpr,
    spared: tl.constexpr,
    tolerance: tl.constexpr,
    full: tl.constexpr,
    full_of: tl.constexpr,
) -> tl.tensor:
    """Which rows are one item: those that no lane has longer for than for an even share, in full rounds of them.

    A step has its decodes first, the shortest in front, so what is left for splits is the longest.
    """
    share = tl.sum(tl.where(is_decode, length, 0).to(tl.float32), 0) / num_lanes
    fits = is_decode & (length <= share * tolerance + spared)
    count = tl.sum(fits.to(tl.int32), 0)
    rest = count % num_lanes
    rounds = count // num_lanes + (rest * full_of >= num_lanes * full).to(tl.int32)  # nearly full is full
    return fits & (tl.cumsum(fits.to(tl.int32), 0) <= rounds * num_lanes)


@triton.jit(do_not_specialize=["num_rows", "window"])
def _plan(
    first_tokens: tl.tensor,
    num_tokens: tl.tensor,
    context_lens: tl.tensor,
    seats: tl.tensor,
    decodes: tl.tensor,
    tiles: tl.tensor,
    counts: tl.tensor,
    joins: tl.tensor,
    num_rows: tl.tensor,
    window: tl.tensor,
    row_block: tl.constexpr,
    tile_tokens: tl.constexpr,
    smallest: tl.constexpr,
    wide: tl.constexpr,
    few: tl.constexpr,
    most: tl.constexpr,
    unit: tl.constexpr,
    num_lanes: tl.constexpr,
    spared: tl.constexpr,
    tolerance: tl.constexpr,
    full: tl.constexpr,
    full_of: tl.constexpr,
    may_split: tl.constexpr,
    item_words: tl.constexpr,
    join_words: tl.constexpr,
    dependent: tl.constexpr,
) -> None:
    if dependent:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.arange(0, row_block)
    is_row = row < num_rows
    first = tl.load(first_tokens + row, mask=is_row, other=0)
    count = tl.load(num_tokens + row, mask=is_row, other=0)
    context = tl.load(context_lens + row, mask=is_row, other=0)
    seat = tl.load(seats + row, mask=is_row, other=0)

    begin = tl.maximum(context - window, 0)  # first position that a decode attends to
    size = _split_size(context - begin, smallest, wide, few, most, unit)
    is_whole = count == 1
    if may_split:
        is_whole = _are_whole(context - begin, is_whole, num_lanes, spared, tolerance, full, full_of)
    num_items = tl.where(count == 1, tl.where(is_whole, 1, tl.cdiv(context, size) - begin // size), 0)
    length = tl.where(is_whole, context, size)
    first_entry = tl.sum(num_items, 0) - tl.cumsum(num_items, 0)  # the last row first: the longest items, see above
    is_joined = num_items > 1
    at_join = joins + (tl.cumsum(is_joined.to(tl.int32), 0) - 1) * join_words
    tl.store(at_join, first, mask=is_joined)
    tl.store(at_join + 1, first_entry, mask=is_joined)
    tl.store(at_join + 2, num_items, mask=is_joined)
    tl.store(counts + 2, tl.sum(is_joined.to(tl.int32), 0))
    entry = decodes + first_entry * item_words
    for item in range(tl.program_id(0), tl.max(num_items, 0), tl.num_programs(0)):
        is_item = item < num_items
        low = begin // size * size + item * length
        here = entry + item * item_words
        tl.store(here, first, mask=is_item)
        tl.store(here + 1, seat, mask=is_item)
        tl.store(here + 2, tl.maximum(low, begin), mask=is_item)
        tl.store(here + 3, tl.minimum(low + length, context), mask=is_item)
        tl.store(here + 4, num_items, mask=is_item)
        tl.store(here + 5, size, mask=is_item)
    tl.store(counts, tl.sum(num_items, 0))

    num_tiles = tl.where(count > 1, tl.cdiv(count, tile_tokens), 0)
    entry = tiles + (tl.cumsum(num_tiles, 0) - num_tiles) * item_words
    for tile in range(tl.program_id(0), tl.max(num_tiles, 0), tl.num_programs(0)):
        is_tile = tile < num_tiles
        done = (num_tiles - 1 - tile) * tile_tokens  # the last queries first: theirs is the most work
        here = entry + tile * item_words
        tl.store(here, first + done, mask=is_tile)
        tl.store(here + 1, seat, mask=is_tile)
        tl.store(here + 2, context - count + done, mask=is_tile)
        tl.store(here + 3, tl.minimum(count - done, tile_tokens), mask=is_tile)
    tl.store(counts + 1, tl.sum(num_tiles, 0))
