"""Streams and events: in-order queues of work for a device, with a CPU twin made of threads.

The rest of the runtime is written once against `Stream` and `Event`. On a GPU a stream is a CUDA stream: `launch` calls the
function at once and the function enqueues kernels. On a CPU a stream is a thread: `launch` enqueues the function itself.
Either way a launch returns at once, the work of one stream runs in order, and two streams are ordered by events alone.

A failure poisons its stream: what was launched behind it is skipped, and every event recorded behind it re-raises the
failure to whoever waits, host or stream. So a failed step ends in `Slot.read_tokens` as an `EngineError`, never in a hang.
One failure does not: where `launch` calls its function at once and that finds no memory, it raises, and the stream goes on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, Protocol

import torch

from pipelines.config import StreamKind, StreamsConfig
from pipelines.errors import EngineError, OutOfMemoryError

P = ParamSpec("P")

H2D_DONE = "h2d_done"  # the slot's inputs are on the device
MASKS_DONE = "masks_done"  # the slot's token masks are on the device
COMPUTE_BEGAN = "compute_began"  # the compute stream has the step's inputs and begins
STRETCH_DONE = "stretch_done"  # what was launched of the step so far is done
COMPUTE_DONE = "compute_done"  # the step's tokens lie in the slot's output buffer on the device
ABANDONED = "abandoned"  # nothing of a step that did not fit into the memory runs any more
D2H_DONE = "d2h_done"  # the step's tokens lie in the slot's output buffer on the host

# Of errors that are no OutOfMemoryError of torch: a CPU's allocator, the CUDA driver and Triton, cuBLAS.
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "cublas_status_alloc_failed")


class Event(Protocol):
    """A point in one stream's order."""

    @property
    def name(self) -> str:
        """What it stands for, one of the names above."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether the stream has reached it, or failed before it."""
        ...

    @property
    def time_s(self) -> float:
        """When the stream reached it, on CLOCK_MONOTONIC; to be asked once it is done.

        Raises:
            EngineError: the stream failed before it.
        """
        ...

    def wait(self) -> None:
        """Block the calling thread until it is done.

        Raises:
            EngineError: the stream failed before it.
        """
        ...


class Stream(Protocol):
    """An in-order queue of work. Used by one host thread."""

    @property
    def name(self) -> str:
        """Which of the three it is: h2d, compute, d2h."""
        ...

    def launch(self, fn: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Let `fn` run in this stream's order; returns at once, what `fn` returns is dropped.

        Raises:
            OutOfMemoryError: on a GPU alone, where `fn` is called at once: the device has no memory for it.
        """
        ...

    def record(self, name: str) -> Event:
        """Return an event that is done when all work launched here so far is."""
        ...

    def wait(self, event: Event) -> None:
        """Let the work launched here from now on start only after `event`; the host does not wait."""
        ...

    def close(self) -> None:
        """Take no more work and drop what has not begun; returns at once."""
        ...

    def join(self) -> None:
        """Wait for the work that had begun when `close` was called."""
        ...


@dataclass(frozen=True, slots=True)
class StreamSet:
    """The three streams of an engine; two or all of them may be one."""

    h2d: Stream  # host to device: inputs and masks
    compute: Stream  # all arithmetic
    d2h: Stream  # device to host: tokens

    @classmethod
    def build(cls, config: StreamsConfig, make: Callable[[str], Stream]) -> "StreamSet":
        """Make the streams that `config` asks for with `make`, which is given a name."""
        compute = make("compute")
        return cls(
            h2d=make("h2d") if config.h2d is StreamKind.DEDICATED else compute,
            compute=compute,
            d2h=make("d2h") if config.d2h is StreamKind.DEDICATED else compute,
        )

    def close(self) -> None:
        """Drop what has not begun and wait for what has. All are closed before one is joined: they wait for each other."""
        for stream in (self.h2d, self.compute, self.d2h):
            stream.close()
        for stream in (self.h2d, self.compute, self.d2h):
            stream.join()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of torch, of its libraries or of a driver says that memory ran out."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or any(words in text for words in _OUT_OF_MEMORY)


def first_line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return next(iter(str(error).strip().splitlines()), "")


def as_engine_error(error: Exception, where: str) -> EngineError:
    """Return `error` as one line of ours that says on which stream it happened."""
    if isinstance(error, EngineError):
        return error
    text = first_line(error)
    if is_out_of_memory(error):
        wrapped: EngineError = OutOfMemoryError(
            f"a step ran out of memory on the {where} stream ({text}); "
            "lower batch.max_num_batched_tokens, batch.max_num_seqs or kv_cache.memory_fraction"
        )
    else:
        wrapped = EngineError(f"a step failed on the {where} stream: {type(error).__name__}: {text}")
    wrapped.__cause__ = error
    return wrapped
