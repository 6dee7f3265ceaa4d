"""Greedy sampling: the highest score, the lowest token among equals, failures, padding."""

import pytest
import torch
from kernel_support import DEVICE, DTYPES
from torch import Tensor

from pipelines.kernels import greedy
from pipelines.kernels.greedy import FAILED, GreedyScratch, sample_greedy

SEATS = 6


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a row be cut into several parts at a size that is tested fast."""
    monkeypatch.setattr(greedy, "_PART", 64)


def run(logits: Tensor, num_rows: int | None = None) -> tuple[list[int], list[int]]:
    rows = logits.shape[0]
    scratch = GreedyScratch.allocate(rows, logits.shape[1], DEVICE)
    seats = torch.arange(rows - 1, -1, -1, dtype=torch.int32, device=DEVICE)
    for slot in (0, 1):  # arrivals are zero again
        counts = torch.tensor([rows if num_rows is None else num_rows, slot], dtype=torch.int32, device=DEVICE)
        tokens = torch.full((2, rows), -7, dtype=torch.int32, device=DEVICE)
        last_tokens = torch.full((SEATS,), -7, dtype=torch.int64, device=DEVICE)
        sample_greedy(logits, seats, counts, scratch, tokens, last_tokens)
        assert tokens[1 - slot].tolist() == [-7] * rows, "the other slot's are left alone"
    assert int(scratch.arrivals.abs().sum()) == 0
    return tokens[1].tolist(), last_tokens.tolist()


@pytest.mark.parametrize("vocab_size", [10, 64, 300])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_highest_score_wins(dtype: torch.dtype, vocab_size: int) -> None:
    """As torch's argmax says, in one part and in several; the token reaches slot and seat."""
    logits = torch.randn((4, vocab_size), generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
    tokens, last_tokens = run(logits)
    assert tokens == logits.cpu().argmax(-1).tolist()
    assert last_tokens == [*tokens[::-1], -7, -7]


@pytest.mark.parametrize("others", [[3], [63], [64], [70, 130, 199]])
def test_of_equal_scores_the_lowest_token_wins(others: list[int]) -> None:
    """Within a part, at its border, and across parts."""
    logits = torch.zeros((1, 200), device=DEVICE)
    logits[0, [2, *others]] = 5.0
    assert run(logits)[0] == [2]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_fails(bad: float) -> None:
    """Its seat gets a token that exists, so that a step in flight does not read outside of the embedding."""
    logits = torch.zeros((2, 200), device=DEVICE)
    logits[0, 150] = bad
    logits[1, 150] = 1.0
    assert run(logits) == ([FAILED, 150], [150, 0, -7, -7, -7, -7])


def test_a_row_in_which_nothing_is_allowed_fails() -> None:
    """All scores at minus infinity."""
    logits = torch.full((1, 100), float("-inf"), device=DEVICE)
    assert run(logits)[0] == [FAILED]


def test_padding_rows_write_nothing() -> None:
    """Rows from the count on."""
    tokens, last_tokens = run(torch.randn((3, 50), device=DEVICE), num_rows=1)
    assert tokens[1:] == [-7, -7]
    assert last_tokens[:2] == [-7, -7]


def test_logits_may_be_part_of_a_wider_tensor() -> None:
    """As when the vocabulary is padded."""
    wide = torch.randn((3, 80), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    assert run(wide[:, :50])[0] == wide[:, :50].cpu().argmax(-1).tolist()
