"""The loop: takes requests, launches steps ahead of the device, commits what comes back.

Synchronous is the same loop with at most one step in flight. The loop waits in two places only: for the tokens of the oldest
step, and, when it holds no request at all, for work.

A step for which the device has no memory is taken back: the runner makes sure that nothing of it runs any more, the scheduler
forgets it, and what was in it is scheduled again in smaller steps (`StepBudget`).
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol

from pipelines.config import Schedule
from pipelines.core.batch import Batch
from pipelines.core.compiling import Compiling
from pipelines.core.device_clock import DeviceClock
from pipelines.core.inflight import InFlight, Step
from pipelines.core.request import (
    Cancel,
    EngineStats,
    FinishReason,
    Limits,
    StopSequence,
    TokenDelta,
    TokenLogprobs,
    TokenOutput,
    TokenRequest,
    Vocabulary,
)
from pipelines.core.runner import MemoryTraffic, Runner, SlotT
from pipelines.core.scheduler import Scheduler
from pipelines.core.sequence import Sequence, TokenMask
from pipelines.core.step_budget import StepBudget
from pipelines.core.step_counters import StepCounters
from pipelines.counted import counted
from pipelines.errors import InvariantError, OutOfMemoryError

_TIMED_AT_ONCE = 8  # steps whose times are asked for together, which is quicker than one by one
_COMPILING_LOOK_S = 0.005  # between two looks for a compiled grammar, where there is no other work


class Source(Protocol):
    """Where requests come from and answers go to; a channel, or a list in a test."""

    def receive(self, timeout_s: float) -> list[Any]:
        """Return `TokenRequest`, `Vocabulary`, `StopSequence`, `Cancel` and `Limits` records.

        It waits at most `timeout_s` for the first.
        """
        ...

    def send_outputs(self, records: list[TokenDelta | TokenOutput]) -> None:
        """Send what is for the text process."""
        ...

    def send_stats(self, stats: EngineStats) -> None:
        """Send what is for the daemon."""
        ...


def _no_masks(grammar: str) -> TokenMask:
    raise InvariantError(f"the engine was sent a grammar and cannot make masks: {grammar[:80]}")


class Engine(Generic[SlotT]):
    """Drives one runner with the steps of one scheduler."""

    def __init__(
        self,
        runner: Runner[SlotT],
        scheduler: Scheduler,
        source: Source,
        schedule: Schedule,
        *,
        traffic: MemoryTraffic | None = None,
        new_mask: Callable[[str], TokenMask] = _no_masks,
        learn: Callable[[Vocabulary], None] = lambda _: None,
        report_every_s: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._source = source
        self._inflight = InFlight(runner.slots)
        self._budget = StepBudget(scheduler.token_budget, scheduler.block_size)
        self._max_in_flight = self._inflight.num_slots if schedule is Schedule.ASYNC else 1
        self._report_every_s = report_every_s
        self._clock = clock
        self._device_clock = DeviceClock(clock())
        self._next_report_s = clock()
        self._counters = StepCounters()
        self._host_s = 0.0  # of the loop's work since the last commit
        self._num_untimed = 0  # committed steps whose times were not asked for
        self._traffic = traffic  # None: unknown
        self._compiling = Compiling(new_mask)
        self._learn = learn  # takes what `new_mask` is to know
        self._floors_s: dict[int, float] = {}  # step -> the least that it can take; of decode steps in flight
        self.stopping = False

    def run(self) -> None:
        """Work until `stopping` is set or the source closes.

        Raises:
            ChannelClosedError: the source is gone.
            EngineError: a step failed; the engine cannot go on.
            OutOfMemoryError: not even the smallest step fits.
        """
        while not self.stopping:
            self.turn()

    def turn(self) -> None:
        """One turn of the loop: take what has come, then launch a step, commit one, or wait for work."""
        began_s = self._clock()
        self._take(self._source.receive(0.0))
        if self._compiling:
            self._take_compiled()
        if self._may_launch and (batch := self._scheduler.schedule()):
            self._launch(batch)
            self._host_s += self._clock() - began_s
        elif self._inflight:
            self._commit_oldest(began_s)
        elif self._scheduler.is_empty:
            self._report()
            self._take(self._source.receive(_COMPILING_LOOK_S if self._compiling else self._report_every_s))
        else:
            raise InvariantError("requests wait, nothing is in flight, and no step can be made of them")
        if self._clock() >= self._next_report_s:
            self._report()

    def submit(self, request: TokenRequest, mask: TokenMask | None = None) -> None:
        """Take one request."""
        now_s = self._clock()
        self._device_clock.note_work(now_s)
        self._scheduler.add(request, mask)
        if sequence := self._scheduler.find(request.key, 0):
            sequence.arrived_s = now_s

    @property
    def num_compiling(self) -> int:
        """Requests that wait for their grammars."""
        return len(self._compiling)

    @property
    def _may_launch(self) -> bool:
        return len(self._inflight) < self._max_in_flight and not self._inflight.has_unsampled

    def _take(self, records: Iterable[Any]) -> None:
        for record in records:
            match record:
                case TokenRequest():
                    if record.grammar:
                        self._compiling.add(record)
                    else:
                        self.submit(record)
                case Vocabulary():
                    self._learn(record)
                case StopSequence(key, choice):
                    if sequence := self._scheduler.find(key, choice):
                        self._scheduler.finish(sequence, FinishReason.STOP)
                case Cancel(keys):
                    self._compiling.drop(keys)
                    for key in keys:
                        self._scheduler.cancel(key)
                case Limits():
                    self._limit(record)
                case _:
                    raise InvariantError(f"the engine was sent {type(record).__name__}")

    def _take_compiled(self) -> None:
        """Take the requests whose grammars are compiled; one whose grammar could not be fails alone."""
        for request, mask in self._compiling.take_ready():
            if isinstance(mask, BaseException):
                failure = f"it could not be compiled: {type(mask).__name__}: {mask}"
                output = TokenOutput(request.key, 0, (), FinishReason.CANCELLED, ended_by_token=False, failure=failure)
                self._source.send_outputs([output])
            else:
                self.submit(request, mask)

    def _limit(self, limits: Limits) -> None:
        """Go on under other limits. Steps in flight are committed as they are, so that no token depends on the change."""
        self._max_in_flight = self._inflight.num_slots if limits.is_async else 1
        self._scheduler.limit_seats(limits.max_num_seqs)
        self._budget = StepBudget(limits.max_num_batched_tokens, self._scheduler.block_size)
        self._scheduler.token_budget = self._budget.num_tokens

    def _launch(self, batch: Batch) -> None:
        slot = self._inflight.free_slot()
        is_sampled = not batch.mask_awaits_tokens
        if error := self._try_launch(slot, batch, is_sampled=is_sampled):
            self._take_back(slot, batch, error)
        else:
            self._inflight.push(slot, batch, is_sampled=is_sampled)
            self._note_launch(batch)

    def _note_launch(self, batch: Batch) -> None:
        self._counters.count_launch(batch, self._clock())
        if self._traffic is not None and batch.num_tokens == batch.num_rows:
            # A little more than the context, because the last block of each sequence is not full.
            num_context = self._scheduler.num_used_blocks * self._scheduler.block_size
            self._floors_s[batch.step] = self._traffic.floor_s(num_context)

    def _try_launch(self, slot: SlotT, batch: Batch, *, is_sampled: bool) -> str:
        """Launch a step; return why it does not fit, "" if it does. Not the error itself: that holds the step's tensors."""
        try:
            slot.stage(batch)
            self._runner.launch_forward(slot)
            if is_sampled:
                self._runner.launch_sample(slot, _masks(batch))
        except OutOfMemoryError as error:
            return str(error)
        return ""

    def _try_late_sample(self, step: Step[SlotT]) -> str:
        """Launch the sampler of a step that waited for masks; returns as `_try_launch`."""
        try:
            self._runner.launch_sample(step.slot, _masks(step.batch))
        except OutOfMemoryError as error:
            return str(error)
        step.is_sampled = True
        return ""

    def _take_back(self, slot: SlotT, batch: Batch, error: str) -> None:
        """Take back a step that does not fit, and have what was in it run in smaller steps."""
        self._runner.abandon(slot)
        self._floors_s.pop(batch.step, None)
        self._scheduler.unschedule(batch)
        num_tokens = batch.num_tokens
        if not self._budget.shrink(num_tokens):
            raise OutOfMemoryError(f"a step of {counted(num_tokens, 'token')} cannot be made smaller: {error}")
        self._scheduler.token_budget = self._budget.num_tokens
        self._counters.steps_taken_back += 1
        self._counters.notices.append(
            f"a step of {counted(num_tokens, 'token')} for {counted(batch.num_rows, 'sequence')} did not fit and runs again in "
            f"steps of at most {counted(self._budget.num_tokens, 'token')}: {error}"
        )

    def _commit_oldest(self, began_s: float) -> None:
        step = self._inflight.pop_oldest()
        wait_s = self._clock()
        tokens = step.slot.read_tokens()
        done_s = self._clock()
        committed = self._scheduler.commit(step.batch, tokens)
        if step.batch.told_rows:
            _note_logprobs(step.batch, step.slot.read_logprobs())
        self._inflight.release(step.slot)
        self._note_good_step()
        for late in self._inflight.steps_awaiting_masks():
            if error := self._try_late_sample(late):
                self._inflight.withdraw()
                self._take_back(late.slot, late.batch, error)
        self._counters.count_commit(committed, done_s)
        self._source.send_outputs(_outputs(committed.heard))
        self._num_untimed += 1
        is_empty = self._scheduler.is_empty and not self._inflight
        if is_empty or self._num_untimed >= _TIMED_AT_ONCE:
            self._count_step_times()
        if is_empty:
            self._device_clock.note_empty()
        self._counters.host_s.append(self._host_s + (wait_s - began_s) + (self._clock() - done_s))
        self._host_s = 0.0

    def _note_good_step(self) -> None:
        was_full = self._budget.is_full
        self._budget.note_good_step()
        self._scheduler.token_budget = self._budget.num_tokens
        if self._budget.is_full and not was_full:
            self._counters.notices.append(f"steps of {counted(self._budget.num_tokens, 'token')} are tried again")

    def _count_step_times(self) -> None:
        self._num_untimed = 0
        counters = self._counters
        for time_of_step in self._runner.take_step_times():
            counters.gap_s.append(self._device_clock.add_step(time_of_step))
            counters.step_s.append(time_of_step.end_s - time_of_step.start_s)
            counters.padding_tokens += time_of_step.num_padding
            if (floor_s := self._floors_s.pop(time_of_step.step, None)) is not None:
                counters.decode_floor_s += floor_s
                counters.decode_s += time_of_step.end_s - time_of_step.start_s

    def _report(self) -> None:
        if self._num_untimed:
            self._count_step_times()
        now_s = self._clock()
        if self._scheduler.is_empty and not self._inflight:
            self._device_clock.note_empty()
        counters, self._counters = self._counters, StepCounters()
        scheduler, new = self._scheduler, self._scheduler.take_counts()
        self._source.send_stats(
            EngineStats(
                device_time=self._device_clock.report(now_s),
                num_waiting=scheduler.num_waiting,
                num_running=scheduler.num_running,
                num_used_blocks=scheduler.num_used_blocks,
                prompt_tokens=counters.prompt_tokens,
                generation_tokens=counters.generation_tokens,
                preemptions=new.preemptions,
                step_s=tuple(counters.step_s),
                num_batched=tuple(counters.num_batched),
                steps_taken_back=counters.steps_taken_back,
                notices=tuple(counters.notices),
                prefix_query_tokens=new.prefix_query_tokens,
                prefix_hit_tokens=new.prefix_hit_tokens,
                decode_s=counters.decode_s,
                decode_floor_s=counters.decode_floor_s,
                padding_tokens=counters.padding_tokens,
                gap_s=tuple(counters.gap_s),
                host_s=tuple(counters.host_s),
                num_batched_tokens=tuple(counters.num_batched_tokens),
                queue_s=tuple(counters.queue_s),
                first_token_s=tuple(counters.first_token_s),
                output_token_s=tuple(counters.output_token_s),
            )
        )
        self._next_report_s = now_s + self._report_every_s


def _masks(batch: Batch) -> dict[int, bytes]:
    """Return the masks of a step's sampling rows, whose tokens so far are all known; a sequence that has ended needs none."""
    return {
        index: row.sequence.mask.allowed(row.sequence.output_token_ids)
        for index, row in batch.masked_rows
        if row.sequence.mask is not None and row.sequence.finish_reason is None
    }


def _note_logprobs(batch: Batch, logprobs: Iterable[TokenLogprobs]) -> None:
    """Keep the log-probabilities of the tokens that were committed; a sequence that had ended before got none."""
    for (_, row), told in zip(batch.told_rows, logprobs, strict=True):
        sequence = row.sequence
        if len(sequence.logprobs) < len(sequence.token_ids) - sequence.num_prompt_tokens:
            sequence.logprobs.append(told)


def _outputs(heard: Iterable[tuple[Sequence, int]]) -> list[TokenDelta | TokenOutput]:
    """What the text process is told of committed tokens."""
    records: list[TokenDelta | TokenOutput] = []
    for sequence, token in heard:
        request = sequence.request
        if sequence.finish_reason is not None:
            records.append(
                TokenOutput(
                    key=request.key,
                    choice=sequence.choice,
                    token_ids=tuple(sequence.output_token_ids),
                    finish_reason=sequence.finish_reason,
                    ended_by_token=sequence.ended_by_token,
                    num_cached_tokens=sequence.num_cached_tokens or 0,
                    logprobs=tuple(sequence.logprobs),
                    failure=sequence.mask.failure if sequence.mask else "",
                    first_step_s=sequence.first_step_s,
                    first_token_s=sequence.first_token_s,
                )
            )
        else:
            times = sequence.first_step_s, sequence.first_token_s
            records.append(TokenDelta(request.key, sequence.choice, (token,), tuple(sequence.logprobs[-1:]), *times))
    return records
