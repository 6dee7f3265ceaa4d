"""Each kind of line, byte for byte as it was written down after OpenAI's Batch guide, and our schema of all of them.

To renew after a change that is meant: `python tests/unit/daemon/test_golden_lines.py > tests/data/golden_lines.jsonl`.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from jsonschema import ValidationError
from line_schema import line_validator

from daemon.ending import EndCause, answer_of
from daemon.file_kinds import FileKind
from daemon.made_with import MadeWith
from daemon.recorder import Recorder
from daemon.request_line import LineParser
from daemon.request_record import ParsedRequest, Place
from daemon.result_line import LineBuilder, LineFormat, Refusal
from daemon.submission import ended_the_engine, took_too_long
from pipelines.core.request import Choice, FinishReason, RequestOutput, RequestRefused, ToolCall

GOLDEN = Path(__file__).parents[2] / "data" / "golden_lines.jsonl"
MODEL = MadeWith("SmolLM2-135M", "0123456789abcdef")
CHOICE = Choice("Paris.", FinishReason.STOP, 3)
CUT = Choice("Par", FinishReason.LENGTH, 2)
CALLS = (ToolCall("capital", '{"of": "France"}'), ToolCall("capital", "{}"))
CALLING = Choice("", FinishReason.STOP, 9, tool_calls=CALLS, reasoning="Look it up.", num_reasoning_tokens=4)
THOUGHT = Choice("Paris.", FinishReason.STOP, 9, reasoning="Easy.", num_reasoning_tokens=4)


class Lines:
    """Stands for a journal: it keeps the last line."""

    line = b""
    state = SimpleNamespace(model=MODEL)

    def append_result(self, _index, line, _numbers):
        self.line = line

    def append_refused(self, _index, _outcome, line):
        self.line = line


def request(url="/v1/chat/completions", **body):
    prompt = {"messages": [{"role": "user", "content": "Capital of France?"}]}
    if url == "/v1/completions":
        prompt = {"prompt": "Capital of France:"}
    if url == "/v1/responses":
        prompt = {"input": "Capital of France?"}
    return {"custom_id": "request-1", "method": "POST", "url": url, "body": {"model": "m", **prompt, **body}}


def make(
    line_format=LineFormat.BATCH,
    answer=None,
    refusal=None,
    line=None,
    duplicate=False,
    file=("in.jsonl", FileKind.LINES),
):
    """Have a line made as the daemon makes it: parse, then record an answer, a refusal or what is wrong with it."""
    journal = Lines()
    builder = LineBuilder("f" * 64, 1_700_000_000, MODEL, line_format)
    recorder = Recorder(*file, journal, builder, Counter(), made_with=lambda: MODEL)
    parser = LineParser(*file)
    raw = json.dumps(request() if line is None else line).encode()
    item = parser.parse(raw, Place(6, 7))
    if duplicate:
        item = parser.duplicate(item, Place(1, 2))
    if not isinstance(item, ParsedRequest):
        recorder.bad_line(item)
    elif refusal is not None:
        recorder.refusal(item, refusal)
    else:
        recorder.answer(item, answer)
    return journal.line


def output(*choices, seed=None):
    return RequestOutput(9, choices or (CHOICE,), 12, 4, seed)


TOO_LONG = RequestRefused(
    9, "context_length_exceeded", "messages", "messages: found 9000 tokens, expected at most 8192"
)
NOT_FOUND = Refusal("model_not_found", "body.model: found 'm', expected one of the pipeline's models: n", "model", 404)
KINDS = {
    "success, chat": lambda: make(answer=output()),
    "success, chat, sampled, two choices": lambda: make(answer=output(CHOICE, CUT, seed=77)),
    "success, completions": lambda: make(answer=output(), line=request("/v1/completions")),
    "success, responses": lambda: make(answer=output(), line=request("/v1/responses")),
    "success, responses, cut": lambda: make(answer=output(CUT), line=request("/v1/responses")),
    "success, chat, calls": lambda: make(answer=output(CALLING)),
    "success, responses, thought": lambda: make(answer=output(THOUGHT), line=request("/v1/responses")),
    "4xx, a wrong value": lambda: make(line=request(temperature=9)),
    "4xx, found by the tokenizer": lambda: make(answer=TOO_LONG),
    "4xx, model not served": lambda: make(refusal=NOT_FOUND),
    "duplicate_custom_id": lambda: make(duplicate=True),
    "batch_expired": lambda: make(answer=answer_of(EndCause.EXPIRED)),
    "batch_cancelled": lambda: make(answer=answer_of(EndCause.CANCELLED)),
    "request_timeout": lambda: make(answer=took_too_long(30.0)),
    "engine_error": lambda: make(answer=ended_the_engine("pid 12345")),
    "plain, success": lambda: make(LineFormat.PLAIN, output(seed=77)),
    "plain, two choices": lambda: make(LineFormat.PLAIN, output(CHOICE, CUT)),
    "plain, calls": lambda: make(LineFormat.PLAIN, output(CALLING)),
    "plain, 4xx": lambda: make(LineFormat.PLAIN, line=request(temperature=9)),
    "plain, batch_expired": lambda: make(LineFormat.PLAIN, answer_of(EndCause.EXPIRED)),
}


def golden():
    """The lines that were written down, by kind."""
    entries = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
    return {entry["kind"]: entry["line"] for entry in entries}


@pytest.mark.parametrize(
    ("file", "place"),
    [
        (("in.jsonl", FileKind.LINES), "in.jsonl line 7: "),
        (("in.json", FileKind.JSON), "in.json element 7 (line 7): "),
        (("in.parquet", FileKind.PARQUET), "in.parquet row 7: "),
    ],
)
def test_every_message_begins_with_its_place_in_the_words_of_its_file(file, place):
    """Whoever found what is wrong: the parser, the pipeline, the tokenizer, or the end of the file."""
    lines = [
        make(answer=TOO_LONG, file=file),
        make(refusal=NOT_FOUND, file=file),
        make(line=request(temperature=9), file=file),
    ]
    messages = [json.loads(line)["response"]["body"]["error"]["message"] for line in lines]
    messages.append(json.loads(make(answer=took_too_long(30.0), file=file))["error"]["message"])
    assert [message.startswith(place) and place not in message[1:] for message in messages] == [True] * 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_is_what_was_written_down(kind):
    """Keys, their order and every value; whoever reads these files with a program of his own depends on it."""
    expected = golden()[kind]
    line = KINDS[kind]()
    assert json.loads(line) == expected
    assert line == (json.dumps(expected, separators=(",", ":"), ensure_ascii=False) + "\n").encode()


def test_every_kind_is_written_down_and_no_other():
    assert list(golden()) == list(KINDS)


def test_each_line_fits_the_schema():
    validator = line_validator()
    for line in golden().values():
        validator.validate(line)


@pytest.mark.parametrize(
    "change",
    [
        {"error": {"code": "batch_expired", "message": "m"}},  # beside a response
        {"response": None},  # neither
        {"custom_id": None},
        {"id": "7"},
        {"more": 1},
        {"response": {"status_code": 200, "request_id": "req_" + "0" * 32, "body": {"error": {"message": "m"}}}},
        {"response": {"status_code": 400, "request_id": "req_" + "0" * 32, "body": {"id": "x"}}},
    ],
    ids=str,
)
def test_the_schema_refuses_what_no_line_may_be(change):
    """Else it would prove nothing of the lines that it takes."""
    with pytest.raises(ValidationError):
        line_validator().validate(golden()["success, chat"] | change)


def test_what_is_for_the_log_stays_out_of_the_line():
    """A line of a request that is run again has to be the same."""
    assert b"12345" not in KINDS["engine_error"]()


if __name__ == "__main__":
    for kind, build in KINDS.items():
        text = json.dumps({"kind": kind, "line": json.loads(build())}, ensure_ascii=False)
        sys.stdout.write(text + "\n")
