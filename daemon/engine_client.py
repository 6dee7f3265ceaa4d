"""Keeps an engine's two processes alive and every request given to it answered, whatever dies.

   feeder --submit--> requests --frames--> text process <--frames, unread--> engine process
                          ^                     |
                          `----- on_done -------'

1. A request is outstanding from `submit_all` until its answer, or until it is withdrawn; an answer is passed on once
   (`engine_requests`).
2. When the processes (`process_pair`) are up again after a death, what was in flight is sent again under new keys, as
   `outstanding` has it; what is still said under an old key is dropped.
3. When the engine process dies, its text process is ended too: what that still had on its way to the dead engine would
   reach the next one under old keys. When only the text process dies, the engine keeps its model and drops its requests.
4. A death with requests in flight narrows the search for the one that caused it. A death without any, and with no answer since
   the last death, counts as one of a row: each further start waits longer, and after `max_restarts` of them the engine is
   paused, with the reason (`restart_policy`).
5. A process that has work and does not get on for `stall_s` is killed (`hang_watch`); from there on it is a death like any other.
6. An engine that is not to be kept loaded has no processes while nothing needs it: until the first request, and again when it
   has had none for `idle_unload_s`.
7. With other settings (`restart`) both processes are started anew. The last good settings are kept until the processes are up,
   and a start that fails goes back to them; no request is blamed for it. A process that is being ended for the change may
   still report that it is ready, or how far it is. That is ignored: what was sent to it would be lost.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from daemon.child import Child
from daemon.device_account import DeviceAccount
from daemon.early_children import StartChild
from daemon.engine_monitor import EngineMonitor
from daemon.engine_requests import EngineRequests
from daemon.errors import EngineStartError
from daemon.hang_watch import HangWatch
from daemon.idle_watch import IdleWatch
from daemon.logs import log_context
from daemon.made_with import MadeWith, hash_of_model
from daemon.metrics import Metrics
from daemon.process_pair import ProcessPair
from daemon.restart_policy import RestartPolicy
from daemon.status import EngineState
from daemon.submission import Submission, Unanswered
from pipelines.channel import Peer
from pipelines.config import EngineConfig, Schedule
from pipelines.core.request import (
    EngineStats,
    Failed,
    IdleCause,
    Limits,
    Progress,
    Ready,
    RequestOutput,
    RequestRefused,
)
from pipelines.counted import counted

log = logging.getLogger(__name__)

_TICK_S = 0.1  # between two looks at what takes too long


class EngineClient:
    """One engine as the daemon sees it. Used from the event loop's thread.

    If the processes cannot be brought up for the first time, `run` raises; an engine that is not `is_vital` is paused instead.
    `now` gives CLOCK_MONOTONIC seconds.
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
        start_child: StartChild | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.allocated = config  # what its processes were started with
        self.is_closed = False  # no file is to be taken for it, because it waits to be started with other settings
        self.notice = ""  # what a change of its settings does to it just now, for people
        self.failed_change = ""  # why the last `restart` went back to the settings before it; empty if it did not
        self.stall_s = stall_s
        self.state = EngineState.STARTING
        self.reason = ""  # why it is not ready, for people
        self.model = config.model.path  # the name it truly is, once known
        self.context = 0
        self.detail = ""
        self.monitor = EngineMonitor(config, metrics, why_empty, now)
        self._metrics = metrics
        self._now = now
        self._pair = ProcessPair(start_child)
        self.is_ready = self._pair.is_ready
        self._requests = EngineRequests(config, self._pair, now)
        self.credits = self._requests.credits
        self._restarts = RestartPolicy(config.name, max_restarts, is_vital=is_vital)
        self._hangs = HangWatch(self._pair, self.monitor, now())
        self._last_good: EngineConfig | None = None  # kept while the settings of a `restart` are not proven good: (7)
        self._idle = IdleWatch(now(), idle_unload_s)  # (6)
        if not self._idle.is_needed.is_set():
            self._unload()

    @property
    def idle_unload_s(self) -> float | None:
        """Seconds without a request after which it is unloaded; None keeps it loaded."""
        return self._idle.unload_s

    @idle_unload_s.setter
    def idle_unload_s(self, seconds: float | None) -> None:
        self._idle.unload_s = seconds
        if seconds is None:
            self.wake()

    @property
    def max_restarts(self) -> int:
        """Deaths in a row, without an answer in between, after which it is paused."""
        return self._restarts.max_restarts

    @max_restarts.setter
    def max_restarts(self, number: int) -> None:
        self._restarts.max_restarts = number

    @property
    def num_restarts(self) -> int:
        """Deaths of its processes that were not ordered by us."""
        return self._restarts.num_restarts

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
            self.state = EngineState.ENDED
            self._pair.kill()

    def submit_all(self, submissions: Iterable[Submission]) -> None:
        """Take requests. Each `on_done` is called once, with its answer."""
        self._requests.add(submissions)
        self.wake()
        self._requests.send()

    def wake(self) -> None:
        """Have it loaded if it is not: there will be requests (6)."""
        if self._idle.wake(self._now()):
            self.state, self.reason = EngineState.STARTING, ""
            self.monitor.note_wanted()

    def withdraw(self, file: int, answer: Unanswered) -> None:
        """Answer every request of a file (its number) that has no answer yet with this one; what runs is cut."""
        self._requests.withdraw(file, answer)

    def made_with(self) -> MadeWith:
        """Return what an answer that comes now was made with. It cannot be an earlier model's: old keys are dropped (2)."""
        return MadeWith(self.model, hash_of_model(self.allocated))

    def resume(self) -> None:
        """Try again after a pause."""
        self._requests.pardon()
        self._restarts.start_over()

    @property
    def is_changing(self) -> bool:
        """Whether it is being started with other settings that are not proven good yet."""
        return self._last_good is not None

    def adjust(self, config: EngineConfig) -> None:
        """Go on under a configuration for which nothing has to be allocated anew."""
        self.config = config
        self._requests.resize(config)
        self._metrics.set_schedule(config.name, config.schedule)
        if self._pair.is_up(Peer.ENGINE):
            self._send_limits()

    def restart(self, config: EngineConfig, *, falls_back: bool) -> None:
        """Start both processes anew with another configuration; what is not answered runs there.

        If it `falls_back`, a start that fails goes back to the present one, or to the one before a `restart` in progress.
        """
        if self._last_good is None and falls_back:
            self._last_good = self.allocated
        self.failed_change = ""
        if not falls_back:
            self._last_good = None
            self._restarts.begin_anew()
        self._begin_anew(config)

    def _begin_anew(self, config: EngineConfig) -> None:
        self.config = self.allocated = config
        self._metrics.set_schedule(config.name, config.schedule)
        self._requests.resize(config)
        self._requests.recall()
        self.monitor.note_down()
        self.wake()
        self.state, self.reason = EngineState.RESTARTING, ""
        self._pair.kill()
        self._restarts.start_over()

    def _fall_back(self, last_good: EngineConfig, why: str) -> None:
        self.failed_change, self._last_good = why, None
        log.error("engine %s: its new settings are no good, the last good ones hold: %s", self.config.name, why)
        self._begin_anew(last_good)

    def describe(self) -> str:
        """One line for people: what it is, how far its start is, or why it is down."""
        if self.reason:
            return self.reason
        if self.notice:
            return self.notice
        progress = self._pair.progress.items()
        steps = [f"{role.name.lower()} process: {step.phase} {step.done:.0%}" for role, step in progress]
        if (num_suspects := self._requests.num_suspects) and not steps:
            steps = [f"one of {counted(num_suspects, 'request')} may have ended it: they run apart from others"]
        return ", ".join(steps) or self.detail

    async def _keep(self, role: Peer) -> None:
        """Start one of the processes again whenever it is gone."""
        while True:
            await self._idle.is_needed.wait()
            self._restarts.note_start()
            child, ended = await self._pair.run(role, self.allocated, partial(self._take_all, role))
            self._note_death(child, ended)
            if not child.is_ended_by_us:
                await self._wait_before_restart()

    def _take_all(self, role: Peer, records: list[Any]) -> None:
        for record in records:
            self._take(role, record)
        if any(isinstance(record, RequestOutput | RequestRefused) for record in records):
            self._requests.send()  # their credits let others go

    def _take(self, role: Peer, record: Any) -> None:
        match record:
            case RequestOutput() | RequestRefused():
                self._take_answer(record)
            case EngineStats():
                self._take_stats(record)
            case Ready() | Progress() | Failed() if self._pair.is_ended(role):
                pass  # it was started with settings that no longer hold (7)
            case Ready():
                self._note_ready(role, record)
            case Progress():
                self._hangs.note_progress()
                self._pair.progress[role] = record
                if role is Peer.ENGINE:
                    self.monitor.note_progress(record)
            case Failed():
                self._restarts.note_failure(record)

    def _take_answer(self, answer: RequestOutput | RequestRefused) -> None:
        if (seconds := self._requests.answer(answer)) is not None:  # None: said under an old key (2)
            self._restarts.note_answer()
            self.monitor.note_answer(seconds)
            self._hangs.note_progress()

    def _take_stats(self, stats: EngineStats) -> None:
        self._hangs.note_stats(stats, self._now())
        for notice in stats.notices:
            log.warning("engine %s: %s", self.config.name, notice)
        self.monitor.note_stats(stats, len(self._requests))

    def _note_ready(self, role: Peer, ready: Ready) -> None:
        are_both_up = self._pair.note_up(role)
        self._hangs.note_progress()
        if role is Peer.ENGINE:
            self.model, self.context = ready.model, ready.context
            self.detail = "; ".join((ready.detail, *(f"WARNING: {text}" for text in ready.warnings)))
            for text in ready.warnings:
                log.warning("engine %s: %s", self.config.name, text)
            self.monitor.note_ready(ready)
            if self.config is not self.allocated:
                self._send_limits()
        if are_both_up:
            log.info("engine %s is ready: %s, %s", self.config.name, self.model, self.detail)
            self._restarts.note_ready()
            self._last_good = None
            self.state, self.reason = EngineState.READY, ""
            self.is_ready.set()
            self._requests.send()

    def _note_death(self, child: Child, ended: str) -> None:
        if child.is_ended_by_us:
            return  # (3)
        self._hangs.note_progress()
        name = child.role.name.lower()
        if self._last_good is not None:
            self._fall_back(self._last_good, str(self._restarts.take_failure() or f"the {name} process {ended}"))
            return
        self._restarts.note_death(name, child.pid, ended)
        self.state, self.reason = EngineState.RESTARTING, f"the {name} process {ended}"
        self._metrics.count_engine_restart(self.config.name)
        for line in child.last_lines:
            log.debug("engine %s: the %s process had said: %s", self.config.name, name, line)
        if child.role is Peer.ENGINE:  # (3)
            self.monitor.note_down()
            self._pair.kill_text_process()
        else:
            self._pair.have_forget(Peer.ENGINE, self._requests.keys_in_flight)
        self._look_for_the_cause(may_be_accident=child.was_killed_by_others)

    def _look_for_the_cause(self, *, may_be_accident: bool) -> None:
        """After a death: have the requests that were in flight run apart from others (4)."""
        how = self._restarts.last_death
        num_in_flight = self._requests.note_death(how, may_be_accident=may_be_accident)
        self._restarts.note_in_flight(num_in_flight)
        what = (
            f"it had {counted(num_in_flight, 'request')}, run apart from others now"
            if num_in_flight
            else "it had no request"
        )
        log.warning("engine %s: %s; another is started: %s", self.config.name, how, what)
        self._requests.send()

    async def _wait_before_restart(self) -> None:
        """Wait as (4) has it."""
        if reason := self._restarts.why_paused(self._requests.num_doomed):
            self.state, self.reason = EngineState.DOWN, reason
            log.error("engine %s is paused: %s; `gapless resume` tries again", self.config.name, reason)
            await self._restarts.wait_for_resume()
        else:
            await self._restarts.wait_for_turn()

    async def _keep_time(self) -> None:
        """Look every `_TICK_S` for processes that hang, an engine that idles, and requests whose time is up."""
        while True:
            await asyncio.sleep(_TICK_S)
            self._end_what_hangs()
            self._unload_if_idle()
            self._requests.end_overdue()

    def _unload_if_idle(self) -> None:
        """End the processes if no request came for `idle_unload_s`: (6)."""
        if self._idle.look(self._now(), is_idle=self.is_ready.is_set() and not len(self._requests)):
            log.info("engine %s has had no request for %g s and is unloaded", self.config.name, self._idle.unload_s)
            self._unload()

    def _unload(self) -> None:
        self.state, self.reason = EngineState.UNLOADED, "loaded when a file needs it"
        self.monitor.note_unloaded()
        self._pair.kill()

    def _end_what_hangs(self) -> None:
        """Kill a process that has work and does not get on: (5)."""
        role = self._hangs.find(self._now(), self.stall_s, has_requests=bool(self._requests.keys_in_flight))
        if role is not None:
            reason = f"it did not get on for {self.stall_s:g} s (engines.{self.config.name}.stall_s)"
            self._pair.kill_for(role, reason)

    def _send_limits(self) -> None:
        """Tell the engine process what holds from now on."""
        batch = self.config.batch
        limits = Limits(self.config.schedule is Schedule.ASYNC, batch.max_num_seqs, batch.max_num_batched_tokens)
        self._pair.send(Peer.ENGINE, [limits])
