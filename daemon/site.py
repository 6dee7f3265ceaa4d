"""What is answered to each path; no sockets in it. It only reads, but for the login's cookie."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from daemon.access import Access
from daemon.logs import LogTail
from daemon.metrics import Metrics
from daemon.status import HANG_S, StatusSnapshot, why_stale

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
HTML = "text/html; charset=utf-8"
EVENTS = "text/event-stream"
EVENT_S = 1.0  # between two events of the page
_ASSETS = {"/page.css": "text/css; charset=utf-8", "/page.js": "text/javascript; charset=utf-8"}
_REPORT = "/report/"


@dataclass(frozen=True, slots=True)
class Request:
    """What matters of a request; a header that was not sent is empty."""

    path: str
    method: str = "GET"
    host: str = "localhost"
    accept: str = ""
    authorization: str = ""
    cookie: str = ""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """One response."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    stream: Iterator[bytes] | None = None  # instead of the body: what is sent bit by bit, until it ends


@dataclass(frozen=True, slots=True)
class Views:
    """What the site shows. All of it may be asked from any thread."""

    metrics: Metrics
    status: Callable[[], StatusSnapshot]  # the last snapshot
    log: LogTail
    report: Callable[[str, int], str | None]  # of a pipeline's ended file, by its number


class Site:
    """Called from any thread. A snapshot older than `stall_s` means that the main loop hangs."""

    def __init__(
        self, views: Views, access: Access, stall_s: float = HANG_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._views = views
        self._access = access
        self._stall_s = stall_s
        self._now = now
        self._stopping = threading.Event()
        page = files("daemon") / "page"
        self._static = {
            path: Answer(HTTPStatus.OK, kind, (page / path[1:]).read_bytes()) for path, kind in _ASSETS.items()
        }
        self._index = (page / "index.html").read_bytes()
        self._login = (page / "login.html").read_bytes()
        self._pages: dict[str, Callable[[Request], Answer]] = {
            "/": self._show_page,
            "/status": self._show_json,
            "/metrics": self._show_metrics,
            "/events": self._show_events,
        }

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request."""
        path = urlsplit(request.path).path
        if path == "/healthz":
            return self._show_health()
        if path == "/readyz":
            return self._show_readiness(request)
        return self._refuse(request, path) or self._serve(request, path)

    def stop(self) -> None:
        """End the streams that are open."""
        self._stopping.set()

    def _serve(self, request: Request, path: str) -> Answer:
        if request.method == "POST" and path == "/login":
            return self._log_in(request)
        if request.method != "GET":
            return text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are served", ("Allow", "GET, HEAD"))
        if path in self._static:
            return self._static[path]
        if path.startswith(_REPORT):
            return self._show_report(path)
        if page := self._pages.get(path):
            return page(request)
        return text(HTTPStatus.NOT_FOUND, "not found; there are /healthz, /readyz, " + ", ".join(self._pages))

    def _refuse(self, request: Request, path: str) -> Answer | None:
        """Return why a request is not served; None if it is."""
        if self._access.has_bearer(request.authorization):
            return None
        if not self._access.knows_host(request.host):
            return text(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this server is not called so; expected an address, localhost or a name of daemon.http.names",
            )
        if self._access.is_open or self._access.has_cookie(request.cookie):
            return None
        if path in self._static or (path == "/login" and request.method == "POST"):
            return None
        if "text/html" in request.accept:
            return Answer(HTTPStatus.UNAUTHORIZED, HTML, self._login)
        return text(HTTPStatus.UNAUTHORIZED, "a bearer token is needed", ("WWW-Authenticate", 'Bearer realm="gapless"'))

    def _log_in(self, request: Request) -> Answer:
        fields = parse_qs(request.body.decode("utf-8", "replace"))
        cookie = self._access.login(fields.get("token", [""])[0].strip())
        if cookie is None:
            return Answer(HTTPStatus.UNAUTHORIZED, HTML, self._login.replace(b" hidden", b"", 1))
        return Answer(HTTPStatus.SEE_OTHER, TEXT, b"", (("Location", "/"), ("Set-Cookie", cookie)))

    def _show_page(self, _: Request) -> Answer:
        return Answer(HTTPStatus.OK, HTML, self._index)

    def _show_metrics(self, request: Request) -> Answer:
        body, content_type = self._views.metrics.render(request.accept)
        return Answer(HTTPStatus.OK, content_type, body)

    def _show_json(self, _: Request) -> Answer:
        status = self._views.status()
        return as_json(HTTPStatus.OK, status.to_json(self._age_s(status)))

    def _show_events(self, _: Request) -> Answer:
        return Answer(HTTPStatus.OK, EVENTS, b"", stream=self._events())

    def _events(self) -> Iterator[bytes]:
        """Yield an event a second: the snapshot, and what was logged since the one before."""
        seen = 0
        yield b"retry: 2000\n\n"
        while not self._stopping.is_set():
            status = self._views.status()
            lines = self._views.log.after(seen)
            seen = lines[-1].number if lines else seen
            event = {
                "is_stalled": bool(self._describe_stall(status)),
                "reasons": self._describe_stall(status) + status.why_not_ready(),
                **status.to_json(self._age_s(status)),
                "log": [line.to_json() for line in lines],
            }
            yield b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
            self._stopping.wait(EVENT_S)

    def _show_report(self, path: str) -> Answer:
        """Show the report of a file that ended; by number, so that no path is made of what somebody asks for."""
        pipeline, _, number = path.removeprefix(_REPORT).partition("/")
        found = self._views.report(pipeline, int(number)) if number.isdecimal() and number.isascii() else None
        return text(HTTPStatus.NOT_FOUND, "there is no such report") if found is None else text(HTTPStatus.OK, found)

    def _show_health(self) -> Answer:
        stall = self._describe_stall(self._views.status())
        return text(HTTPStatus.SERVICE_UNAVAILABLE, stall[0]) if stall else text(HTTPStatus.OK, "ok")

    def _show_readiness(self, request: Request) -> Answer:
        """Say whether requests would run; to strangers only that."""
        status = self._views.status()
        reasons = self._describe_stall(status) + status.why_not_ready()
        code = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        if self._refuse(request, "/readyz"):
            return as_json(code, {"ready": not reasons})
        engines = {
            engine.name: {
                "state": engine.state,
                "phase": engine.phase,
                "progress_age_s": round(engine.progress_age_s + self._age_s(status), 3),
            }
            for engine in status.engines
        }
        return as_json(code, {"ready": not reasons, "reasons": reasons, "engines": engines})

    def _age_s(self, status: StatusSnapshot) -> float:
        return round(max(0.0, self._now() - status.taken_s), 3)

    def _describe_stall(self, status: StatusSnapshot) -> list[str]:
        stale = why_stale(self._age_s(status), self._stall_s)
        return [] if stale is None else [stale]


def text(status: HTTPStatus, words: str, *headers: tuple[str, str]) -> Answer:
    """Return an answer of plain text."""
    return Answer(status, TEXT, f"{words}\n".encode("utf-8", "backslashreplace"), headers)


def as_json(status: HTTPStatus, value: dict[str, Any]) -> Answer:
    """Return an answer of JSON."""
    return Answer(status, JSON, (json.dumps(value, indent=2) + "\n").encode())
