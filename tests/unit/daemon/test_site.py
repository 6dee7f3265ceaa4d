"""What each path answers in each state of the daemon, and to whom."""

import json
import logging
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import pytest
from site_views import HOSTILE, READY, STARTING, views_of

from daemon.access import Access
from daemon.logs import LogTail
from daemon.site import Answer, Request, Site, Views
from daemon.status import EngineState, EngineStatus, StatusSnapshot

TOKEN = "t0ken"  # noqa: S105  of this test


def site(views: Views | None = None, now_s: float = 1001.0, token: str | None = None) -> Site:
    """A site at `now_s`."""
    return Site(views or views_of(), Access(token), 10.0, lambda: now_s)


def ask(path: str, status: StatusSnapshot = READY, now_s: float = 1001.0, **fields: Any) -> Answer:
    """What a site without a token answers."""
    return site(views_of(status), now_s).answer(Request(path, **fields))


def test_health_follows_the_main_loop_and_not_the_engines() -> None:
    """A supervisor restarts what hangs, and must not restart what merely loads a model."""
    assert ask("/healthz", STARTING).status == HTTPStatus.OK
    assert ask("/healthz", now_s=1010.0).status == HTTPStatus.OK
    late = ask("/healthz", now_s=1012.5)
    assert late.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert late.body == b"the main loop has not come round for 12.5 s\n"


STUCK = replace(READY, engines=(replace(READY.engines[0], progress_age_s=121.4, stall_s=120.0),))


@pytest.mark.parametrize(
    ("status", "now_s", "reasons"),
    [
        (READY, 1001.0, []),
        (STARTING, 1001.0, ["engine big is starting: load 40 %"]),
        (STUCK, 1001.0, ["engine main has not got on for 121 s (phase idle)"]),
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
    assert state["engines"]["main"]["state"] == "ready"
    assert state["engines"]["main"]["phase"] == "idle"


@pytest.mark.parametrize("state", [state for state in EngineState if not state.is_as_wanted])
def test_an_engine_that_is_not_ready_keeps_the_daemon_unready(state: EngineState) -> None:
    """Whatever an engine does instead of running requests."""
    status = replace(READY, engines=(EngineStatus("main", state),))
    assert ask("/readyz", status).status == HTTPStatus.SERVICE_UNAVAILABLE


def test_an_engine_that_nothing_needs_is_no_reason_to_wait() -> None:
    """It is unloaded because that is what the configuration asks for."""
    assert ask("/readyz", replace(READY, engines=(EngineStatus("main", EngineState.UNLOADED),))).status == HTTPStatus.OK


def test_the_status_as_json_holds_the_whole_snapshot() -> None:
    """A program finds what the page shows, with times that mean something outside of the daemon."""
    state = json.loads(ask("/status", now_s=1001.5).body)
    assert (state["age_s"], state["uptime_s"]) == (1.5, 100)
    engine = state["engines"][0]
    assert (engine["name"], engine["state"], engine["detail"]) == ("main", "ready", "tiny, cpu, float32")
    assert (engine["num_waiting"], engine["num_running"], engine["num_restarts"]) == (0, 3, 0)
    assert engine["band"][0] == {"busy": 0.75, "unproven": 0.0, "idle": {"no_work": 0.25}}
    pipeline = state["pipelines"][0]
    assert (pipeline["files"][0]["num_total"], pipeline["files"][0]["left_s"]) == (9, 90)
    assert pipeline["ended"][0]["status"] == "completed"


@pytest.mark.parametrize("path", ["/nothing", "/metrics/", "//", "", "/../etc/passwd", "/page/index.html", "/login"])
def test_any_other_path_is_not_found(path: str) -> None:
    """The answer names the paths there are."""
    answer = ask(path)
    assert answer.status == HTTPStatus.NOT_FOUND
    assert b"/healthz" in answer.body


@pytest.mark.parametrize("path", ["/", "/metrics", "/status", "/page.js", "/report/chat/4"])
def test_a_method_that_changes_something_is_refused(path: str) -> None:
    """The server only reads."""
    assert ask(path, method="POST").status == HTTPStatus.METHOD_NOT_ALLOWED


def test_a_report_is_found_by_its_number_alone() -> None:
    """Nothing that is asked for becomes a path."""
    views = views_of(reports={("chat", 4): "file  old.jsonl\n"})
    assert site(views).answer(Request("/report/chat/4")).body.startswith(b"file  old.jsonl\n")
    for path in (
        "/report/chat/5",
        "/report/other/4",
        "/report/chat/../4",
        "/report/chat/-1",
        "/report/",
        "/report/chat/\u0664",
    ):
        assert site(views).answer(Request(path)).status == HTTPStatus.NOT_FOUND


def test_events_bring_the_snapshot_and_what_is_new_in_the_log() -> None:
    """The first event has all lines that are kept, a later one those that came since; hostile names stay data."""
    tail = LogTail(max_lines=3)
    log = logging.getLogger("test.site")
    log.propagate = False
    log.addHandler(tail)
    log.setLevel(logging.INFO)
    for number in range(5):
        log.info("line %d", number)
    files = (replace(READY.pipelines[0].files[0], name=HOSTILE),)
    status = replace(READY, pipelines=(replace(READY.pipelines[0], files=files),))
    made = site(views_of(status, log=tail))
    stream = made.answer(Request("/events")).stream
    assert stream is not None
    assert next(stream).startswith(b"retry: ")
    first = json.loads(next(stream).removeprefix(b"data: "))
    assert [line["message"] for line in first["log"]] == ["line 2", "line 3", "line 4"]
    assert first["pipelines"][0]["files"][0]["name"] == HOSTILE
    assert first["reasons"] == []
    log.warning("line %d", 5)
    made.stop()
    log.removeHandler(tail)


def test_a_stream_ends_with_the_server() -> None:
    """An open page does not keep the daemon from ending."""
    made = site()
    stream = made.answer(Request("/events")).stream
    assert stream is not None
    next(stream)
    next(stream)
    made.stop()
    assert list(stream) == []


PRIVATE = ["/", "/metrics", "/status", "/events", "/report/chat/4", "/nothing"]


@pytest.mark.parametrize("path", PRIVATE)
def test_with_a_token_a_program_is_asked_for_it(path: str) -> None:
    """Without it not even the existence of a path is told."""
    made = site(token=TOKEN)
    refused = made.answer(Request(path))
    assert refused.status == HTTPStatus.UNAUTHORIZED
    assert dict(refused.headers)["WWW-Authenticate"].startswith("Bearer")
    served = made.answer(Request(path, authorization=f"Bearer {TOKEN}"))
    assert served.status in {HTTPStatus.OK, HTTPStatus.NOT_FOUND}
    assert served.status == ask(path).status


def test_with_a_token_a_browser_is_shown_a_login_that_gives_a_cookie() -> None:
    """Which then opens everything: EventSource sends no header, but it sends cookies."""
    made = site(token=TOKEN)
    shown = made.answer(Request("/", accept="text/html,*/*"))
    assert shown.status == HTTPStatus.UNAUTHORIZED
    assert b'name="token"' in shown.body
    assert b'role="alert" hidden' in shown.body
    wrong = made.answer(Request("/login", method="POST", body=b"token=guess"))
    assert (wrong.status, wrong.headers) == (HTTPStatus.UNAUTHORIZED, ())
    assert b'role="alert">' in wrong.body
    right = made.answer(Request("/login", method="POST", body=f"token={TOKEN}%0A".encode()))
    assert right.status == HTTPStatus.SEE_OTHER
    headers = dict(right.headers)
    assert headers["Location"] == "/"
    cookie = headers["Set-Cookie"].partition(";")[0]
    assert made.answer(Request("/", cookie=cookie)).status == HTTPStatus.OK
    assert made.answer(Request("/events", cookie=cookie)).stream is not None


def test_health_needs_no_token_and_tells_strangers_nothing_else() -> None:
    """Supervisors have none; names of engines and reasons are for those who have."""
    made = site(views_of(STARTING), token=TOKEN)
    assert made.answer(Request("/healthz")).status == HTTPStatus.OK
    answer = made.answer(Request("/readyz"))
    assert answer.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert json.loads(answer.body) == {"ready": False}
    told = made.answer(Request("/readyz", authorization=f"Bearer {TOKEN}"))
    assert json.loads(told.body)["reasons"] == ["engine big is starting: load 40 %"]


@pytest.mark.parametrize("path", ["/", "/status", "/metrics", "/events", "/page.js", "/login"])
def test_a_name_of_another_site_is_refused(path: str) -> None:
    """Whatever the browser sends with it; a scraper with the token may use any name."""
    assert ask(path, host="evil.example").status == HTTPStatus.MISDIRECTED_REQUEST
    made = site(token=TOKEN)
    cookie = (Access(TOKEN).login(TOKEN) or "").partition(";")[0]
    for request in (
        Request(path, host="evil.example", cookie=cookie),
        Request(path, host="evil.example", method="POST", body=f"token={TOKEN}".encode()),
    ):
        assert made.answer(request).status == HTTPStatus.MISDIRECTED_REQUEST
    scraper = Request("/metrics", host="gapless.internal", authorization=f"Bearer {TOKEN}")
    assert made.answer(scraper).status == HTTPStatus.OK


def test_health_is_told_under_any_name() -> None:
    """A supervisor may call us what it likes."""
    assert ask("/healthz", host="pod.cluster").status == HTTPStatus.OK
    assert json.loads(ask("/readyz", host="pod.cluster").body) == {"ready": True}
