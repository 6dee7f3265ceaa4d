"""Chooses one token a row, each by its own parameters; a token depends on scores, parameters, seed and position alone.

Random numbers are counter-based: one uniform a (seed, position) by an integer hash, so neither the batch that a row shares nor
a preemption nor the step's number can change a token. A token is found by inverting the cumulative distribution, for filtered
rows in the order of falling scores, where top-k, top-p and min-p each keep a first part of it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

FAILED = -1  # instead of a token: the row's scores are not finite, or no token is allowed

_NUM_CANDIDATES = 1024  # highest scores that top-k and top-p look at before a whole row is sorted
_UNIFORM_BITS = 48  # fewer than the 53 of a float64, so that uniform * total < total in every rounding
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # the constants of splitmix64 (Steele, Lea, Flood 2014) as signed words
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


@dataclass(frozen=True, slots=True)
class SampleInputs:
    """One step's rows to sample; s of them."""

    order: Tensor  # [s] int64, rows by kind: greedy, plain, filtered
    num_greedy: int
    num_plain: int
    num_filtered: int
    temperatures: Tensor  # [s] float32, above 0 where not greedy
    top_ks: Tensor  # [s] int64, 0 = all
    top_ps: Tensor  # [s] float32, 1 = all
    seeds: Tensor  # [s] int64
    positions: Tensor  # [s] int64, where the new token will stand
    min_ps: Tensor | None = None  # [s] float32, 0 = all; None: all of all rows


def sample(logits: Tensor, inputs: SampleInputs) -> Tensor:
    """Return one token a row, [s] int64, `FAILED` where there is none; `logits` are [s, V], -inf where a token must not come.

    A batch of greedy rows costs one pass for the highest score; only filtered rows are ever sorted.
    """
    highest, tokens = logits.max(dim=-1)
    end = inputs.num_greedy + inputs.num_plain
    if inputs.num_plain:
        plain = inputs.order[inputs.num_greedy : end]
        tokens = tokens.index_copy(0, plain, _sample_plain(_scale(logits, highest, inputs, plain), inputs, plain))
    if inputs.num_filtered:
        filtered = inputs.order[end:]
        scores = _scale(logits, highest, inputs, filtered)
        tokens = tokens.index_copy(0, filtered, _sample_filtered(scores, inputs, filtered))
    return torch.where(highest.isfinite(), tokens, FAILED)


def logprobs(logits: Tensor, rows: Tensor, tokens: Tensor, count: int) -> Tensor:
    """Return how likely tokens were, and the `count` likeliest in their place, as 32-bit words [l, 1 + 2 * count].

    Args:
        logits: [s, V], as the model gave them.
        rows: [l] int64, of `logits`.
        tokens: [s] int64, one a row of `logits`.
        count: at most V.

    Returns:
        a row's word 0 is its token's, then come the others', the highest first, all as float32 bits, then the others' ids.
    """
    scores = logits[rows].float()
    whole = scores.logsumexp(-1, keepdim=True)
    own = scores.gather(1, tokens[rows, None].clamp(min=0))
    highest, ids = scores.topk(count, dim=-1)
    return torch.cat([(torch.cat([own, highest], 1) - whole).view(torch.int32), ids.int()], 1)


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """Return one float64 in [0, 1) a (seed, position), both int64 of one shape.

    The seed is mixed before the position is added: choices of one request have seeds that differ by multiples of the very
    constant that steps the position.
    """
    mixed = _mix(_mix(seeds + _GOLDEN) + positions * _GOLDEN)
    return _shift(mixed, 64 - _UNIFORM_BITS).double() * 2.0**-_UNIFORM_BITS


def apply_masks(logits: Tensor, rows: Tensor, allowed: Tensor) -> Tensor:
    """Return `logits` [s, V] with what is not allowed at -inf.

    Args:
        logits: [s, V].
        rows: [m] int64, the rows that have masks.
        allowed: [m, ceil(V / 32)] int32, one bit a token, least significant first.
    """
    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    is_allowed = (allowed[:, :, None] >> bits & 1).flatten(1)[:, : logits.shape[1]].bool()
    return logits.index_copy(0, rows, logits[rows].masked_fill(~is_allowed, float("-inf")))


def _mix(words: Tensor) -> Tensor:
    """Scramble int64 words, splitmix64's finaliser; products wrap."""
    words = (words ^ _shift(words, 30)) * _MIX_1
    words = (words ^ _shift(words, 27)) * _MIX_2
    return words ^ _shift(words, 31)


def _shift(words: Tensor, bits: int) -> Tensor:
    """Shift right, zeros coming in; torch's own shift of a signed word repeats the sign."""
    return words >> bits & (1 << 64 - bits) - 1


def _scale(logits: Tensor, highest: Tensor, inputs: SampleInputs, rows: Tensor) -> Tensor:
    """Return float32 scores [m, V] over temperature with the highest at 0, so that no temperature overflows."""
    above = logits[rows].float() - highest[rows, None].float()
    return above / inputs.temperatures[rows, None]


def _sample_plain(scores: Tensor, inputs: SampleInputs, rows: Tensor) -> Tensor:
    cumulative = scores.exp().cumsum(-1, dtype=torch.float64)
    return _invert(cumulative, cumulative[:, -1:], inputs, rows)


def _sample_filtered(scores: Tensor, inputs: SampleInputs, rows: Tensor) -> Tensor:
    """Try the highest scores alone where looking is cheap; a GPU would have to wait for the look, and sorts fast."""
    num_candidates = min(_NUM_CANDIDATES, scores.shape[1])
    if scores.device.type != "cpu" or num_candidates == scores.shape[1]:
        return _sample_sorted(scores, *scores.sort(dim=-1, descending=True, stable=True), inputs, rows)[0]
    ids = scores.topk(num_candidates, dim=-1, sorted=False).indices.sort(dim=-1).values  # so that ties go by id
    highest, order = scores.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    tokens, num_kept = _sample_sorted(scores, highest, ids.gather(1, order), inputs, rows)
    # Among scores equal to the lowest candidate some are missing: the kept part has to end above them.
    is_sure = (highest.gather(1, num_kept - 1)[:, 0] > highest[:, -1]) & (inputs.top_ks[rows] <= num_candidates)
    if is_sure.all():
        return tokens
    unsure = (~is_sure).nonzero()[:, 0]
    again = scores[unsure].sort(dim=-1, descending=True, stable=True)
    return tokens.index_copy(0, unsure, _sample_sorted(scores[unsure], *again, inputs, rows[unsure])[0])


def _sample_sorted(
    scores: Tensor, highest: Tensor, ids: Tensor, inputs: SampleInputs, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Sample from the kept first part of falling scores.

    Args:
        scores: [m, V], whose weights are the whole that top-p is a share of.
        highest: [m, C], the C highest of them, falling.
        ids: [m, C], their tokens.
        inputs: see there.
        rows: [m].

    Returns:
        tokens [m], and how many were kept [m, 1].
    """
    width = highest.shape[1]
    cumulative = highest.exp().cumsum(-1, dtype=torch.float64)  # [m, C]
    top_ks, top_ps = inputs.top_ks[rows, None], inputs.top_ps[rows, None].double()
    num_top_k = torch.where(top_ks > 0, top_ks, scores.shape[1]).clamp(max=width)
    whole = torch.where(
        (top_ks > 0) & (top_ks <= width),
        cumulative.gather(1, num_top_k - 1),
        scores.exp().sum(-1, keepdim=True, dtype=torch.float64),
    )
    # A token is kept while those above it do not make up top_p yet: the first always, and one more than lie below.
    num_below = torch.searchsorted(cumulative, top_ps * whole)
    num_kept = torch.where(top_ps < 1, num_below + 1, width).minimum(num_top_k)
    if inputs.min_ps is not None:  # the highest score is 0, so a weight is a share of the highest one's
        num_kept = num_kept.minimum((highest.exp() >= inputs.min_ps[rows, None]).sum(-1, keepdim=True))
    num_kept = num_kept.clamp(1, width)
    index = _invert(cumulative, cumulative.gather(1, num_kept - 1), inputs, rows)
    return ids.gather(1, index[:, None])[:, 0], num_kept


def _invert(cumulative: Tensor, whole: Tensor, inputs: SampleInputs, rows: Tensor) -> Tensor:
    """Return the first index at which cumulative weights [m, C] float64 exceed uniform * `whole` [m, 1]."""
    target = uniform(inputs.seeds[rows], inputs.positions[rows])[:, None] * whole
    index = torch.searchsorted(cumulative, target, right=True)[:, 0]
    return index.clamp(max=cumulative.shape[1] - 1)  # a row of NaN; it is reported as FAILED
