"""Traces by OpenTelemetry, sent to an OTLP collector by a thread of their own; the optional extra `otel`.

Attributes of requests are those of the GenAI semantic conventions where these have a word, else they begin with `gapless.`. No
text of a prompt or an answer is among them.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import assert_never

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context

from daemon import __version__
from daemon.request_record import Url
from daemon.submission import Answer, Unanswered
from daemon.tracing import Attributes, FileTrace, RequestStory, SpanAllowance
from pipelines.core.request import RequestOutput, RequestRefused

log = logging.getLogger(__name__)

_MAX_QUEUED = 8192  # spans that wait for the collector; beyond it they are dropped
_EVERY_MS = 1000.0
_TRY_S = 5.0  # that the collector gets for one batch
_CLOSE_S = 5.0
_PATH = "/v1/traces"
_OPERATIONS = {Url.CHAT: "chat", Url.RESPONSES: "chat", Url.COMPLETIONS: "text_completion"}


class OtelTracing:
    """See `Tracing`. Spans are made in the event loop's thread and queued; the queue is bounded, and nobody waits for it."""

    def __init__(self, exporter: SpanExporter, requests_per_s: float) -> None:
        resource = Resource.create({"service.name": "gapless", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                _Reporting(exporter), max_queue_size=_MAX_QUEUED, schedule_delay_millis=_EVERY_MS,
                export_timeout_millis=1e3 * _TRY_S,
            )
        )  # fmt: skip
        self.tracer = self._provider.get_tracer("gapless", __version__)
        self.answered = SpanAllowance(requests_per_s, time.monotonic)
        self.unanswered = SpanAllowance(requests_per_s, time.monotonic)

    def file(self, pipeline: str, name: str) -> FileTrace:
        """See `Tracing`."""
        return _OtelFileTrace(self, pipeline, name)

    def flush(self) -> bool:
        """Wait until what was told so far is sent or dropped; False if that takes too long."""
        return self._provider.force_flush()

    def close(self) -> None:
        """See `Tracing`."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)


def open_otlp(endpoint: str, requests_per_s: float) -> OtelTracing:
    """Send to a collector; that it cannot be reached is logged, and ends nothing."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # its lines come with each batch; see `_Reporting`
    url = endpoint.rstrip("/")
    exporter = OTLPSpanExporter(endpoint=url if url.endswith(_PATH) else url + _PATH, timeout=_TRY_S)
    return OtelTracing(exporter, requests_per_s)


class _Reporting(SpanExporter):
    """Says once that the collector takes nothing, and once that it does again. Used from the exporting thread."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        is_failing = result is not SpanExportResult.SUCCESS
        if is_failing and not self._is_failing:
            log.warning("daemon.tracing.endpoint: the collector takes no traces, they are dropped until it does")
        if self._is_failing and not is_failing:
            log.info("daemon.tracing.endpoint: the collector takes traces again")
        self._is_failing = is_failing
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class _OtelFileTrace:
    """See `FileTrace`."""

    def __init__(self, tracing: OtelTracing, pipeline: str, name: str) -> None:
        self._tracing = tracing
        self._num_traced = 0
        attributes = {"gapless.pipeline": pipeline, "gapless.file.name": name}
        self._span = tracing.tracer.start_span(f"file {pipeline}", Context(), attributes=attributes)
        self._stage: Span = self._span  # the parent of what happens now

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._stage = self._tracing.tracer.start_span(name, set_span_in_context(self._span, Context()))
        try:
            yield
        finally:
            self._stage.end()
            self._stage = self._span

    def wants(self, answer: Answer) -> bool:
        allowance = self._tracing.answered if isinstance(answer, RequestOutput) else self._tracing.unanswered
        return self._span.is_recording() and allowance.take()

    def request(self, story: RequestStory) -> None:
        self._num_traced += 1
        to_unix_ns = time.time_ns() - time.monotonic_ns()

        def unix_ns(at_s: float) -> int:
            return int(1e9 * at_s) + to_unix_ns

        span = self._tracing.tracer.start_span(
            f"{_OPERATIONS[story.parsed.url]} {story.model}",
            set_span_in_context(self._stage, Context()),
            SpanKind.INTERNAL,
            _attributes_of(story),
            start_time=unix_ns(story.taken_s),
        )
        events = [("sent to the engine", at_s) for at_s in story.sent_s]
        events += [("the engine died", at_s) for at_s in story.died_s]
        if isinstance(story.answer, RequestOutput) and story.answer.first_token_s:
            events += [("first step", story.answer.first_step_s), ("first token", story.answer.first_token_s)]
        for name, at_s in sorted(events, key=lambda event: event[1]):
            span.add_event(name, timestamp=unix_ns(at_s))
        if not isinstance(story.answer, RequestOutput):
            span.set_status(StatusCode.ERROR, str(story.answer.code))
        span.end(unix_ns(story.ended_s))

    def end(self, attributes: Attributes, error: str | None) -> None:
        self._span.set_attributes({**attributes, "gapless.requests.traced": self._num_traced})
        if error is not None:
            self._span.set_attribute("error.type", error)
            self._span.set_status(StatusCode.ERROR, error)
        self._span.end()


def _attributes_of(story: RequestStory) -> dict[str, str | int | float | bool | list[str]]:
    parsed, sampling, answer = story.parsed, story.sampling, story.answer
    given: dict[str, str | int | float | bool | list[str] | None] = {
        "gapless.request.id": story.request_id,
        "gapless.request.custom_id": parsed.custom_id,
        "gapless.request.line": parsed.line,
        "gapless.request.attempts": len(story.sent_s),
        "gapless.request.engine_deaths": len(story.died_s),
        "gen_ai.operation.name": _OPERATIONS[parsed.url],
        "gen_ai.provider.name": "gapless",
        "gen_ai.request.model": parsed.model or story.model,
        "gen_ai.response.model": story.model,
        "gen_ai.request.choice.count": sampling.n,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.seed": parsed.seed,
    }
    match answer:
        case RequestOutput():
            given |= _usage_of(story, answer)
        case RequestRefused() | Unanswered():
            given["error.type"] = str(answer.code)
        case _:
            assert_never(answer)
    return {name: value for name, value in given.items() if value is not None}


def _usage_of(story: RequestStory, output: RequestOutput) -> dict[str, str | int | float | list[str] | None]:
    found: dict[str, str | int | float | list[str] | None] = {
        "gen_ai.response.finish_reasons": [str(choice.finish_reason) for choice in output.choices],
        "gen_ai.usage.input_tokens": output.num_prompt_tokens,
        "gen_ai.usage.output_tokens": sum(choice.num_tokens for choice in output.choices),
        "gen_ai.usage.cache_read.input_tokens": output.num_cached_tokens,
    }
    if output.first_token_s:
        found["gapless.request.queue_seconds"] = output.first_step_s - story.taken_s
        found["gen_ai.response.time_to_first_chunk"] = output.first_token_s - story.taken_s
    return found
