"""The processes of the engines, started while the daemon still imports what it needs itself.

They import torch and load a model, which takes seconds; the daemon's own modules take some tenths of one, and nobody waits for
those any more.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from daemon.child import Child
from daemon.errors import SpoolInUseError, StorageError
from daemon.spool_lock import lock_of_spool
from pipelines.channel import Peer
from pipelines.config import EngineConfig

StartChild = Callable[[Peer, EngineConfig], Awaitable[Child]]


class EarlyChildren:
    """Gives out what was started early, once each. Used from the event loop's thread."""

    def __init__(self) -> None:
        self._children: dict[str, list[tuple[EngineConfig, Child]]] = {}  # by the engine's name

    @classmethod
    @asynccontextmanager
    async def on(cls, spool: Path, configs: Iterable[EngineConfig]) -> AsyncIterator["EarlyChildren"]:
        """Start both processes of each engine if the spool can be had; at the end those are ended that nobody took."""
        early = cls()
        try:
            # What is wrong with the spool, or with a process, is said by the one who needs it.
            with suppress(SpoolInUseError, StorageError, OSError), lock_of_spool(spool):
                for config in configs:
                    await early._start_pair(config)
            yield early
        finally:
            await early._end()

    async def start(self, role: Peer, config: EngineConfig) -> Child:
        """Return a process that was started with this configuration, or start one.

        Raises:
            OSError: no process can be started.
        """
        for started in self._children.get(config.name, ()):
            if started[0] == config and started[1].role is role:
                self._children[config.name].remove(started)
                return started[1]
        return await Child.start(role, config)

    async def _start_pair(self, config: EngineConfig) -> None:
        started = self._children.setdefault(config.name, [])
        for role in (Peer.ENGINE, Peer.TEXT):
            started.append((config, await Child.start(role, config)))

    async def _end(self) -> None:
        children = [child for started in self._children.values() for _, child in started]
        for child in children:
            child.kill()
        await asyncio.gather(*(child.read_until_death(_ignore, _ignore) for child in children))


def _ignore(_: object) -> None:
    return
