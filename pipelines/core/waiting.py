"""The order in which waiting sequences are admitted: by priority, then by turns of tokens between files, then see `file_queue`.

Turns are deficit round robin (Shreedhar and Varghese 1995): a file whose turn is over is allowed `_QUANTUM` tokens more in its
next one, and admits sequences while their tokens, prompt and expected answer, fit into what it is allowed. So files of one
priority get the same share of tokens, however long their requests are.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from math import ceil

from pipelines.core.file_queue import FileQueue
from pipelines.core.output_lengths import OutputLengths
from pipelines.core.request import FinishReason
from pipelines.core.sequence import Sequence
from pipelines.errors import InvariantError

_QUANTUM = 512.0  # tokens
_GOLDEN = 0.6180339887498949  # multiples of it spread evenly over [0, 1), however many there are
_MAX_LOOKS = 64  # sequences looked at for one that may start
_MAX_FILES = 16  # looked at for one that is short of seats

MayStart = Callable[[Sequence], bool]
_Turns = OrderedDict[FileQueue, None]  # files with waiting sequences; the first one has the turn


class WaitingQueue:
    """Waiting sequences of all files, and the files that have unfinished ones."""

    def __init__(self) -> None:
        self._files: dict[tuple[int, int], FileQueue] = {}  # by priority and file
        self._turns: dict[int, _Turns] = {}  # by priority
        self._num_files: dict[int, int] = {}  # by priority
        self._all_lengths = OutputLengths()
        self._num_sequences = 0
        self._quantile = 0.0

    def __len__(self) -> int:
        return self._num_sequences

    def file_of(self, sequence: Sequence) -> FileQueue:
        """The file of an unfinished sequence, or of one that still has its seat."""
        return self._files[sequence.request.priority, sequence.request.file]

    def num_files(self, priority: int) -> int:
        """Files of that priority."""
        return self._num_files.get(priority, 0)

    def max_num_seats(self, priority: int) -> int:
        """The most seats that a file of that priority holds."""
        return max(file.num_seats for (of, _), file in self._files.items() if of == priority)

    @property
    def top_priority(self) -> int | None:
        """Of the waiting sequences."""
        return max(self._turns) if self._turns else None

    def open(self, sequence: Sequence) -> None:
        """Note a new unfinished sequence of a file."""
        key = sequence.request.priority, sequence.request.file
        if key not in self._files:
            self._files[key] = FileQueue(self._all_lengths.mean)
            self._num_files[key[0]] = self._num_files.get(key[0], 0) + 1
        self._files[key].num_live += 1
        sequence.lengths = self._files[key].lengths
        self._quantile = (self._quantile + _GOLDEN) % 1.0
        sequence.quantile = self._quantile

    def unopen(self, sequence: Sequence) -> None:
        """Take back `open`: nothing is learnt from a sequence that has not begun."""
        self.file_of(sequence).num_live -= 1

    def close(self, sequence: Sequence) -> None:
        """Note that a sequence has ended, and learn from it; see `forget_if_idle`."""
        file = self.file_of(sequence)
        file.num_live -= 1
        self.count_tokens(sequence)
        if sequence.finish_reason is not FinishReason.CANCELLED:
            for lengths in (file.lengths, self._all_lengths):
                is_stop = sequence.finish_reason is FinishReason.STOP
                lengths.add_end(sequence.num_output_tokens, is_stop=is_stop)

    def forget_if_idle(self, sequence: Sequence) -> None:
        """Forget the file of a sequence if nothing of it is left."""
        key = sequence.request.priority, sequence.request.file
        file = self._files.get(key)
        if file is not None and not file.num_live and not file.num_seats:
            del self._files[key]
            self._num_files[key[0]] -= 1
            if not self._num_files[key[0]]:
                del self._num_files[key[0]]

    def count_tokens(self, sequence: Sequence) -> None:
        """Learn from the tokens that a sequence got since it was last counted."""
        num_known = len(sequence.token_ids)
        for lengths in (self.file_of(sequence).lengths, self._all_lengths):
            lengths.add_tokens(num_known - sequence.num_counted_tokens)
        sequence.num_counted_tokens = num_known

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait."""
        file = self._with_turn(sequence)
        file.add(sequence)

    def resume(self, sequence: Sequence) -> None:
        """Let a preempted sequence wait, in front of its file."""
        file = self._with_turn(sequence)
        file.resume(sequence)

    def head(self, may_start: MayStart) -> Sequence | None:
        """The next one to admit, left where it is; those that may not start yet are passed over."""
        for priority in sorted(self._turns, reverse=True):
            if found := _head_of(self._turns[priority], may_start):
                return found
        return None

    def take(self, sequence: Sequence) -> None:
        """Take one out to admit it, at its file's expense. A file alone has nobody to whom it could owe something."""
        if len(self._turns[sequence.request.priority]) > 1:
            file = self.file_of(sequence)
            file.deficit -= _cost(sequence, file)
        self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take one out."""
        file = self.file_of(sequence)
        file.remove(sequence)
        self._num_sequences -= 1
        if not file:
            turns = self._turns[sequence.request.priority]
            del turns[file]
            if not turns:
                del self._turns[sequence.request.priority]

    def heads(self, may_start: MayStart) -> Iterator[Sequence]:
        """The first one that may start of each file of the top priority, in the order of turns; not of all, if many."""
        turns = self._turns[max(self._turns)] if self._turns else ()
        for file in islice(turns, _MAX_FILES):
            first, _ = _first_of(file, may_start, _MAX_LOOKS)
            if first is not None:
                yield first

    def check_integrity(self, seated: Iterable[Sequence]) -> None:
        """Prove that queues, turns and the seats of files agree.

        Raises:
            InvariantError: they do not.
        """
        num_seats = Counter(self.file_of(sequence) for sequence in seated)
        for (priority, _), file in self._files.items():
            if file.num_seats != num_seats[file]:
                raise InvariantError("a file's seats are counted wrong")
            if bool(file) != (file in self._turns.get(priority, ())):
                raise InvariantError("a file with waiting sequences has no turn, or one without has one")
        if sum(map(len, self._files.values())) != self._num_sequences:
            raise InvariantError("waiting sequences are counted wrong")
        if Counter(priority for priority, _ in self._files) != self._num_files:
            raise InvariantError("files are counted wrong")

    def _with_turn(self, sequence: Sequence) -> FileQueue:
        file = self.file_of(sequence)
        turns = self._turns.setdefault(sequence.request.priority, OrderedDict())
        if file not in turns:
            file.deficit = _QUANTUM
            turns[file] = None
        self._num_sequences += 1
        return file


def _head_of(turns: _Turns, may_start: MayStart) -> Sequence | None:
    """The first sequence that may start of the first file that is allowed it; files before that one have had their turn."""
    firsts = []
    num_looks = _MAX_LOOKS
    for file in tuple(turns):
        first, num_seen = _first_of(file, may_start, num_looks)
        num_looks -= num_seen
        if first is not None:
            if len(turns) == 1 or not _num_rounds(first, file):
                return first
            firsts.append((file, first))
            file.deficit += _QUANTUM
            turns.move_to_end(file)
        if not num_looks:
            break
    if not firsts:
        return None
    num_rounds = min([_num_rounds(first, file) for file, first in firsts])
    for file in turns:
        file.deficit += _QUANTUM * num_rounds
    return next(first for file, first in firsts if not _num_rounds(first, file))


def _first_of(file: FileQueue, may_start: MayStart, max_looks: int) -> tuple[Sequence | None, int]:
    """The first one of a file that may start, and how many before it may not."""
    num_seen = 0
    for sequence in islice(file, max_looks):
        if may_start(sequence):
            return sequence, num_seen
        num_seen += 1
    return None, num_seen


def _num_rounds(sequence: Sequence, file: FileQueue) -> int:
    return max(0, ceil((_cost(sequence, file) - file.deficit) / _QUANTUM))


def _cost(sequence: Sequence, file: FileQueue) -> float:
    """Tokens that a sequence is going to take; a preempted one's are paid."""
    if sequence.num_cached_tokens is not None:
        return 0.0
    return sequence.num_tokens + file.lengths.expected(sequence.request.max_tokens)
