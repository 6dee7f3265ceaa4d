"""The beginning of a step: differences to the seats, tokens from slot and seats, padding behind them."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_support import DEVICE
from torch import Tensor

from pipelines.kernels.step_inputs import SeatState, StagedStep, StepInputs, begin_step

SEATS, BLOCKS, TOKENS = 4, 3, 6
STALE = 2**30  # what an earlier step left behind the counts; nothing may come of it


def padded(values: list[int], size: int) -> Tensor:
    return torch.tensor(values + [STALE] * (size - len(values)), dtype=torch.int32, device=DEVICE)


def float_bits(values: list[float]) -> list[int]:
    return np.array(values, dtype=np.float32).view(np.int32).tolist()


def staged(
    *,
    ids: list[int],
    carries: list[int],
    positions: list[int],
    seats: list[int],
    openings: list[tuple[int, float, int, float, int]],
    changes: list[tuple[int, int]],
) -> StagedStep:
    """An opening is (seat, temperature, top_k, top_p, seed)."""
    return StagedStep(
        counts=torch.tensor([len(ids), len(openings), len(changes)], dtype=torch.int32, device=DEVICE),
        input_ids=padded(ids, TOKENS),
        carry_seats=padded(carries, TOKENS),
        positions=padded(positions, TOKENS),
        token_seats=padded(seats, TOKENS),
        opening_seats=padded([opening[0] for opening in openings], SEATS),
        temperatures=padded(float_bits([opening[1] for opening in openings]), SEATS),
        top_ks=padded([opening[2] for opening in openings], SEATS),
        top_ps=padded(float_bits([opening[3] for opening in openings]), SEATS),
        seed_lows=padded([int(np.int64(opening[4]).astype(np.int32)) for opening in openings], SEATS),
        seed_highs=padded([opening[4] >> 32 for opening in openings], SEATS),
        changes=padded([word for change in changes for word in change], 2 * SEATS * BLOCKS),
    )


def fresh_seats() -> SeatState:
    return SeatState(
        last_tokens=torch.arange(100, 100 + SEATS, device=DEVICE),
        block_tables=torch.zeros((SEATS, BLOCKS), dtype=torch.int32, device=DEVICE),
        temperatures=torch.zeros(SEATS, device=DEVICE),
        top_ks=torch.zeros(SEATS, dtype=torch.int64, device=DEVICE),
        top_ps=torch.ones(SEATS, device=DEVICE),
        seeds=torch.zeros(SEATS, dtype=torch.int64, device=DEVICE),
    )


def fresh_inputs() -> StepInputs:
    return StepInputs(
        input_ids=torch.full((TOKENS,), 7, device=DEVICE),
        positions=torch.full((TOKENS,), 7, dtype=torch.int32, device=DEVICE),
        seats=torch.full((TOKENS,), 7, dtype=torch.int32, device=DEVICE),
    )


def test_a_step_is_begun() -> None:
    """Carried tokens come from their seats, the others from the slot, padding is marked; seats and tables take over."""
    step = staged(
        ids=[0, 11, 12],
        carries=[3, -1, -1],
        positions=[9, 0, 1],
        seats=[3, 1, 1],
        openings=[(1, 0.5, 40, 0.9, (5 << 40) + 0xFFFFFFFF), (2, 1.5, 0, 1.0, 6)],
        changes=[(1 * BLOCKS, 8), (1 * BLOCKS + 1, 9), (3 * BLOCKS + 2, 5)],
    )
    seats, inputs = fresh_seats(), fresh_inputs()
    begin_step(step, seats, inputs)
    assert inputs.input_ids.tolist() == [103, 11, 12, 0, 0, 0]
    assert inputs.positions.tolist() == [9, 0, 1, 0, 0, 0]
    assert inputs.seats.tolist() == [3, 1, 1, -1, -1, -1]
    assert seats.block_tables.tolist() == [[0, 0, 0], [8, 9, 0], [0, 0, 0], [0, 0, 5]]
    assert seats.temperatures.tolist() == [0.0, 0.5, 1.5, 0.0]
    assert seats.top_ks.tolist() == [0, 40, 0, 0]
    assert torch.equal(seats.top_ps.cpu(), torch.tensor([1.0, 0.9, 1.0, 1.0]))
    assert seats.seeds.tolist() == [0, (5 << 40) + 0xFFFFFFFF, 6, 0]
    assert seats.last_tokens.tolist() == [100, 101, 102, 103]


def test_an_empty_step_changes_nothing_and_is_all_padding() -> None:
    """What earlier steps left in the slot has no effect."""
    seats, inputs = fresh_seats(), fresh_inputs()
    begin_step(staged(ids=[], carries=[], positions=[], seats=[], openings=[], changes=[]), seats, inputs)
    assert inputs.seats.tolist() == [-1] * TOKENS
    assert inputs.input_ids.tolist() == [0] * TOKENS
    assert int(seats.block_tables.abs().sum()) == 0


@settings(max_examples=10, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(-1, SEATS - 1), st.integers(0, 99)), max_size=TOKENS),
    changes=st.dictionaries(st.integers(0, SEATS * BLOCKS - 1), st.integers(0, 50)),
)
def test_tokens_and_tables_agree_with_a_plain_loop(rows: list[tuple[int, int]], changes: dict[int, int]) -> None:
    """Any mixture of carried and given tokens, any set of changed entries."""
    seats, inputs = fresh_seats(), fresh_inputs()
    step = staged(
        ids=[token for _, token in rows],
        carries=[carry for carry, _ in rows],
        positions=list(range(len(rows))),
        seats=[0] * len(rows),
        openings=[],
        changes=list(changes.items()),
    )
    begin_step(step, seats, inputs)
    expected = [100 + carry if carry >= 0 else token for carry, token in rows]
    assert inputs.input_ids.tolist() == expected + [0] * (TOKENS - len(rows))
    assert seats.block_tables.flatten().tolist() == [changes.get(entry, 0) for entry in range(SEATS * BLOCKS)]
