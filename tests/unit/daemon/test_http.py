"""The HTTP server: what goes over the wire, and how it fails to start."""

import http.client
import json
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest
from prometheus_client import parser as text_parser
from prometheus_client.openmetrics import parser as openmetrics_parser
from site_views import READY, views_of

from daemon.errors import ExitCode, HttpServerError, StorageError, TokenFileError
from daemon.http import HttpServer
from daemon.metrics import Metrics
from daemon.status import StatusSnapshot


@contextmanager
def serving(
    status: Callable[[], StatusSnapshot] = lambda: READY, token_file: Path | None = None, metrics: Metrics | None = None
) -> Iterator[http.client.HTTPConnection]:
    """A server on a free port and a connection to it."""
    server = HttpServer("127.0.0.1", 0, views=views_of(status, metrics), token_file=token_file, now=lambda: 1001.0)
    server.start()
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        yield client
    finally:
        client.close()
        server.close()


def fetch(
    client: http.client.HTTPConnection, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """One request; status, headers and body of its answer."""
    client.request(method, path, headers=headers or {})
    response = client.getresponse()
    return response.status, response.headers, response.read()


def test_a_scraper_gets_the_format_that_it_asks_for() -> None:
    """What goes over the wire can be parsed as what its content type says."""
    metrics = Metrics()
    metrics.add_engine("main")
    with serving(metrics=metrics) as client:
        _, plain, text = fetch(client, "/metrics")
        _, asked, openmetrics = fetch(client, "/metrics?x=1", headers={"Accept": "application/openmetrics-text"})
    assert plain["Content-Type"].startswith("text/plain")
    assert asked["Content-Type"].startswith("application/openmetrics-text")
    assert list(text_parser.text_string_to_metric_families(text.decode()))
    assert list(openmetrics_parser.text_string_to_metric_families(openmetrics.decode()))


def test_head_answers_as_get_without_the_body() -> None:
    """The length is the one that GET would have, and the connection stays usable."""
    with serving() as client:
        get_status, get_headers, body = fetch(client, "/status")
        status, headers, nothing = fetch(client, "/status", "HEAD")
        again, _, _ = fetch(client, "/healthz")
    assert (status, headers["Content-Length"], nothing) == (get_status, str(len(body)), b"")
    assert get_headers["Content-Type"] == headers["Content-Type"] == "application/json"
    assert again == HTTPStatus.OK


def test_answers_are_not_cached_and_run_only_the_pages_own_script() -> None:
    """The page carries what keeps a browser from running what got into it after all."""
    with serving() as client:
        _, headers, page = fetch(client, "/")
        _, script, _ = fetch(client, "/page.js")
    assert headers["Cache-Control"] == "no-store"
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert script["Content-Type"].startswith("text/javascript")
    assert b"<script>" not in page
    assert b"style=" not in page


def test_a_body_that_is_long_or_of_unknown_length_is_not_read() -> None:
    """A login is short; nobody fills the memory."""
    with serving() as client:
        for headers in ({"Content-Length": "5000"}, {"Content-Length": "-1"}, {"Transfer-Encoding": "chunked"}):
            client.putrequest("POST", "/login")
            for name, value in headers.items():
                client.putheader(name, value)
            client.endheaders()
            response = client.getresponse()
            assert response.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            response.read()
            client.close()
        assert fetch(client, "/healthz")[0] == HTTPStatus.OK


def test_a_browser_logs_in_and_follows_the_events(tmp_path: Path) -> None:
    """Over the wire: a form, a cookie, a stream of which each event is whole."""
    file = tmp_path / "token"
    file.write_text("s3cr\u00e9t\n", encoding="utf-8")
    with serving(token_file=file) as client:
        assert fetch(client, "/events")[0] == HTTPStatus.UNAUTHORIZED
        client.request("POST", "/login", body="token=s3cr%C3%A9t")
        response = client.getresponse()
        assert (response.status, response.read()) == (HTTPStatus.SEE_OTHER, b"")
        cookie = response.headers["Set-Cookie"].partition(";")[0]
        client.request("GET", "/events", headers={"Cookie": cookie})
        response = client.getresponse()
        assert response.headers["Content-Type"] == "text/event-stream"
        lines = [response.readline() for _ in range(3)]
    assert lines[0].startswith(b"retry: ")
    assert json.loads(lines[2].removeprefix(b"data: "))["engines"][0]["name"] == "main"


def test_so_many_pages_and_no_more_may_be_open() -> None:
    """Each is a thread; one that is closed makes room again."""
    with serving() as client:
        open_pages = []
        for _ in range(32):
            page = http.client.HTTPConnection(client.host, client.port, timeout=10)
            page.request("GET", "/events")
            response = page.getresponse()
            assert response.status == HTTPStatus.OK
            open_pages.append((page, response))
        assert fetch(client, "/events")[0] == HTTPStatus.SERVICE_UNAVAILABLE
        assert fetch(client, "/healthz")[0] == HTTPStatus.OK
        for page, response in open_pages:
            response.close()
            page.close()


def test_an_open_page_does_not_hold_up_the_end() -> None:
    """The stream ends, and so does its thread."""
    server = HttpServer("127.0.0.1", 0, views=views_of(), now=lambda: 1001.0)
    server.start()
    page = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    page.request("GET", "/events")
    response = page.getresponse()
    response.readline()
    server.close()
    while response.readline():
        pass
    page.close()


def test_a_page_that_fails_says_so_and_leaves_the_others_alone(caplog: pytest.LogCaptureFixture) -> None:
    """The fault goes to the log with its trace, the reader gets one line, and metrics are still served."""

    def fail() -> StatusSnapshot:
        raise RuntimeError("broken snapshot")

    with caplog.at_level(logging.ERROR), serving(status=fail) as client:
        status, _, body = fetch(client, "/status")
        assert (status, body) == (HTTPStatus.INTERNAL_SERVER_ERROR, b"this page failed; the daemon's log says why\n")
        assert fetch(client, "/metrics")[0] == HTTPStatus.OK
    assert "broken snapshot" in caplog.text


def test_a_client_that_goes_away_leaves_no_trace_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    """A reset connection is everyday: one line in the debug log."""
    with serving() as client:
        with socket.create_connection((client.host, client.port)) as rude:
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # close sends a reset
            rude.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert fetch(client, "/healthz")[0] == HTTPStatus.OK
    assert capfd.readouterr().err == ""


def start(host: str, port: int, token_file: Path | None = None) -> HttpServer:
    """A server that is not started yet."""
    return HttpServer(host, port, views=views_of(), token_file=token_file)


def test_a_port_in_use_is_one_clear_line() -> None:
    """The message names the key, the address and what is expected; the exit code says that the environment is at fault."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(HttpServerError) as caught:
            start("127.0.0.1", port)
    assert str(caught.value) == (
        f"daemon.http: cannot listen on 127.0.0.1 port {port}: another program listens there; expected a free port"
    )
    assert caught.value.exit_code == ExitCode.ENVIRONMENT


@pytest.mark.parametrize(
    ("host", "found"), [("192.0.2.1", "no such address on this machine"), ("no.such.invalid", "host name not known")]
)
def test_an_address_that_is_not_ours_is_one_clear_line(host: str, found: str) -> None:
    """Another machine's address and an unknown name are told apart."""
    with pytest.raises(HttpServerError, match=found) as caught:
        start(host, 0)
    assert "\n" not in str(caught.value)


def test_a_port_that_the_user_may_not_have_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated, since root may have every port."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("socketserver.TCPServer.server_bind", refuse)
    with pytest.raises(HttpServerError, match="permission denied; expected a port that this user may use"):
        start("127.0.0.1", 80)


@pytest.mark.parametrize(("content", "found"), [(None, "No such file"), (b" \n", "is empty"), (b"\xff", "not UTF-8")])
def test_a_token_file_without_a_token_is_one_clear_line(content: bytes | None, found: str, tmp_path: Path) -> None:
    """A server that was meant to be protected does not start unprotected."""
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(TokenFileError, match=found) as caught:
        start("127.0.0.1", 0, file)
    assert str(file) in str(caught.value)


def test_a_token_file_that_may_not_be_read_is_the_environments_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulated, since root may read every file: permissions are no mistake in the YAML."""

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(StorageError, match=r"cannot read daemon.http.token_file .*: permission denied"):
        start("127.0.0.1", 0, tmp_path / "token")


def test_a_closed_server_gives_its_port_back() -> None:
    """A restart may listen on the same port at once."""
    first = start("127.0.0.1", 0)
    first.start()
    port = first.port
    first.close()
    start("127.0.0.1", port).close()
