"""The order in which waiting sequences are admitted: priority, then turns between files, then first come."""

from collections import OrderedDict, deque

from pipelines.core.sequence import Sequence


class _PriorityClass:
    """Sequences of one priority. Preempted ones go first, they have results half made; files take turns."""

    def __init__(self) -> None:
        self.resumed: deque[Sequence] = deque()
        self.files: OrderedDict[int, deque[Sequence]] = OrderedDict()  # the first one has the turn

    def head(self) -> Sequence:
        return self.resumed[0] if self.resumed else next(iter(self.files.values()))[0]

    def pop(self) -> Sequence:
        if self.resumed:
            return self.resumed.popleft()
        file, queue = next(iter(self.files.items()))
        sequence = queue.popleft()
        if queue:
            self.files.move_to_end(file)
        else:
            del self.files[file]
        return sequence

    def remove(self, sequence: Sequence) -> None:
        if sequence in self.resumed:
            self.resumed.remove(sequence)
            return
        queue = self.files[sequence.request.file]
        queue.remove(sequence)
        if not queue:
            del self.files[sequence.request.file]


class WaitingQueue:
    """Waiting sequences in the order of their admission."""

    def __init__(self) -> None:
        self._classes: dict[int, _PriorityClass] = {}
        self._num_sequences = 0

    def __len__(self) -> int:
        return self._num_sequences

    def add(self, sequence: Sequence) -> None:
        """Append a new sequence behind those of its file."""
        files = self._class_of(sequence).files
        files.setdefault(sequence.request.file, deque()).append(sequence)
        self._num_sequences += 1

    def resume(self, sequence: Sequence) -> None:
        """Put a preempted sequence in front of its priority class."""
        self._class_of(sequence).resumed.append(sequence)
        self._num_sequences += 1

    def head(self) -> Sequence | None:
        """The next one to admit, left where it is."""
        if not self._num_sequences:
            return None
        return self._classes[max(self._classes)].head()

    def pop(self) -> Sequence:
        """Take the next one to admit."""
        priority = max(self._classes)
        sequence = self._classes[priority].pop()
        self._shrink(priority)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Take a certain one out."""
        self._classes[sequence.request.priority].remove(sequence)
        self._shrink(sequence.request.priority)

    def _class_of(self, sequence: Sequence) -> _PriorityClass:
        return self._classes.setdefault(sequence.request.priority, _PriorityClass())

    def _shrink(self, priority: int) -> None:
        self._num_sequences -= 1
        if not self._classes[priority].resumed and not self._classes[priority].files:
            del self._classes[priority]
