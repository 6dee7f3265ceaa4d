"""Keeps an engine's two processes alive and every request given to it answered, whatever dies.

   feeder --submit--> outstanding --frames--> text process <--frames, unread--> engine process
                          ^                         |
                          `------- on_done ---------'

1. A request is outstanding from `submit` until its answer; an answer is passed on once.
2. Each time the processes (re)start, every outstanding request is sent again under a new key; what is still said under an
   old key is dropped.
3. When the engine process dies, its text process is ended too: what that still had on its way to the dead engine would
   reach the next one under old keys. When only the text process dies, the engine keeps its model and drops its requests.
4. Without an answer in between, each further start waits longer, and after `max_restarts` the engine is paused, with the reason.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from daemon.child import Child
from daemon.credits import Credits
from daemon.device_account import DeviceAccount
from daemon.errors import EngineConfigError, EngineEnvironmentError, EngineStartError
from daemon.metrics import Metrics
from daemon.status import EngineState
from pipelines.channel import Peer
from pipelines.config import EngineConfig
from pipelines.core.request import (
    Cancel,
    EngineStats,
    Failed,
    IdleCause,
    Progress,
    Ready,
    RequestOutput,
    RequestRefused,
    TextRequest,
)

log = logging.getLogger(__name__)

Answer = RequestOutput | RequestRefused
_MAX_OUTSTANDING_BYTES = 64 << 20
_MIN_OUTSTANDING = 64
_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 60.0
_RESEND_CHUNK = 256


@dataclass(frozen=True, slots=True)
class Submission:
    """A request ready to go, and what to do with its answer."""

    request: TextRequest
    num_bytes: int  # its size, for the credits
    on_done: Callable[[Answer], None]


class EngineClient:
    """One engine as the daemon sees it. Used from the event loop's thread."""

    def __init__(self, config: EngineConfig, metrics: Metrics, max_restarts: int, has_work: Callable[[], bool]) -> None:
        self.config = config
        self.state = EngineState.STARTING
        self.reason = ""  # why it is not ready, for people
        self.model = config.model.path  # the name it truly is, once known
        self.context = 0
        self.detail = ""
        self.progress: dict[Peer, Progress] = {}
        self.is_ready = asyncio.Event()
        self.num_restarts = 0
        self.stats: EngineStats | None = None  # the newest
        self.account = DeviceAccount(time.monotonic(), self._account_idle)
        self.credits = Credits(max(_MIN_OUTSTANDING, 4 * config.batch.max_num_seqs), _MAX_OUTSTANDING_BYTES)
        self._metrics = metrics
        self._max_restarts = max_restarts
        self._has_work = has_work  # whether files wait for this engine: an empty engine then idles for want of feed
        self._children: dict[Peer, Child] = {}
        self._ready_roles: set[Peer] = set()
        self._outstanding: dict[int, Submission] = {}
        self._last_key = 0
        self._num_fruitless_starts = 0
        self._was_ready = False
        self._resume = asyncio.Event()
        self._failure: EngineStartError | None = None
        metrics.add_engine(config.name)

    async def run(self) -> None:
        """Keep both processes up until cancelled.

        Raises:
            EngineStartError: they could not be brought up for the first time.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep(Peer.TEXT))
                tasks.create_task(self._keep(Peer.ENGINE))
                tasks.create_task(self._keep_account())
        except* EngineStartError as group:
            raise group.exceptions[0] from None
        finally:
            self.state = EngineState.DOWN
            for child in self._children.values():
                child.kill()

    def submit_all(self, submissions: Iterable[Submission]) -> None:
        """Take what `credits` allow: requests under keys from `new_key`. Each `on_done` is called once, with its answer."""
        records = []
        for submission in submissions:
            self.credits.take(submission.num_bytes)
            self._outstanding[submission.request.key] = submission
            records.append(submission.request)
        if records and self.is_ready.is_set():
            self._children[Peer.TEXT].send(records)

    def new_key(self) -> int:
        """A key that no request has had."""
        self._last_key += 1
        return self._last_key

    def resume(self) -> None:
        """Try again after a pause."""
        self._num_fruitless_starts = 0
        self._resume.set()

    def describe(self) -> str:
        """One line for people: what it is, how far its start is, or why it is down."""
        if self.reason:
            return self.reason
        steps = [f"{role.name.lower()} process: {step.phase} {step.done:.0%}" for role, step in self.progress.items()]
        return ", ".join(steps) or self.detail

    def pids(self) -> dict[str, int]:
        """The processes there are, by role."""
        return {role.name.lower(): child.pid for role, child in self._children.items()}

    async def _keep(self, role: Peer) -> None:
        """Start one of the processes again whenever it is gone."""
        while True:
            self._failure = None
            child = await Child.start(role, self.config)
            self._children[role] = child
            ended = await child.read_until_death(self._take_records(role), self._pass_on(role))
            self._note_death(role, child, ended)
            await self._wait_before_restart()

    def _take_records(self, role: Peer) -> Callable[[list[Any]], None]:
        def take(records: list[Any]) -> None:
            for record in records:
                self._take(role, record)

        return take

    def _pass_on(self, role: Peer) -> Callable[[bytes], None]:
        other = Peer.TEXT if role is Peer.ENGINE else Peer.ENGINE

        def pass_on(payload: bytes) -> None:
            if child := self._children.get(other):
                child.pass_on(payload)

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
                self.progress[role] = record
            case Failed():
                self._note_failure(record)

    def _take_answer(self, answer: Answer) -> None:
        submission = self._outstanding.pop(answer.key, None)
        if submission is None:
            return  # said under an old key (2)
        self._num_fruitless_starts = 0
        self.credits.give_back(submission.num_bytes)
        submission.on_done(answer)

    def _take_stats(self, stats: EngineStats) -> None:
        is_starved = bool(self._outstanding) or self._has_work()
        self.stats = stats
        empty_cause = IdleCause.FEED if is_starved else IdleCause.NO_WORK
        self.account.add_report(stats.device_time, empty_cause, stats.prompt_tokens + stats.generation_tokens)
        self._metrics.observe_engine_stats(self.config.name, stats, starved_for_feed=is_starved)

    def _note_ready(self, role: Peer, ready: Ready) -> None:
        self._ready_roles.add(role)
        self.progress.pop(role, None)
        if role is Peer.ENGINE:
            self.model, self.context, self.detail = ready.model, ready.context, ready.detail
            self.account.note_up()
            self._metrics.note_engine_ready(self.config.name, ready.num_blocks)
        if self._ready_roles >= {Peer.TEXT, Peer.ENGINE}:
            log.info("engine %s is ready: %s, %s", self.config.name, self.model, self.detail)
            self._was_ready = True
            self.state, self.reason = EngineState.READY, ""
            self.is_ready.set()
            self._send_again()

    def _send_again(self) -> None:
        """Send all outstanding requests under new keys (2)."""
        unfinished, self._outstanding = list(self._outstanding.values()), {}
        for start in range(0, len(unfinished), _RESEND_CHUNK):
            records = []
            for submission in unfinished[start : start + _RESEND_CHUNK]:
                again = replace(submission.request, key=self.new_key())
                self._outstanding[again.key] = replace(submission, request=again)
                records.append(again)
            self._children[Peer.TEXT].send(records)

    def _note_failure(self, failed: Failed) -> None:
        kind = EngineConfigError if failed.is_config else EngineEnvironmentError
        self._failure = kind(f"engine {self.config.name}: {failed.message}")

    def _note_death(self, role: Peer, child: Child, ended: str) -> None:
        name = role.name.lower()
        self._children.pop(role, None)
        self._ready_roles.discard(role)
        self.is_ready.clear()
        self.progress.pop(role, None)
        if not self._was_ready and self._failure is not None:
            raise self._failure
        why = str(self._failure or ended)
        self.state, self.reason = EngineState.RESTARTING, f"the {name} process {ended}"
        self.num_restarts += 1
        self._num_fruitless_starts += 1
        self._metrics.count_engine_restart(self.config.name)
        log.warning(
            "engine %s: the %s process (pid %d) is gone: %s; another is started and %d unfinished requests are sent again",
            self.config.name, name, child.pid, why, len(self._outstanding),
        )  # fmt: skip
        for line in child.last_lines:
            log.debug("engine %s: the %s process had said: %s", self.config.name, name, line)
        if role is Peer.ENGINE:
            self.account.note_down(time.monotonic())
            self._metrics.note_engine_down(self.config.name)
            if text := self._children.get(Peer.TEXT):
                text.kill()  # (3)
        elif engine := self._children.get(Peer.ENGINE):
            engine.send([Cancel(tuple(self._outstanding))])  # (3)

    async def _wait_before_restart(self) -> None:
        """Wait as (4) has it."""
        fruitless = self._num_fruitless_starts
        if fruitless > 2 * self._max_restarts:  # both processes count
            reason = f"its processes ended {fruitless} times without an answer in between; last: {self.reason}"
            if not self._was_ready:
                raise EngineEnvironmentError(f"engine {self.config.name}: {reason}")
            self.state, self.reason = EngineState.DOWN, reason
            log.error("engine %s is paused: %s; `gapless resume` tries again", self.config.name, reason)
            self._resume.clear()
            await self._resume.wait()
        elif fruitless > 2:  # noqa: PLR2004  the first death of either starts anew at once
            await asyncio.sleep(min(_FIRST_DELAY_S * 2 ** (fruitless - 3), _MAX_DELAY_S))

    async def _keep_account(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self.account.advance(time.monotonic())

    def _account_idle(self, cause: IdleCause, seconds: float) -> None:
        self._metrics.account_idle(self.config.name, cause, seconds)
