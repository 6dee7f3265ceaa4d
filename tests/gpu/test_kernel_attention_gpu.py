"""Paged attention on a GPU at real shapes: agreement, captured graphs, invariance bit for bit, dependent launches."""

from dataclasses import replace

import pytest
import torch
from kernel_support import DEVICE, DTYPES, TOLERANCES, AttentionCase, attend_reference, error, make_case, poisoned
from torch import Tensor

from pipelines.kernels.attention_plan import StepLimits, StepRows
from pipelines.kernels.attention_shape import AttentionShape
from pipelines.kernels.launch import can_launch_dependents
from pipelines.kernels.paged_attention import PagedKernels, StepKinds

pytestmark = pytest.mark.gpu

BOTH = StepKinds(has_decodes=True, has_chunks=True)
MIXED = ((1, 1), (1, 1168), (1, 5000), (0, 0), (1, 4096), (700, 700), (300, 2345), (2, 640))


def shape_of(
    heads: int, kv_heads: int, head_dim: int, page_size: int = 64, dtype: torch.dtype = torch.bfloat16
) -> AttentionShape:
    return AttentionShape(heads, kv_heads, head_dim, head_dim, page_size, head_dim**-0.5, dtype)


LLAMA = shape_of(32, 8, 128)


def kernels_for(case: AttentionCase, window: int | None = None, *, dependent: bool = False) -> PagedKernels:
    limits = StepLimits(case.rows.seats.shape[0], case.query.shape[0], 8192)
    return PagedKernels([(case.shape, window)], limits, DEVICE, dependent=dependent)


def attend(kernels: PagedKernels, case: AttentionCase, output: Tensor) -> Tensor:
    kernels.plan(case.rows)
    output.fill_(float("nan"))  # also the launch that has to come between the two
    kernels.attend(0, case.query, case.keys, case.values, case.block_tables, output, BOTH)
    return output


def run(case: AttentionCase, window: int | None = None) -> Tensor:
    output = poisoned(case.query.shape[0], case.shape.num_heads, case.shape.value_dim, dtype=case.shape.dtype)
    return attend(kernels_for(case, window), case, output)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mixed_step_of_a_llama_agrees(dtype: torch.dtype) -> None:
    """Every type, float32 without tf32."""
    case = make_case(replace(LLAMA, dtype=dtype), MIXED)
    assert error(run(case), attend_reference(case, None)) < TOLERANCES[dtype]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(9, 3, 64), (14, 2, 64), (32, 32, 96), (16, 8, 80), (8, 1, 256)]
)
def test_other_models_shapes_agree(heads: int, kv_heads: int, head_dim: int) -> None:
    """SmolLM2, Qwen2.5, Phi-3, and a head of 256 dims."""
    case = make_case(shape_of(heads, kv_heads, head_dim), MIXED)
    assert error(run(case), attend_reference(case, None)) < TOLERANCES[torch.bfloat16]


@pytest.mark.parametrize("page_size", [16, 256])
@pytest.mark.parametrize("window", [None, 1000])
def test_pages_and_windows_agree(page_size: int, window: int | None) -> None:
    """Small and large pages, with and without a window."""
    case = make_case(replace(LLAMA, page_size=page_size), MIXED)
    assert error(run(case, window), attend_reference(case, window)) < TOLERANCES[torch.bfloat16]


def test_windows_of_rows_in_one_piece_agree() -> None:
    """As many rows as share the device evenly, whose window starts shortly in front of a split's end."""
    case = make_case(LLAMA, tuple((1, 2000 + row) for row in range(33)))
    assert error(run(case, 200), attend_reference(case, 200)) < TOLERANCES[torch.bfloat16]


@pytest.mark.parametrize("lengths", [[1 + 37 * row % 3000 for row in range(256)], [2345] * 33], ids=["split", "whole"])
@pytest.mark.parametrize("window", [None, 200, 1000])
def test_a_decode_is_the_same_in_any_batch(lengths: list[int], window: int | None) -> None:
    """Bit for bit alone and among others: in its splits there, in one piece here."""
    rows = tuple((1, length) for length in lengths)
    case = make_case(LLAMA, rows)
    whole = run(case, window)
    for row in (0, len(rows) // 2, len(rows) - 1):
        own = StepRows(*(getattr(case.rows, name)[row : row + 1] for name in StepRows.__slots__))
        alone = replace(case, rows=own, lengths=rows[row : row + 1])
        assert torch.equal(run(alone, window)[row], whole[row])


def test_a_chunk_is_the_same_however_it_is_cut() -> None:
    """Bit for bit in one chunk and in three."""
    whole = make_case(LLAMA, ((1500, 2000),))
    parts = ([0, 700, 1001], [700, 301, 499], [1200, 1501, 2000])
    rows = StepRows(
        *(torch.tensor(part, dtype=torch.int32, device=DEVICE) for part in parts), whole.rows.seats.repeat(3)
    )
    assert torch.equal(run(whole), run(replace(whole, rows=rows)))


def test_one_captured_graph_serves_steps_of_any_length() -> None:
    """Rows, lengths and tables change under the graph; it gives what direct launches give."""
    case = make_case(LLAMA, ((1, 3000), (1, 700), (200, 1000), (1, 2100)))
    kernels = kernels_for(case)
    output = poisoned(203, 32, 128, dtype=torch.bfloat16)
    attend(kernels, case, output)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attend(kernels, case, output)
    steps = (
        ([0, 1, 2, 202], [1, 1, 200, 1], [3000, 700, 1000, 2100]),
        ([0, 1, 0, 101], [1, 100, 0, 1], [17, 650, 0, 2000]),
    )
    for firsts, counts, contexts in steps:
        for buffer, values in zip(
            (case.rows.first_tokens, case.rows.num_tokens, case.rows.context_lens),
            (firsts, counts, contexts),
            strict=True,
        ):
            buffer.copy_(torch.tensor(values, dtype=torch.int32))
        output.fill_(float("nan"))
        graph.replay()
        now = replace(case, lengths=tuple(zip(counts, contexts, strict=True)))
        used = sum(counts)
        assert error(output[:used], attend_reference(now, None)[:used]) < TOLERANCES[torch.bfloat16]
        assert bool(output[used:].isnan().all())


def test_dependent_launches_change_nothing() -> None:
    """A chain of 1,000 steps, each reading what the one before wrote: bit for bit what plain launches give."""
    if not can_launch_dependents(DEVICE):
        pytest.skip("dependent launches need a Hopper GPU or a later one")
    outputs = []
    for dependent in (False, True):
        case = make_case(LLAMA, tuple((1, 400 + 50 * row) for row in range(32)))
        kernels = kernels_for(case, dependent=dependent)
        query, output = case.query, torch.empty_like(case.query)
        for _ in range(1000):
            attend(kernels, replace(case, query=query), output)
            query, output = output, query
        outputs.append(query.clone())
    assert torch.equal(*outputs)
