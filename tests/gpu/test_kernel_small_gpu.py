"""The small kernels on a GPU at real sizes, where their blocks are full and their loads wide."""

import pytest
import torch
from kernel_support import DEVICE, TOLERANCES, error, poisoned

from pipelines.kernels.elementwise import add_rms_norm, silu_and_mul
from pipelines.kernels.greedy import GreedyScratch, sample_greedy
from pipelines.kernels.rope import HeadNorms, TokenPlaces, rotate_and_cache, rotation_table

pytestmark = pytest.mark.gpu


def test_rotation_with_norms_at_the_shape_of_an_8b_model() -> None:
    """300 tokens over 20 seats, keys where the tables say, values as they were."""
    tokens, heads, kv_heads, size, page = 300, 32, 8, 128, 64
    projected = torch.randn((tokens, (heads + 2 * kv_heads) * size), device=DEVICE).bfloat16()
    seats = (torch.arange(tokens, device=DEVICE) % 20).int()
    positions = (torch.arange(tokens, device=DEVICE) // 20 + 55).int()
    tables = torch.randperm(40, device=DEVICE).view(20, 2).int()
    inverse = 500000.0 ** -(torch.arange(0, size, 2, device=DEVICE) / size)
    keys, values = (
        poisoned(40, page, kv_heads, size, dtype=torch.bfloat16),
        poisoned(40, page, kv_heads, size, dtype=torch.bfloat16),
    )
    query = poisoned(tokens, heads, size, dtype=torch.bfloat16)
    gains = torch.rand((2, size), device=DEVICE).bfloat16() + 0.5
    rotate_and_cache(
        projected,
        rotation_table(inverse, 100),
        TokenPlaces(positions, seats, tables),
        keys,
        values,
        query,
        HeadNorms(gains[0], gains[1], 1e-6),
    )
    asked, key, value = projected.double().view(tokens, -1, size).split([heads, kv_heads, kv_heads], dim=1)
    angles = positions[:, None].double() * inverse.double()
    cosine, sine = angles.cos().repeat(1, 2)[:, None], angles.sin().repeat(1, 2)[:, None]
    for source, gain, written in (
        (asked, gains[0], query),
        (key, gains[1], keys[tables[seats.long(), positions.long() // page].long(), positions.long() % page]),
    ):
        normed = source * (source.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * gain.double()
        turned = torch.cat([-normed[..., size // 2 :], normed[..., : size // 2]], dim=-1)
        assert error(written, normed * cosine + turned * sine) < TOLERANCES[torch.bfloat16]
    stored = values[tables[seats.long(), positions.long() // page].long(), positions.long() % page]
    assert torch.equal(stored.double(), value)


def test_norm_and_gate_at_the_shape_of_an_8b_model() -> None:
    """4,096 tokens."""
    hidden = torch.randn((4096, 4096), device=DEVICE).bfloat16()
    residual, weight = torch.randn_like(hidden), torch.rand(4096, device=DEVICE).bfloat16()
    total = hidden + residual
    output = poisoned(4096, 4096, dtype=torch.bfloat16)
    add_rms_norm(hidden, residual, weight, 1e-5, output)
    assert torch.equal(residual, total)
    wide = total.double()
    assert error(output, wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()) < 4e-3
    projected = torch.randn((4096, 2 * 14336), device=DEVICE).bfloat16()
    gated = poisoned(4096, 14336, dtype=torch.bfloat16)
    silu_and_mul(projected, gated)
    gate, up = projected.double().chunk(2, dim=1)
    assert error(gated, torch.nn.functional.silu(gate) * up) < 4e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_over_a_large_vocabulary(dtype: torch.dtype) -> None:
    """256 rows of 128,256 scores with many equal ones, 50 times: always the lowest of the highest."""
    logits = (torch.randn((256, 128256), device=DEVICE) * 2).round().to(dtype)
    scratch = GreedyScratch.allocate(256, 128256, DEVICE)
    seats = torch.arange(255, -1, -1, dtype=torch.int32, device=DEVICE)
    counts = torch.tensor([256, 1], dtype=torch.int32, device=DEVICE)
    expected = logits.cpu().argmax(-1)
    for _ in range(50):
        tokens = torch.full((2, 256), -7, dtype=torch.int32, device=DEVICE)
        last_tokens = torch.full((256,), -7, dtype=torch.int64, device=DEVICE)
        sample_greedy(logits, seats, counts, scratch, tokens, last_tokens)
        assert torch.equal(tokens[1].cpu().long(), expected)
        assert torch.equal(last_tokens.cpu(), expected.flip(0))
