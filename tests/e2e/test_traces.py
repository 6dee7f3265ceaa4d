"""Traces of a daemon at work, taken by a collector over HTTP."""

import json

import pytest
from programs import free_port
from trace_collector import TraceCollector, attributes

POISON = 77  # a token id; prompts are given as token ids


@pytest.fixture
def collector():
    found = TraceCollector()
    yield found
    found.close()


def traced(make_daemon, endpoint, model, more=""):
    daemon = make_daemon(
        model, pipeline=", limits: {request_timeout_s: 2}", daemon=f", tracing: {{endpoint: '{endpoint}'{more}}}"
    )
    for stem, requests in {
        "f": [("good", [1, 2], 4), ("poison", [POISON], 4), ("wrong", [10**9], 4)],
        "g": [("slow", [1, 2], 4000)],
    }.items():
        lines = [json.dumps({"id": name, "prompt": ids, "max_tokens": count}) + "\n" for name, ids, count in requests]
        daemon.drop(f"{stem}.jsonl", "".join(lines))
    daemon.start("--once")
    assert daemon.process.wait(100) == 3
    return daemon


def test_files_and_requests_are_spans_of_a_trace_a_file(make_daemon, collector):
    """With an answer, a refusal, a request that ends the engine and one that takes too long."""
    daemon = traced(make_daemon, collector.endpoint, f"fake:step_ms=5,poison={POISON},context=4096")
    assert collector.paths == {"/v1/traces"}
    assert {resource["service.name"] for resource in collector.resources} == {"gapless"}
    files = {attributes(span)["gapless.file.name"]: span for span in collector.spans if not span.parent_span_id}
    assert set(files) == {"f.jsonl", "g.jsonl"}
    ids = {span.span_id: span for span in collector.spans}
    for name, root in files.items():
        stages = [span.name for span in collector.spans if span.parent_span_id == root.span_id]
        assert stages == ["survey", "run", "publish"]
        assert attributes(root)["gapless.file.status"] == "completed"
        counts = daemon.batch(name[0])["request_counts"]
        assert attributes(root)["gapless.requests.completed"] == counts["completed"]
        assert attributes(root)["gapless.requests.failed"] == counts["failed"]
        assert attributes(root)["gapless.requests.traced"] == counts["total"]
    requests = {attributes(span)["gapless.request.custom_id"]: span for span in collector.spans if "fake" in span.name}
    assert set(requests) == {"good", "poison", "wrong", "slow"}
    results = daemon.results("f") | daemon.results("g")
    for name, span in requests.items():
        root = files["g.jsonl" if name == "slow" else "f.jsonl"]
        assert ids[span.parent_span_id].name == "run"
        assert ids[span.parent_span_id].parent_span_id == root.span_id
        assert span.trace_id == root.trace_id
        assert (
            root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano <= root.end_time_unix_nano
        )
        assert attributes(span)["gapless.request.id"].removeprefix("req_") == results[name]["id"].removeprefix(
            "batch_req_"
        )
    errors = {name: attributes(span).get("error.type") for name, span in requests.items()}
    assert errors == {"good": None, "poison": "engine_error", "wrong": "invalid_token_id", "slow": "request_timeout"}


def test_an_answer_tells_its_tokens_and_when_the_first_one_came(make_daemon, collector):
    """By the engine's own clock, between sending and end; also where a stop string ends it."""
    daemon = make_daemon("fake:step_ms=20,context=4096", daemon=f", tracing: {{endpoint: '{collector.endpoint}'}}")
    lines = [
        {"id": "whole", "prompt": [1, 2], "max_tokens": 8},
        {"id": "cut", "prompt": [1, 2], "max_tokens": 400, "stop": ["a", "e", "t"]},
    ]
    daemon.drop("f.jsonl", "".join(json.dumps(line | {"temperature": 0}) + "\n" for line in lines))
    daemon.start("--once")
    assert daemon.process.wait(60) == 0
    spans = {attributes(span)["gapless.request.custom_id"]: span for span in collector.spans if "fake" in span.name}
    results = daemon.results("f")
    for name, span in spans.items():
        usage = results[name]["response"]["body"]["usage"]
        found = attributes(span)
        assert found["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
        assert found["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
        assert found["gen_ai.operation.name"] == "text_completion"
        times = {event.name: event.time_unix_nano for event in span.events}
        in_order = [times[step] for step in ("sent to the engine", "first step", "first token")]
        assert in_order == sorted(in_order)
        assert span.start_time_unix_nano <= in_order[0]
        assert in_order[-1] <= span.end_time_unix_nano
        assert found["gapless.request.queue_seconds"] < found["gen_ai.response.time_to_first_chunk"]
    took_s = (spans["whole"].end_time_unix_nano - spans["whole"].start_time_unix_nano) / 1e9
    first_s = attributes(spans["whole"])["gen_ai.response.time_to_first_chunk"]
    assert took_s - first_s > 7 * 0.015, "seven further tokens of about 20 ms"


def test_a_file_of_many_requests_gets_few_spans(make_daemon, collector):
    """A burst of ten seconds' worth, then the rate."""
    daemon = make_daemon(daemon=f", tracing: {{endpoint: '{collector.endpoint}', requests_per_s: 1}}")
    daemon.drop("f.jsonl", "".join(json.dumps({"prompt": [1, 2], "max_tokens": 2}) + "\n" for _ in range(2000)))
    daemon.start("--once")
    assert daemon.process.wait(90) == 0
    root = next(span for span in collector.spans if not span.parent_span_id)
    took_s = (root.end_time_unix_nano - root.start_time_unix_nano) / 1e9
    traced_ones = [span for span in collector.spans if "fake" in span.name]
    assert 10 <= len(traced_ones) <= 11 + took_s
    assert attributes(root)["gapless.requests.traced"] == len(traced_ones)


def test_without_its_collector_the_daemon_works_and_says_so_once(make_daemon):
    """It also ends in time."""
    daemon = traced(make_daemon, f"http://127.0.0.1:{free_port()}", f"fake:step_ms=5,poison={POISON},context=4096")
    assert daemon.log.read_text().count("the collector takes no traces") == 1
    assert len(daemon.results("f") | daemon.results("g")) == 4
