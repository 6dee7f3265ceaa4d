"""The two processes of one engine: which of them are there, how far each is, and what is said to them."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from daemon.child import Child
from daemon.early_children import StartChild
from pipelines.channel import Peer
from pipelines.config import EngineConfig
from pipelines.core.request import Cancel, Progress

_BOTH = frozenset({Peer.TEXT, Peer.ENGINE})


class ProcessPair:
    """An engine's text process and engine process. Used from the event loop's thread."""

    def __init__(self, start_child: StartChild | None = None) -> None:
        self._start_child = start_child or Child.start
        self.is_ready = asyncio.Event()  # both are up, and requests may be sent
        self.progress: dict[Peer, Progress] = {}  # of those that are starting and say how far they are
        self._children: dict[Peer, Child] = {}
        self._up: set[Peer] = set()
        self._num_kills = 0

    @property
    def loading(self) -> list[Peer]:
        """Those that are there and not up, the engine process first."""
        return [role for role in (Peer.ENGINE, Peer.TEXT) if role in self._children and role not in self._up]

    def is_up(self, role: Peer) -> bool:
        """Whether it has said that it is ready."""
        return role in self._up

    def is_ended(self, role: Peer) -> bool:
        """Whether we have ended it, and what it still says are its last words."""
        child = self._children.get(role)
        return child is not None and child.is_ended_by_us

    def has_moved_on(self, role: Peer) -> bool:
        """See `Child.has_moved_on`."""
        return self._children[role].has_moved_on()

    async def run(self, role: Peer, config: EngineConfig, take: Callable[[list[Any]], None]) -> tuple[Child, str]:
        """Start one of them and take the records that it sends until it is gone; return it and how it ended.

        Raises:
            OSError: no process can be started.
        """
        num_kills = self._num_kills
        child = await self._start_child(role, config)
        self._children[role] = child
        if num_kills != self._num_kills:  # it was started with settings that no longer hold
            child.kill()
        ended = await child.read_until_death(take, partial(self._pass_on, child))
        del self._children[role]
        self._up.discard(role)
        self.is_ready.clear()
        self.progress.pop(role, None)
        return child, ended

    def note_up(self, role: Peer) -> bool:
        """A process says that it is ready; return whether both are."""
        self._up.add(role)
        self.progress.pop(role, None)
        return self._up >= _BOTH

    def send(self, role: Peer, records: list[Any]) -> None:
        """Send records to a process that is there."""
        self._children[role].send(records)

    def have_forget(self, role: Peer, keys: tuple[int, ...]) -> None:
        """Have a process, and the one behind it, forget the requests of these keys; one that is not there knows of none."""
        if child := self._children.get(role):
            child.send([Cancel(keys)])

    def kill(self) -> None:
        """End both on purpose, also one that is being started; each is there until `run` has seen its end."""
        self.is_ready.clear()
        self._num_kills += 1
        for child in self._children.values():
            child.kill()

    def kill_text_process(self) -> None:
        """End it on purpose, because the engine process is gone."""
        self._up.discard(Peer.TEXT)
        if text := self._children.get(Peer.TEXT):
            text.kill()

    def kill_for(self, role: Peer, reason: str) -> None:
        """End one as if it had died of `reason`."""
        self._children[role].kill_for(reason)

    def _pass_on(self, child: Child, payload: bytes) -> None:
        """Give one process, unread, what the other says to it. What a process says after we ended it is dropped."""
        other = Peer.TEXT if child.role is Peer.ENGINE else Peer.ENGINE
        if not child.is_ended_by_us and (to := self._children.get(other)):
            to.pass_on(payload)
