"""Traces as OpenTelemetry gets them, read back from an exporter in memory."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import StatusCode

from daemon.otel import OtelTracing
from daemon.request_record import ParsedRequest, Url
from daemon.submission import Answer, took_too_long
from daemon.tracing import FileTrace, RequestStory
from pipelines.core.request import Choice, FinishReason, RequestOutput, RequestRefused, SamplingParams

TEXT = "what the user wrote"
PARSED = ParsedRequest(
    4, 7, "mine", Url.CHAT, is_plain=False, model="gpt", sampling=SamplingParams(), seed=None,
    messages=({"role": "user", "content": TEXT},),
)  # fmt: skip
CHOICES = (Choice(TEXT, FinishReason.STOP, 3), Choice(TEXT, FinishReason.LENGTH, 5))


def story(answer: Answer, now_s: float, **changes: Any) -> RequestStory:
    """A request that was read ten seconds ago."""
    fields: dict[str, Any] = {
        "request_id": "req_1",
        "parsed": PARSED,
        "sampling": SamplingParams(max_tokens=9, temperature=0.5, n=2, seed=12345, presence_penalty=0.25),
        "model": "SmolLM2",
        "taken_s": now_s - 10,
        "sent_s": (now_s - 9, now_s - 6),
        "died_s": (now_s - 8,),
        "ended_s": now_s - 1,
        "answer": answer,
    }
    return RequestStory(**(fields | changes))


def traced(tell: Any, requests_per_s: float = 10.0) -> dict[str, ReadableSpan]:
    """Let `tell` tell about a file; return its spans by name."""
    exporter = InMemorySpanExporter()
    tracing = OtelTracing(exporter, requests_per_s)
    trace = tracing.file("chat", "f.jsonl")
    tell(trace)
    trace.end({"gapless.requests.completed": 1}, None)
    tracing.close()
    return {span.name: span for span in exporter.get_finished_spans()}


def of(span: ReadableSpan) -> dict[str, Any]:
    """Its attributes."""
    return dict(span.attributes or {})


def test_a_file_is_a_trace_with_its_stages_and_its_requests_below_the_stage_they_ran_in() -> None:
    """One trace id; the tree by the spans' parents."""

    def tell(trace: FileTrace) -> None:
        with trace.stage("survey"):
            pass
        with trace.stage("run"):
            trace.request(story(RequestOutput(1, CHOICES, 5, 2), time.monotonic()))
        with trace.stage("publish"):
            pass

    spans = traced(tell)
    assert set(spans) == {"file chat", "survey", "run", "publish", "chat SmolLM2"}
    root = spans["file chat"]
    assert len({span.context.trace_id for span in spans.values()}) == 1
    parents = {name: span.parent and span.parent.span_id for name, span in spans.items()}
    assert parents == {
        "file chat": None,
        "survey": root.context.span_id,
        "run": root.context.span_id,
        "publish": root.context.span_id,
        "chat SmolLM2": spans["run"].context.span_id,
    }
    assert of(root) == {
        "gapless.pipeline": "chat",
        "gapless.file.name": "f.jsonl",
        "gapless.requests.completed": 1,
        "gapless.requests.traced": 1,
    }
    assert root.status.status_code is StatusCode.UNSET
    assert root.resource.attributes["service.name"] == "gapless"


def test_two_files_are_two_traces() -> None:
    """Also when one begins while another runs."""
    exporter = InMemorySpanExporter()
    tracing = OtelTracing(exporter, 1)
    one, other = tracing.file("p", "a"), tracing.file("p", "b")
    with one.stage("run"), other.stage("run"):
        pass
    one.end({}, None)
    other.end({}, None)
    tracing.close()
    assert len({span.context.trace_id for span in exporter.get_finished_spans()}) == 2


def test_an_answer_has_the_words_of_the_conventions_its_times_and_no_text() -> None:
    """Queue and first token are counted from when the request was read."""
    now_s = time.monotonic()
    output = RequestOutput(1, CHOICES, 5, 2, 12345, first_step_s=now_s - 5.5, first_token_s=now_s - 4)
    span = traced(lambda trace: trace.request(story(output, now_s)))["chat SmolLM2"]
    found = of(span)
    assert found == {
        "gapless.request.id": "req_1",
        "gapless.request.custom_id": "mine",
        "gapless.request.line": 7,
        "gapless.request.attempts": 2,
        "gapless.request.engine_deaths": 1,
        "gapless.request.queue_seconds": pytest.approx(4.5),
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "gapless",
        "gen_ai.request.model": "gpt",
        "gen_ai.response.model": "SmolLM2",
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.presence_penalty": 0.25,
        "gen_ai.response.finish_reasons": ("stop", "length"),
        "gen_ai.response.time_to_first_chunk": pytest.approx(6),
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 8,
        "gen_ai.usage.cache_read.input_tokens": 2,
    }
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    assert {name for name in found if name.startswith("gen_ai.")} <= known
    assert TEXT not in repr(span.to_json())
    begin_ns, end_ns = span.start_time or 0, span.end_time or 0
    assert end_ns - begin_ns == pytest.approx(9e9)
    assert abs(end_ns / 1e9 - (time.time() - 1)) < 1
    assert [(event.name, (event.timestamp - begin_ns) / 1e9) for event in span.events] == [
        ("sent to the engine", pytest.approx(1)),
        ("the engine died", pytest.approx(2)),
        ("sent to the engine", pytest.approx(4)),
        ("first step", pytest.approx(4.5)),
        ("first token", pytest.approx(6)),
    ]


@pytest.mark.parametrize(
    ("answer", "code"),
    [(took_too_long(2), "request_timeout"), (RequestRefused(1, "too_long", "messages", TEXT), "too_long")],
)
def test_what_has_no_answer_is_an_error_with_its_code(answer: Answer, code: str) -> None:
    """And says nothing of tokens."""
    span = traced(lambda trace: trace.request(story(answer, time.monotonic())))["chat SmolLM2"]
    assert (span.status.status_code, span.status.description, of(span)["error.type"]) == (StatusCode.ERROR, code, code)
    assert not [name for name in of(span) if name.startswith(("gen_ai.usage", "gen_ai.response.finish"))]
    assert TEXT not in repr(span.to_json())


def test_a_file_that_does_not_end_well_is_an_error() -> None:
    """With the word of its Batch object."""
    exporter = InMemorySpanExporter()
    tracing = OtelTracing(exporter, 1)
    tracing.file("p", "a").end({}, "expired")
    tracing.close()
    (span,) = exporter.get_finished_spans()
    assert (span.status.status_code, of(span)["error.type"]) == (StatusCode.ERROR, "expired")


def test_a_million_requests_do_not_drown_what_went_wrong() -> None:
    """Answers have used up what they may; a request without one is told all the same."""
    answer, failure = RequestOutput(1, CHOICES, 5, 2), took_too_long(1)
    wanted: list[bool] = []

    def tell(trace: FileTrace) -> None:
        wanted.extend(trace.wants(answer) for _ in range(1_000))
        wanted.append(trace.wants(failure))

    traced(tell, requests_per_s=2.0)
    assert 20 <= sum(wanted[:-1]) <= 30
    assert wanted[:20] == [True] * 20
    assert wanted[-1]


def test_after_its_end_a_file_wants_nothing() -> None:
    """What is still said of its requests, as after an abandoned run, belongs to no trace."""
    tracing = OtelTracing(InMemorySpanExporter(), 1)
    trace = tracing.file("p", "a")
    trace.end({}, None)
    assert not trace.wants(took_too_long(1))
    tracing.close()


class Collector(SpanExporter):
    """One that fails, hangs or works."""

    def __init__(self) -> None:
        self.works = True
        self.goes_on = threading.Event()
        self.goes_on.set()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        del spans
        self.goes_on.wait(30)
        return SpanExportResult.SUCCESS if self.works else SpanExportResult.FAILURE


def test_a_collector_that_takes_nothing_is_named_once_and_so_is_its_return(caplog: pytest.LogCaptureFixture) -> None:
    """Not at every batch."""
    caplog.set_level("INFO")
    collector = Collector()
    tracing = OtelTracing(collector, 1)
    for works in (False, False, True, True):
        collector.works = works
        tracing.file("p", "a").end({}, None)
        assert tracing.flush()
    tracing.close()
    assert [message.rpartition(": ")[2] for message in caplog.messages] == [
        "the collector takes no traces, they are dropped until it does",
        "the collector takes traces again",
    ]


def test_a_collector_that_hangs_holds_up_neither_files_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """More spans than the queue holds are made meanwhile; the end waits only so long."""
    monkeypatch.setattr("daemon.otel._CLOSE_S", 0.2)
    collector = Collector()
    collector.goes_on.clear()
    tracing = OtelTracing(collector, 1)
    started_s = time.monotonic()
    for _ in range(10_000):
        tracing.file("p", "a").end({}, None)
    tracing.close()
    assert time.monotonic() - started_s < 20
    collector.goes_on.set()
