"""Says to systemd how the daemon is: the datagrams of sd_notify(3), sent to $NOTIFY_SOCKET.

Without that variable nothing is sent. A message that cannot be sent never stops the daemon: a lost WATCHDOG=1 is followed by the
next one, and systemd acts on their absence by itself.
"""

import logging
import socket
from collections.abc import Callable, Mapping
from os import getpid
from typing import Self

from daemon.status import EngineState, StatusSnapshot

log = logging.getLogger(__name__)

_PER_WATCHDOG = 3  # messages in the time within which systemd wants one
_MAX_STATUS_CHARS = 300
_US = 1_000_000


class Notifier:
    """One supervisor. Used from the event loop's thread alone, so that its messages prove that the loop runs."""

    def __init__(self, address: str | None, watchdog_s: float | None, now: Callable[[], float]) -> None:
        """Send nothing yet.

        Args:
            address: a path, or `@` and an abstract name; None: nobody listens.
            watchdog_s: the supervisor takes longer silence for a hang; None: it takes none.
            now: monotonic seconds.
        """
        self._address = address
        self._interval_s = None if watchdog_s is None else watchdog_s / _PER_WATCHDOG
        self._now = now
        self._next_s = 0.0  # when the next WATCHDOG=1 is due
        self._status = ""
        self._hanging: tuple[str, ...] = ()

    @classmethod
    def of_environment(cls, environment: Mapping[str, str], now: Callable[[], float]) -> Self:
        """Return the supervisor that the environment names; a value that cannot be used is logged."""
        address = environment.get("NOTIFY_SOCKET") or None
        if address and not address.startswith(("/", "@")):
            log.warning("NOTIFY_SOCKET: found %r, expected a path or @NAME; nothing is sent", address)
            address = None
        return cls(address, _watchdog_s(environment) if address else None, now)

    def ready(self) -> None:
        """Say that files are taken from now on."""
        self._send("READY=1")

    def look(self, snapshot: StatusSnapshot, hanging: tuple[str, ...] = ()) -> None:
        """Say what is new, and that all is well, unless pipelines hang: those named in `hanging`."""
        status = describe(snapshot)
        if status != self._status and self._send(f"STATUS={status}"):
            self._status = status
        if hanging != self._hanging and hanging:
            log.error("no progress in pipeline %s: the watchdog is not told that all is well", ", ".join(hanging))
        self._hanging = hanging
        now_s = self._now()
        is_due = self._interval_s is not None and now_s >= self._next_s
        if is_due and not hanging and self._send("WATCHDOG=1"):
            self._next_s = now_s + (self._interval_s or 0.0)

    def stopping(self, max_s: float) -> None:
        """Say that the daemon ends, which may take `max_s` whatever the unit's own time limit is."""
        self._send(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={round(max_s * _US)}")

    def _send(self, message: str) -> bool:
        """Send one datagram; return whether there is nothing left to do about it."""
        if self._address is None:
            return True
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:  # a few messages a minute
                sender.setblocking(False)
                sender.sendto(message.encode(), address)
        except OSError as error:
            log.debug("%s did not reach %s: %s", message, self._address, error)
            return False
        return True


def describe(snapshot: StatusSnapshot) -> str:
    """Return one line on how things stand, as `systemctl status` shows it. It changes with states, not with each request."""
    parts = ["draining"] if snapshot.is_draining else []
    parts += [
        f"engine {engine.name} {engine.state}{_why(engine.detail if engine.state is not EngineState.READY else '')}"
        for engine in snapshot.engines
    ]
    for pipeline in snapshot.pipelines:
        paused = f", paused: {pipeline.paused_because}" if pipeline.paused_because else ""
        counts = f"files run: {len(pipeline.files)}, waiting: {pipeline.num_waiting_files}"
        parts.append(f"pipeline {pipeline.name}: {counts}{paused}")
    text = "; ".join(parts).replace("\n", " ")
    return text if len(text) <= _MAX_STATUS_CHARS else f"{text[: _MAX_STATUS_CHARS - 3]}..."


def _why(detail: str) -> str:
    return f" ({detail})" if detail else ""


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """Return how long systemd waits, None where it does not, or means another process."""
    text = environment.get("WATCHDOG_USEC", "")
    if not text or environment.get("WATCHDOG_PID", str(getpid())) != str(getpid()):
        return None
    if not (text.isascii() and text.isdigit() and int(text)):
        log.warning("WATCHDOG_USEC: found %r, expected microseconds; the watchdog is told nothing", text)
        return None
    return int(text) / _US
