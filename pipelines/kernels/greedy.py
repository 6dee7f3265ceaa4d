"""Greedy sampling: the highest score of each row, written to the slot's output buffer and to the seat at once.

Rows are cut into parts, a program each; the last of a row's programs to arrive picks the winner among them. Of equal scores the
lowest token wins, wherever the cuts lie, as with torch's argmax on a CPU. A row with a NaN, or whose highest score is infinite,
yields `FAILED`.

It is the last kernel of a plain step's forward pass, and of its graph: which slot the step is in stands on the device.

Shapes: s rows, V vocabulary, S seats.
"""
# mypy: disallow-untyped-decorators=False
# (Triton's decorators carry no types.)

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipelines.kernels.launch import launch_options, power_of_2

FAILED = -1

_PART = 4096  # scores a program


@dataclass(frozen=True, slots=True)
class GreedyScratch:
    """Where the parts of a row meet. Arrivals are zero between launches."""

    scores: Tensor  # [s, parts] float32
    tokens: Tensor  # [s, parts] int32
    arrivals: Tensor  # [s] int32

    @classmethod
    def allocate(cls, max_rows: int, vocab_size: int, device: torch.device) -> "GreedyScratch":
        """Make the buffers."""
        shape = (max_rows, triton.cdiv(vocab_size, _PART))
        return cls(
            scores=torch.empty(shape, dtype=torch.float32, device=device),
            tokens=torch.empty(shape, dtype=torch.int32, device=device),
            arrivals=torch.zeros(max_rows, dtype=torch.int32, device=device),
        )


def sample_greedy(
    logits: Tensor,
    seats: Tensor,
    counts: Tensor,
    scratch: GreedyScratch,
    tokens: Tensor,
    last_tokens: Tensor,
    *,
    dependent: bool = False,
) -> None:
    """Write the token of each row.

    Args:
        logits: [s, V], V contiguous.
        seats: [s] int32, of the rows.
        counts: [2] int32 on the device: how many rows there are, behind which there is padding, and the number of the slot.
        scratch: see there.
        tokens: [slots, s] int32, each slot's output buffer.
        last_tokens: [S] int64, the seats'; a failed row leaves 0 there, a token that exists.
        dependent: whether this is a dependent launch.
    """
    rows, vocab_size = logits.shape
    parts = triton.cdiv(vocab_size, _PART)
    _sample_greedy[(rows, parts)](
        logits,
        seats,
        counts,
        scratch.scores,
        scratch.tokens,
        scratch.arrivals,
        tokens,
        last_tokens,
        logits.stride(0),
        tokens.stride(0),
        vocab_size,
        parts=parts,
        parts_block=power_of_2(parts),
        block=_PART,
        failed=FAILED,
        dependent=dependent,
        num_warps=8,
        **launch_options(dependent=dependent),
    )


@triton.jit
def _sample_greedy(
    logits: tl.tensor,
    seats: tl.tensor,
    counts: tl.tensor,
    part_scores: tl.tensor,
    part_tokens: tl.tensor,
    arrivals: tl.tensor,
    tokens: tl.tensor,
    last_tokens: tl.tensor,
    logits_stride: tl.tensor,
    tokens_stride: tl.tensor,
    vocab_size: tl.tensor,
    parts: tl.constexpr,
    parts_block: tl.constexpr,
    block: tl.constexpr,
    failed: tl.constexpr,
    dependent: tl.constexpr,
) -> None:
    if dependent:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0)
    part = tl.program_id(1)
    infinity = float("inf")
    if row < tl.load(counts):
        at = part * block + tl.arange(0, block)
        score = tl.load(logits + row.to(tl.int64) * logits_stride + at, mask=at < vocab_size, other=-infinity)
        score = score.to(tl.float32)
        score = tl.where(score == score, score, infinity)  # noqa: PLR0124  so that a NaN fails the row
        best, index = tl.max(score, 0, return_indices=True, return_indices_tie_break_left=True)
        tl.store(part_scores + row * parts + part, best)
        tl.store(part_tokens + row * parts + part, part * block + index)
        tl.debug_barrier()  # both stores come before the arrival
        if tl.atomic_add(arrivals + row, 1, sem="acq_rel", scope="gpu") == parts - 1:
            tl.store(arrivals + row, 0)
            each = tl.arange(0, parts_block)
            scores = tl.load(part_scores + row * parts + each, mask=each < parts, other=-infinity, cache_modifier=".cg")
            best, winner = tl.max(scores, 0, return_indices=True, return_indices_tie_break_left=True)
            token = tl.load(part_tokens + row * parts + winner, cache_modifier=".cg")
            is_finite = (best > -infinity) & (best < infinity)
            tl.store(tokens + tl.load(counts + 1) * tokens_stride + row, tl.where(is_finite, token, failed))
            tl.store(last_tokens + tl.load(seats + row), tl.where(is_finite, token, 0).to(tl.int64))
