"""Whatever stands in a line, it gives one request or one bad line, and never an exception."""

import json
import string
from copy import deepcopy
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from daemon.file_kinds import FileKind
from daemon.request_keys import BODY_RULES
from daemon.request_line import LineParser
from daemon.request_record import BadLine, ParsedRequest, Place, Url
from daemon.request_schema import EXPECTED

PARSER = LineParser("in.jsonl", FileKind.LINES)
HERE = Place(7, 9)
CODES = {
    "invalid_json_line",
    "invalid_method",
    "invalid_url",
    "missing_required_parameter",
    "invalid_type",
    "invalid_value",
    "unknown_parameter",
    "unsupported_parameter",
    "unsupported_value",
}
VALID: list[dict[str, Any]] = [
    {"custom_id": "a", "method": "POST", "url": url, "body": {"model": "m", "temperature": 0, "n": 1} | prompt}
    for url, prompt in (
        (Url.CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "max_tokens": 1}),
        (Url.COMPLETIONS, {"prompt": [1, 2, 3], "stop": ["x"]}),
        (Url.RESPONSES, {"input": [{"role": "user", "content": "x"}], "instructions": "y"}),
    )
] + [{"id": 1, "prompt": "x", "stop_token_ids": [1]}, {"messages": [{"role": "user", "content": "x"}], "seed": 5}]
KEYS = st.sampled_from(sorted({*EXPECTED, *BODY_RULES, "custom_id", "method", "url", "body", "id", "name"})) | st.text()
ODD_VALUES = st.sampled_from(
    [None, True, -1, 0, 1.5, 10**30, 1e308, float("inf"), "", "\ud800", [], {}, [[]], "\u2028"]
)
VALUES = st.recursive(
    ODD_VALUES | st.integers() | st.text(max_size=5) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=4,
)


def check(raw: bytes) -> None:
    """One outcome, at its place, in words that can be written down."""
    item = PARSER.parse(raw, HERE)
    assert (item.index, item.line) == (HERE.index, HERE.line)
    assert PARSER.parse(raw, HERE) == item
    match item:
        case BadLine():
            assert item.code in CODES
            assert item.message.startswith("in.jsonl line 9: ")
            assert item.message.isprintable()
            assert len(item.message) < 600
            assert (item.param or "").isprintable()
            item.custom_id.encode()
            assert item.custom_id
        case ParsedRequest():
            check_request(item)


def check_request(item: ParsedRequest) -> None:
    """What the rest of the daemon and the engine rely on."""
    item.custom_id.encode()
    assert item.custom_id
    assert sum(prompt is not None for prompt in (item.messages, item.text, item.token_ids)) == 1
    assert item.seed is None or 0 <= item.seed < 2**63
    sampling = item.sampling
    assert 1 <= sampling.n <= 128
    assert sampling.max_tokens is None or sampling.max_tokens >= 1
    assert sampling.temperature is None or 0 <= sampling.temperature <= 2
    assert sampling.top_p is None or 0 <= sampling.top_p <= 1
    assert sampling.top_k is None or sampling.top_k >= 0
    assert all(sampling.stop)
    for message in item.messages or ():
        assert message.keys() == {"role", "content"}
        assert message["role"] in {"system", "user", "assistant"}
        message["content"].encode()
    (item.text or "").encode()


@st.composite
def mutated_values(draw: st.DrawFn) -> bytes:
    """Give a valid line of which up to three values anywhere are replaced, dropped or put under another key."""
    line = json.loads(json.dumps(draw(st.sampled_from(VALID))))
    for _ in range(draw(st.integers(1, 3))):  # sampled values are copied: a later round may change them in place
        spot: Any = line
        while isinstance(spot, dict | list) and spot:
            key = draw(st.sampled_from(sorted(spot) if isinstance(spot, dict) else range(len(spot))))
            if not isinstance(spot[key], dict | list) or not spot[key] or draw(st.booleans()):
                break
            spot = spot[key]
        if not isinstance(spot, dict | list) or not spot:
            break
        match draw(st.sampled_from(["replace", "drop", "add"])):
            case "replace":
                spot[key] = deepcopy(draw(VALUES))
            case "drop":
                del spot[key]
            case _ if isinstance(spot, dict):
                spot[draw(KEYS)] = deepcopy(draw(VALUES))
            case _:
                spot.append(deepcopy(draw(VALUES)))
    return json.dumps(line).encode()


@st.composite
def mutated_bytes(draw: st.DrawFn) -> bytes:
    """Give a valid line of which some bytes are replaced, cut out or doubled."""
    raw = bytearray(json.dumps(draw(st.sampled_from(VALID))).encode())
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(raw)))
        end = min(start + draw(st.integers(0, 4)), len(raw))
        raw[start:end] = draw(st.sampled_from([b"", bytes(raw[start:end]) * 2, *TOKENS]) | st.binary(max_size=3))
    return bytes(raw)


TOKENS = [
    b"\\ud800",
    b"NaN",
    b"[[",
    b"}",
    b'"',
    b"\\",
    b"\x00",
    b"\xff",
    b"\r",
    b"null",
    b"1e999",
    b"9" * 30,
    b"\xef\xbb\xbf",
]


@settings(max_examples=900, deadline=None)
@given(mutated_values())
def test_line_with_wrong_values_has_one_outcome(raw: bytes) -> None:
    check(raw)


@settings(max_examples=600, deadline=None)
@given(mutated_bytes())
def test_line_with_wrong_bytes_has_one_outcome(raw: bytes) -> None:
    check(raw)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=40) | st.text(alphabet=string.printable, max_size=40).map(str.encode))
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b'{"prompt": "x", "guided_json": "' + b"[" * 100_000 + b'"}')
@example(b'{"prompt": "x", "metadata": ' + b'{"a":' * 98 + b"1" + b"}" * 99)
@example(b'{"prompt": "x", "metadata": ' + b'{"a":' * 99 + b"1" + b"}" * 100)
def test_any_bytes_have_one_outcome(raw: bytes) -> None:
    check(raw)


def test_valid_lines_are_requests() -> None:
    """The fuzzing starts from lines that are right."""
    for line in VALID:
        assert isinstance(PARSER.parse(json.dumps(line).encode(), HERE), ParsedRequest)
