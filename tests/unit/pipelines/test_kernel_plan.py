"""The work lists of a step: every position of a decode and every query of a chunk exactly once, whatever the batch."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_support import DEVICE

from pipelines.kernels.attention_plan import SplitRule, StepLimits, StepRows, WorkLists, fills_lanes, plan_attention

RULE = SplitRule(smallest=4, wide=16, few=4, most=8, unit=2)
LIMITS = StepLimits(max_rows=5, max_tokens=100, max_context=1000)
TILE = 8
TURN = 16

ROWS = st.lists(
    st.tuples(st.sampled_from([0, 1, 1, 2, 8, 9, 20]), st.integers(0, 900)).map(lambda row: (row[0], row[0] + row[1])),
    max_size=LIMITS.max_rows,
)


def planned(rows: list[tuple[int, int]], window: int | None, num_lanes: int = 1) -> WorkLists:
    """Plan rows of (tokens, context); the row's number is its seat, plus 10."""
    rows = rows + [(0, 0)] * (LIMITS.max_rows - len(rows))
    counts = torch.tensor([count for count, _ in rows], dtype=torch.int32)
    lists = WorkLists.allocate(LIMITS, window, TILE, DEVICE, RULE, num_lanes=num_lanes, turn=TURN)
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
    even = -(-length // -(-length // size))
    return -(-even // RULE.unit) * RULE.unit


def begin_of(context: int, window: int | None) -> int:
    return 0 if window is None else max(0, context - window)


def whole_rows(spans: list[int], num_lanes: int) -> list[bool]:
    """Whether each row is one item: full rounds of those that fit into a lane's even share."""
    limit = sum(spans) / num_lanes * 1.0625 + 128
    left = num_lanes * divmod(sum(span <= limit for span in spans) + num_lanes // 16, num_lanes)[0]
    whole = []
    for span in spans:
        whole.append(span <= limit and left > 0)
        left -= whole[-1]
    return whole


@settings(max_examples=20, deadline=None)
@given(
    rows=ROWS,
    window=st.sampled_from([None, 1, 30, 500]),
    num_lanes=st.sampled_from([1, 3, 8, 100]),
)
def test_each_position_of_a_decode_is_in_one_split(
    rows: list[tuple[int, int]], window: int | None, num_lanes: int
) -> None:
    """Items cover what the row attends to, in order; splits are as long as the row alone decides, in one piece or in many."""
    lists = planned(rows, window, num_lanes)
    items = lists.decodes[: int(lists.counts[0])].tolist()
    spans = [context - begin_of(context, window) for count, context in rows if count == 1]
    whole = whole_rows(spans, num_lanes)
    first_token, joins, end = 0, [], len(items)
    for row, (count, context) in enumerate(rows):
        if count == 1:
            begin = begin_of(context, window)
            size = split_size(context - begin)
            borders = [begin, *range(begin // size * size + size, context, size), context]
            assert len(borders) - 1 <= lists.most_splits
            expected = [(begin, context)] if whole.pop(0) else list(pairwise(borders))
            own = items[end - len(expected) : end]  # the last row's come first: it has the most to do
            end -= len(expected)
            assert [item[:6] for item in own] == [
                [first_token, 10 + row, low, high, len(expected), size] for low, high in expected
            ]
            if len(expected) > 1:
                joins.append([first_token, end, len(expected)])
        first_token += count
    assert end == 0
    assert lists.joins[: int(lists.counts[2]), :3].tolist() == joins


def turns_of(item: list[int]) -> int:
    return -(-item[3] // TURN) - item[2] // TURN


def chains(lists: WorkLists) -> list[list[int]]:
    """The items of each lane."""
    found = []
    for first, _ in lists.lanes.tolist():
        chain = [first]
        while chain[-1] >= 0:
            chain.append(int(lists.decodes[chain[-1], 6]))
        found.append(chain[:-1])
    return found


@settings(max_examples=20, deadline=None)
@given(rows=ROWS, window=st.sampled_from([None, 30]), num_lanes=st.sampled_from([1, 3, 8]))
def test_each_item_is_dealt_to_one_lane(rows: list[tuple[int, int]], window: int | None, num_lanes: int) -> None:
    lists = planned(rows, window, num_lanes)
    dealt = chains(lists)
    assert sorted(item for chain in dealt for item in chain) == list(range(int(lists.counts[0])))
    items = lists.decodes.tolist()
    assert lists.lanes[:, 1].tolist() == [sum(turns_of(items[item]) for item in chain) for chain in dealt]


@pytest.mark.parametrize("seed", range(3))
def test_lanes_have_about_as_much_to_do_as_each_other(seed: int) -> None:
    """Answers of an offline job, of log-normal length, the shortest in front as a step has them: within 6 % of even."""
    generator = torch.Generator().manual_seed(seed)
    lengths = (
        (600 * torch.exp(0.6 * torch.randn(150 + 50 * seed, generator=generator))).int().clamp(max=8000).sort().values
    )
    index = torch.arange(len(lengths), dtype=torch.int32, device=DEVICE)
    limits = StepLimits(max_rows=256, max_tokens=256, max_context=8192)
    lists = WorkLists.allocate(limits, None, TILE, DEVICE, num_lanes=33)
    plan_attention(StepRows(index, torch.ones_like(index), lengths.to(DEVICE), index), lists)
    turns = lists.lanes[:, 1].float()
    assert turns.mean() / turns.max() > 0.94


@pytest.mark.parametrize(
    ("lengths", "num_whole"),
    [
        ([4000] * 33, 33),  # 264 pairs of row and KV head on 264 programs
        ([4000] * 31, 31),  # nearly
        ([4000] * 30, 0),
        ([4000] * 35, 33),
        ([4000] * 66, 66),
        ([4000] * 31 + [8000], 31),
        ([200] * 31 + [8000], 31),
        ([1168], 0),
    ],
)
def test_rows_stay_whole_where_they_share_an_h200_evenly(lengths: list[int], num_whole: int) -> None:
    limits = StepLimits(max_rows=66, max_tokens=66, max_context=8192)
    lists = WorkLists.allocate(limits, None, TILE, DEVICE, num_lanes=33)
    index = torch.arange(len(lengths), dtype=torch.int32, device=DEVICE)
    contexts = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    plan_attention(StepRows(index, torch.ones_like(index), contexts, index), lists)
    assert fills_lanes(contexts.cpu().numpy(), 33) == (num_whole == len(lengths)), "the host sees it as the device does"
    joins = lists.joins[: int(lists.counts[2]), :3].tolist()
    assert [token for token, _, _ in joins] == list(range(num_whole, len(lengths)))
    assert all(count > 1 for _, _, count in joins)


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
