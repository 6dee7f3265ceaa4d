"""Residual sum with RMS norm, and the gate of the MLP, against torch in float64."""

import pytest
import torch
from kernel_support import DEVICE, DTYPES, TOLERANCES, error, poisoned
from torch import Tensor

from pipelines.kernels.elementwise import add_rms_norm, silu_and_mul

EPSILON = 1e-5


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def norm_reference(total: Tensor, weight: Tensor) -> Tensor:
    wide = total.double().cpu()
    return wide * (wide.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight.double().cpu()


@pytest.mark.parametrize("size", [16, 100, 1024])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_is_that_of_the_rounded_sum(dtype: torch.dtype, size: int) -> None:
    """And the residual becomes that sum, exactly as torch adds."""
    hidden, residual, weight = (
        random(3, size, dtype=dtype),
        random(3, size, dtype=dtype, seed=1),
        random(size, dtype=dtype),
    )
    total = hidden + residual
    output = poisoned(3, size, dtype=dtype)
    add_rms_norm(hidden, residual, weight, EPSILON, output)
    assert torch.equal(residual, total)
    assert error(output, norm_reference(total, weight)) < TOLERANCES[dtype]


def test_without_a_residual_the_hidden_state_itself_is_normed() -> None:
    """The first layer's norm."""
    hidden, weight = random(3, 48), random(48)
    output = poisoned(3, 48, dtype=torch.float32)
    add_rms_norm(hidden, None, weight, EPSILON, output)
    assert error(output, norm_reference(hidden, weight)) < TOLERANCES[torch.float32]


def test_the_output_may_lie_where_the_input_lay() -> None:
    """Every program reads its row before it writes it."""
    hidden, residual, weight = random(3, 48), random(3, 48, seed=1), random(48)
    expected = norm_reference(hidden + residual, weight)
    add_rms_norm(hidden, residual, weight, EPSILON, hidden)
    assert error(hidden, expected) < TOLERANCES[torch.float32]


def test_selected_tokens_alone_are_normed() -> None:
    """The last norm of a model is wanted where a token is sampled; the residual is left alone."""
    hidden, residual, weight = random(5, 48), random(5, 48, seed=1), random(48)
    before = residual.clone()
    selected = torch.tensor([4, 1], dtype=torch.int32, device=DEVICE)
    output = poisoned(2, 48, dtype=torch.float32)
    add_rms_norm(hidden, residual, weight, EPSILON, output, selected)
    assert error(output, norm_reference((hidden + before)[[4, 1]], weight)) < TOLERANCES[torch.float32]
    assert torch.equal(residual, before)


@pytest.mark.parametrize("size", [24, 1500])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gate_agrees_with_the_reference(dtype: torch.dtype, size: int) -> None:
    """The silu of the first half times the second, less than a block and more."""
    projected = random(3, 2 * size, dtype=dtype)
    output = poisoned(3, size, dtype=dtype)
    silu_and_mul(projected, output)
    gate, up = projected.double().cpu().chunk(2, dim=-1)
    assert error(output, torch.nn.functional.silu(gate) * up) < TOLERANCES[dtype]


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # numpy, which interprets, tells of the infinity
def test_a_large_gate_does_not_overflow() -> None:
    """The exponential is infinite, and the product still zero."""
    projected = torch.tensor([[-200.0, 200.0, 1.0, 1.0]], device=DEVICE)
    output = poisoned(1, 2, dtype=torch.float32)
    silu_and_mul(projected, output)
    assert output.tolist() == [[0.0, 200.0]]
