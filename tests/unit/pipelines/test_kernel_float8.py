"""Kernels on float8, under Triton's interpreter or on a GPU: what they write and what they read."""
# mypy: disallow-untyped-decorators=False

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton
from kernel_support import DEVICE, DTYPES, TOLERANCES, AttentionCase, attend_reference, error, make_case, poisoned
from native_kernels import LIMITS, compare
from native_models import CONFIGS, linears
from torch import Tensor
from triton import language as tl

from pipelines.config import ModelConfig, Quantization
from pipelines.kernels.attention_plan import StepLimits
from pipelines.kernels.attention_shape import AttentionShape
from pipelines.kernels.float8 import Float8Rows, widened
from pipelines.kernels.paged_attention import PagedKernels, StepKinds
from pipelines.kernels.rope import HeadNorms, TokenPlaces, rotate_and_cache, rotation_table
from pipelines.models.attention import FLOAT8, KvScales
from pipelines.models.float8_linear import quantize_rows
from pipelines.models.kv_scales import measure_scales
from pipelines.models.native import NativeModel
from pipelines.models.ops_cpu import PlainLinear
from pipelines.models.projections_gpu import GpuOptions

MIXED = ((1, 1), (1, 130), (1, 600), (5, 5), (20, 150), (0, 0), (2, 2))


def in_float8(case: AttentionCase) -> tuple[AttentionCase, AttentionCase, tuple[Tensor, Tensor]]:
    """Return the case in float8, what its pages mean in float64, and the scales: each head has others."""
    number = case.shape.num_kv_heads
    powers = torch.arange(number, device=DEVICE, dtype=torch.float32)
    scales = (2.0 ** (powers - 4), 2.0 ** (2 - powers))
    parts = [
        (pages.float() / own[:, None]).to(FLOAT8) for pages, own in zip((case.keys, case.values), scales, strict=True)
    ]
    meant = [part.double() * own[:, None].double() for part, own in zip(parts, scales, strict=True)]
    return replace(case, keys=parts[0], values=parts[1]), replace(case, keys=meant[0], values=meant[1]), scales


def run(case: AttentionCase, scales: tuple[Tensor, Tensor], window: int | None) -> Tensor:
    num_rows, num_tokens = case.rows.seats.shape[0], case.query.shape[0]
    kernels = PagedKernels([(case.shape, window)], StepLimits(num_rows, num_tokens, 4096), DEVICE)
    output = poisoned(num_tokens, case.shape.num_heads, case.shape.value_dim, dtype=case.shape.dtype)
    kernels.plan(case.rows)
    both = StepKinds(has_decodes=True, has_chunks=True)
    kernels.attend(0, case.query, case.keys, case.values, case.block_tables, output, both, scales)
    return output


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 40])
def test_attention_reads_what_the_pages_mean(dtype: torch.dtype, window: int | None) -> None:
    """Decodes of one split and several, chunks with a past and without; NaN in unwritten pages shows nowhere."""
    kept, meant, scales = in_float8(make_case(AttentionShape(4, 2, 16, 16, 16, 0.25, dtype), MIXED))
    assert error(run(kept, scales, window), attend_reference(meant, window)) < TOLERANCES[dtype]


@pytest.mark.parametrize(("key_dim", "value_dim", "page_size"), [(128, 128, 64), (80, 48, 48)])
def test_head_and_page_sizes_agree(key_dim: int, value_dim: int, page_size: int) -> None:
    """Also those that are no power of two."""
    shape = AttentionShape(6, 2, key_dim, value_dim, page_size, key_dim**-0.5, torch.float32)
    kept, meant, scales = in_float8(make_case(shape, ((1, 70), (9, 100))))
    assert error(run(kept, scales, None), attend_reference(meant, None)) < TOLERANCES[torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norms", [False, True])
def test_what_is_written_is_the_plain_page_encoded(dtype: torch.dtype, has_norms: bool) -> None:
    """Bit by bit what torch makes of the unscaled pages; too large becomes the largest, NaN stays, padding writes nothing."""
    torch.manual_seed(2)
    heads, kv_heads, dim, page_size = 3, 2, 16, 8
    projected = (torch.randn(6, (heads + 2 * kv_heads) * dim) * 40).to(DEVICE, dtype)
    projected[3, -1] = float("nan")
    projected[4, -2] = 60000.0
    places = TokenPlaces(
        positions=torch.tensor([0, 1, 2, 9, 8, 3], dtype=torch.int32, device=DEVICE),
        seats=torch.tensor([0, 0, 0, 0, 0, -1], dtype=torch.int32, device=DEVICE),
        block_tables=torch.tensor([[2, 0]], dtype=torch.int32, device=DEVICE),
    )
    norms = HeadNorms(*(torch.rand(dim).to(DEVICE, dtype) for _ in range(2)), 1e-6) if has_norms else None
    scales = KvScales(torch.tensor([0.5, 4.0]).to(DEVICE), torch.tensor([2.0, 0.25]).to(DEVICE), dtype)
    table = rotation_table(10000.0 ** -(torch.arange(0, dim, 2) / dim), 16).to(DEVICE)
    pages = {}
    for kept in (dtype, FLOAT8):
        keys, values = (poisoned(3, page_size, kv_heads, dim, dtype=torch.float32).to(kept) for _ in range(2))
        query = poisoned(6, heads, dim, dtype=dtype)
        given = (scales.keys, scales.values) if kept == FLOAT8 else None
        rotate_and_cache(projected, table, places, keys, values, query, norms, scales=given)
        pages[kept] = keys, values, query
    plain_keys, plain_values, plain_query = pages[dtype]
    keys, values, query = pages[FLOAT8]
    expected_keys, expected_values = (part.view(FLOAT8).float() for part in scales.encode(plain_keys, plain_values))
    torch.testing.assert_close(keys.float(), expected_keys, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(values.float(), expected_values, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(query, plain_query, rtol=0, atol=0, equal_nan=True)
    assert float(values.float().nan_to_num().max()) == 448.0
    assert int(values.float().isnan().all(dim=-1).sum()) == (3 * page_size - 5) * kv_heads


@pytest.mark.parametrize("quantization", Quantization)
def test_the_decoder_by_kernels_agrees_with_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization: Quantization
) -> None:
    """Scores of chunks, chunks beside decodes and decodes; a value near a border of rounding may fall to either side."""
    monkeypatch.setattr("pipelines.models.ops_cpu.can_prepack", lambda: False)
    config = CONFIGS["qwen2, yarn"]()
    config.num_hidden_layers = 2
    config.layer_types = config.layer_types[:2]
    config.save_pretrained(tmp_path)
    asked = ModelConfig(str(tmp_path), quantization=quantization)
    model = NativeModel(tmp_path, asked, torch.device("cpu"), None, random_seed=5)
    for layer in model.decoder.layers:  # wide, so that an error shows
        for linear in linears(layer):
            wide = linear.weight if isinstance(linear, PlainLinear) else linear.scales
            wide.mul_(8.0)
    scores, pages = compare(model, GpuOptions(), LIMITS.max_tokens, measure_scales(model))
    assert scores < 1e-2
    assert pages < 0.07  # one step of e4m3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [16, 48, 4096])
def test_rows_are_quantized_as_torch_does_it(dtype: torch.dtype, size: int) -> None:
    """Bit by bit, of rows that lie apart; a row of zeros, one of tiny values, one that failed."""
    torch.manual_seed(3)
    rows = (torch.randn(6, 2 * size) * 10.0 ** torch.arange(-3, 3)[:, None]).to(DEVICE, dtype)[:, :size]
    rows[1] = 0.0
    rows[4, 3] = float("nan")
    buffer = Float8Rows(8, size, DEVICE, dependent=False)
    kept, scales = buffer.quantize(rows)
    expected, expected_scales = quantize_rows(rows.cpu())
    good = [0, 1, 2, 3, 5]
    assert torch.equal(kept.cpu().view(torch.uint8)[good], expected.view(torch.uint8)[good])
    assert torch.equal(scales.cpu()[good], expected_scales[good])
    assert bool(kept[4].float().isnan().any())


@triton.jit
def _widen(values: tl.tensor, output: tl.tensor, count: tl.constexpr) -> None:
    at = tl.arange(0, count)
    tl.store(output + at, widened(tl.load(values + at), output.dtype.element_ty))


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_value_is_rounded_when_it_is_made_wide(dtype: torch.dtype) -> None:
    """All 254 numbers that there are."""
    values = torch.arange(256, dtype=torch.uint8).to(DEVICE).view(FLOAT8)
    output = torch.zeros(256, dtype=dtype, device=DEVICE)
    _widen[(1,)](values, output, count=256)
    is_number = ~values.float().isnan()
    assert is_number.sum() == 254
    assert torch.equal(output[is_number].float(), values.float()[is_number])
