"""The HTTP server: what each path answers in each state of the daemon, and how it fails to start."""

import http.client
import json
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import pytest
from prometheus_client import parser as text_parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from daemon.errors import ExitCode, HttpServerError, TokenFileError
from daemon.http import Answer, HttpServer, Site
from daemon.metrics import Metrics
from daemon.status import EngineState, EngineStatus, FileState, FileStatus, PipelineStatus, StatusSnapshot

READY = StatusSnapshot(
    taken_s=1000.0,
    started_s=900.0,
    engines=(EngineStatus("main", EngineState.READY, "tiny, cpu, float32", num_running=3),),
    pipelines=(
        PipelineStatus(
            "chat",
            "main",
            num_waiting_files=2,
            files=(FileStatus("a<b>.jsonl", FileState.IN_PROGRESS, num_done=5, num_failed=1, num_total=9),),
        ),
    ),
)
STARTING = replace(READY, engines=(*READY.engines, EngineStatus("big", EngineState.STARTING, "load 40 %")))


def ask(path: str, status: StatusSnapshot = READY, now_s: float = 1001.0) -> Answer:
    """What a site without a token answers at `now_s`."""
    return Site(Metrics(), lambda: status, None, 10.0, lambda: now_s).answer(path, "", "")


def test_health_follows_the_main_loop_and_not_the_engines() -> None:
    """A supervisor restarts what hangs, and must not restart what merely loads a model."""
    assert ask("/healthz", STARTING).status == HTTPStatus.OK
    assert ask("/healthz", now_s=1010.0).status == HTTPStatus.OK
    late = ask("/healthz", now_s=1012.5)
    assert late.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert late.body == b"the main loop has not come round for 12.5 s\n"


@pytest.mark.parametrize(
    ("status", "now_s", "reasons"),
    [
        (READY, 1001.0, []),
        (STARTING, 1001.0, ["engine big is starting: load 40 %"]),
        (replace(READY, is_draining=True), 1001.0, ["the daemon is shutting down"]),
        (READY, 1030.0, ["the main loop has not come round for 30.0 s"]),
    ],
)
def test_readiness_says_what_is_missing(status: StatusSnapshot, now_s: float, reasons: list[str]) -> None:
    """200 only while requests would run; else every reason is named."""
    answer = ask("/readyz", status, now_s)
    state = json.loads(answer.body)
    assert state["reasons"] == reasons
    assert state["ready"] is (not reasons)
    assert answer.status == (HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK)
    assert state["engines"]["main"] == "ready"


@pytest.mark.parametrize("state", [state for state in EngineState if state is not EngineState.READY])
def test_an_engine_that_is_not_ready_keeps_the_daemon_unready(state: EngineState) -> None:
    """Whatever an engine does instead of running requests."""
    status = replace(READY, engines=(EngineStatus("main", state),))
    assert ask("/readyz", status).status == HTTPStatus.SERVICE_UNAVAILABLE


def test_the_status_as_json_holds_the_whole_snapshot() -> None:
    """A program finds what the page shows, with times that mean something outside of the daemon."""
    state = json.loads(ask("/status", now_s=1001.5).body)
    assert state["age_s"] == 1.5
    assert state["uptime_s"] == 100
    engine = state["engines"][0]
    assert (engine["name"], engine["state"], engine["detail"]) == ("main", "ready", "tiny, cpu, float32")
    assert (engine["num_waiting"], engine["num_running"], engine["num_restarts"]) == (0, 3, 0)
    assert state["pipelines"][0]["files"][0]["num_total"] == 9


def test_the_status_page_shows_files_and_escapes_their_names() -> None:
    """A file's name is chosen by whoever drops it: it must not become markup."""
    page = ask("/").body.decode()
    assert "chat/a&lt;b&gt;.jsonl" in page
    assert "<b>" not in page
    assert "tiny, cpu, float32" in page
    assert "paused" not in page


def test_the_status_page_says_why_something_does_not_run() -> None:
    """The reason stands where a person looks first."""
    paused = replace(READY.pipelines[0], paused_because="no space left on /spool", files=())
    page = ask("/", replace(STARTING, pipelines=(paused,))).body.decode()
    assert "paused: no space left on /spool" in page
    assert "engine big is starting: load 40 %" in page
    assert "No file is being run." in page


@pytest.mark.parametrize("path", ["/nothing", "/metrics/", "//", "", "/../etc/passwd"])
def test_any_other_path_is_not_found(path: str) -> None:
    """The answer names the paths there are."""
    answer = ask(path)
    assert answer.status == HTTPStatus.NOT_FOUND
    assert b"/healthz" in answer.body


@contextmanager
def serving(
    status: Callable[[], StatusSnapshot] = lambda: READY, token_file: Path | None = None, metrics: Metrics | None = None
) -> Iterator[http.client.HTTPConnection]:
    """A server on a free port and a connection to it."""
    server = HttpServer(
        "127.0.0.1", 0, metrics=metrics or Metrics(), status=status, token_file=token_file, now=lambda: 1001.0
    )
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


def test_answers_are_not_cached_and_run_no_scripts() -> None:
    """The page carries what keeps a browser from running what got into it after all."""
    with serving() as client:
        _, headers, _ = fetch(client, "/")
    assert headers["Cache-Control"] == "no-store"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_a_method_that_changes_something_is_refused() -> None:
    """The server only reads."""
    with serving() as client:
        assert fetch(client, "/", "POST")[0] == HTTPStatus.NOT_IMPLEMENTED


@pytest.mark.parametrize("path", ["/", "/metrics", "/healthz", "/readyz", "/status", "/nothing"])
def test_with_a_token_every_path_asks_for_it(path: str, tmp_path: Path) -> None:
    """Without the token, or with another, not even the existence of a path is told."""
    file = tmp_path / "token"
    file.write_text("s3cr\u00e9t\n", encoding="utf-8")
    right = "Bearer s3cr\u00e9t".encode().decode("latin-1")
    with serving(token_file=file) as client:
        for wrong in ({}, {"Authorization": "Bearer no"}, {"Authorization": "s3cr\u00e9t"}):
            status, headers, _ = fetch(client, path, headers=wrong)
            assert status == HTTPStatus.UNAUTHORIZED
            assert headers["WWW-Authenticate"].startswith("Bearer")
        status, _, _ = fetch(client, path, headers={"Authorization": right})
        assert status == (HTTPStatus.NOT_FOUND if path == "/nothing" else HTTPStatus.OK)


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
    return HttpServer(host, port, metrics=Metrics(), status=lambda: READY, token_file=token_file)


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


def test_a_closed_server_gives_its_port_back() -> None:
    """A restart may listen on the same port at once."""
    first = start("127.0.0.1", 0)
    first.start()
    port = first.port
    first.close()
    start("127.0.0.1", port).close()
