"""The work lists of a step: every position of a decode and every query of a chunk exactly once, whatever the batch."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_support import DEVICE

from pipelines.kernels.attention_plan import SplitRule, StepLimits, StepRows, WorkLists, plan_attention

RULE = SplitRule(smallest=4, wide=16, few=4, most=8)
LIMITS = StepLimits(max_rows=5, max_tokens=100, max_context=1000)
TILE = 8

ROWS = st.lists(
    st.tuples(st.sampled_from([0, 1, 1, 2, 8, 9, 20]), st.integers(0, 900)).map(lambda row: (row[0], row[0] + row[1])),
    max_size=LIMITS.max_rows,
)


def planned(rows: list[tuple[int, int]], window: int | None) -> WorkLists:
    """Plan rows of (tokens, context); the row's number is its seat, plus 10."""
    rows = rows + [(0, 0)] * (LIMITS.max_rows - len(rows))
    counts = torch.tensor([count for count, _ in rows], dtype=torch.int32)
    lists = WorkLists.allocate(LIMITS, window, TILE, DEVICE, RULE)
    plan_attention(
        StepRows(
            first_tokens=(counts.cumsum(0) - counts).int().to(DEVICE),
            num_tokens=counts.to(DEVICE),
            context_lens=torch.tensor([context for _, context in rows], dtype=torch.int32, device=DEVICE),
            seats=torch.arange(10, 10 + len(rows), dtype=torch.int32, device=DEVICE),
        ),
        lists,
    )
    return lists


def split_size(length: int) -> int:
    """The rule, in plain numbers."""
    size = RULE.smallest
    while size * RULE.few < length and size < RULE.wide:
        size *= 2
    while size * RULE.most < length:
        size *= 2
    return size


@settings(max_examples=12, deadline=None)
@given(rows=ROWS, window=st.sampled_from([None, 1, 30, 500]))
def test_each_position_of_a_decode_is_in_one_split(rows: list[tuple[int, int]], window: int | None) -> None:
    """Splits cover what the row attends to, in order, cut at multiples of a size that the row alone decides."""
    lists = planned(rows, window)
    items = lists.decodes[: int(lists.counts[0])].tolist()
    first_token = 0
    for row, (count, context) in enumerate(rows):
        token, first, num_splits = lists.joins[row, :3].tolist()
        if count == 1:
            begin = 0 if window is None else max(0, context - window)
            size = split_size(context - begin)
            borders = [begin, *range(begin // size * size + size, context, size), context]
            own = items[first : first + num_splits]
            assert [item[:5] for item in own] == [
                [first_token, 10 + row, low, high, num_splits] for low, high in pairwise(borders)
            ]
            assert token == first_token
            assert num_splits <= lists.most_splits
        else:
            assert num_splits == 0
        first_token += count
    assert len(items) == sum(lists.joins[: len(rows), 2].tolist())


@settings(max_examples=12, deadline=None)
@given(rows=ROWS)
def test_each_query_of_a_chunk_is_in_one_tile(rows: list[tuple[int, int]]) -> None:
    """Tiles are full but for a row's last, and the last come first: theirs is the most work."""
    lists = planned(rows, None)
    expected = []
    first_token = 0
    for row, (count, context) in enumerate(rows):
        starts = range(0, count, TILE) if count > 1 else ()
        expected += [
            [first_token + start, 10 + row, context - count + start, min(TILE, count - start)]
            for start in reversed(starts)
        ]
        first_token += count
    assert [item[:4] for item in lists.tiles[: int(lists.counts[1])].tolist()] == expected


@pytest.mark.parametrize(
    ("max_context", "window", "most"),
    [(100, None, 8), (8192, None, 8), (20000, None, 20), (10**6, None, 32), (10**6, 512, 9)],
)
def test_lists_are_as_long_as_a_context_can_need(max_context: int, window: int | None, most: int) -> None:
    """Buffers grow with the context until a row has the most splits; a window keeps them short."""
    assert SplitRule().most_splits(max_context, window) == most
