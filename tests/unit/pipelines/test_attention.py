"""Paged attention equals plain attention over each sequence alone, whatever shares the step."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipelines.models import attention
from pipelines.models.attention import (
    AttentionInputs,
    LayerKv,
    LayerSpec,
    LayerTensors,
    PagedAttention,
    plan_attention,
)

BLOCK_SIZE = 4
HEADS, KV_HEADS, KEY_DIM, VALUE_DIM = 6, 2, 8, 12


@dataclass
class World:
    """Sequences whose keys and values so far lie in pages, in shuffled blocks; all that is not written is NaN."""

    rows: list[tuple[int, int]]  # (positions before the step, tokens of the step), in the device's order
    window: int | None
    scale: float | None

    def __post_init__(self) -> None:
        torch.manual_seed(sum(start * 31 + count for start, count in self.rows))
        lengths = [start + count for start, count in self.rows]
        self.queries = [torch.randn(length, HEADS, KEY_DIM) for length in lengths]
        self.keys = [torch.randn(length, KV_HEADS, KEY_DIM) for length in lengths]
        self.values = [torch.randn(length, KV_HEADS, VALUE_DIM) for length in lengths]
        width = -(-max(lengths) // BLOCK_SIZE)
        self.tables = torch.randperm(len(lengths) * width, dtype=torch.int32).view(len(lengths), width)
        pages = len(lengths) * width
        self.kv = LayerKv(
            torch.full((pages, BLOCK_SIZE, KV_HEADS, KEY_DIM), float("nan")),
            torch.full((pages, BLOCK_SIZE, KV_HEADS, VALUE_DIM), float("nan")),
        )
        for row, (start, _) in enumerate(self.rows):
            for position in range(start):
                block = int(self.tables[row, position // BLOCK_SIZE])
                self.kv.keys[block, position % BLOCK_SIZE] = self.keys[row][position]
                self.kv.values[block, position % BLOCK_SIZE] = self.values[row][position]

    def paged(self) -> Tensor:
        """Run the step: [T, N, Hv]."""
        counts = [count for _, count in self.rows]
        lengths = [start + count for start, count in self.rows]
        inputs = AttentionInputs(
            plan=plan_attention(counts, lengths),
            token_tables=torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)),
            row_tables=torch.arange(len(counts)),
            block_tables=self.tables,
            positions=torch.cat([torch.arange(start, start + count) for start, count in self.rows]),
            context_lens=torch.tensor(lengths),
            block_size=BLOCK_SIZE,
        )
        new = [slice(start, start + count) for start, count in self.rows]
        tensors = LayerTensors(
            torch.cat([queries[part] for queries, part in zip(self.queries, new, strict=True)]),
            torch.cat([keys[part] for keys, part in zip(self.keys, new, strict=True)]),
            torch.cat([values[part] for values, part in zip(self.values, new, strict=True)]),
            self.scale,
        )
        spec = LayerSpec(HEADS, KV_HEADS, KEY_DIM, VALUE_DIM, self.window)
        return PagedAttention(inputs)(spec, self.kv, tensors)

    def plain(self) -> Tensor:
        """The same by the definition, one query at a time."""
        outputs = []
        scale = self.scale or KEY_DIM**-0.5
        for row, (start, count) in enumerate(self.rows):
            for position in range(start, start + count):
                first = 0 if self.window is None else max(0, position - self.window + 1)
                keys = self.keys[row][first : position + 1].repeat_interleave(HEADS // KV_HEADS, dim=1)
                values = self.values[row][first : position + 1].repeat_interleave(HEADS // KV_HEADS, dim=1)
                weights = (torch.einsum("nh,lnh->nl", self.queries[row][position], keys) * scale).softmax(-1)
                outputs.append(torch.einsum("nl,lnh->nh", weights, values))
        return torch.stack(outputs)


decodes = st.lists(st.integers(0, 40), max_size=6).map(lambda starts: [(start, 1) for start in sorted(starts)])
chunks = st.lists(st.tuples(st.integers(0, 20), st.integers(2, 12)), max_size=3)
steps = st.tuples(decodes, chunks).map(lambda parts: parts[0] + parts[1]).filter(bool)


@given(rows=steps, window=st.none() | st.integers(1, 30), scale=st.none() | st.just(0.3))
@settings(max_examples=60, deadline=None)
def test_any_mix_of_rows_equals_attention_by_its_definition(
    rows: list[tuple[int, int]], window: int | None, scale: float | None
) -> None:
    """Decodes of any lengths, first and later chunks, windows and scales; pages hold NaN where nothing was written."""
    world = World(rows, window, scale)
    torch.testing.assert_close(world.paged(), world.plain(), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kept", [0, 1 << 24])
@pytest.mark.parametrize("window", [None, 5])
def test_a_chunk_cut_into_pieces_equals_the_whole(
    monkeypatch: pytest.MonkeyPatch, window: int | None, kept: int
) -> None:
    """Large masks are cut and, past a bound, made anew in each layer: the answer stays."""
    monkeypatch.setattr(attention, "_MAX_MASK_ELEMENTS", 50)
    monkeypatch.setattr(attention, "_MAX_KEPT_ELEMENTS", kept)
    world = World([(9, 1), (0, 17), (6, 13)], window, None)
    torch.testing.assert_close(world.paged(), world.plain(), atol=2e-5, rtol=1e-4)


def test_decodes_of_similar_length_share_a_call_and_a_long_one_does_not_pad_them() -> None:
    """Sixteen short rows are one group; one long context beside them is a group of its own."""
    plan = plan_attention([1] * 17, [*range(100, 116), 4000])
    assert [(group.first, group.end) for group in plan.groups] == [(0, 16), (16, 17)]
    assert (plan.groups[0].shortest, plan.groups[0].longest) == (100, 115)


def test_new_keys_and_values_are_in_the_pages_after_the_step() -> None:
    """A later step finds them there."""
    world = World([(3, 1), (0, 6)], None, None)
    world.paged()
    for row, (start, count) in enumerate(world.rows):
        for position in range(start + count):
            block = int(world.tables[row, position // BLOCK_SIZE])
            assert torch.equal(world.kv.keys[block, position % BLOCK_SIZE], world.keys[row][position])
            assert torch.equal(world.kv.values[block, position % BLOCK_SIZE], world.values[row][position])
