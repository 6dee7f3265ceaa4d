"""The steps in flight: which slot holds which batch, and what may be done with it next.

    free slot --push--> [newest ... oldest] --pop_oldest--> tokens read, committed --release--> free slot

With two slots the CPU works on step N+1 while the device runs step N:

    CPU       stage 0 | launch 0 | stage 1 | launch 1 | read 0, commit 0 | stage 0 | launch 2 | read 1 ...
    device               [---- step 0 ----][---- step 1 ----]                       [---- step 2 ---- ...

Invariants, each an explicit raise:
 1. At most as many steps are in flight as there are slots.
 2. Steps are committed in the order of their launch.
 3. A slot is written again only after its commit: `release` alone makes it free.
 4. The oldest step in flight has its sampler launched; only the newest may wait for the masks that older tokens decide.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic

from pipelines.core.batch import Batch
from pipelines.core.runner import SlotT
from pipelines.errors import InvariantError


@dataclass(slots=True, eq=False)
class Step(Generic[SlotT]):
    """A launched batch and the slot that carries it."""

    slot: SlotT
    batch: Batch
    is_sampled: bool  # its sampler is launched


class InFlight(Generic[SlotT]):
    """A ring of slots."""

    def __init__(self, slots: Iterable[SlotT]) -> None:
        self._free = deque(slots)
        self._steps: deque[Step[SlotT]] = deque()
        self._committing: SlotT | None = None
        self.num_slots = len(self._free)

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def has_unsampled(self) -> bool:
        """Whether the newest step waits for masks: nothing may be launched behind it (invariant 4)."""
        return bool(self._steps) and not self._steps[-1].is_sampled

    def free_slot(self) -> SlotT:
        """The slot to stage next; it stays free until `push`."""
        if not self._free:
            raise InvariantError("no slot is free (invariant 1)")
        return self._free[0]

    def push(self, slot: SlotT, batch: Batch, *, is_sampled: bool) -> None:
        """Note that a batch is launched in `slot`."""
        if not self._free or self._free[0] is not slot:
            raise InvariantError("a slot was launched that is not free (invariant 3)")
        if self._steps and batch.step <= self._steps[-1].batch.step:
            raise InvariantError("steps are launched out of order (invariant 2)")
        if self.has_unsampled:
            raise InvariantError("a step was launched behind one that waits for masks (invariant 4)")
        if not self._steps and not is_sampled:
            raise InvariantError("the oldest step waits for masks (invariant 4)")
        self._steps.append(Step(self._free.popleft(), batch, is_sampled))

    def pop_oldest(self) -> Step[SlotT]:
        """Take the oldest step to commit it."""
        if self._committing is not None:
            raise InvariantError("a second commit began before the first slot was released (invariant 2)")
        if not self._steps[0].is_sampled:
            raise InvariantError("the oldest step waits for masks (invariant 4)")
        step = self._steps.popleft()
        self._committing = step.slot
        return step

    def release(self, slot: SlotT) -> None:
        """Free the slot of the step just committed."""
        if slot is not self._committing:
            raise InvariantError("a slot was released that is not being committed (invariant 3)")
        self._committing = None
        self._free.append(slot)

    def withdraw(self) -> None:
        """Take out the newest step, whose sampler could not be launched; its slot is free, nothing of it runs any more."""
        if not self.has_unsampled:
            raise InvariantError("a step was withdrawn that is launched (invariant 3)")
        self._free.appendleft(self._steps.pop().slot)

    def steps_awaiting_masks(self) -> list[Step[SlotT]]:
        """The steps whose sampler can be launched now: the oldest one, if it still waits. Invariant 4 holds again after it."""
        return [step for step in list(self._steps)[:1] if not step.is_sampled]
