"""Norms of heads, rotation and the write into pages against plain torch in float64."""

from dataclasses import dataclass

import pytest
import torch
from kernel_support import DEVICE, DTYPES, TOLERANCES, error, poisoned
from torch import Tensor

from pipelines.kernels.rope import HeadNorms, TokenPlaces, rotate_and_cache, rotation_table

EPSILON = 1e-6


@dataclass(frozen=True)
class Case:
    projected: Tensor  # [T, (N + 2K) * H]
    table: Tensor  # [C, R]
    places: TokenPlaces
    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int


def make_case(
    *,
    heads: int = 3,
    kv_heads: int = 1,
    head_dim: int = 16,
    rotary: int = 16,
    page_size: int = 16,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """Tokens of two seats at positions in several pages, padding in the middle; unused table entries point nowhere."""
    random = torch.Generator().manual_seed(1)
    seats = torch.tensor([2, 2, -1, 0, 0], dtype=torch.int32)
    positions = torch.tensor([15, 16, 3, 0, 37], dtype=torch.int32)
    tables = torch.full((3, 4), 2**30, dtype=torch.int32)
    tables[2, :2] = torch.tensor([4, 1])
    tables[0, :3] = torch.tensor([3, 0, 2])
    width = (heads + 2 * kv_heads) * head_dim
    inverse = 10000.0 ** -(torch.arange(0, rotary, 2) / rotary)
    return Case(
        projected=torch.randn((5, width), generator=random).to(DEVICE, dtype),
        table=rotation_table(inverse, 40).to(DEVICE),
        places=TokenPlaces(positions.to(DEVICE), seats.to(DEVICE), tables.to(DEVICE)),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        page_size=page_size,
    )


def run(case: Case, norms: HeadNorms | None = None) -> tuple[Tensor, Tensor, Tensor]:
    dtype = case.projected.dtype
    query = poisoned(case.projected.shape[0], case.num_heads, case.head_dim, dtype=dtype)
    keys = poisoned(5, case.page_size, case.num_kv_heads, case.head_dim, dtype=dtype)
    values = poisoned(5, case.page_size, case.num_kv_heads, case.head_dim, dtype=dtype)
    rotate_and_cache(case.projected, case.table, case.places, keys, values, query, norms)
    return query, keys, values


def rotated(heads: Tensor, positions: Tensor, rotary: int) -> Tensor:
    """Rotate [T, n, H] float64."""
    inverse = 10000.0 ** -(torch.arange(0, rotary, 2, dtype=torch.float64) / rotary)
    angles = positions[:, None].double() * inverse
    cosine, sine = angles.cos().repeat(1, 2)[:, None], angles.sin().repeat(1, 2)[:, None]
    part, rest = heads[..., :rotary], heads[..., rotary:]
    turned = torch.cat([-part[..., rotary // 2 :], part[..., : rotary // 2]], dim=-1)
    return torch.cat([part * cosine + turned * sine, rest], dim=-1)


def normed(heads: Tensor, weight: Tensor) -> Tensor:
    return heads * (heads.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight.double().cpu()


def check(case: Case, norms: HeadNorms | None = None) -> None:
    query, keys, values = run(case, norms)
    tolerance = TOLERANCES[case.projected.dtype]
    heads = case.projected.double().cpu().view(5, -1, case.head_dim)
    asked, key, value = heads.split([case.num_heads, case.num_kv_heads, case.num_kv_heads], dim=1)
    if norms:
        asked, key = normed(asked, norms.query_weight), normed(key, norms.key_weight)
    positions, seats = case.places.positions.cpu(), case.places.seats.cpu()
    rotary = case.table.shape[1]
    asked, key = rotated(asked, positions, rotary), rotated(key, positions, rotary)
    is_real = seats >= 0
    assert error(query[is_real], asked[is_real]) < tolerance
    assert bool(query[~is_real].isnan().all())
    written = torch.zeros(keys.shape[:2], dtype=torch.bool)
    for token in is_real.nonzero()[:, 0].tolist():
        position = int(positions[token])
        page = int(case.places.block_tables[seats[token], position // case.page_size])
        written[page, position % case.page_size] = True
        assert error(keys[page, position % case.page_size], key[token]) < tolerance
        assert torch.equal(values[page, position % case.page_size].double().cpu(), value[token])
    assert bool(keys[~written].isnan().all())
    assert bool(values[~written].isnan().all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotation_and_pages_agree_with_the_reference(dtype: torch.dtype) -> None:
    """Queries rotated, keys rotated in their page, values as they were; a padded token writes nowhere."""
    check(make_case(dtype=dtype))


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 4, 80), (2, 1, 96), (14, 2, 128)])
def test_head_counts_and_sizes_agree(heads: int, kv_heads: int, head_dim: int) -> None:
    """More heads than a program takes, heads that are no power of two."""
    check(make_case(heads=heads, kv_heads=kv_heads, head_dim=head_dim, rotary=head_dim))


@pytest.mark.parametrize("rotary", [4, 8])
def test_a_head_may_be_rotated_in_part(rotary: int) -> None:
    """The dims behind the rotated ones stay."""
    check(make_case(rotary=rotary))


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_are_normed_before_they_are_rotated(dtype: torch.dtype) -> None:
    """Queries and keys each by their own weight; values not at all."""
    weights = torch.rand((2, 16), generator=torch.Generator().manual_seed(3)).to(DEVICE, dtype) + 0.5
    check(make_case(dtype=dtype), HeadNorms(weights[0], weights[1], EPSILON))


def test_queries_may_be_rotated_in_place() -> None:
    """The query part of the projection itself is a valid place for them."""
    case = make_case()
    expected, keys, values = run(case)
    place = case.projected.view(5, -1, case.head_dim)[:, : case.num_heads]
    before = place.clone()
    rotate_and_cache(case.projected, case.table, case.places, keys, values, place)
    expected[2] = before[2]  # padding
    assert torch.equal(place, expected)


def test_the_table_scales_both_parts() -> None:
    """As YaRN's attention factor asks for."""
    inverse = torch.tensor([1.0, 0.1])
    assert torch.equal(rotation_table(inverse, 5, 2.0), 2 * rotation_table(inverse, 5))
    assert rotation_table(inverse, 5).shape == (5, 4)
