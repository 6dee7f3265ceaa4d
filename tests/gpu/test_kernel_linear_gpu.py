"""Projections of few tokens on a GPU at the shapes of an 8B model: agreement, invariance bit for bit, dependent launches."""

import pytest
import torch
from kernel_support import DEVICE, TOLERANCES, error, poisoned
from torch import Tensor

from pipelines.kernels.launch import can_launch_dependents
from pipelines.kernels.linear import Epilogue, LinearScratch, Residual, RowScale, skinny_linear
from pipelines.kernels.linear_tiling import LinearTiling

pytestmark = pytest.mark.gpu

WEIGHTS = [
    (6144, 4096, False),
    (4096, 4096, False),
    (28672, 4096, True),
    (4096, 14336, False),
    (49152, 576, False),
    (1536, 576, False),
]


def random(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return (torch.randn(shape, generator=generator, device=DEVICE) * scale).bfloat16()


def scratch_for(tiling: LinearTiling, num_rows: int, num_tokens: int) -> LinearScratch:
    return LinearScratch.allocate(tiling.num_sums(num_rows, num_tokens), tiling.num_tiles(num_rows, num_tokens), DEVICE)


def project(tokens: Tensor, weight: Tensor, *, is_gated: bool) -> Tensor:
    tiling = LinearTiling.choose(*weight.shape, len(tokens), is_gated=is_gated)
    width = weight.shape[0] // 2 if tiling.is_gated else weight.shape[0]
    output = poisoned(tokens.shape[0], width, dtype=tokens.dtype)
    epilogue = Epilogue.SILU if tiling.is_gated else Epilogue.PLAIN
    skinny_linear(tokens, weight, output, scratch_for(tiling, weight.shape[0], tokens.shape[0]), tiling, epilogue)
    return output


@pytest.mark.parametrize(("num_rows", "size", "is_gated"), WEIGHTS)
def test_products_agree_and_do_not_depend_on_the_batch(num_rows: int, size: int, is_gated: bool) -> None:
    """Against float64 at once; and bit for bit the same for 1, 16, 33, 64, 128 and 200 tokens."""
    tokens, weight = random(200, size, seed=0), random(num_rows, size, seed=1, scale=0.02)
    whole = project(tokens, weight, is_gated=is_gated)
    expected = tokens.double() @ weight.double().T
    if is_gated:
        gate, up = expected.chunk(2, dim=1)
        expected = torch.nn.functional.silu(gate) * up
    assert error(whole, expected) < TOLERANCES[torch.bfloat16]
    for count in (1, 16, 33, 64, 128):
        assert torch.equal(project(tokens[:count], weight, is_gated=is_gated), whole[:count])


@pytest.mark.parametrize("num_tokens", [1, 32, 100])
def test_a_chain_of_dependent_launches_gives_what_plain_ones_give(num_tokens: int) -> None:
    """An MLP with its norm and residual, 1,000 times over: bit for bit."""
    if not can_launch_dependents(DEVICE):
        pytest.skip("dependent launches need a Hopper GPU or a later one")
    hidden_size, inner = 4096, 14336
    up = LinearTiling.choose(2 * inner, hidden_size, num_tokens, is_gated=True)
    down = LinearTiling.choose(hidden_size, inner, num_tokens)
    weights = random(2 * inner, hidden_size, seed=1, scale=0.02), random(hidden_size, inner, seed=2, scale=0.01)
    gain = torch.ones(hidden_size, device=DEVICE, dtype=torch.bfloat16)
    results = []
    for dependent in (False, True):
        hidden = random(num_tokens, hidden_size, seed=3)
        scaled, gated = hidden.clone(), poisoned(num_tokens, inner, dtype=torch.bfloat16)
        squares = torch.zeros((down.num_row_tiles(hidden_size), num_tokens), device=DEVICE)
        squares[0] = hidden.float().square().sum(1)
        scratches = scratch_for(up, 2 * inner, num_tokens), scratch_for(down, hidden_size, num_tokens)
        for _ in range(1000):
            skinny_linear(
                scaled,
                weights[0],
                gated,
                scratches[0],
                up,
                Epilogue.SILU,
                scale=RowScale(squares, hidden_size, 1e-5),
                dependent=dependent,
            )
            skinny_linear(
                gated,
                weights[1],
                scaled,
                scratches[1],
                down,
                Epilogue.RESIDUAL_NORM,
                residual=Residual(hidden, gain, squares),
                dependent=dependent,
            )
        results.append(hidden)
    assert bool(results[0].isfinite().all())
    assert torch.equal(*results)
