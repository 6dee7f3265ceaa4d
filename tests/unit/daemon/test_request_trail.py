"""What the log says of one request, and how gravely."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from daemon.ending import EndCause, answer_of
from daemon.request_record import BadLine, ParsedRequest, Url
from daemon.request_trail import FileTrail, RequestTrail
from daemon.result_line import Refusal
from daemon.submission import Answer, ended_the_engine, took_too_long
from daemon.tracing import NoTracing, RequestStory
from pipelines.core.request import Choice, FinishReason, RequestOutput, RequestRefused, SamplingParams

PARSED = ParsedRequest(4, 7, "mine", Url.CHAT, is_plain=False, model=None, sampling=SamplingParams(), seed=None)


def file_of(request_id: Callable[[int], str] = "req_{}".format) -> FileTrail:
    """The file, without traces."""
    return FileTrail("p", "f.jsonl", "m", request_id, NoTracing().file("p", "f.jsonl"))


FILE = file_of()
WHO = "pipeline p: f.jsonl line 7 (req_4) "
CHOICES = (Choice("a", FinishReason.STOP, 3), Choice("b", FinishReason.LENGTH, 5))


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """Level and text of each line, without the name in front."""
    assert all(message.startswith(WHO) for message in caplog.messages)
    return [(record.levelno, record.getMessage().removeprefix(WHO)) for record in caplog.records]


@pytest.mark.parametrize(
    ("answer", "level", "text"),
    [
        (RequestOutput(1, CHOICES, 5, 0), logging.DEBUG, "is answered after 0.000 s: stop, length, 8 tokens"),
        (RequestRefused(1, "too_long", "messages", "no room"), logging.INFO, "is refused (too_long): no room"),
        (took_too_long(2), logging.WARNING, "gets no answer after 0.000 s (request_timeout): not finished within"),
        (ended_the_engine("by SIGSEGV"), logging.ERROR, "gets no answer after 0.000 s (engine_error): the engine died"),
        (answer_of(EndCause.CANCELLED), logging.DEBUG, "gets no answer after 0.000 s (batch_cancelled): its file"),
        (answer_of(EndCause.EXPIRED), logging.DEBUG, "gets no answer after 0.000 s (batch_expired): the deadline"),
    ],
)
def test_each_end_has_its_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, answer: Answer, level: int, text: str
) -> None:
    """What is as it should be at debug, what is not above it."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("daemon.request_trail.time.monotonic", lambda: 5.0)
    RequestTrail(FILE, PARSED, SamplingParams(), 0).ended(answer)
    ((found_level, found),) = said(caplog)
    assert found_level == level
    assert found.startswith(text)


def test_attempts_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    """The first, one after a change of the engine's settings, and one of a suspect."""
    caplog.set_level(logging.DEBUG)
    trail = RequestTrail(FILE, PARSED, SamplingParams(), 0)
    trail.sent("e")
    trail.sent("e")
    trail.died(1)
    trail.sent("e")
    assert [text for _, text in said(caplog)] == [
        "is sent to engine e",
        "is sent to engine e again",
        "was with the engine when that died (deaths so far: 1)",
        "is sent to engine e again, apart from others (deaths so far: 1)",
    ]


def test_each_kind_of_line_is_limited_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    """The limit goes by the place in the code: that of the event, not that of what all events go through."""
    caplog.set_level(logging.DEBUG)
    trail = RequestTrail(FILE, PARSED, SamplingParams(), 0)
    trail.ended(took_too_long(2))
    trail.ended(RequestRefused(1, "c", None, "m"))
    FILE.refused(PARSED, Refusal("c", "m"))
    FILE.refused(BadLine(4, 7, None, "c", "m", None), BadLine(4, 7, None, "c", "m", None))
    places = [(record.pathname, record.lineno) for record in caplog.records]
    assert len(set(places)) == 3
    assert places[2] == places[3]


@pytest.mark.parametrize("message", ["f.jsonl line 7: body: found 1", "body: found 1"])
def test_the_place_is_said_once(caplog: pytest.LogCaptureFixture, message: str) -> None:
    """A refusal's message often begins with it."""
    caplog.set_level(logging.DEBUG)
    FILE.refused(PARSED, Refusal("c", message))
    assert said(caplog) == [(logging.INFO, "is refused (c): body: found 1")]


def test_a_line_that_nobody_reads_costs_no_id(caplog: pytest.LogCaptureFixture) -> None:
    """Hashes and texts are made where they are logged."""
    caplog.set_level(logging.WARNING)
    asked: list[int] = []
    trail = RequestTrail(file_of(lambda index: str(asked.append(index))), PARSED, SamplingParams(), 0)
    trail.sent("e")
    trail.ended(RequestOutput(1, CHOICES, 5, 0))
    assert not asked


class Told:
    """A trace that keeps what it is told."""

    def __init__(self, *, wants: bool) -> None:
        self.stories: list[RequestStory] = []
        self._wants = wants

    def wants(self, answer: Answer) -> bool:
        del answer
        return self._wants

    def request(self, story: RequestStory) -> None:
        self.stories.append(story)


@pytest.mark.parametrize("wants", [True, False])
def test_a_trace_is_told_what_it_wants(monkeypatch: pytest.MonkeyPatch, *, wants: bool) -> None:
    """The whole way of a request with its times, at its end."""
    times = iter(range(1, 100))
    monkeypatch.setattr("daemon.request_trail.time.monotonic", lambda: float(next(times)))
    told: Any = Told(wants=wants)
    answer, sampling = RequestOutput(1, CHOICES, 5, 0), SamplingParams(max_tokens=3)
    trail = RequestTrail(FileTrail("p", "f", "m", "req_{}".format, told), PARSED, sampling, 0)
    trail.sent("e")
    trail.died(1)
    trail.sent("e")
    trail.ended(answer)
    assert len(told.stories) == wants
    for story in told.stories:
        assert (story.request_id, story.model, story.parsed, story.sampling) == ("req_4", "m", PARSED, sampling)
        assert (story.taken_s, story.sent_s, story.died_s) == (1.0, (2.0, 4.0), (3.0,))
        assert story.ended_s > 4
        assert story.answer is answer
