"""The beginning of a step on the device: the slot's differences go to the seats, the step's tokens come from both.

One kernel, whose programs share the work: some apply what changed of block tables, one opens seats (sampling parameters of new
sequences), the others write the step's inputs, each token's id taken from the slot or, where it is carried over, from its
seat. How many there are of each stands in the slot, so a captured graph serves every step; what lies beyond is written as
padding: id 0, position 0, seat -1.

Nothing here is read by one part and written by another: a seat's last token is written by the sampler alone.

Shapes: T token capacity, S seats, B blocks a seat.
"""
# mypy: disallow-untyped-decorators=False
# (Triton's decorators carry no types.)

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from pipelines.kernels.launch import launch_options

_CHANGE_PROGRAMS = 8
_BLOCK = 256


@dataclass(frozen=True, slots=True)
class StagedStep:
    """A step as it lies in its slot on the device; all int32."""

    counts: Tensor  # [3] tokens, openings, changes of block tables
    input_ids: Tensor  # [T]
    carry_seats: Tensor  # [T] the seat whose last token it is; negative = the id stands in `input_ids`
    positions: Tensor  # [T]
    token_seats: Tensor  # [T]
    opening_seats: Tensor  # [S]
    temperatures: Tensor  # [S] bits of float32
    top_ks: Tensor  # [S]
    top_ps: Tensor  # [S] bits of float32
    seed_lows: Tensor  # [S]
    seed_highs: Tensor  # [S]
    changes: Tensor  # [2 * S * B] pairs of (seat * B + index, block)


@dataclass(frozen=True, slots=True)
class SeatState:
    """What the device remembers of each seat."""

    last_tokens: Tensor  # [S] int64
    block_tables: Tensor  # [S, B] int32, contiguous
    temperatures: Tensor  # [S] float32
    top_ks: Tensor  # [S] int64
    top_ps: Tensor  # [S] float32
    seeds: Tensor  # [S] int64


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model reads of a step, padded to a graph's number of tokens; nothing depends on what was there before."""

    input_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int32
    seats: Tensor  # [T] int32, -1 = padding


def begin_step(staged: StagedStep, seats: SeatState, inputs: StepInputs, *, dependent: bool = False) -> None:
    """Apply a step's differences to the seats and write its inputs."""
    num_tokens = inputs.input_ids.shape[0]
    max_openings = staged.opening_seats.shape[0]
    _begin_step[(_CHANGE_PROGRAMS + triton.cdiv(max_openings, _BLOCK) + triton.cdiv(num_tokens, _BLOCK),)](
        staged.counts,
        staged.input_ids,
        staged.carry_seats,
        staged.positions,
        staged.token_seats,
        staged.opening_seats,
        staged.temperatures,
        staged.top_ks,
        staged.top_ps,
        staged.seed_lows,
        staged.seed_highs,
        staged.changes,
        seats.last_tokens,
        seats.block_tables,
        seats.temperatures,
        seats.top_ks,
        seats.top_ps,
        seats.seeds,
        inputs.input_ids,
        inputs.positions,
        inputs.seats,
        num_tokens,
        change_programs=_CHANGE_PROGRAMS,
        opening_programs=triton.cdiv(max_openings, _BLOCK),
        block=_BLOCK,
        dependent=dependent,
        num_warps=4,
        **launch_options(dependent=dependent),
    )


@triton.jit(do_not_specialize=["capacity"])
def _begin_step(
    counts: tl.tensor,
    slot_ids: tl.tensor,
    carry_seats: tl.tensor,
    slot_positions: tl.tensor,
    slot_seats: tl.tensor,
    opening_seats: tl.tensor,
    slot_temperatures: tl.tensor,
    slot_top_ks: tl.tensor,
    slot_top_ps: tl.tensor,
    seed_lows: tl.tensor,
    seed_highs: tl.tensor,
    changes: tl.tensor,
    last_tokens: tl.tensor,
    block_tables: tl.tensor,
    temperatures: tl.tensor,
    top_ks: tl.tensor,
    top_ps: tl.tensor,
    seeds: tl.tensor,
    input_ids: tl.tensor,
    positions: tl.tensor,
    seats: tl.tensor,
    capacity: tl.tensor,
    change_programs: tl.constexpr,
    opening_programs: tl.constexpr,
    block: tl.constexpr,
    dependent: tl.constexpr,
) -> None:
    if dependent:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    lane = tl.arange(0, block)
    if program < change_programs:
        num_changes = tl.load(counts + 2)
        for start in range(program * block, num_changes, change_programs * block):
            at = start + lane
            is_there = at < num_changes
            entry = tl.load(changes + 2 * at, mask=is_there, other=0)
            tl.store(block_tables + entry, tl.load(changes + 2 * at + 1, mask=is_there, other=0), mask=is_there)
    elif program < change_programs + opening_programs:
        at = (program - change_programs) * block + lane
        is_there = at < tl.load(counts + 1)
        seat = tl.load(opening_seats + at, mask=is_there, other=0)
        temperature = tl.load(slot_temperatures + at, mask=is_there, other=0)
        top_p = tl.load(slot_top_ps + at, mask=is_there, other=0)
        low = tl.load(seed_lows + at, mask=is_there, other=0)
        high = tl.load(seed_highs + at, mask=is_there, other=0)
        seed = (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)
        tl.store(temperatures + seat, temperature.to(tl.float32, bitcast=True), mask=is_there)
        tl.store(top_ps + seat, top_p.to(tl.float32, bitcast=True), mask=is_there)
        tl.store(top_ks + seat, tl.load(slot_top_ks + at, mask=is_there, other=0).to(tl.int64), mask=is_there)
        tl.store(seeds + seat, seed, mask=is_there)
    else:
        at = (program - change_programs - opening_programs) * block + lane
        is_token = at < tl.load(counts)
        carry = tl.load(carry_seats + at, mask=is_token, other=-1)
        own = tl.load(slot_ids + at, mask=is_token, other=0).to(tl.int64)
        carried = tl.load(last_tokens + carry, mask=carry >= 0, other=0)
        tl.store(input_ids + at, tl.where(carry >= 0, carried, own), mask=at < capacity)
        tl.store(positions + at, tl.load(slot_positions + at, mask=is_token, other=0), mask=at < capacity)
        tl.store(seats + at, tl.load(slot_seats + at, mask=is_token, other=-1), mask=at < capacity)
