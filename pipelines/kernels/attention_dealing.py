"""Deals out a step's decodes to the lanes that share them; see `attention_plan`, whose second kernel this is."""
# mypy: disallow-untyped-decorators=False
# (Triton's decorators carry no types.)

import triton
import triton.language as tl


@triton.jit
def _turns_of(entry: tl.tensor, is_there: tl.tensor, turn: tl.constexpr) -> tl.tensor:
    """Turns of some decodes; 0 where there is none."""
    low = tl.load(entry + 2, mask=is_there, other=0)
    high = tl.load(entry + 3, mask=is_there, other=0)
    return tl.cdiv(high, turn) - low // turn


@triton.jit
def deal(
    items: tl.tensor,
    counts: tl.tensor,
    lanes: tl.tensor,
    num_lanes: tl.constexpr,
    lane_block: tl.constexpr,
    turn: tl.constexpr,
    at_once: tl.constexpr,
    item_words: tl.constexpr,
    lane_words: tl.constexpr,
    dependent: tl.constexpr,
) -> None:
    """Deal out the decodes, about the longest first, each to a lane that has least to do yet; one program.

    In each round every lane gets one that would not have more to do by it than an even share, or than another lane has already.
    A lane is one number, so that sorting them is sorting numbers: its turns << 40 | its last item + 1 << 16 | the lane.
    """
    if dependent:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    index = tl.arange(0, lane_block)
    count = tl.load(counts)
    added = tl.zeros([at_once], tl.int32)
    for start in range(0, count, at_once):
        item = start + tl.arange(0, at_once)
        added += _turns_of(items + item * item_words, item < count, turn)
    most = tl.cdiv(tl.sum(added, 0), num_lanes).to(tl.int64)
    no_lane: tl.constexpr = 1 << 62
    state = tl.where(index < num_lanes, index.to(tl.int64), no_lane)
    base = count * 0
    while base < count:
        load = state >> 40
        longest = _turns_of(items + base * item_words, base < count, turn)
        takes = (load + longest <= most) | (load == tl.min(load, 0))
        takes = takes & (base + index < count)
        item = base + index
        at_last = (state >> 16 & 0xFFFFFF).to(tl.int32) - 1
        lane = (state & 0xFFFF).to(tl.int32)
        tl.store(items + at_last * item_words + 6, item, mask=takes & (at_last >= 0))
        tl.store(lanes + lane * lane_words, item, mask=takes & (at_last < 0))
        load += _turns_of(items + item * item_words, takes, turn)
        most = tl.maximum(most, tl.max(tl.where(takes, load, 0), 0))
        state = tl.sort(tl.where(takes, load << 40 | (item + 1).to(tl.int64) << 16 | lane, state))
        base += tl.sum(takes.to(tl.int32), 0)
    at_last = (state >> 16 & 0xFFFFFF).to(tl.int32) - 1
    is_lane = state < no_lane
    lane = tl.where(is_lane, state & 0xFFFF, 0).to(tl.int32)
    tl.store(items + at_last * item_words + 6, -1, mask=is_lane & (at_last >= 0))
    tl.store(lanes + lane * lane_words, -1, mask=is_lane & (at_last < 0))
    tl.store(lanes + lane * lane_words + 1, (state >> 40).to(tl.int32), mask=is_lane)
