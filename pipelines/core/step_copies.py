"""The block copies in front of a step, and those owed by a step that was taken back.

A copy-on-write has happened in the block tables once a step is scheduled. If that step is taken back, the device still has to
make its copies, in front of the next step, whichever sequences are in it: nothing is written into a source before that.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from pipelines.core.batch import Row
from pipelines.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class _Copy:
    owner: Sequence  # of the target
    source: int
    target: int


class StepCopies:
    """Keeps the newest step's copies until the next one is scheduled."""

    def __init__(self) -> None:
        self._newest: list[_Copy] = []
        self._is_owed = False  # the newest step was taken back

    def of_step(self, rows: Seq[Row], copies: Seq[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """Return what a new step has to copy: `copies`, (source, target) each, behind those that are owed."""
        owed = self._newest if self._is_owed else []
        owners = {block: row.sequence for row in rows for block in row.new_blocks} if copies else {}
        self._newest = owed + [_Copy(owners[target], source, target) for source, target in copies]
        self._is_owed = False
        return tuple((copy.source, copy.target) for copy in self._newest)

    def note_taken_back(self) -> None:
        """The newest step does not run."""
        self._is_owed = True

    def forget(self, owner: Sequence) -> None:
        """A sequence has given up its blocks; somebody else may write into them next."""
        if self._newest:
            self._newest = [copy for copy in self._newest if copy.owner is not owner]
