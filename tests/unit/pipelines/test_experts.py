"""Experts sorted by expert say what a loop over tokens says."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from hypothesis import given
from hypothesis import strategies as st

from pipelines.models.experts import choose_experts, run_experts
from pipelines.models.native_config import ExpertsConfig
from pipelines.models.native_decoder import Experts

HIDDEN, SIZE = 16, 8


def config_of(num_experts, num_chosen, *, is_normalised=False):
    return ExpertsConfig(num_experts, num_chosen, SIZE, is_normalised=is_normalised, layers=frozenset({0}))


def experts_of(num_experts):
    generator = torch.Generator().manual_seed(num_experts)
    shapes = ((num_experts, HIDDEN), (num_experts, 2 * SIZE, HIDDEN), (num_experts, HIDDEN, SIZE))
    return Experts(*(torch.randn(shape, generator=generator) for shape in shapes))


def one_by_one(rows, experts, config):
    """Each token through each of its experts, with shares by the definition of a softmax."""
    outputs = torch.zeros_like(rows)
    for number, row in enumerate(rows):
        likelihoods = (experts.router @ row).double().exp()
        likelihoods /= likelihoods.sum()
        chosen = sorted(range(config.num_experts), key=lambda expert: -likelihoods[expert])[: config.num_chosen]
        whole = sum(likelihoods[expert] for expert in chosen) if config.is_normalised else 1.0
        for expert in chosen:
            gate, up = (experts.gate_up[expert] @ row).split(SIZE)
            outputs[number] += likelihoods[expert] / whole * (experts.down[expert] @ (F.silu(gate) * up))
    return outputs


@given(
    num_rows=st.integers(0, 12),
    shape=st.integers(1, 9).flatmap(lambda number: st.tuples(st.just(number), st.integers(1, number))),
    is_normalised=st.booleans(),
)
def test_any_number_of_rows_experts_and_choices(num_rows, shape, is_normalised):
    """None of either included, and experts that nobody chooses."""
    config, experts = config_of(*shape, is_normalised=is_normalised), experts_of(shape[0])
    rows = torch.randn((num_rows, HIDDEN), generator=torch.Generator().manual_seed(num_rows))
    assert torch.allclose(run_experts(rows, experts, config), one_by_one(rows, experts, config), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("is_normalised", [False, True])
def test_shares_add_up_to_one_where_they_should(is_normalised):
    shares, numbers = choose_experts(
        torch.ones(1, HIDDEN), experts_of(6).router, config_of(6, 2, is_normalised=is_normalised)
    )
    assert numbers.unique().numel() == 2
    assert (float(shares.sum()) == pytest.approx(1.0)) == is_normalised


def test_shares_are_in_the_arithmetic_of_the_rows():
    """Computed in float32 and then rounded, as transformers does."""
    rows = torch.randn((5, HIDDEN), generator=torch.Generator().manual_seed(0)).bfloat16()
    router = experts_of(6).router.bfloat16()
    shares, _ = choose_experts(rows, router, config_of(6, 6))
    exact = F.linear(rows, router).float().softmax(dim=-1).sort(dim=-1, descending=True).values
    assert shares.dtype is torch.bfloat16
    assert torch.equal(shares, exact.bfloat16())
