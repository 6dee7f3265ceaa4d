"""Penalties, biases and the like: how the scores of some rows are changed before their tokens are chosen.

Most steps have no such row and pay one comparison. A step that has carries numbers of its own beside its slot's words, copied
by the same stream before the same event. What depends on the tokens so far is counted on the device, since the host does
not know the newest: one count a seat and token of the vocabulary, made when the first such sequence gets a seat. A sequence's
counts are written when it gets a seat, from its prompt and what is committed of its answer, and the sampler adds each new token.

Shapes: s sampled rows, m of them adjusted, b biases, S seats, V vocabulary.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipelines.core.batch import Batch, Row
from pipelines.core.request import Adjustments

_IN_PROMPT = 1 << 30  # in a count: the token is in the prompt; below it stands how often it is in the answer
_NUM_NUMBERS = 4  # a row: repetition, frequency and presence penalty, min_p


@dataclass(frozen=True, slots=True)
class HostAdjustments:
    """What one step carries, on the host."""

    rows: NDArray[np.int64]  # [m] indices among the sampled rows
    seats: NDArray[np.int64]  # [m]
    numbers: NDArray[np.float32]  # [m, 4]
    bias_rows: NDArray[np.int64]  # [b] indices into `rows`
    bias_tokens: NDArray[np.int64]  # [b]
    bias_values: NDArray[np.float32]  # [b]
    new_seats: NDArray[np.int64]  # seats whose counts begin anew
    new_cells: NDArray[np.int64]  # seat * V + token
    new_counts: NDArray[np.int32]  # of those cells; the others of these seats are zero
    needs_counts: bool  # a row's scores depend on the tokens so far
    has_min_p: bool


def gather_adjustments(batch: Batch, vocab_size: int) -> HostAdjustments | None:
    """Return what a step's rows ask for, None where none of them asks."""
    rows = [(index, row, asked) for index, row in batch.special_rows if (asked := _asked(row))]
    opening = [row for row in batch.opening_rows if (asked := _asked(row)) and asked.counts_tokens]
    if not rows and not opening:
        return None
    biases = [
        (number, token, value) for number, (_, row, asked) in enumerate(rows) for token, value in _biases(row, asked)
    ]
    cells, counts = _counts(opening, vocab_size)
    return HostAdjustments(
        rows=np.array([index for index, *_ in rows], np.int64),
        seats=np.array([row.seat for _, row, _ in rows], np.int64),
        numbers=np.array([_numbers(asked) for *_, asked in rows], np.float32).reshape(-1, _NUM_NUMBERS),
        bias_rows=np.array([number for number, *_ in biases], np.int64),
        bias_tokens=np.array([token for _, token, _ in biases], np.int64),
        bias_values=np.array([value for *_, value in biases], np.float32),
        new_seats=np.array([row.seat for row in opening], np.int64),
        new_cells=cells,
        new_counts=counts,
        needs_counts=any(asked.counts_tokens for *_, asked in rows),
        has_min_p=any(asked.min_p > 0 for *_, asked in rows),
    )


def _asked(row: Row) -> Adjustments | None:
    return row.sequence.request.adjustments


def _numbers(asked: Adjustments) -> tuple[float, float, float, float]:
    return asked.repetition_penalty, asked.frequency_penalty, asked.presence_penalty, asked.min_p


def _biases(row: Row, asked: Adjustments) -> list[tuple[int, float]]:
    """Return what is added to scores of a row; the token that is chosen will stand at `row.context_len`."""
    biases = list(asked.logit_bias)
    if row.context_len < row.sequence.num_prompt_tokens + asked.min_tokens:
        biases += [(token, float("-inf")) for token in row.sequence.stop_token_ids]
    return biases


def _counts(opening: Seq[Row], vocab_size: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    cells, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    for row in opening:
        sequence = row.sequence
        prompt = np.unique(np.array(sequence.token_ids[: sequence.num_prompt_tokens], np.int64))
        answer, times = np.unique(np.array(sequence.output_token_ids, np.int64), return_counts=True)
        tokens = np.union1d(prompt, answer)
        found = np.zeros(len(tokens), np.int32)
        found[np.searchsorted(tokens, prompt)] = _IN_PROMPT
        found[np.searchsorted(tokens, answer)] += times.astype(np.int32)
        cells.append(row.seat * vocab_size + tokens)
        counts.append(found)
    return np.concatenate(cells), np.concatenate(counts)


@dataclass(slots=True, eq=False)
class StepAdjustments:
    """The same on its way to the device: host and device twins, which live until the slot is staged again."""

    host: HostAdjustments
    pinned: bool
    device: torch.device
    on_host: list[Tensor] = field(init=False)
    on_device: list[Tensor] = field(init=False, default_factory=list)  # in the order of `host`'s arrays

    def __post_init__(self) -> None:
        """Make the host's twins; the others are `copy`'s."""
        host = self.host
        arrays = (
            host.rows, host.seats, host.numbers, host.bias_rows, host.bias_tokens, host.bias_values,
            host.new_seats, host.new_cells, host.new_counts,
        )  # fmt: skip
        tensors = [torch.from_numpy(array) for array in arrays]
        self.on_host = [tensor.pin_memory() for tensor in tensors] if self.pinned else tensors

    def copy(self) -> None:
        """H2d stream: bring everything to the device, into memory of this stream, which no other one's work still uses."""
        self.on_device = [torch.empty_like(tensor, device=self.device) for tensor in self.on_host]
        for target, source in zip(self.on_device, self.on_host, strict=True):
            target.copy_(source, non_blocking=True)

    @property
    def is_sampled(self) -> bool:
        """Whether a row that samples is adjusted."""
        return len(self.host.rows) > 0


class SeatCounts:
    """The counts of all seats, and what is done with a step's adjustments; compute stream alone."""

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._shape = (max_num_seqs, vocab_size)
        self._device = device
        self._counts: Tensor | None = None  # [S, V] int32; none as long as no sequence needs it

    def open(self, step: StepAdjustments) -> None:
        """Begin the counts of sequences that got a seat."""
        *_, seats, cells, counts = step.on_device
        if self._counts is None:
            self._counts = torch.zeros(self._shape, dtype=torch.int32, device=self._device)
        self._counts.index_fill_(0, seats, 0)
        self._counts.view(-1).index_copy_(0, cells, counts)

    def apply(self, scores: Tensor, step: StepAdjustments) -> Tensor:
        """Return `scores` [s, V] in float32, adjusted."""
        rows, seats, numbers, bias_rows, bias_tokens, bias_values, *_ = step.on_device
        adjusted = scores[rows].float()  # [m, V]
        if step.host.needs_counts and self._counts is not None:
            adjusted = _penalised(adjusted, self._counts[seats], numbers)
        if len(step.host.bias_rows):
            adjusted = adjusted.index_put((bias_rows, bias_tokens), bias_values, accumulate=True)
        return scores.float().index_copy(0, rows, adjusted)

    def min_ps(self, step: StepAdjustments, num_sampled: int) -> Tensor | None:
        """Return the `min_p` of each sampled row [s], None where none has any."""
        if not step.host.has_min_p:
            return None
        rows, _, numbers, *_ = step.on_device
        return torch.zeros(num_sampled, device=self._device).index_copy(0, rows, numbers[:, 3])

    def note(self, tokens: Tensor, step: StepAdjustments) -> None:
        """Count the tokens [s] that were chosen."""
        if not step.host.needs_counts or self._counts is None:
            return
        rows, seats, *_ = step.on_device
        cells = seats * self._shape[1] + tokens[rows]
        flat = self._counts.view(-1)
        flat.index_copy_(0, cells, flat[cells] + 1)  # the seats of a step are different ones


def _penalised(scores: Tensor, counts: Tensor, numbers: Tensor) -> Tensor:
    """Return scores [m, V] with the penalties [m, 4] for what is counted [m, V]."""
    repetition, frequency, presence = numbers[:, 0:1], numbers[:, 1:2], numbers[:, 2:3]
    repeated = torch.where(scores > 0, scores / repetition, scores * repetition)
    scores = torch.where(counts != 0, repeated, scores)
    in_answer = counts & (_IN_PROMPT - 1)
    return scores - frequency * in_answer - presence * (in_answer > 0)
