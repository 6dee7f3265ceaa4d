"""The choices of one request: the first computes the prompt, the others start from its blocks once that is launched.

Each of the others computes the prompt's last position once more, for a first token of its own; what it writes there goes into a
copy of the block (see `block_manager`). The newest step's forks can be taken back with it.
"""

from collections.abc import Iterable

from pipelines.core.batch import Row
from pipelines.core.block_manager import BlockManager
from pipelines.core.roster import Roster
from pipelines.core.sequence import Sequence, SequenceStatus


class Forks:
    """Requests whose other choices have not started yet."""

    def __init__(self, blocks: BlockManager, roster: Roster) -> None:
        self._blocks = blocks
        self._roster = roster
        self._num_choices: dict[
            Sequence, int
        ] = {}  # choice 0 -> how many choices share its prompt once that is launched
        self._newest: list[tuple[Sequence, list[Sequence]]] = []  # (parent, choices) that the newest step started

    def add(self, parent: Sequence, num_choices: int) -> None:
        """Have a request's other choices start when its first one has its prompt launched."""
        if num_choices > 1:
            self._num_choices[parent] = num_choices

    def drop(self, parent: Sequence) -> None:
        """Start no other choices of a request."""
        self._num_choices.pop(parent, None)

    def start_launched(self, rows: Iterable[Row]) -> None:
        """Start the choices whose prompts are launched with the newest step, of these rows."""
        self._newest = []
        if not self._num_choices:
            return
        for row in rows:
            if row.sequence in self._num_choices and row.context_len >= row.sequence.num_prompt_tokens:
                self._start(row.sequence)

    def take_back(self) -> None:
        """Undo the newest step's forks: no step has held those choices yet."""
        for parent, choices in self._newest:
            for sequence in choices:
                self._roster.unopen(sequence)
            if parent.status is not SequenceStatus.FINISHED:
                self._num_choices[parent] = 1 + len(choices)
        self._newest = []

    def _start(self, parent: Sequence) -> None:
        """Start a request's other choices; those without a seat now wait like any sequence and compute the prompt themselves."""
        request = parent.request
        roster = self._roster
        choices: list[Sequence] = []
        self._newest.append((parent, choices))
        for choice in range(1, self._num_choices.pop(parent)):
            sequence = Sequence(
                request, choice, list(request.prompt_token_ids), mask=parent.mask and parent.mask.fork()
            )
            choices.append(sequence)
            roster.open(sequence)
            if roster.num_free_seats:
                sequence.block_table = self._blocks.share(parent.block_table, sequence.num_prompt_tokens)
                sequence.num_computed = sequence.num_prompt_tokens - 1
                sequence.num_cached_tokens = parent.num_cached_tokens
                parent.num_ready = 0  # its last block is not its own any more
                roster.admission.note_seat(sequence)
                roster.seat(sequence, roster.decoding)
            else:
                roster.admission.add(sequence)
