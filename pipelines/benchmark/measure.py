"""Drives an engine in this process over a list of requests and takes down what it says of its device's time.

Nothing is added to the loop: requests come from a list instead of a channel, and the scheduler notes the size of each step
as it makes it (6 us at 32 rows, 33 us at 256; AMD EPYC, 2026-11-29). The time measured begins when the engine is made, with
the requests at hand, and ends when it has closed its account after the last commit.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipelines.benchmark.traffic import StepSize, Traffic
from pipelines.config import BatchConfig, EngineConfig, Schedule
from pipelines.core.batch import Batch
from pipelines.core.block_manager import BlockManager
from pipelines.core.request import DeviceTime, EngineStats, TokenDelta, TokenOutput, TokenRequest
from pipelines.core.runner import GraphUse
from pipelines.core.scheduler import Scheduler
from pipelines.engine import Engine
from pipelines.errors import EngineError
from pipelines.heap import all_set_aside


class CheckError(EngineError):
    """A run did not do what it was measured for, so its figures mean nothing."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: a loaded model in its runner."""

    runner: Any  # a `Runner`, of slots of its own kind
    config: EngineConfig
    num_blocks: int
    block_size: int
    context: int  # tokens a sequence may have
    vocab_size: int
    detail: str  # one line: model, device, dtype, implementation
    traffic: Traffic | None = None  # None: no model, nothing to move
    graphs: GraphUse | None = None  # what captured steps took; None: there are none


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a list of requests."""

    schedule: Schedule
    seconds: float
    device: DeviceTime  # of the whole run
    steps: Sequence[StepSize]
    durations_s: Sequence[float]  # of the steps, on the device
    gaps_s: Sequence[float]  # that the device waited for each of them
    tokens: dict[int, tuple[int, ...]]  # by key
    num_preemptions: int

    @property
    def num_tokens(self) -> int:
        """Generated."""
        return sum(map(len, self.tokens.values()))

    @property
    def residue_s(self) -> float:
        """Time that the account of the device does not explain; negative: that it explains twice."""
        device = self.device
        return self.seconds - sum((device.busy_s, device.unproven_s, device.host_s, device.h2d_s, device.empty_s))


class ListSource:
    """A `Source` that hands out its requests at once and keeps what is sent."""

    def __init__(self, requests: Iterable[TokenRequest]) -> None:
        self._requests = list(requests)
        self.outputs: list[TokenOutput] = []
        self.stats: list[EngineStats] = []

    def receive(self, timeout_s: float) -> list[Any]:
        """See `Source`; it never waits, since nothing more comes."""
        del timeout_s
        requests, self._requests = self._requests, []
        return requests

    def send_outputs(self, records: list[TokenDelta | TokenOutput]) -> None:
        """See `Source`."""
        self.outputs += [record for record in records if isinstance(record, TokenOutput)]

    def send_stats(self, stats: EngineStats) -> None:
        """See `Source`."""
        self.stats.append(stats)


class CountingScheduler(Scheduler):
    """Notes the size of each step."""

    def __init__(self, config: BatchConfig, blocks: BlockManager, window: int | None) -> None:
        super().__init__(config, blocks)
        self._window = window
        self.steps: list[StepSize] = []

    def schedule(self) -> Batch | None:
        """See `Scheduler`."""
        batch = super().schedule()
        if batch is not None:
            self.steps.append(_size_of(batch, self._window))
        return batch

    def unschedule(self, batch: Batch) -> None:
        """See `Scheduler`."""
        super().unschedule(batch)
        self.steps.pop()


def measure(
    subject: Subject, requests: Sequence[TokenRequest], schedule: Schedule, *, before: Sequence[TokenRequest] = ()
) -> Run:
    """Run the requests, all there from the start, to their end; those `before` them are not measured, and leave their cache.

    Raises:
        CheckError: a request did not get exactly its number of tokens.
        EngineError: a step failed.
    """
    window = subject.traffic.window if subject.traffic else None
    scheduler = CountingScheduler(subject.config.batch, _blocks(subject), window)
    with all_set_aside():  # as the engine's process does; what earlier runs left behind is not this one's to clear
        if before:
            drive(subject.runner, scheduler, before, schedule)
            scheduler.steps.clear()
        seconds, source = drive(subject.runner, scheduler, requests, schedule)
    return Run(
        schedule=schedule,
        seconds=seconds,
        device=_added([stats.device_time for stats in source.stats]),
        steps=scheduler.steps,
        durations_s=[duration_s for stats in source.stats for duration_s in stats.step_s],
        gaps_s=[gap_s for stats in source.stats for gap_s in stats.gap_s],
        tokens=_checked_tokens(requests, source.outputs),
        num_preemptions=scheduler.num_preemptions,
    )


def drive(
    runner: Any, scheduler: Scheduler, requests: Sequence[TokenRequest], schedule: Schedule
) -> tuple[float, ListSource]:
    """Return the seconds that an engine needs for the requests, and what it sent."""
    source = ListSource(requests)
    started_s = time.perf_counter()
    engine = Engine(runner, scheduler, source, schedule)
    engine.turn()
    while not scheduler.is_empty:
        engine.turn()
    engine.turn()  # one more, without work: it reports the time up to now
    return time.perf_counter() - started_s, source


def warm_up(subject: Subject, requests: Sequence[TokenRequest], num_tokens: int) -> None:
    """Run the first requests of a full batch for a few tokens each: compilers, allocators and clocks settle."""
    first = requests[: subject.config.batch.max_num_seqs]
    short = [replace(request, max_tokens=min(request.max_tokens, num_tokens)) for request in first]
    for schedule in Schedule:
        drive(subject.runner, Scheduler(subject.config.batch, _blocks(subject)), short, schedule)


def _blocks(subject: Subject) -> BlockManager:
    """Return blocks of which none is cached yet, so that no run profits from the one before."""
    prefix_caching = subject.config.kv_cache.prefix_caching
    return BlockManager(subject.num_blocks, subject.block_size, prefix_caching=prefix_caching)


def _size_of(batch: Batch, window: int | None) -> StepSize:
    context_lens = batch.context_lens
    num_windowed = 0 if window is None else sum([min(length, window) for length in context_lens])
    return StepSize(batch.num_rows, batch.num_tokens, sum(context_lens), num_windowed)


def _added(times: Sequence[DeviceTime]) -> DeviceTime:
    return DeviceTime(
        start_s=times[0].start_s,
        end_s=times[-1].end_s,
        busy_s=sum(time.busy_s for time in times),
        unproven_s=sum(time.unproven_s for time in times),
        empty_s=sum(time.empty_s for time in times),
        host_s=sum(time.host_s for time in times),
        h2d_s=sum(time.h2d_s for time in times),
    )


def _checked_tokens(requests: Sequence[TokenRequest], outputs: Sequence[TokenOutput]) -> dict[int, tuple[int, ...]]:
    tokens = {output.key: output.token_ids for output in outputs}
    for request in requests:
        found = len(tokens.get(request.key, ()))
        if found != request.max_tokens:
            raise CheckError(f"request {request.key}: found {found} tokens, expected {request.max_tokens}")
    if len(outputs) != len(requests):
        raise CheckError(f"found {len(outputs)} answers to {len(requests)} requests")
    return tokens
