"""One child process and our end of its channel: start, frames in and out, death."""

import asyncio
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from pipelines.channel import HEADER, FrameSplitter, Peer, decode_records, encode_frame
from pipelines.config import EngineConfig
from pipelines.errors import ChannelClosedError

_READ_BYTES = 1 << 18
_NUM_LAST_LINES = 20
_MINOR_FAULTS, _MAJOR_FAULTS = 7, 9  # in /proc/PID/stat, behind the name
_MOVED_PAGES = 256  # a megabyte; what hangs or spins touches nothing new
_LAST_BREATH_S = 1.0  # from the end of its channel to its own end


class Child:
    """A text or engine process. Used from the event loop's thread."""

    def __init__(self, role: Peer, process: asyncio.subprocess.Process, sock: socket.socket) -> None:
        self.role = role
        self.last_lines: deque[str] = deque(maxlen=_NUM_LAST_LINES)  # of its stderr, for the word about its death
        self.is_ended_by_us = False
        self._why_killed = ""  # see `kill_for`
        self._num_pages = 0  # that it had touched for the first time; see `has_moved_on`
        self._process = process
        self._sock = sock
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    @classmethod
    async def start(cls, role: Peer, config: EngineConfig) -> "Child":
        """Start the process and tell it its configuration.

        Raises:
            OSError: no process can be started.
        """
        child = await cls.launch(role)
        child.configure(config)
        return child

    @classmethod
    async def launch(cls, role: Peer) -> "Child":
        """Start the process, which then waits for its configuration.

        Raises:
            OSError: no process can be started.
        """
        ours, theirs = socket.socketpair()
        with ExitStack() as unfinished:  # where it ends here, by an error or a cancellation, nothing is left of it
            unfinished.enter_context(ours)
            with theirs:
                process = await _start_worker(role, theirs)
            child = cls(role, process, ours)
            unfinished.callback(child._end)
            child._reader, child._writer = await asyncio.open_connection(sock=ours, limit=_READ_BYTES)
            unfinished.pop_all()
        return child

    def configure(self, config: EngineConfig) -> None:
        """Tell a process that was launched its configuration."""
        self.send([config])

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def was_killed_by_others(self) -> bool:
        """Whether it ended by SIGKILL, which we did not send: the kernel may have, for want of memory, or a person by mistake."""
        is_ours = self.is_ended_by_us or bool(self._why_killed)
        return self._process.returncode == -signal.SIGKILL and not is_ours

    def send(self, records: list[Any]) -> None:
        """Send records; never waits. What is outstanding is bounded by credits, so the buffer is."""
        self._write(encode_frame(self.role, records))

    def pass_on(self, payload: bytes) -> None:
        """Send a frame that the other child made, unread."""
        self._write(HEADER.pack(len(payload), self.role) + payload)

    async def read_until_death(self, on_records: Callable[[list[Any]], None], on_frame: Callable[[bytes], None]) -> str:
        """Take frames for the daemon and for the other child until the process is gone; return how it ended."""
        watch_stderr = asyncio.create_task(self._read_stderr())
        splitter = FrameSplitter()
        with suppress(ConnectionError, ChannelClosedError):
            while data := await self._reader.read(_READ_BYTES):
                for destination, payload in splitter.feed(data):
                    if destination is Peer.DAEMON:
                        on_records(decode_records(payload))
                    else:
                        on_frame(payload)
        self._writer.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_BREATH_S):  # so that what ended it is known
                await self._process.wait()
        self._end()  # it may have closed its end, or spoken nonsense, without dying
        code = await self._process.wait()
        await watch_stderr
        return self._why_killed or _how_it_ended(code)

    def has_moved_on(self) -> bool:
        """Whether it has read files or filled memory since this last was true, as a process does that loads a model."""
        with suppress(OSError, ValueError, IndexError):
            numbers = Path(f"/proc/{self.pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
            num_pages = int(numbers[_MINOR_FAULTS]) + int(numbers[_MAJOR_FAULTS])
            if num_pages >= self._num_pages + _MOVED_PAGES:
                self._num_pages = num_pages
                return True
        return False

    def kill(self) -> None:
        """End the process at once."""
        self.is_ended_by_us = True
        self._end()

    def kill_for(self, reason: str) -> None:
        """End the process at once as if it had died of `reason`."""
        self._why_killed = f"was killed: {reason}"
        self._end()

    def _end(self) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    def _write(self, frame: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(frame)

    async def _read_stderr(self) -> None:
        stream = self._process.stderr
        while stream is not None and (data := await stream.read(1 << 14)):
            self.last_lines.extend(data.decode("utf-8", "replace").splitlines())


async def _start_worker(role: Peer, channel: socket.socket) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "pipelines.worker",
        role.name.lower(),
        str(channel.fileno()),
        pass_fds=[channel.fileno()],
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )


def _how_it_ended(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"
