"""Keeps one engine's queue full: takes requests from the open files in turn, as far as credits allow."""

import asyncio
from collections import deque
from typing import Protocol

from daemon.engine_client import EngineClient, Submission

CHUNK = 32  # requests taken from a file before the next one has its turn


class RequestSource(Protocol):
    """An open file."""

    priority: int
    is_exhausted: bool  # it has no more requests
    is_held_back: bool  # it has none for now, and adds itself again when it has

    def take(self, max_requests: int) -> list[Submission]:
        """Read so many of its next lines and return the requests among them."""
        ...


class Feeder:
    """Feeds one engine. Used from the event loop's thread."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._turns: dict[int, deque[RequestSource]] = {}  # priority -> files, the first one has the turn
        self._has_sources = asyncio.Event()
        self._is_open = asyncio.Event()
        self._is_open.set()

    @property
    def has_sources(self) -> bool:
        """Whether a file has requests that were not taken yet."""
        return bool(self._turns)

    def add(self, source: RequestSource) -> None:
        """Let a file take part."""
        self._turns.setdefault(source.priority, deque()).append(source)
        self._has_sources.set()

    def remove(self, source: RequestSource) -> None:
        """Take no more from a file."""
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
            await self._engine.credits.wait()
            await self._is_open.wait()
            if self._turns:
                self._feed_one()
            await asyncio.sleep(0)  # answers come in between

    def _feed_one(self) -> None:
        priority = max(self._turns)
        source = self._turns[priority].popleft()
        taken = source.take(min(CHUNK, self._engine.credits.num_left))
        if not (source.is_exhausted or source.is_held_back):
            self._turns[priority].append(source)
        self._tidy(priority)
        self._engine.submit_all(taken)

    def _tidy(self, priority: int) -> None:
        if not self._turns[priority]:
            del self._turns[priority]
        if not self._turns:
            self._has_sources.clear()
