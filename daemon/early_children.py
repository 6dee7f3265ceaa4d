"""The processes of the engines, started while the daemon still imports what it needs itself and reads its settings.

They import torch and load a model, which takes seconds; the daemon's own modules take some tenths of one, and nobody waits for
those any more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path

from daemon.child import Child
from daemon.errors import SpoolInUseError, StorageError
from pipelines.channel import Peer
from pipelines.config import EngineConfig

StartChild = Callable[[Peer, EngineConfig], Awaitable[Child]]
_PAIR = (Peer.ENGINE, Peer.TEXT)


class EarlyChildren:
    """Gives out what was started early, once each. Used from the event loop's thread."""

    def __init__(self) -> None:
        self._launched: dict[Peer, Child] = {}  # they wait for their configuration
        self._children: dict[str, list[tuple[EngineConfig, Child]]] = {}  # by the engine's name

    @classmethod
    async def launch(cls) -> "EarlyChildren":
        """Start the processes of one engine, whichever that will be."""
        early = cls()
        with suppress(OSError):  # said by the one who needs them
            for role in _PAIR:
                early._launched[role] = await Child.launch(role)
        return early

    async def configure(self, spool: Path, configs: Iterable[EngineConfig]) -> None:
        """Have both processes of each engine begin to load if the spool can be had, and end what is not needed."""
        from daemon.spool_lock import lock_of_spool  # noqa: PLC0415  it is not needed for the launch

        # What is wrong with the spool, or with a process, is said by the one who needs it.
        with suppress(SpoolInUseError, StorageError, OSError), lock_of_spool(spool):
            for config in configs:
                started = self._children.setdefault(config.name, [])
                for role in _PAIR:
                    started.append((config, await self._configured(role, config)))
        await _ended(self._launched.values())
        self._launched.clear()

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

    async def end(self) -> None:
        """End those that nobody took."""
        left = [child for started in self._children.values() for _, child in started]
        await _ended([*left, *self._launched.values()])

    async def _configured(self, role: Peer, config: EngineConfig) -> Child:
        child = self._launched.pop(role, None)
        if child is None:
            return await Child.start(role, config)
        child.configure(config)
        return child


async def _ended(children: Iterable[Child]) -> None:
    killed = list(children)
    for child in killed:
        child.kill()
    await asyncio.gather(*(child.read_until_death(_ignore, _ignore) for child in killed))


def _ignore(_: object) -> None:
    return
