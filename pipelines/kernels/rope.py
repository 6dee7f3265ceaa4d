"""What lies between a layer's fused projection and its attention, in one kernel: norms of heads, rotation, write into pages.

A program takes a token and some of its heads: queries are normalised, rotated and written out, keys are normalised, rotated
and written into the page of the token's position, values are written there as they are. All arithmetic is float32 with one
rounding at the end. A token whose seat is negative is padding: nothing of it is read or written.

Shapes: T tokens, N query heads, K KV heads, H head dim, P pages, Z page size, C positions.
"""
# mypy: disallow-untyped-decorators=False
# (Triton's decorators carry no types.)

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipelines.kernels.launch import launch_options, power_of_2

_HEADS_A_PROGRAM = 8


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS norms over each head of queries and keys, as Qwen3 has them."""

    query_weight: Tensor  # [H]
    key_weight: Tensor  # [H]
    epsilon: float


@dataclass(frozen=True, slots=True)
class TokenPlaces:
    """Where a step's tokens stand."""

    positions: Tensor  # [T] int32, those of padding within the table too
    seats: Tensor  # [T] int32, negative = padding
    block_tables: Tensor  # [seats, blocks] int32


def rotation_table(inverse_frequencies: Tensor, num_positions: int, scaling: float = 1.0) -> Tensor:
    """Return cosines, then sines of each position, [C, R] float32 for R / 2 frequencies.

    Args:
        inverse_frequencies: [R / 2] float32, whatever scaling of frequencies there is applied.
        num_positions: C.
        scaling: factor of both, as YaRN has it.
    """
    positions = torch.arange(num_positions, dtype=torch.float32, device=inverse_frequencies.device)
    angles = positions[:, None] * inverse_frequencies.float()[None]
    return torch.cat([angles.cos(), angles.sin()], dim=1) * scaling


def rotate_and_cache(
    projected: Tensor,
    table: Tensor,
    places: TokenPlaces,
    keys: Tensor,
    values: Tensor,
    query: Tensor,
    norms: HeadNorms | None = None,
    *,
    scales: tuple[Tensor, Tensor] | None = None,
    dependent: bool = False,
) -> None:
    """Rotate queries and keys (halves of a head against each other, as NeoX does) and write keys and values into pages.

    Args:
        projected: [T, (N + 2K) * H]: queries, keys, values.
        table: [C, R] float32, see `rotation_table`; only the first R of a head's H dims are rotated.
        places: where the tokens stand.
        keys: [P, Z, K, H], one layer's.
        values: [P, Z, K, H].
        query: [T, N, H], written; may be the first part of `projected` itself.
        norms: of heads, before the rotation.
        scales: [K] float32 each: what keys and values are divided by to be written as float8 (e4m3).
        dependent: whether this is a dependent launch.
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[2]
    rotary = table.shape[1]
    blocks = triton.cdiv(num_heads + 2 * num_kv_heads, _HEADS_A_PROGRAM)
    _rotate_and_cache[(num_tokens, blocks)](
        projected,
        table,
        places.positions,
        places.seats,
        places.block_tables,
        keys,
        values,
        query,
        norms.query_weight if norms else projected,
        norms.key_weight if norms else projected,
        projected if scales is None else scales[0],
        projected if scales is None else scales[1],
        norms.epsilon if norms else 0.0,
        projected.stride(0),
        query.stride(0),
        places.block_tables.stride(0),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rotary=rotary,
        half_block=power_of_2(max(rotary // 2, head_dim - rotary // 2)),
        page_size=keys.shape[1],
        heads_a_program=_HEADS_A_PROGRAM,
        has_norms=norms is not None,
        is_scaled=scales is not None,
        dependent=dependent,
        num_warps=4,
        **launch_options(dependent=dependent),
    )


@triton.jit
def _float8(computed: tl.tensor, scale: tl.tensor, target: tl.tensor) -> tl.tensor:
    """Return what is written of computed values; what is too large becomes the largest there is."""
    scaled = computed.to(tl.float32) / scale
    clipped = tl.clamp(scaled, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)  # what failed is to show
    return clipped.to(target.dtype.element_ty)


@triton.jit(do_not_specialize=["table_stride"])
def _rotate_and_cache(
    projected: tl.tensor,
    table: tl.tensor,
    positions: tl.tensor,
    seats: tl.tensor,
    block_tables: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    query: tl.tensor,
    query_weight: tl.tensor,
    key_weight: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    epsilon: tl.tensor,
    projected_stride: tl.tensor,
    query_stride: tl.tensor,
    table_stride: tl.tensor,
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    rotary: tl.constexpr,
    half_block: tl.constexpr,
    page_size: tl.constexpr,
    heads_a_program: tl.constexpr,
    has_norms: tl.constexpr,
    is_scaled: tl.constexpr,
    dependent: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    seat = tl.load(seats + token)
    position = tl.load(positions + token)
    half: tl.constexpr = rotary // 2
    at = tl.arange(0, half_block)
    angles = table + position.to(tl.int64) * rotary + at
    cosine = tl.load(angles, mask=at < half, other=1.0)[None, :]
    sine = tl.load(angles + half, mask=at < half, other=0.0)[None, :]
    at_page = block_tables + seat.to(tl.int64) * table_stride + position // page_size
    page = tl.load(at_page, mask=seat >= 0, other=0).to(tl.int64)
    if dependent:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if seat >= 0:
        head = tl.program_id(1) * heads_a_program + tl.arange(0, heads_a_program)
        # The two parts of a head: the first half of what is rotated, and all the rest.
        is_head = (head < num_heads + 2 * num_kv_heads)[:, None]
        is_first = is_head & (at < half)[None, :]
        is_second = is_head & (at < head_dim - half)[None, :]
        source = projected + token * projected_stride + head[:, None] * head_dim + at[None, :]
        first = tl.load(source, mask=is_first, other=0.0).to(tl.float32)
        second = tl.load(source + half, mask=is_second, other=0.0).to(tl.float32)
        plain_first, plain_second = first, second
        if has_norms:
            square = (tl.sum(first * first, 1) + tl.sum(second * second, 1)) / head_dim
            inverse = tl.rsqrt(square + epsilon)[:, None]
            is_query = (head < num_heads)[:, None]
            weights = tl.where(is_query, query_weight, key_weight) + at[None, :]
            first = first * inverse * tl.load(weights, mask=is_first, other=0.0).to(tl.float32)
            second = second * inverse * tl.load(weights + half, mask=is_second, other=0.0).to(tl.float32)
        rotated_first = first * cosine - second * sine
        rotated_second = second * cosine + first * sine

        place = (page * page_size + position % page_size) * num_kv_heads
        kind = query.dtype.element_ty
        target = query + token * query_stride + head[:, None] * head_dim + at[None, :]
        here = (head < num_heads)[:, None]
        tl.store(target, rotated_first.to(kind), mask=here & is_first)
        tl.store(target + half, rotated_second.to(kind), mask=here & is_second)
        kv_head = head - num_heads
        target = keys + (place + kv_head[:, None]) * head_dim + at[None, :]
        is_here = (kv_head >= 0) & (kv_head < num_kv_heads)
        here = is_here[:, None]
        if is_scaled:
            scale = tl.load(key_scales + kv_head, mask=is_here, other=1.0)[:, None]
            tl.store(target, _float8(rotated_first.to(kind), scale, target), mask=here & is_first)
            tl.store(target + half, _float8(rotated_second.to(kind), scale, target), mask=here & is_second)
        else:
            tl.store(target, rotated_first.to(kind), mask=here & is_first)
            tl.store(target + half, rotated_second.to(kind), mask=here & is_second)
        kv_head -= num_kv_heads
        target = values + (place + kv_head[:, None]) * head_dim + at[None, :]
        is_here = (kv_head >= 0) & (kv_head < num_kv_heads)
        here = is_here[:, None]
        if is_scaled:
            scale = tl.load(value_scales + kv_head, mask=is_here, other=1.0)[:, None]
            tl.store(target, _float8(plain_first.to(kind), scale, target), mask=here & is_first)
            tl.store(target + half, _float8(plain_second.to(kind), scale, target), mask=here & is_second)
        else:
            tl.store(target, plain_first.to(kind), mask=here & is_first)
            tl.store(target + half, plain_second.to(kind), mask=here & is_second)
