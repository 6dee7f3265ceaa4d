"""Experts of some tokens: each token through the few that its router chose, each expert's weights read once for all its tokens.

    choose      shares and numbers of each token's experts, from the router's scores
    place       pairs (token, choice) in the order of their experts
    gate, down  blocks of pairs of one expert, its weights the tall operand
    sum         what a token's experts say, each times its share

Nothing is read on the host: the grids depend on how many tokens there are, and blocks that no expert needs end at once. A pair's
sums are made in the order of the columns, whatever pairs lie beside it in a block.

Shapes: T tokens, k choices of each, E experts, D hidden, I intermediate of an expert.
"""
# mypy: disallow-untyped-decorators=False
# (Triton's decorators carry no types.)

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipelines.kernels.launch import launch_options, power_of_2, shared_bytes
from pipelines.kernels.linear_loop import multiply

_BLOCK_N = 64  # rows of a weight
_TURN_BYTES = 128  # of each row in one turn of the loop
_PAIR_BLOCKS = (16, 64)  # pairs of a block, at the least and at the most
_PLACED_AT_ONCE = 1024  # pairs
_MAX_STAGES = 4
_RESERVED_BYTES = 3072  # of a program's shared memory, beside the turns in flight
_SUM_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class ExpertScratch:
    """What lies between the kernels; shared by all layers and steps of one stream."""

    shares: Tensor  # [T * k] float32, rounded to the tokens' type
    numbers: Tensor  # [T * k] int32
    order: Tensor  # [T * k] int32 pairs by expert, those of one in the order of their tokens
    counts: Tensor  # [E] int32 pairs of each
    gated: Tensor  # [T * k, I]
    parts: Tensor  # [T * k, D]

    @classmethod
    def allocate(
        cls, max_tokens: int, num_experts: int, num_chosen: int, hidden_size: int, intermediate_size: int, like: Tensor
    ) -> "ExpertScratch":
        """Make the buffers, of the device and, where tokens are kept, the type of `like`."""
        pairs = max_tokens * num_chosen
        return cls(
            shares=like.new_zeros(pairs, dtype=torch.float32),
            numbers=like.new_zeros(pairs, dtype=torch.int32),
            order=like.new_zeros(pairs, dtype=torch.int32),
            counts=like.new_zeros(num_experts, dtype=torch.int32),
            gated=like.new_zeros((pairs, intermediate_size)),
            parts=like.new_zeros((pairs, hidden_size)),
        )


def run_experts(
    rows: Tensor,
    scores: Tensor,
    gate_up: Tensor,
    down: Tensor,
    output: Tensor,
    scratch: ExpertScratch,
    *,
    num_chosen: int,
    is_normalised: bool,
    dependent: bool = False,
) -> None:
    """Write what the chosen experts say of each token, by their shares.

    Args:
        rows: [T, D], contiguous.
        scores: [T, E] of the router.
        gate_up: [E, 2I, D], contiguous, gate first.
        down: [E, D, I], contiguous.
        output: [T, D], contiguous.
        scratch: see there; made for at least T tokens.
        num_chosen: k.
        is_normalised: whether a token's shares add up to 1.
        dependent: whether these are dependent launches.
    """
    num_tokens, num_experts = scores.shape
    num_pairs = num_tokens * num_chosen
    _choose[(num_tokens,)](
        scores,
        scratch.shares,
        scratch.numbers,
        scores.stride(0),
        num_experts=num_experts,
        expert_block=power_of_2(num_experts),
        num_chosen=num_chosen,
        choice_block=power_of_2(num_chosen),
        is_normalised=is_normalised,
        dependent=dependent,
        num_warps=1,
        **launch_options(dependent=dependent),
    )
    _place[(num_experts,)](
        scratch.numbers,
        scratch.order,
        scratch.counts,
        num_pairs,
        block=min(_PLACED_AT_ONCE, power_of_2(num_pairs)),
        dependent=dependent,
        num_warps=4,
        **launch_options(dependent=dependent),
    )
    gated = scratch.gated[:num_pairs]
    _project(rows, gate_up, gated, scratch, num_chosen, is_gated=True, num_pairs=num_pairs, dependent=dependent)
    _project(gated, down, scratch.parts, scratch, 1, is_gated=False, num_pairs=num_pairs, dependent=dependent)
    _sum[(num_tokens, triton.cdiv(output.shape[1], _SUM_BLOCK))](
        scratch.parts,
        scratch.shares,
        output,
        size=output.shape[1],
        block=_SUM_BLOCK,
        num_chosen=num_chosen,
        dependent=dependent,
        num_warps=4,
        **launch_options(dependent=dependent),
    )


def _project(
    rows: Tensor,
    weight: Tensor,
    output: Tensor,
    scratch: ExpertScratch,
    pairs_a_row: int,
    *,
    is_gated: bool,
    num_pairs: int,
    dependent: bool,
) -> None:
    """Write each pair's projection by its expert into its row of `output`; pair p reads row p // pairs_a_row."""
    num_experts, num_rows, size = weight.shape
    least, most = _PAIR_BLOCKS
    block_m = min(most, max(least, power_of_2(num_pairs // num_experts)))
    block_k = _TURN_BYTES // weight.element_size()
    num_blocks = min(num_experts, num_pairs) + num_pairs // block_m  # at most; each expert's last may be in part
    turn_bytes = ((2 if is_gated else 1) * _BLOCK_N + block_m) * _TURN_BYTES
    rows_out = num_rows // 2 if is_gated else num_rows
    _experts[(triton.cdiv(rows_out, _BLOCK_N), num_blocks)](
        rows,
        weight,
        scratch.order,
        scratch.counts,
        output,
        rows.stride(0),
        output.stride(0),
        num_experts=num_experts,
        expert_block=power_of_2(num_experts),
        pairs_a_row=pairs_a_row,
        rows_out=rows_out,
        size=size,
        block_m=block_m,
        block_n=_BLOCK_N,
        block_k=block_k,
        is_gated=is_gated,
        dependent=dependent,
        num_warps=4,
        num_stages=max(2, min(_MAX_STAGES, (shared_bytes(weight.device) // 2 - _RESERVED_BYTES) // turn_bytes)),
        **launch_options(dependent=dependent),
    )


@triton.jit
def _choose(
    scores: tl.tensor,
    shares: tl.tensor,
    numbers: tl.tensor,
    scores_stride: tl.tensor,
    num_experts: tl.constexpr,
    expert_block: tl.constexpr,
    num_chosen: tl.constexpr,
    choice_block: tl.constexpr,
    is_normalised: tl.constexpr,
    dependent: tl.constexpr,
) -> None:
    """Softmax over a token's scores, and the likeliest of it; of equal ones that of the lower number."""
    if dependent:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0)
    expert = tl.arange(0, expert_block)
    choice = tl.arange(0, choice_block)
    at_score = scores + token.to(tl.int64) * scores_stride + expert
    score = tl.load(at_score, mask=expert < num_experts, other=0.0).to(tl.float32)
    has_failed = tl.sum((score - score != 0.0).to(tl.int32), 0) > 0  # not finite: any are chosen, and the shares say so
    score = tl.where(has_failed | (expert >= num_experts), -1e38, score)
    weight = tl.where(expert < num_experts, tl.exp(score - tl.max(score, 0)), 0.0)
    left = tl.where(expert < num_experts, weight / tl.sum(weight, 0), -2.0)
    share = tl.zeros([choice_block], tl.float32)
    number = tl.zeros([choice_block], tl.int32)
    for place in tl.static_range(num_chosen):
        best = tl.argmax(left, 0)
        share = tl.where(choice == place, tl.max(left, 0), share)
        number = tl.where(choice == place, best, number)
        left = tl.where(expert == best, -1.0, left)
    if is_normalised:
        share = share / tl.sum(share, 0)
    share = tl.where(has_failed, float("nan"), share)
    at_choice = token * num_chosen + choice
    rounded = share.to(scores.dtype.element_ty).to(tl.float32)
    tl.store(shares + at_choice, rounded, mask=choice < num_chosen)
    tl.store(numbers + at_choice, number, mask=choice < num_chosen)


@triton.jit(do_not_specialize=["num_pairs"])
def _place(
    numbers: tl.tensor,
    order: tl.tensor,
    counts: tl.tensor,
    num_pairs: tl.tensor,
    block: tl.constexpr,
    dependent: tl.constexpr,
) -> None:
    """One expert's pairs, behind those of all lower ones."""
    if dependent:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    expert = tl.program_id(0)
    lower = tl.zeros([block], tl.int32)
    own = tl.zeros([block], tl.int32)
    for first in range(0, num_pairs, block):
        at = first + tl.arange(0, block)
        number = tl.load(numbers + at, mask=at < num_pairs, other=2**31 - 1)
        lower += (number < expert).to(tl.int32)
        own += (number == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(own, 0))
    place = tl.sum(lower, 0)
    for first in range(0, num_pairs, block):
        at = first + tl.arange(0, block)
        number = tl.load(numbers + at, mask=at < num_pairs, other=2**31 - 1)
        is_own = (number == expert).to(tl.int32)
        tl.store(order + place + tl.cumsum(is_own, 0) - 1, at, mask=number == expert)
        place += tl.sum(is_own, 0)


@triton.jit
def _experts(
    rows: tl.tensor,
    weight: tl.tensor,
    order: tl.tensor,
    counts: tl.tensor,
    output: tl.tensor,
    rows_stride: tl.tensor,
    output_stride: tl.tensor,
    num_experts: tl.constexpr,
    expert_block: tl.constexpr,
    pairs_a_row: tl.constexpr,
    rows_out: tl.constexpr,
    size: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    is_gated: tl.constexpr,
    dependent: tl.constexpr,
) -> None:
    """Some rows of one expert's weight times a block of its pairs."""
    if dependent:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    number = tl.arange(0, expert_block)
    count = tl.load(counts + number, mask=number < num_experts, other=0)
    blocks = tl.cdiv(count, block_m)
    block = tl.program_id(1)
    expert = tl.sum((tl.cumsum(blocks, 0) <= block).to(tl.int32), 0)  # as many as end before it
    if expert < num_experts:
        is_before = number < expert
        end = tl.sum(tl.where(number <= expert, count, 0), 0)
        first = tl.sum(tl.where(is_before, count, 0), 0) + (block - tl.sum(tl.where(is_before, blocks, 0), 0)) * block_m
        place = first + tl.arange(0, block_m)
        pair = tl.load(order + place, mask=place < end, other=0).to(tl.int64)
        # Rows beyond the end repeat others: no mask in the loop, and what they yield is not written.
        row_out = tl.program_id(0) * block_n + tl.arange(0, block_n)
        row = tl.minimum(row_out, rows_out - 1).to(tl.int64)
        own = weight + expert.to(tl.int64) * ((2 if is_gated else 1) * rows_out * size)
        product, second = multiply(
            rows, own, row, row + rows_out if is_gated else row, pair // pairs_a_row, place < end, 0, rows_stride, row, row,
            size, size, size % block_k == 0, False, block_m, block_n, block_k, is_gated, 0,
        )  # fmt: skip
        if is_gated:
            product = product / (1.0 + tl.exp(-product)) * second
        tl.store(
            output + pair[None, :] * output_stride + row_out[:, None],
            product.to(output.dtype.element_ty),
            mask=(row_out < rows_out)[:, None] & (place < end)[None, :],
        )


@triton.jit
def _sum(
    parts: tl.tensor,
    shares: tl.tensor,
    output: tl.tensor,
    size: tl.constexpr,
    block: tl.constexpr,
    num_chosen: tl.constexpr,
    dependent: tl.constexpr,
) -> None:
    """What one token's experts say, in the order of its choices."""
    if dependent:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    total = tl.zeros([block], tl.float32)
    for choice in tl.static_range(num_chosen):
        pair = token * num_chosen + choice
        part = tl.load(parts + pair * size + at, mask=at < size, other=0.0).to(tl.float32)
        total = tl.fma(part, tl.load(shares + pair), total)
    tl.store(output + token * size + at, total.to(output.dtype.element_ty), mask=at < size)
