"""Keeps one engine's queue full: takes requests from the open files in turn, as far as credits allow.

Priorities go first. Within one, files take turns by deficit round robin (Shreedhar and Varghese, 1995) over the tokens that their
requests are expected to take: a turn adds `QUANTUM` to what a file may take and goes on, as credits come, until that is used up;
what it took beyond is missing at its next turns. So a file of long requests and one of short ones get the same share of the
engine, and a small file waits for one turn of each other file at most.

A file that comes new does not wait for credits: it has a first turn of its own, beside them, so that it enters the engine at
once even while a huge file has taken all of them and answers are far apart.
"""

import asyncio
from collections import deque
from typing import Protocol

from daemon.engine_client import EngineClient
from daemon.submission import Submission
from daemon.waiting import wait_for_any

QUANTUM = 4096  # tokens of a turn
CHUNK = 32  # lines read in one go, so that answers come in between
FIRST_TURN = 16  # requests that a new file may have outstanding whatever the credits say


class FeedSource(Protocol):
    """An open file."""

    priority: int
    is_exhausted: bool  # it has no more requests
    is_held_back: bool  # it has none for now, and is added again when it has

    def take(self, max_requests: int, max_tokens: int) -> list[Submission]:
        """Read at most `max_requests` of its next lines, and stop at `max_tokens`; return the requests among them."""
        ...


class Feeder:
    """Feeds one engine. Used from the event loop's thread."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._turns: dict[int, deque[FeedSource]] = {}  # priority -> files, the first one has the turn
        self._deficits: dict[FeedSource, int] = {}  # tokens that a file may take; below zero: that it took too many
        self._newcomers: deque[FeedSource] = deque()  # no turn yet
        self._has_sources = asyncio.Event()
        self._has_newcomers = asyncio.Event()
        self._is_open = asyncio.Event()
        self._is_open.set()

    @property
    def has_sources(self) -> bool:
        """Whether a file has requests that were not taken yet."""
        return bool(self._turns)

    def add(self, source: FeedSource) -> None:
        """Let a file take part, or take part again."""
        self._turns.setdefault(source.priority, deque()).append(source)
        self._has_sources.set()
        if source not in self._deficits:
            self._deficits[source] = 0
            self._newcomers.append(source)
            self._has_newcomers.set()

    def remove(self, source: FeedSource) -> None:
        """Take no more from a file."""
        self._forget(source)
        queue = self._turns.get(source.priority)
        if queue and source in queue:
            queue.remove(source)
            self._tidy(source.priority)

    def stop(self) -> None:
        """Feed nothing more; what is outstanding goes on."""
        self._is_open.clear()

    async def run(self) -> None:
        """Feed until cancelled."""
        while True:
            await self._has_sources.wait()
            await wait_for_any(self._engine.credits.is_free, self._has_newcomers)
            await self._is_open.wait()
            self._feed_newcomers()
            if self._turns and self._engine.credits.num_left > 0:
                self._feed_one()
            await asyncio.sleep(0)  # answers come in between

    def _feed_newcomers(self) -> None:
        """Give new files of the highest priority there is their first turn."""
        newcomers, self._newcomers = self._newcomers, deque()
        self._has_newcomers.clear()
        for source in newcomers:
            queue = self._turns.get(source.priority)
            if (
                queue
                and source in queue
                and source.priority == max(self._turns)
                and self._engine.credits.has_room_for_bytes
            ):
                queue.remove(source)
                self._feed(source, FIRST_TURN)

    def _feed_one(self) -> None:
        queue = self._turns[max(self._turns)]
        self._pass_empty_rounds(queue)
        self._feed(queue.popleft(), min(CHUNK, self._engine.credits.num_left))

    def _pass_empty_rounds(self, queue: deque[FeedSource]) -> None:
        """Skip the rounds in which no file may take anything: add at once what they would add, however much the files owe."""
        if self._deficits[queue[0]] <= -QUANTUM:
            num_rounds = max(-max(self._deficits[source] for source in queue) // QUANTUM, 0)
            for source in queue:
                self._deficits[source] += num_rounds * QUANTUM

    def _feed(self, source: FeedSource, max_requests: int) -> None:
        """Let a file, which is in no queue now, begin its turn or go on with it."""
        may_take = self._deficits[source]
        if may_take <= 0:
            may_take += QUANTUM
        taken = source.take(max_requests, may_take) if may_take > 0 else []
        used = max(sum(submission.num_tokens for submission in taken), max_requests)  # reading bad lines takes time too
        self._deficits[source] = may_take - used if may_take > 0 else may_take
        self._queue(source)
        self._engine.submit_all(taken)

    def _queue(self, source: FeedSource) -> None:
        """Put a file where it belongs after it was fed: it keeps its turn while it may take more."""
        if source.is_exhausted:
            self._forget(source)
        elif not source.is_held_back:
            queue = self._turns.setdefault(source.priority, deque())
            if self._deficits[source] > 0:
                queue.appendleft(source)
            else:
                queue.append(source)
        self._tidy(source.priority)

    def _forget(self, source: FeedSource) -> None:
        self._deficits.pop(source, None)
        if source in self._newcomers:
            self._newcomers.remove(source)

    def _tidy(self, priority: int) -> None:
        if not self._turns.get(priority):
            self._turns.pop(priority, None)
        if not self._turns:
            self._has_sources.clear()
