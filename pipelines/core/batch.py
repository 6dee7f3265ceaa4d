"""What one forward pass works on."""

from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from operator import attrgetter
from typing import NamedTuple

from pipelines.core.sequence import Sequence

_is_special = attrgetter("is_special")


class Row(NamedTuple):
    """A sequence's share of a step: positions start .. start + num_tokens - 1. Frozen at scheduling: the sequence moves on.

    A tuple, because a step makes one for each sequence: it takes a seventh of a frozen dataclass's time.
    """

    sequence: Sequence
    seat: int
    start: int
    token_ids: tuple[int, ...]  # num_tokens ids; a placeholder 0 where the row carries over
    carries: bool  # its one token is still in flight: the device takes the seat's last token
    samples: bool  # a token is sampled from its last position
    opens_seat: bool  # the seat's sampling parameters are new to the device
    first_new_block: int  # index into the block table of new_blocks[0]
    new_blocks: tuple[int, ...]  # block-table entries that the device's seat does not know yet

    @property
    def num_tokens(self) -> int:
        """Tokens computed for this sequence in this step."""
        return len(self.token_ids)

    @property
    def context_len(self) -> int:
        """Positions the last token attends to, itself included."""
        return self.start + len(self.token_ids)


class Columns(NamedTuple):
    """The fields of all rows, each as a column: a loop over rows takes several times as long as one over what it needs."""

    sequences: tuple[Sequence, ...]
    seats: tuple[int, ...]
    starts: tuple[int, ...]
    token_ids: tuple[tuple[int, ...], ...]
    carries: tuple[bool, ...]
    samples: tuple[bool, ...]
    opens_seat: tuple[bool, ...]
    first_new_blocks: tuple[int, ...]
    new_blocks: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Batch:
    """The rows of one step, at least one, in the order of their tokens. What is derived of them is worked out once."""

    step: int  # 0, 1, 2... in launch order
    rows: tuple[Row, ...]
    copies: tuple[tuple[int, int], ...]  # (source, target) blocks to copy before the forward pass: copy-on-write

    @cached_property
    def columns(self) -> Columns:
        """The rows by their fields."""
        return Columns(*zip(*self.rows, strict=True))

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of the whole step."""
        return sum(map(len, self.columns.token_ids))

    @cached_property
    def sampled_rows(self) -> tuple[Row, ...]:
        """The rows that yield a token, in the order in which tokens come back."""
        samples = self.columns.samples
        return self.rows if all(samples) else tuple(compress(self.rows, samples))

    @cached_property
    def opening_rows(self) -> tuple[Row, ...]:
        """Those whose seats get a new sequence."""
        return tuple(compress(self.rows, self.columns.opens_seat))

    @cached_property
    def special_rows(self) -> tuple[tuple[int, Row], ...]:
        """Those of the sampled rows whose sampling takes more than others', each with its index among them; mostly none."""
        if not any(map(_is_special, self.columns.sequences)):
            return ()
        return tuple([(index, row) for index, row in enumerate(self.sampled_rows) if row.sequence.is_special])

    @cached_property
    def told_rows(self) -> tuple[tuple[int, Row], ...]:
        """Those that want log-probabilities, likewise."""
        return tuple([special for special in self.special_rows if special[1].sequence.request.num_logprobs is not None])

    @cached_property
    def masked_rows(self) -> tuple[tuple[int, Row], ...]:
        """Those that have a mask, likewise."""
        return tuple([special for special in self.special_rows if special[1].sequence.mask is not None])

    @cached_property
    def mask_awaits_tokens(self) -> bool:
        """Whether a row's mask depends on a token still in flight, so that its sampler has to be launched late."""
        return any(row.carries for _, row in self.masked_rows)
