"""Telling the two forms of a line apart, and what stands around a body."""

import json
from typing import Any

import pytest

from daemon.file_kinds import FileKind
from daemon.request_line import LineParser
from daemon.request_record import BadLine, ParsedRequest, Place, Unreadable, Url

MESSAGES = [{"role": "user", "content": "Hi"}]
BATCH = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": MESSAGES}}
PARSER = LineParser("in.jsonl", FileKind.LINES)


HERE = Place(3, 5)


def parse(line: Any, place: Place = HERE) -> ParsedRequest | BadLine:
    raw = line if isinstance(line, bytes) else json.dumps(line).encode()
    return PARSER.parse(raw, place)


def refused(line: Any) -> BadLine:
    item = parse(line)
    assert isinstance(item, BadLine), item
    assert (item.index, item.line) == (3, 5)
    assert item.message.startswith("in.jsonl line 5: ")
    return item


def accepted(line: Any) -> ParsedRequest:
    item = parse(line)
    assert isinstance(item, ParsedRequest), item
    assert (item.index, item.line) == (3, 5)
    return item


@pytest.mark.parametrize(
    ("url", "body", "expected"),
    [
        (Url.CHAT, {"messages": MESSAGES}, tuple(MESSAGES)),
        (Url.RESPONSES, {"input": "Hi"}, tuple(MESSAGES)),
        (Url.COMPLETIONS, {"prompt": "Hi"}, None),
    ],
)
def test_batch_line_of_each_endpoint(url: Url, body: dict[str, Any], expected: object) -> None:
    item = accepted({"custom_id": "a", "method": "POST", "url": url, "body": body})
    assert (item.custom_id, item.url, item.is_plain, item.messages) == ("a", url, False, expected)
    assert (item.text is None) == (expected is not None)


@pytest.mark.parametrize(
    ("line", "code", "param", "custom_id"),
    [
        (BATCH | {"method": None}, "missing_required_parameter", "method", "a"),
        ({"custom_id": "a", "response": {}, "error": None}, "invalid_json_line", "response", "a"),  # out of an outbox
        (BATCH | {"method": "post"}, "invalid_method", "method", "a"),
        (BATCH | {"method": ["POST"]}, "invalid_method", "method", "a"),
        (BATCH | {"url": None}, "missing_required_parameter", "url", "a"),
        (BATCH | {"url": "/v1/embeddings"}, "invalid_url", "url", "a"),
        (BATCH | {"url": ["/v1/chat/completions"]}, "invalid_url", "url", "a"),
        (BATCH | {"body": None}, "missing_required_parameter", "body", "a"),
        (BATCH | {"body": []}, "invalid_type", "body", "a"),
        (BATCH | {"body": {}}, "missing_required_parameter", "messages", "a"),
        (BATCH | {"bodi": 1}, "unknown_parameter", "bodi", "a"),
        (BATCH | {"custom_id": 7}, "invalid_type", "custom_id", "line-5"),
        (BATCH | {"custom_id": ""}, "invalid_value", "custom_id", "line-5"),
        (BATCH | {"custom_id": {}}, "invalid_type", "custom_id", "line-5"),
        ({"id": 1.5, "prompt": "x"}, "invalid_type", "id", "line-5"),
        ({"id": True, "prompt": "x"}, "invalid_type", "id", "line-5"),
        ({"id": "", "prompt": "x"}, "invalid_value", "id", "line-5"),
        ({"id": "b", "prompt": "x", "messages": MESSAGES}, "invalid_value", "prompt", "b"),
        ({"id": "b"}, "missing_required_parameter", "messages", "b"),
        ({}, "missing_required_parameter", "messages", "line-5"),
        ({"custom_id": "c", "prompt": "x"}, "unknown_parameter", "custom_id", "c"),
        ({"custom_id": "", "prompt": "x"}, "invalid_value", "custom_id", "line-5"),
        ({"custom_id": "c", "id": "d", "prompt": "x"}, "unknown_parameter", "custom_id", "d"),
        ({"custom_id": "c", "url": "/v1/completions", "prompt": "x"}, "missing_required_parameter", "body", "c"),
        ({"method": "POST", "url": "/v1/completions", "prompt": "x"}, "missing_required_parameter", "body", "line-5"),
        ({"prompt": "x", "url": "/v1/completions"}, "unknown_parameter", "url", "line-5"),
    ],
)
def test_faults_around_the_body(line: dict[str, Any], code: str, param: str, custom_id: str) -> None:
    """Each names its field, and the id where that could be read."""
    item = refused(line)
    assert (item.code, item.param, item.custom_id) == (code, param, custom_id)


@pytest.mark.parametrize(
    "line", [b"[]", b"3", b'"x"', b"null", b"true", b"{", b"", b"{}{}", b"{'a': 1}", b"\xef\xbb\xbf{}"]
)
def test_what_is_no_json_object_is_an_invalid_line(line: bytes) -> None:
    item = refused(line)
    assert (item.code, item.param, item.custom_id) == ("invalid_json_line", None, "line-5")


def test_what_was_not_looked_into_is_an_invalid_line() -> None:
    item = PARSER.parse(Unreadable("found 9 bytes, expected at most 8"), Place(0, 1))
    assert item == BadLine(
        0, 1, "line-1", "invalid_json_line", "in.jsonl line 1: found 9 bytes, expected at most 8", None
    )


@pytest.mark.parametrize(("given", "expected"), [("x", "x"), (7, "7"), (-1, "-1"), (None, "line-5"), ("7", "7")])
def test_plain_id(given: object, expected: str) -> None:
    assert accepted({"id": given, "prompt": "x"}).custom_id == expected


def test_batch_line_without_an_id_is_named_after_its_line() -> None:
    assert accepted({key: value for key, value in BATCH.items() if key != "custom_id"}).custom_id == "line-5"


def test_array_element_without_an_id_is_named_after_its_number() -> None:
    """Where several elements can stand on one line, only their number tells them apart."""
    item = LineParser("in.json", FileKind.JSON).parse(b'{"prompt": "x"}', Place(3, 1))
    assert item.custom_id == "line-4"


def test_array_element_at_fault_is_named_by_number_and_line() -> None:
    item = LineParser("in.json", FileKind.JSON).parse(b"{}", Place(3, 9))
    assert isinstance(item, BadLine)
    assert item.message.startswith("in.json element 4 (line 9): messages: ")


def test_null_keys_are_not_given() -> None:
    """A plain line may carry the other prompt, or any key, as null."""
    item = accepted({"prompt": "x", "messages": None, "temperature": None, "stream": None, "id": None})
    assert (item.url, item.sampling.temperature) == (Url.COMPLETIONS, None)


def test_misspelt_prompt_key_is_named_with_the_nearest_known() -> None:
    for key, nearest in (("mesages", "messages"), ("promt", "prompt")):
        item = refused({key: "x"})
        assert (item.code, item.param) == ("unknown_parameter", key)
        assert item.message.endswith(f'{key}: unknown key, the nearest known key is "{nearest}"')


def test_message_says_where_the_field_stands_and_param_is_seen_from_the_body() -> None:
    body = {"messages": MESSAGES, "temperature": -1}
    batch, plain = refused(BATCH | {"body": body}), refused(body)
    assert batch.message == "in.jsonl line 5: body.temperature: found -1, expected a number from 0 to 2"
    assert plain.message == "in.jsonl line 5: temperature: found -1, expected a number from 0 to 2"
    assert batch.param == plain.param == "temperature"


@pytest.mark.parametrize(
    ("raw", "param", "path", "custom_id"),
    [
        (b'{"id": "\\ud800", "prompt": "x"}', "id", "id", "line-5"),
        (b'{"id": "a", "prompt": "x\\udfff"}', "prompt", "prompt", "a"),
        (b'{"id": "a", "prompt": "x", "user": "\\ud83d"}', "user", "user", "a"),
        (
            b'{"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"input": "\\ud800"}}',
            "input",
            "body.input",
            "a",
        ),
    ],
)
def test_half_a_surrogate_pair_is_refused_at_its_field(raw: bytes, param: str, path: str, custom_id: str) -> None:
    """It could not be written to any output; the id is kept where it can be."""
    item = refused(raw)
    assert (item.code, item.param, item.custom_id) == ("invalid_value", param, custom_id)
    assert item.message.startswith(f"in.jsonl line 5: {path}: found half of a surrogate pair (\\ud")


@pytest.mark.parametrize(
    "url", ["/v1/embeddings", "/v1/moderations", "/v1/images/generations", "/v1/images/edits", "/v1/videos"]
)
def test_urls_of_openai_that_are_not_served_are_refused_by_name(url: str) -> None:
    """A person learns that the url is right and the thing is not there, rather than to look for a misspelling."""
    line = {"custom_id": "a", "method": "POST", "url": url, "body": {"model": "m", "input": "x"}}
    bad = LineParser("in.jsonl", FileKind.LINES).parse(json.dumps(line).encode(), Place(0, 1))
    assert isinstance(bad, BadLine)
    assert bad.code == "invalid_url"
    expected = f'found "{url}", expected one of {", ".join(Url)}: this one is not supported'
    assert bad.message == f"in.jsonl line 1: url: {expected}"
