"""What one forward pass works on."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from pipelines.core.sequence import Sequence

_is_plain = attrgetter("is_plain")

CARRIED = (0,)  # the placeholder of a token in flight


class Row(NamedTuple):
    """A sequence's share of a step: positions start .. start + num_tokens - 1. Frozen at scheduling: the sequence moves on."""

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


class SteadyRows(NamedTuple):
    """Rows that decode one token and have nothing new for the device, as most rows of most steps: by columns.

    A `Row` for each cost a seventh of scheduling, packing and committing (see docs/decisions.md).
    """

    sequences: Seq[Sequence]
    seats: Seq[int]
    starts: Seq[int]
    known: Mapping[int, int]  # index -> token of those whose token is not in flight; the others carry over

    def row(self, index: int) -> Row:
        """Return one of them by itself; its `first_new_block` is right as long as its step is the newest."""
        sequence, token = self.sequences[index], self.known.get(index)
        token_ids = CARRIED if token is None else (token,)
        first_new = sequence.num_staged_blocks
        return Row(
            sequence, self.seats[index], self.starts[index], token_ids, token is None, True, False, first_new, ()
        )

    def rows(self) -> list[Row]:
        """Return them one by one."""
        return [self.row(index) for index in range(len(self.seats))]


NO_ROWS = SteadyRows((), (), (), {})


@dataclass(frozen=True)
class Batch:
    """The rows of one step, at least one. What is derived of them is worked out once.

    The steady ones come first, in the order of rows and of sampled tokens alike.
    """

    step: int  # 0, 1, 2... in launch order
    others: tuple[Row, ...]  # chunks, and decodes that are not steady
    copies: tuple[tuple[int, int], ...]  # (source, target) blocks to copy before the forward pass: copy-on-write
    steady: SteadyRows = NO_ROWS

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """All of them; made when asked for, which an engine at work does not do."""
        return (*self.steady.rows(), *self.others)

    @property
    def num_steady(self) -> int:
        """How many rows are steady."""
        return len(self.steady.seats)

    @property
    def num_rows(self) -> int:
        """Sequences in the step."""
        return self.num_steady + len(self.others)

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of the whole step."""
        return self.num_steady + sum([len(row.token_ids) for row in self.others])

    @property
    def context_lens(self) -> list[int]:
        """Positions that each row's last token attends to."""
        return [start + 1 for start in self.steady.starts] + [row.context_len for row in self.others]

    @cached_property
    def sampled_others(self) -> tuple[Row, ...]:
        """Those of the others that yield a token, which come back behind those of the steady rows."""
        return tuple([row for row in self.others if row.samples])

    @property
    def num_sampled(self) -> int:
        """Tokens that the step yields."""
        return self.num_steady + len(self.sampled_others)

    @cached_property
    def sampled_rows(self) -> tuple[Row, ...]:
        """The rows that yield a token, in the order in which tokens come back; made when asked for."""
        return (*self.steady.rows(), *self.sampled_others)

    @cached_property
    def opening_rows(self) -> tuple[Row, ...]:
        """Those whose seats get a new sequence."""
        return tuple([row for row in self.others if row.opens_seat])

    @cached_property
    def is_plain(self) -> bool:
        """Whether all that is sampled is greedy and nothing of it special."""
        return all(map(_is_plain, self.steady.sequences)) and all(row.sequence.is_plain for row in self.sampled_others)

    @cached_property
    def special_rows(self) -> tuple[tuple[int, Row], ...]:
        """Those of the sampled rows whose sampling takes more than others', each with its index among them; mostly none."""
        if self.is_plain:
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
