"""Frames over one Unix socketpair between the daemon and a child: how the processes of one engine talk.

A frame is a header, `length: u32, destination: u8`, and a pickled list of records. All three processes are ours and of one
user, so pickle adds no trust that is not there already; it keeps the records' types. The daemon sits in the middle: what a
child addresses to the other child is passed on unread.

End of file is death: a frame torn by it is dropped. A child never blocks on sending: bytes that the socket does not take wait
in a buffer here, whose size is bounded by the credits that the daemon gives out (requests and bytes outstanding), not by the
channel. The daemon in turn always takes what comes. So neither side can block the other for ever.
"""

import pickle
import select
import socket
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from pipelines.errors import ChannelClosedError

HEADER = struct.Struct("<IB")
MAX_FRAME_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 18


class Peer(IntEnum):
    """Who a frame is for."""

    DAEMON = 0
    TEXT = 1
    ENGINE = 2
    PREFLIGHT = 3  # a process that checks settings and ends


def encode_frame(destination: Peer, records: Sequence[Any]) -> bytes:
    """Return one frame holding `records`."""
    payload = pickle.dumps(records, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(payload), destination) + payload


def decode_records(payload: bytes) -> list[Any]:
    """Return the records of one frame's payload."""
    records: list[Any] = pickle.loads(payload)  # noqa: S301  our own processes, see the module's head
    return records


class FrameSplitter:
    """Cuts a byte stream into frames; a torn last one is never returned."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[Peer, bytes]]:
        """Take bytes; return the frames that are now whole as (destination, payload).

        Raises:
            ChannelClosedError: the stream holds no frame (a length over `MAX_FRAME_BYTES`): it cannot be used further.
        """
        self._buffer += data
        frames: list[tuple[Peer, bytes]] = []
        start = 0
        while len(self._buffer) - start >= HEADER.size:
            length, destination = HEADER.unpack_from(self._buffer, start)
            if length > MAX_FRAME_BYTES:
                raise ChannelClosedError(f"frame of {length} bytes announced, at most {MAX_FRAME_BYTES} expected")
            end = start + HEADER.size + length
            if len(self._buffer) < end:
                break
            frames.append((Peer(destination), bytes(self._buffer[start + HEADER.size : end])))
            start = end
        del self._buffer[:start]
        return frames


class ChildChannel:
    """A child's end: poll for records, send without ever blocking on a full socket.

    Used from one thread.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.setblocking(False)
        self._splitter = FrameSplitter()
        self._unsent = bytearray()

    def fileno(self) -> int:
        """Return the descriptor, for select."""
        return self._sock.fileno()

    def send(self, destination: Peer, records: Sequence[Any]) -> None:
        """Queue one frame and write as much as the socket takes now.

        Raises:
            ChannelClosedError: the daemon is gone.
        """
        if records:
            self._unsent += encode_frame(destination, records)
            self._flush()

    def receive(self, timeout_s: float | None = 0.0) -> list[Any]:
        """Return the records that have come, waiting at most `timeout_s` (None: for ever) for the first.

        While it waits it keeps writing what is unsent.

        Raises:
            ChannelClosedError: the daemon is gone.
        """
        writers = [self._sock] if self._unsent else []
        readable, writable, _ = select.select([self._sock], writers, [], timeout_s)
        if writable:
            self._flush()
        records: list[Any] = []
        while readable:
            try:
                data = self._sock.recv(_CHUNK_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                raise ChannelClosedError(f"the daemon's end is gone: {error}") from error
            if not data:
                raise ChannelClosedError("the daemon's end is gone")
            for _, payload in self._splitter.feed(data):
                records += decode_records(payload)
            if len(data) < _CHUNK_BYTES:
                break
        return records

    def drain(self, timeout_s: float) -> None:
        """Write what is unsent, waiting at most `timeout_s` each time the socket is full; for the last words of a child."""
        while self._unsent:
            if not select.select([], [self._sock], [], timeout_s)[1]:
                return
            self._flush()

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def _flush(self) -> None:
        while self._unsent:
            try:
                sent = self._sock.send(self._unsent)
            except BlockingIOError:
                return
            except OSError as error:
                raise ChannelClosedError(f"the daemon's end is gone: {error}") from error
            del self._unsent[:sent]
