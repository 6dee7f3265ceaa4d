"""Experts by kernels say what they say by torch, whatever is chosen; a pair's result does not depend on its neighbours."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from kernel_support import DEVICE, DTYPES, TOLERANCES, error, poisoned
from torch import Tensor

from pipelines.kernels.experts import ExpertScratch, run_experts
from pipelines.models.experts import run_experts as run_by_torch
from pipelines.models.native_config import ExpertsConfig
from pipelines.models.native_decoder import Experts


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


class Case:
    def __init__(
        self,
        num_tokens: int,
        num_experts: int,
        num_chosen: int,
        *,
        hidden: int = 48,
        size: int = 32,
        is_normalised: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config = ExpertsConfig(num_experts, num_chosen, size, is_normalised=is_normalised, layers=frozenset({0}))
        self.experts = Experts(
            random(num_experts, hidden, seed=1, dtype=dtype),
            random(num_experts, 2 * size, hidden, seed=2, dtype=dtype),
            random(num_experts, hidden, size, seed=3, dtype=dtype),
        )
        self.rows = random(num_tokens, hidden, seed=4, dtype=dtype)
        self.scratch = ExpertScratch.allocate(num_tokens, num_experts, num_chosen, hidden, size, self.rows)

    def run(self, rows: Tensor | None = None) -> Tensor:
        rows = self.rows if rows is None else rows
        output = poisoned(*rows.shape, dtype=rows.dtype)
        run_experts(
            rows,
            F.linear(rows, self.experts.router),
            self.experts.gate_up,
            self.experts.down,
            output,
            self.scratch,
            num_chosen=self.config.num_chosen,
            is_normalised=self.config.is_normalised,
        )
        return output

    def expected(self) -> Tensor:
        return run_by_torch(self.rows, self.experts, self.config)


@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "num_chosen", "is_normalised"),
    [(1, 1, 1, True), (5, 6, 3, True), (40, 4, 2, False), (3, 40, 7, False), (70, 3, 3, True)],
)
def test_they_say_what_they_say_by_torch(num_tokens, num_experts, num_chosen, is_normalised):
    """One of each, experts nobody chose, more pairs of an expert than a block takes, all experts chosen by all."""
    case = Case(num_tokens, num_experts, num_chosen, is_normalised=is_normalised)
    assert error(case.run(), case.expected()) < TOLERANCES[torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
def test_types_agree_within_their_rounding(dtype):
    case = Case(9, 5, 2, dtype=dtype)
    exact = Case(9, 5, 2)
    for name in ("router", "gate_up", "down"):
        getattr(exact.experts, name).copy_(getattr(case.experts, name).float())
    exact.rows.copy_(case.rows.float())
    assert error(case.run(), exact.expected()) < 2 * TOLERANCES[dtype]


@pytest.mark.parametrize(("hidden", "size"), [(40, 20), (128, 96), (72, 160)])
def test_sizes_need_be_no_multiples(hidden, size):
    case = Case(4, 3, 2, hidden=hidden, size=size)
    assert error(case.run(), case.expected()) < TOLERANCES[torch.float32]


def test_pairs_are_placed_by_expert_and_token():
    case = Case(30, 4, 2)
    case.run()
    numbers = case.scratch.numbers.tolist()
    assert case.scratch.order.tolist() == sorted(range(60), key=lambda pair: (numbers[pair], pair))
    assert case.scratch.counts.tolist() == [numbers.count(expert) for expert in range(4)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, which the interpreter computes with
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_failed_shows_and_harms_no_other_token(value):
    """A token that is not finite: its result neither, those beside it as they were."""
    case = Case(6, 4, 2)
    before = case.run()
    case.rows[2] = value
    after = case.run()
    assert bool(after[2].isnan().all())
    others = [0, 1, 3, 4, 5]
    assert torch.equal(after[others], before[others])
