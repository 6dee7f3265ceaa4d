"""Prepacked linear layers say what plain ones say, and stay away where they cannot."""

import weakref
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from pipelines.models import prepacked
from pipelines.models.prepacked import can_prepack, prepack_linears

needs_operators = pytest.mark.skipif(not can_prepack(), reason="this torch has no oneDNN operators for linear layers")


class Attention(nn.Module):
    """Three layers of the same rows, called in turn, as decoders call them."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.q_proj = nn.Linear(48, 130, bias=bias)
        self.k_proj = nn.Linear(48, 26)
        self.v_proj = nn.Linear(48, 26, bias=bias)
        self.o_proj = nn.Linear(26, 48, bias=bias)

    def forward(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """Return all four outputs."""
        value = self.v_proj(hidden) if self.training else None  # out of order
        query, key = self.q_proj(hidden), self.k_proj(hidden)
        value = self.v_proj(hidden) if value is None else value
        return query, key, value, self.o_proj(value)


@needs_operators
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 16, 33, 64, 200])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("spare_bytes", [0, 1 << 30])
@pytest.mark.parametrize("is_out_of_order", [False, True])
def test_prepacked_layers_agree_with_plain_ones(rows: int, bias: bool, spare_bytes: int, is_out_of_order: bool) -> None:
    """For any number of rows, with and without bias, fused or alone, with or without the plain weights kept."""
    torch.manual_seed(0)
    plain = Attention(bias=bias).requires_grad_(False).train(is_out_of_order)
    packed = deepcopy(plain)
    assert prepack_linears(packed, spare_bytes) == 4
    for hidden in (torch.randn(1, rows, 48), torch.randn(1, rows, 48)):
        for ours, theirs in zip(packed(hidden), plain(hidden), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@needs_operators
@pytest.mark.parametrize("spare_bytes", [0, 1 << 30])
def test_a_model_that_looks_at_a_weight_sees_the_plain_one(spare_bytes: int) -> None:
    """Some models multiply by a layer's weight themselves."""
    plain = Attention(bias=True).requires_grad_(False)
    packed = deepcopy(plain)
    prepack_linears(packed, spare_bytes)
    for name in ("q_proj", "v_proj", "o_proj"):
        assert torch.equal(getattr(packed, name).weight, getattr(plain, name).weight)


@needs_operators
def test_without_spare_memory_the_plain_weights_are_gone() -> None:
    """One copy of each weight, as before."""
    model = Attention(bias=True).requires_grad_(False)
    weights = [weakref.ref(parameter) for name, parameter in model.named_parameters() if name.endswith("weight")]
    prepack_linears(model, sum(4 * weight().numel() for weight in weights) - 1)
    assert [weight() for weight in weights] == [None] * 4


@needs_operators
def test_only_plain_float32_linears_are_replaced() -> None:
    """Subclasses and other types have reasons of their own."""

    class Special(nn.Linear):
        pass

    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": Special(4, 4), "c": nn.Linear(4, 4, dtype=torch.bfloat16)})
    assert prepack_linears(model, 0) == 1
    assert [type(child).__name__ for child in model.values()] == ["PrepackedLinear", "Special", "Linear"]


def test_without_the_operators_the_plain_layers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that lacks them, or whose answer is wrong, runs as it is."""
    monkeypatch.setattr(prepacked, "can_prepack", lambda: False)
    model = nn.Sequential(nn.Linear(4, 4))
    assert prepack_linears(model, 0) == 0
    assert type(model[0]) is nn.Linear


def test_operators_that_raise_are_no_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch says of a missing operator is caught."""
    monkeypatch.setattr(prepacked.torch.ops, "mkldnn", object())
    assert not can_prepack()
