"""The waiting sequences of one file, and what the scheduler knows of the file.

Order: preempted ones first, they have answers half made. Then windows: a window takes in up to `_WINDOW` sequences as they
come and is emptied before the next one opens, so none is passed over by more than a window. Within a window the longest
answers go first, because the end of a job should not wait for a long one begun late; among answers of about one length (within
a power of two) those whose prompts begin alike stand together, where the first of them would, so that the beginning is in
the cache when it is asked for.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator

from pipelines.core.output_lengths import OutputLengths
from pipelines.core.sequence import Sequence

_WINDOW = 1024  # sequences

_Rank = tuple[int, int]  # tokens, most first; arrival
_Place = tuple[int, _Rank, _Rank]  # class of length, longest first; its group's first one; itself


class FileQueue:
    """One file at one priority."""

    def __init__(self, first_guess: float) -> None:
        self.lengths = OutputLengths(first_guess)
        self.num_live = 0  # unfinished sequences
        self.num_seats = 0  # held, those of ended sequences that a step in flight still holds included
        self.deficit = 0.0  # tokens that may be admitted in this file's turn
        self._resumed: deque[Sequence] = deque()
        self._window: list[tuple[_Place, Sequence]] = []
        self._places: dict[Sequence, _Place] = {}  # of the window
        self._later: deque[Sequence] = deque()
        self._groups: dict[bytes, _Rank] = {}  # first block's name -> the first one of the window that begins with it
        self._num_taken_in = 0  # by the window

    def __len__(self) -> int:
        return len(self._resumed) + len(self._window) + len(self._later)

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait."""
        if self._num_taken_in < _WINDOW and not self._later:
            self._take_in(sequence)
        else:
            self._later.append(sequence)

    def resume(self, sequence: Sequence) -> None:
        """Let a preempted sequence wait."""
        self._resumed.append(sequence)

    def __iter__(self) -> Iterator[Sequence]:
        """Those that may go next, in order; the ones behind the window are not among them."""
        yield from self._resumed
        for _, sequence in self._window:
            yield sequence

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands."""
        place = self._places.pop(sequence, None)
        if place is not None:
            del self._window[bisect_left(self._window, place, key=_place_of)]
            if not self._window:
                self._open_window()
        elif sequence in self._resumed:
            self._resumed.remove(sequence)
        else:
            self._later.remove(sequence)

    def _open_window(self) -> None:
        self._num_taken_in = 0
        self._groups.clear()
        while self._later and self._num_taken_in < _WINDOW:
            self._take_in(self._later.popleft())

    def _take_in(self, sequence: Sequence) -> None:
        max_tokens = sequence.request.max_tokens
        rank = (-max_tokens, self._num_taken_in)
        group = self._groups.setdefault(sequence.block_names[0], rank) if sequence.block_names else rank
        length_class = round(self.lengths.expected(max_tokens)).bit_length()
        place = (-length_class, group, rank)
        self._num_taken_in += 1
        self._places[sequence] = place
        insort(self._window, (place, sequence), key=_place_of)


def _place_of(entry: tuple[_Place, Sequence]) -> _Place:
    return entry[0]
