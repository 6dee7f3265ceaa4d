"""Counts the tokens of requests with the model's own tokenizer and chat template, in a text process without an engine.

The text process does what it always does; what it sends on to the engine is counted here instead, and cancelled at once so that
it does not remember the request. So a count is what the run will have, refusals that only the tokenizer can know included.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from daemon.child import Child
from daemon.errors import EngineConfigError, EngineEnvironmentError, EngineStartError
from pipelines.channel import Peer, decode_records
from pipelines.config import EngineConfig
from pipelines.core.request import Cancel, Failed, Progress, Ready, RequestRefused, TextRequest, TokenRequest

_MAX_OUTSTANDING = 128  # beyond it no further chunk is sent
_CHUNK = 64  # requests that are tokenised together, at most
_CHUNK_BYTES = 4 << 20  # likewise


@dataclass(slots=True)
class TokenCounts:
    """What was found so far."""

    # Of each request that can be run, in any order.
    prompt_tokens: "array[int]" = field(default_factory=lambda: array("I"))
    max_output_tokens: int = 0  # of all their answers together, if each is as long as it may be
    refusals: dict[int, RequestRefused] = field(default_factory=dict)  # by key

    def median(self) -> int:
        """Return the length of a prompt in the middle; 0 without any."""
        ordered = sorted(self.prompt_tokens)
        return ordered[len(ordered) // 2] if ordered else 0


class TextProcess:
    """A text process that prepares requests for nobody. Used from the event loop's thread; `started` makes them."""

    def __init__(self, child: Child, on_progress: Callable[[Progress], None]) -> None:
        self.counts = TokenCounts()
        self.ready: Ready | None = None
        self._child = child
        self._on_progress = on_progress
        self._failed: Failed | None = None
        self._ended: str | None = None
        self._outstanding: set[int] = set()  # keys
        self._has_news = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def started(
        cls, config: EngineConfig, on_progress: Callable[[Progress], None]
    ) -> AsyncIterator["TextProcess"]:
        """Start one, wait until it is ready, and end it behind the block.

        Raises:
            EngineStartError: its model cannot be found, or its tokenizer not be used.
        """
        text = cls(await Child.start(Peer.TEXT, config), on_progress)
        reading = asyncio.create_task(text._read())
        try:
            while text.ready is None:
                await text._wait(config)
            yield text
        finally:
            text._child.kill()
            await reading

    async def count(
        self, config: EngineConfig, requests: Iterable[tuple[TextRequest, int]], on_sent: Callable[[int], None]
    ) -> TokenCounts:
        """Count requests, each given with its size in bytes; `on_sent` is told how many were sent so far.

        Raises:
            EngineStartError: the process died.
        """
        num_sent = 0
        for chunk in _chunks(requests):
            while len(self._outstanding) >= _MAX_OUTSTANDING:
                await self._wait(config)
            self._outstanding.update(request.key for request in chunk)
            self._child.send(chunk)
            num_sent += len(chunk)
            on_sent(num_sent)
        while self._outstanding:
            await self._wait(config)
        return self.counts

    async def _wait(self, config: EngineConfig) -> None:
        """Wait for the next word of the process."""
        await self._has_news.wait()
        self._has_news.clear()
        if self._failed is not None:
            kind = EngineConfigError if self._failed.is_config else EngineEnvironmentError
            raise kind(f"engine {config.name}: {self._failed.message}")
        if self._ended is not None:
            raise EngineStartError(f"engine {config.name}: its text process {self._ended}")

    async def _read(self) -> None:
        self._ended = await self._child.read_until_death(self._take, self._count)
        self._has_news.set()

    def _take(self, records: list[Any]) -> None:
        for record in records:
            match record:
                case Ready():
                    self.ready = record
                case Failed():
                    self._failed = record
                case Progress():
                    self._on_progress(record)
                case RequestRefused():
                    self.counts.refusals[record.key] = record
                    self._outstanding.discard(record.key)
        self._has_news.set()

    def _count(self, payload: bytes) -> None:
        """Take what was meant for the engine."""
        prepared = [record for record in decode_records(payload) if isinstance(record, TokenRequest)]
        for record in prepared:
            self.counts.prompt_tokens.append(len(record.prompt_token_ids))
            self.counts.max_output_tokens += record.max_tokens * record.n
            self._outstanding.discard(record.key)
        if prepared:
            self._child.send([Cancel(tuple(record.key for record in prepared))])
        self._has_news.set()


def _chunks(requests: Iterable[tuple[TextRequest, int]]) -> Iterator[list[TextRequest]]:
    """Put requests together for the tokenizer, as many as memory bears."""
    chunk: list[TextRequest] = []
    size = 0
    for request, num_bytes in requests:
        chunk.append(request)
        size += num_bytes
        if len(chunk) == _CHUNK or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
