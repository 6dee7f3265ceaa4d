"""The sampler draws from the right distribution, and a token depends on its row alone."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipelines.runtime import sampler
from pipelines.runtime.sampler import FAILED, SampleInputs, apply_masks, sample, uniform


@dataclass(frozen=True)
class Row:
    """One row's parameters."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    position: int = 0
    min_p: float = 0.0

    @property
    def kind(self) -> int:
        """As the plan sorts them: greedy, plain, filtered."""
        if self.temperature <= 0:
            return 0
        return 2 if self.top_k > 0 or self.top_p < 1 or self.min_p > 0 else 1


def inputs_of(rows: list[Row]) -> SampleInputs:
    kinds = [row.kind for row in rows]
    return SampleInputs(
        order=torch.tensor(sorted(range(len(rows)), key=kinds.__getitem__)),
        num_greedy=kinds.count(0),
        num_plain=kinds.count(1),
        num_filtered=kinds.count(2),
        temperatures=torch.tensor([row.temperature for row in rows]),
        top_ks=torch.tensor([row.top_k for row in rows]),
        top_ps=torch.tensor([row.top_p for row in rows]),
        seeds=torch.tensor([row.seed for row in rows]),
        positions=torch.tensor([row.position for row in rows]),
        min_ps=torch.tensor([row.min_p for row in rows]) if any(row.min_p for row in rows) else None,
    )


def draw(logits: Tensor, count: int, **parameters: Any) -> Tensor:
    """Sample `count` tokens of one row of scores [V], at one position with seeds 0, 1, 2..."""
    rows = [Row(seed=seed, position=17, **parameters) for seed in range(count)]
    return sample(logits.expand(count, -1), inputs_of(rows))


def chi_square(tokens: Tensor, probabilities: Tensor) -> float:
    """Return the statistic over all tokens of probability above 0; others must not occur."""
    counts = torch.bincount(tokens, minlength=len(probabilities)).double()
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    expected = probabilities[possible].double() * len(tokens)
    return float(((counts[possible] - expected) ** 2 / expected).sum())


def limit(degrees: int) -> float:
    """A bound that chi-square exceeds once in about 10,000 (3.7 standard deviations, by Wilson and Hilferty)."""
    return degrees * (1 - 2 / (9 * degrees) + 3.72 * math.sqrt(2 / (9 * degrees))) ** 3


SCORES = torch.tensor([2.0, 0.5, 1.5, -1.0, 0.0, 1.0, -0.5, 0.25])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_plain_sampling_follows_the_softmax(temperature: float) -> None:
    """Chi-square over 20,000 fixed seeds."""
    probabilities = (SCORES / temperature).softmax(-1)
    assert chi_square(draw(SCORES, 20_000, temperature=temperature), probabilities) < limit(7)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("min_p", [0.05, 0.3, 1.0])
def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest(min_p: float, temperature: float) -> None:
    """After the temperature; with nothing else, and behind top-p."""
    probabilities = (SCORES / temperature).softmax(-1)
    kept = torch.where(probabilities >= min_p * probabilities.max(), probabilities, 0.0)
    kept /= kept.sum()
    tokens = draw(SCORES, 20_000, temperature=temperature, min_p=min_p)
    if min_p == 1:
        assert set(tokens.tolist()) == {int(SCORES.argmax())}
    else:
        assert chi_square(tokens, kept) < limit(int((kept > 0).sum()) - 1)
    assert set(draw(SCORES, 500, top_p=0.3, min_p=0.01).tolist()) == set(draw(SCORES, 500, top_p=0.3).tolist())


def test_min_p_looks_beyond_the_candidates() -> None:
    """Among many tokens that are all likely enough, more than are looked at first, each can come."""
    scores = torch.zeros(3000)
    scores[0] = 0.1
    tokens = draw(scores, 2000, min_p=0.5)
    assert int(tokens.max()) > 2500
    assert len(set(tokens.tolist())) > 1000


def test_top_k_keeps_exactly_the_k_highest_and_their_proportions() -> None:
    """Tokens 0, 2, 5 and no other, as the softmax of those three."""
    kept = torch.full_like(SCORES, -math.inf)
    kept[[0, 2, 5]] = SCORES[[0, 2, 5]]
    tokens = draw(SCORES, 20_000, top_k=3)
    assert set(tokens.tolist()) == {0, 2, 5}
    assert chi_square(tokens, kept.softmax(-1)) < limit(2)


def test_top_p_keeps_the_fewest_tokens_that_make_up_p() -> None:
    """The smallest set of highest tokens whose probability reaches p, the one that crosses it included."""
    probabilities = SCORES.softmax(-1)
    first, second = probabilities.sort(descending=True).values[:2].tolist()
    assert set(draw(SCORES, 3000, top_p=first - 1e-3).tolist()) == {0}
    assert set(draw(SCORES, 3000, top_p=first + 1e-3).tolist()) == {0, 2}
    assert set(draw(SCORES, 3000, top_p=first + second - 1e-3).tolist()) == {0, 2}
    assert set(draw(SCORES, 3000, top_p=first + second + 1e-3).tolist()) == {0, 2, 5}


def test_top_p_is_a_share_of_what_temperature_and_top_k_leave() -> None:
    """The order is temperature, top-k, top-p."""
    left = (SCORES / 0.5).sort(descending=True).values[:3].softmax(-1)
    assert set(draw(SCORES, 3000, temperature=0.5, top_k=3, top_p=float(left[0]) + 1e-3).tolist()) == {0, 2}
    assert set(draw(SCORES, 3000, temperature=0.5, top_k=3, top_p=float(left[:2].sum()) + 1e-3).tolist()) == {0, 2, 5}


def test_equal_scores_are_cut_by_token_id() -> None:
    """top_k keeps k tokens even among equals: the first ones."""
    assert set(draw(torch.zeros(8), 500, top_k=3).tolist()) == {0, 1, 2}


@pytest.mark.parametrize("filtering", [{}, {"top_k": 4}, {"top_p": 0.95}])
def test_temperature_zero_and_nearly_zero_take_the_highest(filtering: dict[str, Any]) -> None:
    """No temperature overflows; the smallest float is as greedy as 0."""
    for temperature in (0.0, 1e-45, 1e-6):
        assert set(draw(SCORES * 100, 50, temperature=temperature, **filtering).tolist()) == {0}


def test_a_very_high_temperature_makes_all_tokens_equal() -> None:
    """Chi-square against the even distribution."""
    assert chi_square(draw(SCORES, 8000, temperature=1e30), torch.full((8,), 1 / 8)) < limit(7)


rows_of_a_batch = st.builds(
    Row,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 5, 40, 5000]),
    top_p=st.sampled_from([0.0, 0.2, 0.9, 1.0]),
    seed=st.integers(0, 2**63 - 1),
    position=st.integers(0, 100_000),
)


@given(rows=st.lists(rows_of_a_batch, min_size=1, max_size=9), scores_seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_a_token_does_not_depend_on_the_rows_beside_it(rows: list[Row], scores_seed: int) -> None:
    """Batched equals alone, and in reverse order; the vocabulary is larger than the candidates that are looked at first."""
    generator = torch.Generator().manual_seed(scores_seed)
    logits = torch.randn(len(rows), 2500, generator=generator) * 3
    batched = sample(logits, inputs_of(rows))
    alone = [int(sample(logits[i : i + 1], inputs_of([row]))) for i, row in enumerate(rows)]
    assert batched.tolist() == alone
    assert sample(logits.flip(0), inputs_of(rows[::-1])).flip(0).tolist() == alone


@pytest.mark.parametrize("parameters", [{"top_k": 50}, {"top_p": 0.9}, {"top_k": 1500}, {"top_k": 1500, "top_p": 0.99}])
@pytest.mark.parametrize("spread", [0.0, 0.01, 3.0])
def test_looking_at_candidates_first_changes_no_token(
    monkeypatch: pytest.MonkeyPatch, parameters: dict[str, Any], spread: float
) -> None:
    """As many candidates as tokens means a full sort: the same tokens, for flat scores and for many equal ones too."""
    logits = (torch.randn(2500, generator=torch.Generator().manual_seed(3)) * spread).round(decimals=2)
    quick = draw(logits, 200, **parameters)
    monkeypatch.setattr(sampler, "_NUM_CANDIDATES", 2500)
    assert torch.equal(quick, draw(logits, 200, **parameters))


def test_seeds_and_positions_give_independent_uniforms() -> None:
    """Even over [0, 1) along seeds and along positions, and no token of one choice repeats in the next one's stream."""
    numbers = torch.arange(4096)
    zeros = torch.zeros_like(numbers)
    for values in (uniform(numbers, zeros), uniform(zeros, numbers), uniform(zeros + 2**62, numbers)):
        assert 0 <= float(values.min()) < float(values.max()) < 1
        assert chi_square((values * 16).long(), torch.full((16,), 1 / 16)) < limit(15)
    golden = 0x9E3779B97F4A7C15  # choices of one request lie this far apart, see `Sequence.seed`
    first = uniform(zeros, numbers)
    second = uniform(zeros + (golden & (2**63 - 1)), numbers)
    assert not set(first.tolist()) & set(second.tolist())


def reference_uniform(seed: int, position: int) -> float:
    """The same hash on Python's unbounded integers."""

    def mix(word: int) -> int:
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        return word ^ word >> 31

    golden = 0x9E3779B97F4A7C15
    mixed = mix((mix((seed + golden) % 2**64) + position * golden) % 2**64)
    return (mixed >> 16) / 2**48


@given(seed=st.integers(0, 2**63 - 1), position=st.integers(0, 2**31))
def test_the_random_numbers_stay_what_they_are(seed: int, position: int) -> None:
    """A seed that a user wrote down gives the same tokens in the next version, and on every device."""
    assert float(uniform(torch.tensor([seed]), torch.tensor([position]))) == reference_uniform(seed, position)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("filtering", [{}, {"top_k": 2}])
def test_a_row_without_finite_scores_fails_alone(temperature: float, filtering: dict[str, Any]) -> None:
    """NaN anywhere, infinity, or nothing allowed: FAILED in that row, a token in its neighbour."""
    row = Row(temperature=temperature, **filtering)
    for bad in ([math.nan, 1.0, 2.0], [1.0, 2.0, math.nan], [1.0, math.inf, 0.0], [-math.inf] * 3):
        tokens = sample(torch.tensor([bad, [0.0, 0.0, 100.0]]), inputs_of([row, row]))
        assert tokens.tolist() == [FAILED, 2]


def test_masks_allow_what_their_bits_say_least_significant_first() -> None:
    """Rows with a mask lose all other tokens, rows without keep theirs; the padding bits are not read."""
    logits = torch.zeros(3, 40)
    allowed = torch.tensor([[1 << 3 | -(1 << 31), 1 << 7 | 1 << 30], [0, 1]], dtype=torch.int32)
    masked = apply_masks(logits, torch.tensor([2, 0]), allowed)
    assert (masked[2] == 0).nonzero()[:, 0].tolist() == [3, 31, 39]
    assert (masked[0] == 0).nonzero()[:, 0].tolist() == [32]
    assert (masked[1] == 0).all()
