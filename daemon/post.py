"""One POST that is over in its time, whatever the server does: one that answers a byte at a time is cut off.

It has a thread of its own, which nobody waits for at the end of the daemon. When the time is up, the connection is shut down
under it, so that no thread stays behind.
"""

import asyncio
import http.client
import socket
import threading
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any


async def post(url: str, data: bytes, headers: Mapping[str, str], timeout_s: float) -> None:
    """Send `data` and see that the answer begins well; redirects are not followed.

    Raises:
        TimeoutError: it was not over in `timeout_s`.
        urllib.error.HTTPError: the answer is none of 2xx.
        OSError, http.client.HTTPException, ValueError: it could not be sent, or what came is no answer.
    """
    request = urllib.request.Request(url, data, dict(headers), method="POST")  # noqa: S310  http and https alone, says the caller
    line = _Line()
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def end(error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        error: Exception | None = None
        try:
            opener = urllib.request.build_opener(_NoRedirect, _Http(line), _Https(line))
            opener.open(request, timeout=timeout_s).close()
        except Exception as caught:  # noqa: BLE001  raised where it is waited for
            error = caught
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(end, error)

    threading.Thread(target=run, name="on_done", daemon=True).start()
    try:
        async with asyncio.timeout(timeout_s):
            await done
    finally:
        line.cut()


class _Line:
    """The connections of one POST, which can be cut from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._is_cut = False

    def note(self, connected: socket.socket) -> None:
        """Take a connection in; one that comes after the cut is of no use."""
        with self._lock:
            self._sockets.append(connected)
            is_cut = self._is_cut
        if is_cut:
            self.cut()

    def cut(self) -> None:
        """End all that is under way."""
        with self._lock:
            self._is_cut = True
            sockets, self._sockets = self._sockets, []
        for connected in sockets:
            with suppress(OSError):  # it has ended by itself
                # Not that of an encrypted one, which would take away what its reader is using.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)


def _noted(kind: type[http.client.HTTPConnection], line: _Line) -> Callable[..., http.client.HTTPConnection]:
    """Return a maker of connections that `line` knows of."""

    class Noted(kind):  # type: ignore[misc,valid-type]
        def connect(self) -> None:
            super().connect()
            line.note(self.sock)

    return Noted


class _Http(urllib.request.HTTPHandler):
    def __init__(self, line: _Line) -> None:
        super().__init__()
        self._line = line

    def http_open(self, req: urllib.request.Request) -> Any:
        """See the base class."""
        return self.do_open(_noted(http.client.HTTPConnection, self._line), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, line: _Line) -> None:
        super().__init__()
        self._line = line

    def https_open(self, req: urllib.request.Request) -> Any:
        """See the base class."""
        return self.do_open(_noted(http.client.HTTPSConnection, self._line), req)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET without its content: say so instead."""

    def redirect_request(  # noqa: PLR0917  the base class's signature
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        """Follow none; the answer is then an error like any other."""
