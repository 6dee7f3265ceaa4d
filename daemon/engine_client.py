"""Keeps an engine's two processes alive and every request given to it answered, whatever dies.

   feeder --submit--> outstanding --frames--> text process <--frames, unread--> engine process
                          ^                         |
                          `------- on_done ---------'

1. A request is outstanding from `submit_all` until its answer, or until it is withdrawn; an answer is passed on once.
2. When the processes are up again after a death, what was in flight is sent again under new keys, as `outstanding` has it;
   what is still said under an old key is dropped.
3. When the engine process dies, its text process is ended too: what that still had on its way to the dead engine would
   reach the next one under old keys. When only the text process dies, the engine keeps its model and drops its requests.
4. A death with requests in flight takes the search for its cause on. One without, and with no answer since the last, counts:
   each further start waits longer, and after `max_restarts` the engine is paused, with the reason.
5. A process that has work and does not get on for `stall_s` is killed; from there on it is a death like any other.
6. An engine that is not to be kept loaded has no processes while nothing needs it: until the first request, and again when it
   has had none for `idle_unload_s`.
7. With other settings (`restart`) both processes are started anew. Until they are up the last good settings are kept: a start
   that fails leads back to them. No request is blamed for that.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

from daemon.child import Child
from daemon.credits import Credits
from daemon.device_account import DeviceAccount
from daemon.engine_monitor import EngineMonitor
from daemon.errors import EngineConfigError, EngineEnvironmentError, EngineStartError
from daemon.idle_watch import IdleWatch
from daemon.logs import log_context
from daemon.made_with import MadeWith, hash_of_model
from daemon.metrics import Metrics
from daemon.outstanding import Outstanding
from daemon.stall import StallWatch
from daemon.status import EngineState
from daemon.submission import Answer, Submission, Unanswered, ended_the_engine, took_too_long
from daemon.waiting import wait_for_event
from pipelines.channel import Peer
from pipelines.config import EngineConfig, Schedule
from pipelines.core.request import (
    Cancel,
    EngineStats,
    Failed,
    IdleCause,
    Limits,
    Progress,
    Ready,
    RequestOutput,
    RequestRefused,
)

log = logging.getLogger(__name__)

_MAX_OUTSTANDING_BYTES = 64 << 20
_MIN_OUTSTANDING = 64
_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 60.0
_SEND_CHUNK = 256
_TICK_S = 0.1  # between two looks at what takes too long


class EngineClient:
    """One engine as the daemon sees it. Used from the event loop's thread.

    One that is not `is_vital` is paused, where another one ends `run`, if it cannot be brought up for the first time.
    """

    def __init__(
        self,
        config: EngineConfig,
        metrics: Metrics,
        max_restarts: int,
        why_empty: Callable[[], IdleCause],
        *,
        stall_s: float = math.inf,
        idle_unload_s: float | None = None,
        is_vital: bool = True,
    ) -> None:
        self.config = config
        self.allocated = config  # what its processes were started with
        self.is_closed = False  # no file is to be taken for it, because other settings wait
        self.notice = ""  # what becomes of it, for people
        self.failed_change = ""  # why the last `restart` led back to the settings before it; empty if it did not
        self.max_restarts = max_restarts
        self.stall_s = stall_s
        self.state = EngineState.STARTING
        self.reason = ""  # why it is not ready, for people
        self.model = config.model.path  # the name it truly is, once known
        self.context = 0
        self.detail = ""
        self.progress: dict[Peer, Progress] = {}
        self.is_ready = asyncio.Event()
        self.num_restarts = 0
        self.monitor = EngineMonitor(config, metrics, why_empty)
        self.credits = Credits(_num_credits(config), _MAX_OUTSTANDING_BYTES)
        self._metrics = metrics
        self._children: dict[Peer, Child] = {}
        self._ready_roles: set[Peer] = set()
        self._outstanding = Outstanding(config.name, self._new_key)
        self._last_key = 0
        self._num_fruitless_deaths = 0  # see (4)
        self._last_death = ""
        self._was_ready = False
        self._is_vital = is_vital
        self._last_good: EngineConfig | None = None  # until those of a `restart` prove good: (7)
        self._num_restarts_asked = 0
        self._stall = StallWatch(time.monotonic())
        self._stats_s = 0.0  # CLOCK_MONOTONIC, of the newest
        self._resume = asyncio.Event()
        self._failure: EngineStartError | None = None
        self._idle_unload_s: float | None = None
        self._idle = IdleWatch(time.monotonic())
        self._is_needed = asyncio.Event()  # its processes are to be there: (6)
        self._is_needed.set()
        if idle_unload_s is not None:
            self._unload()
        self.idle_unload_s = idle_unload_s

    @property
    def idle_unload_s(self) -> float | None:
        """Seconds without a request after which it is unloaded; None keeps it loaded."""
        return self._idle_unload_s

    @idle_unload_s.setter
    def idle_unload_s(self, seconds: float | None) -> None:
        self._idle_unload_s = seconds
        if seconds is None:
            self.wake()

    @property
    def account(self) -> DeviceAccount:
        """Where its device's time went."""
        return self.monitor.account

    async def run(self) -> None:
        """Keep both processes up until cancelled.

        Raises:
            EngineStartError: they could not be brought up for the first time.
        """
        log_context(engine=self.config.name)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep(Peer.TEXT))
                tasks.create_task(self._keep(Peer.ENGINE))
                tasks.create_task(self._keep_time())
        except* EngineStartError as group:
            raise group.exceptions[0] from None
        finally:
            self.state = EngineState.DOWN
            for child in self._children.values():
                child.kill()

    def submit_all(self, submissions: Iterable[Submission]) -> None:
        """Take requests. Each `on_done` is called once, with its answer."""
        for submission in submissions:
            self.credits.take(submission.num_bytes)
            self._outstanding.add(submission)
        self.wake()
        self._send()

    def wake(self) -> None:
        """Have it loaded if it is not: there will be requests (6)."""
        self._idle.look(time.monotonic(), is_idle=False)
        if not self._is_needed.is_set():
            self.state, self.reason = EngineState.STARTING, ""
            self.monitor.note_wanted()
            self._is_needed.set()

    def withdraw(self, file: int, answer: Unanswered) -> None:
        """End every request of a file (its number) that is not answered, with this answer; what runs is cut."""
        submissions, keys = self._outstanding.withdraw(file)
        self._cancel(keys)
        for submission in submissions:
            self._finish(submission, answer)
        self._send()

    def made_with(self) -> MadeWith:
        """Return what an answer that comes now was made with: one under an old key is dropped (2)."""
        return MadeWith(self.model, hash_of_model(self.allocated))

    def resume(self) -> None:
        """Try again after a pause."""
        self._num_fruitless_deaths = 0
        self._outstanding.pardon()
        self._resume.set()

    @property
    def is_changing(self) -> bool:
        """Whether it is being started with other settings, of which nobody knows yet whether they are good."""
        return self._last_good is not None

    def adjust(self, config: EngineConfig) -> None:
        """Go on under a configuration that needs nothing but what is allocated."""
        self.config = config
        self.credits.resize(_num_credits(config))
        self._metrics.set_schedule(config.name, config.schedule)
        if Peer.ENGINE in self._ready_roles:
            self._send_limits()

    def restart(self, config: EngineConfig, *, falls_back: bool) -> None:
        """Start both processes anew with another configuration; what is not answered runs there.

        If it `falls_back`, a start that fails leads back to the present one, or to the one before a `restart` that is not over.
        """
        if self._last_good is None and falls_back:
            self._last_good = self.allocated
        self.failed_change = ""
        if not falls_back:
            self._last_good, self._was_ready, self._is_vital = None, False, False
        self._begin_anew(config)

    def _begin_anew(self, config: EngineConfig) -> None:
        self.config = self.allocated = config
        self._metrics.set_schedule(config.name, config.schedule)
        self.credits.resize(_num_credits(config))
        self.state, self.reason = EngineState.RESTARTING, ""
        self.is_ready.clear()
        self._num_restarts_asked += 1
        self._num_fruitless_deaths = 0
        self._outstanding.recall()
        self.monitor.note_down()
        self.wake()
        self.state = EngineState.RESTARTING
        for child in self._children.values():
            child.kill()
        self._resume.set()

    def _fall_back(self, last_good: EngineConfig, why: str) -> None:
        self.failed_change, self._last_good, self._failure = why, None, None
        log.error("engine %s: its new settings are no good, the last good ones hold: %s", self.config.name, why)
        self._begin_anew(last_good)

    def describe(self) -> str:
        """One line for people: what it is, how far its start is, or why it is down."""
        if self.reason:
            return self.reason
        if self.notice:
            return self.notice
        steps = [f"{role.name.lower()} process: {step.phase} {step.done:.0%}" for role, step in self.progress.items()]
        if (num_suspects := self._outstanding.num_suspects) and not steps:
            steps = [f"one of {num_suspects} requests may have ended it: they run apart from others"]
        return ", ".join(steps) or self.detail

    def pids(self) -> dict[str, int]:
        """The processes there are, by role."""
        return {role.name.lower(): child.pid for role, child in self._children.items()}

    def _new_key(self) -> int:
        """A key that no attempt has had."""
        self._last_key += 1
        return self._last_key

    async def _keep(self, role: Peer) -> None:
        """Start one of the processes again whenever it is gone."""
        while True:
            await self._is_needed.wait()
            self._failure = None
            number = self._num_restarts_asked
            child = await Child.start(role, self.allocated)
            self._children[role] = child
            if number != self._num_restarts_asked:  # it was started with settings that hold no more
                child.kill()
            ended = await child.read_until_death(self._take_records(role), self._pass_on(child))
            self._note_death(role, child, ended)
            if not child.is_ended_by_us:
                await self._wait_before_restart()

    def _take_records(self, role: Peer) -> Callable[[list[Any]], None]:
        def take(records: list[Any]) -> None:
            for record in records:
                self._take(role, record)
            if any(isinstance(record, RequestOutput | RequestRefused) for record in records):
                self._send()  # what may go now that these are answered

        return take

    def _pass_on(self, child: Child) -> Callable[[bytes], None]:
        other = Peer.TEXT if child.role is Peer.ENGINE else Peer.ENGINE

        def pass_on(payload: bytes) -> None:
            if not child.is_ended_by_us and (to := self._children.get(other)):  # (3)
                to.pass_on(payload)

        return pass_on

    def _take(self, role: Peer, record: Any) -> None:
        match record:
            case RequestOutput() | RequestRefused():
                self._take_answer(record)
            case EngineStats():
                self._take_stats(record)
            case Ready():
                self._note_ready(role, record)
            case Progress():
                self._stall.note_progress()
                self.progress[role] = record
                if role is Peer.ENGINE:
                    self.monitor.note_progress(record)
            case Failed():
                self._note_failure(record)

    def _take_answer(self, answer: RequestOutput | RequestRefused) -> None:
        submission = self._outstanding.answer(answer.key)
        if submission is None:
            return  # said under an old key (2)
        self._num_fruitless_deaths = 0
        self.monitor.note_answer(time.monotonic() - submission.submitted_s)
        self._stall.note_progress()
        self._finish(submission, answer)
        if isinstance(answer, RequestOutput):
            self._give_up(self._outstanding.give_up())

    def _finish(self, submission: Submission, answer: Answer) -> None:
        self.credits.give_back(submission.num_bytes)
        submission.on_done(answer)

    def _give_up(self, submissions: Iterable[Submission]) -> None:
        for submission in submissions:
            self._finish(submission, ended_the_engine(self._last_death))

    def _send(self) -> None:
        """Send what may go now, and give up what nothing will come of any more."""
        self._give_up(self._outstanding.give_up_the_last())
        if not self.is_ready.is_set():
            return
        records = self._outstanding.take(time.monotonic())
        for start in range(0, len(records), _SEND_CHUNK):
            self._children[Peer.TEXT].send(records[start : start + _SEND_CHUNK])

    def _cancel(self, keys: tuple[int, ...]) -> None:
        """Have the processes forget what was sent under these keys."""
        if keys and (text := self._children.get(Peer.TEXT)):
            text.send([Cancel(keys)])

    def _take_stats(self, stats: EngineStats) -> None:
        self._stats_s = time.monotonic()
        if stats.num_batched:
            self._stall.note_progress()
        for notice in stats.notices:
            log.warning("engine %s: %s", self.config.name, notice)
        self.monitor.note_stats(stats, len(self._outstanding))

    def _note_ready(self, role: Peer, ready: Ready) -> None:
        self._ready_roles.add(role)
        self._stall.note_progress()
        self.progress.pop(role, None)
        if role is Peer.ENGINE:
            self.model, self.context = ready.model, ready.context
            self.detail = "; ".join((ready.detail, *(f"WARNING: {text}" for text in ready.warnings)))
            for text in ready.warnings:
                log.warning("engine %s: %s", self.config.name, text)
            self.monitor.note_ready(ready)
            if self.config is not self.allocated:
                self._send_limits()
        if self._ready_roles >= {Peer.TEXT, Peer.ENGINE}:
            log.info("engine %s is ready: %s, %s", self.config.name, self.model, self.detail)
            self._was_ready, self._last_good = True, None
            self.state, self.reason = EngineState.READY, ""
            self.is_ready.set()
            self._send()

    def _note_failure(self, failed: Failed) -> None:
        kind = EngineConfigError if failed.is_config else EngineEnvironmentError
        self._failure = kind(f"engine {self.config.name}: {failed.message}")

    def _note_death(self, role: Peer, child: Child, ended: str) -> None:
        del self._children[role]
        self._ready_roles.discard(role)
        self.is_ready.clear()
        self.progress.pop(role, None)
        if child.is_ended_by_us:
            return  # (3)
        self._stall.note_progress()
        if self._last_good is not None:
            self._fall_back(self._last_good, str(self._failure or f"the {role.name.lower()} process {ended}"))
            return
        if not self._was_ready and self._failure is not None and self._is_vital:
            raise self._failure
        name = role.name.lower()
        self.state, self.reason = EngineState.RESTARTING, f"the {name} process {ended}"
        self._last_death = (
            f"the {name} process (pid {child.pid}) {f'failed: {self._failure}' if self._failure else ended}"
        )
        self.num_restarts += 1
        self._metrics.count_engine_restart(self.config.name)
        for line in child.last_lines:
            log.debug("engine %s: the %s process had said: %s", self.config.name, name, line)
        keys = self._outstanding.keys_in_flight
        if role is Peer.ENGINE:
            self._end_text_process()
        elif engine := self._children.get(Peer.ENGINE):
            engine.send([Cancel(keys)])  # (3)
        self._look_for_the_cause()

    def _end_text_process(self) -> None:
        """Do what the death of the engine process asks for: (3)."""
        self.monitor.note_down()
        self._ready_roles.discard(Peer.TEXT)
        if text := self._children.get(Peer.TEXT):
            text.kill()

    def _look_for_the_cause(self) -> None:
        """Take note of what was in flight when a process died: (4)."""
        num_in_flight = self._outstanding.note_death()
        self._num_fruitless_deaths += not num_in_flight
        what = (
            f"the {num_in_flight} requests it had are run apart from others" if num_in_flight else "it had no request"
        )
        log.warning("engine %s: %s; another is started: %s", self.config.name, self._last_death, what)
        self._give_up(self._outstanding.give_up_the_last())

    async def _wait_before_restart(self) -> None:
        """Wait as (4) has it."""
        if reason := self._why_paused():
            if not self._was_ready and self._is_vital:
                raise EngineEnvironmentError(f"engine {self.config.name}: {reason}")
            self.state, self.reason = EngineState.DOWN, reason
            log.error("engine %s is paused: %s; `gapless resume` tries again", self.config.name, reason)
            self._resume.clear()
            await self._resume.wait()
        elif self._num_fruitless_deaths > 1:  # the first one starts anew at once
            delay_s = _FIRST_DELAY_S * 2 ** min(self._num_fruitless_deaths - 2, 16)
            self._resume.clear()
            await wait_for_event(self._resume, min(delay_s, _MAX_DELAY_S))

    def _why_paused(self) -> str:
        """Say why no further start is tried; empty if one is."""
        if not self._was_ready and self._failure is not None:
            return str(self._failure)
        num_deaths, num_doomed = self._num_fruitless_deaths, self._outstanding.num_doomed
        if num_deaths > self.max_restarts:
            return f"it died {num_deaths} times without an answer in between; last {self._last_death}"
        if num_doomed > max(self.max_restarts, 1):
            return f"it died of {num_doomed} requests, each of them alone, with no answer in between; last {self._last_death}"
        return ""

    async def _keep_time(self) -> None:
        """End what takes longer than it may."""
        while True:
            await asyncio.sleep(_TICK_S)
            self._end_what_hangs()
            self._unload_if_idle(time.monotonic())
            keys = self._outstanding.overdue(time.monotonic())
            for key in keys:
                if submission := self._outstanding.answer(key):
                    self._finish(submission, took_too_long(submission.timeout_s or 0.0))
            if keys:
                self._cancel(tuple(keys))
                self._send()

    def _unload_if_idle(self, now_s: float) -> None:
        is_idle = self.is_ready.is_set() and not len(self._outstanding)
        idle_s = self._idle.look(now_s, is_idle=is_idle)
        if self._idle_unload_s is not None and is_idle and idle_s >= self._idle_unload_s:
            log.info("engine %s has had no request for %g s and is unloaded", self.config.name, self._idle_unload_s)
            self._unload()

    def _unload(self) -> None:
        self._is_needed.clear()
        self.is_ready.clear()
        self.state, self.reason = EngineState.UNLOADED, "loaded when a file needs it"
        self.monitor.note_unloaded()
        for child in self._children.values():
            child.kill()

    def _end_what_hangs(self) -> None:
        """Kill a process that has work and does not get on: (5)."""
        loading = [
            role for role in (Peer.ENGINE, Peer.TEXT) if role in self._children and role not in self._ready_roles
        ]
        self._note_loading(loading)
        has_work = bool(loading or (self.is_ready.is_set() and self._outstanding.keys_in_flight))
        now_s = time.monotonic()
        if self._stall.look(now_s, has_work=has_work) <= self.stall_s:
            return
        self._stall.note_progress()
        role = loading[0] if loading else Peer.TEXT if self._is_engine_idle(now_s) else Peer.ENGINE
        self._children[role].kill_for(f"it did not get on for {self.stall_s:g} s (engines.{self.config.name}.stall_s)")

    def _note_loading(self, roles: Iterable[Peer]) -> None:
        """Take note of processes that get on with their start and have no numbers to say so, as in transformers' own loading."""
        for role in roles:
            if self._children[role].has_moved_on():
                self._stall.note_progress()
                if role is Peer.ENGINE:
                    self.monitor.note_loading()

    def _is_engine_idle(self, now_s: float) -> bool:
        """Whether the engine process says, and has just said, that it has nothing to do."""
        stats, is_recent = self.monitor.stats, now_s - self._stats_s < self.stall_s / 2
        return is_recent and stats is not None and not (stats.num_waiting or stats.num_running)

    def _send_limits(self) -> None:
        """Tell the engine process what holds from now on."""
        batch = self.config.batch
        limits = Limits(self.config.schedule is Schedule.ASYNC, batch.max_num_seqs, batch.max_num_batched_tokens)
        self._children[Peer.ENGINE].send([limits])


def _num_credits(config: EngineConfig) -> int:
    """Requests that may be outstanding."""
    return max(_MIN_OUTSTANDING, 4 * config.batch.max_num_seqs)
