"""The HTTP server: metrics for Prometheus, health for supervisors, a status page for people.

It runs in threads of its own and only reads: the metrics, and the last snapshot that the main loop took. So it still answers
when the main loop hangs, and says so.
"""

import hmac
import json
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from daemon.errors import HttpServerError, TokenFileError
from daemon.metrics import Metrics
from daemon.status import StatusSnapshot
from daemon.status_page import render_page

log = logging.getLogger(__name__)

_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"
_HTML = "text/html; charset=utf-8"
_HEADERS = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
)
_REASONS = {
    EADDRINUSE: "another program listens there; expected a free port",
    EACCES: "permission denied; expected a port that this user may use, 1024 or above",
    EADDRNOTAVAIL: "no such address on this machine; expected one of its own, as 127.0.0.1",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One response."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Site:
    """What is answered to a GET; no sockets in it. Called from any thread.

    `status` returns the last snapshot; one older than `stall_s` means that the main loop hangs. `token`, where given, is asked
    for on every path.
    """

    def __init__(
        self,
        metrics: Metrics,
        status: Callable[[], StatusSnapshot],
        token: str | None,
        stall_s: float,
        now: Callable[[], float],
    ) -> None:
        self._metrics = metrics
        self._status = status
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._stall_s = stall_s
        self._now = now
        self._pages: dict[str, Callable[[StatusSnapshot, float], Answer]] = {
            "/": self._show_page,
            "/status": self._show_json,
            "/healthz": self._show_health,
            "/readyz": self._show_readiness,
        }

    def answer(self, path: str, accept: str, authorization: str) -> Answer:
        """Return the answer for a path (without query) and the two headers that matter (empty: not sent)."""
        if not self._is_authorized(authorization):
            challenge = ("WWW-Authenticate", 'Bearer realm="gapless"')
            return _text(HTTPStatus.UNAUTHORIZED, "a bearer token is needed", challenge)
        if path == "/metrics":
            body, content_type = self._metrics.render(accept)
            return Answer(HTTPStatus.OK, content_type, body)
        page = self._pages.get(path)
        if page is None:
            return _text(HTTPStatus.NOT_FOUND, "not found; there are /metrics, " + ", ".join(self._pages))
        status = self._status()
        return page(status, max(0.0, self._now() - status.taken_s))

    def _is_authorized(self, authorization: str) -> bool:
        if self._expected is None:
            return True
        return hmac.compare_digest(authorization.encode("latin-1", "replace"), self._expected)

    def _show_page(self, status: StatusSnapshot, age_s: float) -> Answer:
        return Answer(HTTPStatus.OK, _HTML, render_page(status, age_s).encode())

    def _show_json(self, status: StatusSnapshot, age_s: float) -> Answer:
        return _json(HTTPStatus.OK, {"age_s": round(age_s, 3), **status.to_json()})

    def _show_health(self, _: StatusSnapshot, age_s: float) -> Answer:
        stall = self._describe_stall(age_s)
        return _text(HTTPStatus.SERVICE_UNAVAILABLE, stall[0]) if stall else _text(HTTPStatus.OK, "ok")

    def _show_readiness(self, status: StatusSnapshot, age_s: float) -> Answer:
        reasons = self._describe_stall(age_s) + status.why_not_ready()
        engines = {engine.name: engine.state for engine in status.engines}
        state = {"ready": not reasons, "reasons": reasons, "engines": engines}
        return _json(HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK, state)

    def _describe_stall(self, age_s: float) -> list[str]:
        return [f"the main loop has not come round for {age_s:.1f} s"] if age_s > self._stall_s else []


class HttpServer:
    """Listens from its construction on, answers between `start` and `close`. Port 0 takes any free one, see `port`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        metrics: Metrics,
        status: Callable[[], StatusSnapshot],
        token_file: Path | None = None,
        stall_s: float = 10.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind the address.

        Raises:
            HttpServerError: the address cannot be had.
            TokenFileError: `token_file` cannot be read or is empty.
        """
        token = None if token_file is None else _read_token(token_file)
        self._server = _bind(host, port, Site(metrics, status, token, stall_s, now))
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
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # a slow reader does not hold up the end of the daemon

    def __init__(self, family: socket.AddressFamily, address: Any, site: Site) -> None:
        self.address_family = family
        self.site = site
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

    def do_GET(self) -> None:
        """Answer with a body."""
        self._send(self._answer(), with_body=True)

    def do_HEAD(self) -> None:
        """Answer as to GET, without the body."""
        self._send(self._answer(), with_body=False)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name for it
        """Log requests where someone looks for them, not on standard error."""
        log.debug(format, *args)

    def _answer(self) -> Answer:
        accept, authorization = self.headers.get("Accept", ""), self.headers.get("Authorization", "")
        try:
            return self.server.site.answer(urlsplit(self.path).path, accept, authorization)
        except Exception:  # one page that fails must not take the others with it: it is logged and said
            log.exception("GET %s failed", self.path)
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, "this page failed; the daemon's log says why")

    def _send(self, answer: Answer, *, with_body: bool) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in _HEADERS + answer.headers:
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)


def _bind(host: str, port: int, site: Site) -> _Server:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, address = min(found, key=_prefer_ipv4)
        return _Server(family, address, site)
    except OSError as error:
        raise HttpServerError(f"daemon.http: cannot listen on {host} port {port}: {_why(error)}") from error


def _prefer_ipv4(found: tuple[Any, ...]) -> int:
    """Order addresses: `localhost` is often both, on machines without IPv6 too."""
    return int(found[0] != socket.AF_INET)


def _why(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"host name not known ({error.strerror}); expected an address of this machine, as 127.0.0.1"
    return _REASONS.get(error.errno or 0, error.strerror or str(error))


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise TokenFileError(f"daemon.http.token_file: cannot read {path}: {reason}") from error
    if not token:
        raise TokenFileError(f"daemon.http.token_file: {path} is empty, expected a token on its first line")
    return token


def _text(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> Answer:
    return Answer(status, _TEXT, f"{text}\n".encode(), headers)


def _json(status: HTTPStatus, value: dict[str, Any]) -> Answer:
    return Answer(status, _JSON, (json.dumps(value, indent=2) + "\n").encode())
