"""The HTTP server: metrics for Prometheus, health for supervisors, a status page for people.

It runs in threads of its own and only reads: the metrics, and the last snapshot that the main loop took. So it still answers
when the main loop hangs, and says so.
"""

import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from daemon.access import Access
from daemon.durable import storage_error
from daemon.errors import HttpServerError, TokenFileError
from daemon.site import Answer, Request, Site, Views, text
from daemon.status import HANG_S

log = logging.getLogger(__name__)

_MAX_BODY_BYTES = 4096  # of a login
_MAX_STREAMS = 32  # open pages, each a thread
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Content-Security-Policy", _CSP),
)
_REASONS = {
    EADDRINUSE: "another program listens there; expected a free port",
    EACCES: "permission denied; expected a port that this user may use, 1024 or above",
    EADDRNOTAVAIL: "no such address on this machine; expected one of its own, as 127.0.0.1",
}


class HttpServer:
    """Listens from its construction on, answers between `start` and `close`. Port 0 takes any free one, see `port`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        views: Views,
        token_file: Path | None = None,
        names: Iterable[str] = (),
        stall_s: float = HANG_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind the address; `names` are further ones under which it may be asked.

        Raises:
            HttpServerError: the address cannot be had.
            TokenFileError: `token_file` is not there or holds no token.
            StorageError: it cannot be read.
        """
        token = None if token_file is None else read_server_token(token_file)
        self._site = Site(views, Access(token, (host, *names)), stall_s, now)
        self._server = _bind(host, port, self._site)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="http", daemon=True
        )

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering and give the port back."""
        self._site.stop()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # a slow reader does not hold up the end of the daemon

    def __init__(self, family: socket.AddressFamily, address: Any, site: Site) -> None:
        self.address_family = family
        self.site = site
        self.streams = threading.BoundedSemaphore(_MAX_STREAMS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without asking the name service who we are, which can take long."""
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  the base class's signature
        """Log what ended a connection early, as a rule the other side; called where it was caught."""
        log.debug("connection of %s ended early: %r", client_address, sys.exception())


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "gapless"
    sys_version = ""
    timeout = 15.0  # seconds that a connection may be silent
    wbufsize = -1  # head and body in one go
    disable_nagle_algorithm = True  # else the rest of a long answer waits 40 ms for its beginning to be acknowledged

    def do_GET(self) -> None:
        """Answer with a body."""
        self._send(self._answer("GET"), with_body=True)

    def do_HEAD(self) -> None:
        """Answer as to GET, without the body."""
        self._send(self._answer("GET"), with_body=False)

    def do_POST(self) -> None:
        """Answer to a login; anything else is refused."""
        self._send(self._answer("POST"), with_body=True)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name for it
        """Log requests where someone looks for them, not on standard error."""
        log.debug(format, *args)

    def _answer(self, method: str) -> Answer:
        body = self._read_body()
        if body is None:
            self.close_connection = True
            return text(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "expected a body of known and small length")
        asked = self.headers
        request = Request(
            path=self.path,
            method=method,
            host=asked.get("Host", ""),
            accept=asked.get("Accept", ""),
            authorization=asked.get("Authorization", ""),
            cookie=asked.get("Cookie", ""),
            body=body,
        )
        try:
            return self.server.site.answer(request)
        except Exception:  # one page that fails must not take the others with it: it is logged and said
            log.exception("%s %s failed", method, self.path)
            return text(HTTPStatus.INTERNAL_SERVER_ERROR, "this page failed; the daemon's log says why")

    def _read_body(self) -> bytes | None:
        """Return the request's body; None if it is too long or does not say how long it is."""
        if "Transfer-Encoding" in self.headers:
            return None
        length = self.headers.get("Content-Length", "0")
        if not (length.isascii() and length.isdecimal()) or int(length) > _MAX_BODY_BYTES:
            return None
        return self.rfile.read(int(length))

    def _send(self, answer: Answer, *, with_body: bool) -> None:
        if answer.stream is not None:
            self._send_stream(answer, with_body=with_body)
            return
        self._send_head(answer, ("Content-Length", str(len(answer.body))))
        if with_body:
            self.wfile.write(answer.body)

    def _send_stream(self, answer: Answer, *, with_body: bool) -> None:
        """Send bits as they come, until they or the other side end."""
        if not self.server.streams.acquire(blocking=False):
            self._send(text(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open"), with_body=with_body)
            return
        self.close_connection = True
        try:
            self._send_head(answer, ("Connection", "close"))
            if with_body and answer.stream is not None:
                with suppress(ConnectionError, TimeoutError):
                    for bit in answer.stream:
                        self.wfile.write(bit)
                        self.wfile.flush()
        finally:
            self.server.streams.release()

    def _send_head(self, answer: Answer, *headers: tuple[str, str]) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        for name, value in _HEADERS + answer.headers + headers:
            self.send_header(name, value)
        self.end_headers()


def _bind(host: str, port: int, site: Site) -> _Server:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, address = min(found, key=_prefer_ipv4)
        return _Server(family, address, site)
    except OSError as error:
        raise HttpServerError(f"daemon.http: cannot listen on {host} port {port}: {why_not_bound(error)}") from error


def _prefer_ipv4(found: tuple[Any, ...]) -> int:
    """Order addresses: `localhost` is often both, on machines without IPv6 too."""
    return int(found[0] != socket.AF_INET)


def why_not_bound(error: OSError) -> str:
    """Say why an address cannot be listened on, and what was expected of it."""
    if isinstance(error, socket.gaierror):
        return f"host name not known ({error.strerror}); expected an address of this machine, as 127.0.0.1"
    return _REASONS.get(error.errno or 0, error.strerror or str(error))


def read_server_token(path: Path) -> str:
    """Return the token that is asked for.

    Raises:
        TokenFileError: there is no such file, or no token in it.
        StorageError: it cannot be read.
    """
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise TokenFileError(f"daemon.http.token_file: cannot read {path}: {reason}") from error
    except OSError as error:
        raise storage_error(error, "read daemon.http.token_file", path) from error
    if not token:
        raise TokenFileError(f"daemon.http.token_file: {path} is empty, expected a token on its first line")
    return token
