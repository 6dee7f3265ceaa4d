"""What the loop needs of whatever runs a step: the real runner on a device, or the fake one of the tests."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pipelines.core.batch import Batch
from pipelines.core.request import TokenLogprobs


@dataclass(frozen=True, slots=True)
class StepTime:
    """When one step ran on the device, on the host's CLOCK_MONOTONIC."""

    step: int
    launched_s: float  # the host had launched the whole step
    inputs_s: float  # its inputs had arrived on the device
    start_s: float  # the compute stream began with it
    end_s: float  # its sampler was done
    read_s: float  # its tokens had arrived on the host
    unproven_s: float = 0.0  # of the time from start to end: the host may have fallen behind, see `unproven_time`
    num_padding: int = 0  # tokens computed beside the step's own, because a captured graph has a fixed size

    @property
    def is_proven(self) -> bool:
        """Whether the host stayed ahead, so that the device was busy from start to end."""
        return not self.unproven_s


@dataclass(frozen=True, slots=True)
class Mark:
    """A point between two of a step's launches."""

    launched_s: float  # the host had launched all that lies before it
    reached_s: float  # the device had done it


def unproven_time(start_s: float, marks: Iterable[Mark]) -> float:
    """Return the seconds of a step in which its device may have waited for the host to launch more.

    From one mark to the next a device certainly works once all that lies between them has been launched; before that it may
    have run dry.
    """
    unproven_s = 0.0
    for mark in marks:
        unproven_s += max(0.0, min(mark.launched_s, mark.reached_s) - start_s)
        start_s = mark.reached_s
    return unproven_s


@dataclass(frozen=True, slots=True)
class MemoryTraffic:
    """What a decode step has to read of the device's memory at the least, and how fast that can be read at best."""

    weight_bytes: int  # every weight once
    kv_bytes: int  # of each token of context
    peak_bytes_per_s: float  # by the device's data sheet

    def floor_s(self, num_context: int) -> float:
        """Seconds that a decode step over so many tokens of context takes at the least."""
        return (self.weight_bytes + self.kv_bytes * num_context) / self.peak_bytes_per_s


@dataclass(frozen=True, slots=True)
class GraphUse:
    """What captured steps took."""

    num_sets: int  # 1, or one a slot
    num_graphs: int  # of all sets
    num_pools: int
    pool_bytes: int  # of all pools: what steps compute in, beyond the buffers that they share in any case
    device_bytes: int  # that the device has less of since, the pools and what the driver keeps of each graph
    capture_s: float


class Slot(Protocol):
    """One half of the double buffer."""

    def stage(self, batch: Batch) -> None:
        """Pack the step's differences and start their one copy to the device. The slot is free, see `InFlight`."""
        ...

    def read_tokens(self) -> list[int]:
        """Wait for this slot's tokens alone and return them, one per row that samples.

        Raises:
            EngineError: the step failed on its way.
        """
        ...

    def read_logprobs(self) -> Sequence[TokenLogprobs]:
        """Return those of `Batch.told_rows`, in order; the tokens have been read."""
        ...


SlotT = TypeVar("SlotT", bound=Slot)


class Runner(Protocol[SlotT]):
    """Launches steps; never waits for them."""

    slots: Sequence[SlotT]

    def launch_forward(self, slot: SlotT) -> None:
        """Apply the differences, carry tokens over, run the model. Waits (on the device) for the slot's inputs.

        It may go on to sample where all rows are greedy; then it writes a seat's last token as the last thing it does.

        Raises:
            OutOfMemoryError: the step does not fit; `abandon` makes the slot free for a smaller one.
        """
        ...

    def launch_sample(self, slot: SlotT, masks: dict[int, bytes]) -> None:
        """Sample one token a sampling row, if that is not done, and start the copy back.

        `masks`: index among those rows -> `TokenMask.allowed`.

        Raises:
            OutOfMemoryError: as `launch_forward`.
        """
        ...

    def abandon(self, slot: SlotT) -> None:
        """Give up a step whose launch ran out of memory, and wait until nothing of it runs any more.

        What of it has run may run again: it wrote the step's own differences, and keys and values of its own positions.
        Last tokens of seats are as they were before it.
        """
        ...

    def take_step_times(self) -> list[StepTime]:
        """Return the times of the steps that have ended since the last call, in order."""
        ...

    def close(self) -> None:
        """Stop the streams; what is in flight is dropped."""
        ...
