"""Paged attention against a reference in float64: shapes, windows, mixed steps, padding, invariance."""

from dataclasses import replace

import pytest
import torch
from kernel_support import (
    DEVICE,
    DTYPES,
    ON_GPU,
    TOLERANCES,
    AttentionCase,
    attend_reference,
    error,
    make_case,
    poisoned,
)

from pipelines.kernels.attention_plan import StepLimits, StepRows
from pipelines.kernels.attention_shape import AttentionShape
from pipelines.kernels.launch import num_processors
from pipelines.kernels.paged_attention import PagedKernels, StepKinds

BOTH = StepKinds(has_decodes=True, has_chunks=True)
MIXED = ((1, 1), (1, 130), (1, 600), (5, 5), (20, 150), (0, 0), (2, 2))


def shape_of(
    *,
    heads: int = 4,
    kv_heads: int = 2,
    key_dim: int = 16,
    value_dim: int = 16,
    page_size: int = 16,
    dtype: torch.dtype = torch.float32,
) -> AttentionShape:
    return AttentionShape(heads, kv_heads, key_dim, value_dim, page_size, key_dim**-0.5, dtype)


def run(case: AttentionCase, window: int | None = None, kinds: StepKinds = BOTH) -> torch.Tensor:
    num_rows, num_tokens = case.rows.seats.shape[0], case.query.shape[0]
    kernels = PagedKernels([(case.shape, window)], StepLimits(num_rows, num_tokens, 10_000), DEVICE)
    output = poisoned(num_tokens, case.shape.num_heads, case.shape.value_dim, dtype=case.shape.dtype)
    kernels.plan(case.rows, splits=kinds.has_splits)
    kernels.attend(0, case.query, case.keys, case.values, case.block_tables, output, kinds)
    return output


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mixed_step_agrees_with_the_reference(dtype: torch.dtype) -> None:
    """Decodes, chunks with and without a past, one split and several, an empty row; NaN in unwritten pages shows nowhere."""
    case = make_case(shape_of(dtype=dtype), MIXED)
    assert error(run(case), attend_reference(case, None)) < TOLERANCES[dtype]


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (6, 2), (8, 1), (20, 1)])
def test_groups_of_any_size_agree(heads: int, kv_heads: int) -> None:
    """One head a KV head, three, eight, twenty: a group need be no power of two, nor fit the smallest tile."""
    case = make_case(shape_of(heads=heads, kv_heads=kv_heads), ((1, 140), (7, 30)))
    assert error(run(case), attend_reference(case, None)) < TOLERANCES[torch.float32]


@pytest.mark.parametrize(("key_dim", "value_dim"), [(64, 64), (80, 80), (96, 48), (128, 128)])
def test_head_sizes_agree(key_dim: int, value_dim: int) -> None:
    """Also those that are no power of two, and values of another size than keys."""
    case = make_case(shape_of(heads=2, kv_heads=1, key_dim=key_dim, value_dim=value_dim), ((1, 33), (3, 18)))
    assert error(run(case), attend_reference(case, None)) < TOLERANCES[torch.float32]


@pytest.mark.parametrize("page_size", [16, 48, 64, 256])
def test_page_sizes_agree(page_size: int) -> None:
    """Smaller than a turn of the loop, no power of two, larger."""
    case = make_case(shape_of(page_size=page_size), ((1, 270), (1, 256), (9, 100)))
    assert error(run(case), attend_reference(case, None)) < TOLERANCES[torch.float32]


@pytest.mark.parametrize("window", [1, 5, 64, 257, 1000])
def test_sliding_windows_agree(window: int) -> None:
    """A window that starts within a split, at its border, and one longer than any context."""
    case = make_case(shape_of(), ((1, 3), (1, 256), (1, 300), (1, 520), (20, 150), (40, 40)))
    assert error(run(case, window), attend_reference(case, window)) < TOLERANCES[torch.float32]


@pytest.mark.parametrize("window", [1, 40, 200, 330, 511])
def test_sliding_windows_of_rows_in_one_piece_agree(window: int) -> None:
    """A window that starts anywhere in a split, also shortly in front of its end."""
    case = make_case(shape_of(page_size=64), ((1, 600), (1, 570), (1, 641)))
    assert planned_items(case.rows, window) == 3
    assert error(run(case, window), attend_reference(case, window)) < TOLERANCES[torch.float32]


def test_splits_of_any_number_are_joined() -> None:
    """One split, two, eight, nine, in memory and on the way."""
    case = make_case(shape_of(heads=2, kv_heads=1, page_size=64), ((1, 512), (1, 513), (1, 4096), (1, 9000)))
    assert planned_items(case.rows, None) > 4
    assert error(run(case), attend_reference(case, None)) < TOLERANCES[torch.float32]
    case = make_case(shape_of(heads=2, kv_heads=1, page_size=64), ((1, 1100), (1, 1000), (1, 1101), (0, 0), (2, 9)))
    assert planned_items(case.rows, None) == 3
    assert error(run(case), attend_reference(case, None)) < TOLERANCES[torch.float32]


def test_a_program_takes_any_number_of_pairs() -> None:
    """More rounds, to and fro, than are counted at once."""
    rows = tuple((1, 1 + row % 5) for row in range(97))
    case = make_case(shape_of(), rows)
    assert error(run(case), attend_reference(case, None)) < TOLERANCES[torch.float32]


def test_padding_is_never_written() -> None:
    """Tokens of no row keep what was there."""
    case = make_case(shape_of(), MIXED, num_padding_tokens=3)
    output = run(case)
    assert bool(output[-3:].isnan().all())
    assert not bool(output[:-3].isnan().any())


def test_each_kernel_writes_its_own_rows_only() -> None:
    """A step without chunks does not need their kernel, nor one without decodes theirs."""
    case = make_case(shape_of(), ((1, 20), (4, 9)))
    decodes = run(case, kinds=StepKinds(has_decodes=True, has_chunks=False))
    chunks = run(case, kinds=StepKinds(has_decodes=False, has_chunks=True))
    assert decodes.isnan().any(-1).any(-1).tolist() == [False, True, True, True, True]
    assert chunks.isnan().any(-1).any(-1).tolist() == [True, False, False, False, False]


@pytest.mark.parametrize("window", [None, 500, 200])  # the last begins shortly in front of a split's end
def test_a_decode_does_not_depend_on_its_batch(window: int | None) -> None:
    """Bit for bit the same in its splits, alone, and in one piece, among others as long as it is."""
    num_rows = num_processors(DEVICE)
    case = make_case(shape_of(page_size=64), ((1, 600),) * num_rows)
    rows = StepRows(*(getattr(case.rows, name)[2:3] for name in StepRows.__slots__))
    assert [planned_items(each, window) for each in (rows, case.rows)] == [2, num_rows]
    assert torch.equal(run(case, window)[2], run(replace(case, rows=rows, lengths=case.lengths[2:3]), window)[2])


@pytest.mark.parametrize("window", [None, 500, 200])
def test_a_decode_in_one_piece_is_bit_for_bit_that_in_splits(window: int | None) -> None:
    """Also where one is much longer than the others, and with a chunk beside them."""
    case = make_case(shape_of(page_size=64), ((1, 1), (1, 600), (1, 64), (1, 1900), (9, 90)))
    whole = replace(BOTH, has_splits=False)
    assert torch.equal(run(case, window, whole), run(case, window))


def test_lanes_are_shared_by_all_layers_or_are_not_told() -> None:
    """What the host works out of contexts does not hold for layers with a window."""
    limits = StepLimits(4, 4, 1000)
    layers = [(shape_of(), None), (shape_of(), None)]
    assert PagedKernels(layers, limits, DEVICE).num_lanes
    assert PagedKernels([*layers, (shape_of(), 100)], limits, DEVICE).num_lanes is None


def planned_items(rows: StepRows, window: int | None) -> int:
    kernels = PagedKernels([(shape_of(), window)], StepLimits(rows.seats.shape[0], 64, 10_000), DEVICE)
    kernels.plan(rows)
    return int(next(iter(kernels._lists.values())).counts[0])


def test_a_chunk_does_not_depend_on_its_cut() -> None:
    """The same in one chunk and in three, with borders in the middle of a turn: bit for bit, on a GPU.

    The interpreter's dot is numpy's, whose rows do depend on how many there are.
    """
    whole = make_case(shape_of(), ((50, 90),))
    parts = replace(
        whole,
        rows=StepRows(
            *(
                torch.tensor(values, dtype=torch.int32, device=DEVICE)
                for values in ([0, 7, 30], [7, 23, 20], [47, 70, 90])
            ),
            whole.rows.seats.repeat(3),
        ),
    )
    if ON_GPU:
        assert torch.equal(run(whole), run(parts))
    assert error(run(parts), run(whole)) < TOLERANCES[torch.float32]


def test_a_step_leaves_nothing_behind_for_a_smaller_one() -> None:
    """Kernels that served many rows of many splits serve one row, and write nothing else."""
    case = make_case(shape_of(), MIXED)
    kernels = PagedKernels([(case.shape, None)], StepLimits(len(MIXED), 64, 600), DEVICE)
    for num_rows, num_written in ((len(MIXED), case.query.shape[0]), (1, 1)):
        rows = StepRows(*(getattr(case.rows, name)[:num_rows] for name in StepRows.__slots__))
        output = poisoned(case.query.shape[0], case.shape.num_heads, case.shape.value_dim, dtype=case.shape.dtype)
        kernels.plan(rows)
        kernels.attend(0, case.query, case.keys, case.values, case.block_tables, output, BOTH)
        assert error(output[:num_written], attend_reference(case, None)[:num_written]) < TOLERANCES[torch.float32]
        assert bool(output[num_written:].isnan().all())


def test_queries_inside_a_fused_projection_need_no_copy() -> None:
    """Query rows may be apart as far as they like."""
    case = make_case(shape_of(), MIXED)
    wide = torch.cat([case.query, case.query, case.query], dim=1)
    apart = replace(case, query=wide[:, : case.shape.num_heads])
    assert not apart.query.is_contiguous()
    assert torch.equal(run(apart), run(case))


def test_heads_that_do_not_divide_are_refused() -> None:
    """The message names both numbers."""
    with pytest.raises(ValueError, match="7 query heads do not divide among 2"):
        PagedKernels([(shape_of(heads=7, kv_heads=2), None)], StepLimits(1, 1, 1), DEVICE)


def test_more_rows_than_was_said_are_refused() -> None:
    """Their work would not fit into the lists."""
    case = make_case(shape_of(), ((1, 3), (1, 3)))
    kernels = PagedKernels([(case.shape, None)], StepLimits(1, 2, 3), DEVICE)
    with pytest.raises(ValueError, match="a plan of 2 rows was asked of kernels made for 1"):
        kernels.plan(case.rows)
