"""The small inputs that have broken other systems, each with the outcome it must have here."""

from pathlib import Path

import pytest

from daemon.request_file import RequestReader
from daemon.request_record import BadLine, ParsedRequest, Url
from daemon.survey import survey

CASES = Path(__file__).parents[2] / "data" / "cases"


def read(name: str) -> list[ParsedRequest | BadLine]:
    path = CASES / name
    return list(RequestReader(path, survey(path)))


def test_good_lines_are_requests() -> None:
    items = read("good.jsonl")
    assert [item.custom_id for item in items] == [f"request-{i}" for i in range(5)]
    for item in items:
        assert isinstance(item, ParsedRequest)
        assert (item.url, item.is_plain, item.model, item.seed) == (Url.CHAT, False, "m", None)
        assert (item.sampling.max_tokens, item.sampling.temperature) == (16, 0.0)


def test_byte_order_mark_and_crlf_change_nothing() -> None:
    """The same requests come out of both files, to the last field."""
    assert read("bom-crlf.jsonl") == read("good.jsonl")


BAD = [  # physical line, custom_id, code, param, what the message says
    (2, "line-2", "invalid_json_line", None, "not valid JSON: found the end at character 42"),
    (3, "line-3", "invalid_json_line", None, "found null, expected a JSON object"),
    (4, "line-4", "invalid_json_line", None, "found a list of 2, expected a JSON object"),
    (5, "line-5", "invalid_json_line", None, 'found "text", expected a JSON object'),
    (6, "line-6", "invalid_json_line", None, "found 42, expected a JSON object"),
    (7, "ok-1", "duplicate_custom_id", "custom_id", 'custom_id: found "ok-1", which line 1 has already'),
    (8, "get", "invalid_method", "method", 'method: found "GET", expected "POST"'),
    (9, "url", "invalid_url", "url", 'url: found "/v1/images/generations", expected one of /v1/chat/completions'),
    (10, "nobody", "missing_required_parameter", "body", "body: found nothing, expected an object"),
    (11, "stream", "unsupported_parameter", "stream", "body.stream: found true, expected false or no such key"),
    (12, "neg", "invalid_value", "temperature", "body.temperature: found -1, expected a number from 0 to 2"),
    (13, "top_p", "invalid_value", "top_p", "body.top_p: found 1.5, expected a number from 0 to 1"),
    (14, "maxt", "invalid_value", "max_tokens", "body.max_tokens: found 0, expected a whole number, 1 or more"),
    (15, "role", "invalid_value", "messages[0].role", 'body.messages[0].role: found "wizard", expected "system"'),
    (16, "nomsg", "invalid_value", "messages", "body.messages: found an empty list, expected a list of at least one"),
    (17, "type", "invalid_type", "messages", 'body.messages: found "hello", expected a list of at least one message'),
]


def test_each_bad_line_names_its_fault_and_the_good_ones_are_kept() -> None:
    """Every line of bad-lines.jsonl has its one outcome, under its physical number."""
    items = read("bad-lines.jsonl")
    assert [item.index for item in items] == list(range(19))
    bad = [item for item in items if isinstance(item, BadLine)]
    assert [(b.line, b.custom_id, b.code, b.param) for b in bad] == [case[:4] for case in BAD]
    for item, (line, *_, text) in zip(bad, BAD, strict=True):
        assert item.message.startswith(f"bad-lines.jsonl line {line}: {text}")
    good = {item.line: item.custom_id for item in items if isinstance(item, ParsedRequest)}
    assert good == {1: "ok-1", 19: "ls", 20: "ok-last"}


def test_survey_of_bad_lines_counts_what_the_reader_gives() -> None:
    found = survey(CASES / "bad-lines.jsonl")
    assert (found.num_lines, found.num_blank, found.num_requests, found.num_bad) == (20, 1, 19, 16)
    assert list(found.bad_lines) == [item for item in read("bad-lines.jsonl") if isinstance(item, BadLine)]


def test_unicode_separators_within_a_string_do_not_end_the_line() -> None:
    request = read("bad-lines.jsonl")[17]
    assert isinstance(request, ParsedRequest)
    assert request.messages is not None
    content = request.messages[0]["content"]
    assert "\u2028" in content
    assert "\u2029" in content
    assert "\u0085" in content


def test_edge_prompts_reach_the_tokenizer_as_they_are() -> None:
    """What only the tokenizer can refuse is a request here, with its text untouched."""
    items = {item.custom_id: item for item in read("edge-prompts.jsonl")}
    assert len(items) == 10
    assert all(isinstance(item, ParsedRequest) for item in items.values())
    assert items["empty-completion"].text == ""
    assert items["empty-content"].messages == ({"role": "user", "content": ""},)
    assert items["one-space"].messages == ({"role": "user", "content": " "},)
    assert items["ids"].token_ids == (1, 2, 3)
    assert items["ids-out-of-vocab"].token_ids == (99999999,)
    assert items["emoji-stop"].sampling.stop == ("\U0001f468\u200d\U0001f469\u200d\U0001f467",)
    assert items["stop-across-tokens"].sampling.stop == ("three f",)
    assert "<|im_end|>" in items["special-in-text"].messages[0]["content"]
    assert items["parts"].messages == ({"role": "user", "content": "Say hi"},)
    assert len(items["too-long"].messages[0]["content"]) > 200_000


def test_plain_lines() -> None:
    story, chat, sum_ = read("plain.jsonl")
    assert (story.custom_id, story.url, story.text) == ("line-1", Url.COMPLETIONS, "Once upon a time")
    assert (chat.custom_id, chat.url, chat.seed, chat.sampling.temperature) == ("a", Url.CHAT, 7, 0.5)
    assert (sum_.custom_id, sum_.sampling.stop, sum_.sampling.max_tokens) == ("b", ("\n",), 4)
    assert all(item.is_plain for item in (story, chat, sum_))


def test_array_elements_know_their_lines() -> None:
    first, second = read("array.json")
    assert (first.custom_id, first.index, first.line, first.text) == ("line-1", 0, 2, "Once upon a time")
    assert (second.custom_id, second.index, second.line) == ("x", 1, 6)


def test_text_file_is_one_user_message() -> None:
    (request,) = read("prompt.txt")
    assert request.messages == ({"role": "user", "content": "Write one sentence about rain."},)
    assert (request.custom_id, request.line, request.is_plain) == ("line-1", 1, True)


@pytest.mark.parametrize("name", ["good.jsonl", "bad-lines.jsonl", "edge-prompts.jsonl", "array.json", "prompt.txt"])
def test_skipped_requests_are_left_out_and_the_rest_keeps_its_indexes(name: str) -> None:
    path = CASES / name
    everything = read(name)
    reader = RequestReader(path, survey(path), skip=lambda index: index % 2 == 0)
    assert list(reader) == everything[1::2]


GOOD = b'{"id": "good", "prompt": "x"}'
HOSTILE = [  # a line as it lies in the file, and what its message says; None = it is a request
    (GOOD, None),
    (b"  " + GOOD + b" \t\r", None),
    ('{"prompt": "a\u2028b\u2029c\x85d\x0b\x0c\x1c\x1d\x1e"}'.encode(), "not valid JSON: found"),  # control characters
    ('{"prompt": "a\u2028b\u2029c\x85d"}'.encode(), None),
    (b'{"prompt": "\xff"}', "not UTF-8: found 0xff at byte 13 (invalid start byte)"),
    (b'{"prompt": "\xed\xa0\x80"}', "not UTF-8: found 0xed at byte 13"),  # a surrogate in UTF-8
    (b'{"prompt": "\x00"}', "not valid JSON: found"),
    (b'{"prompt": "\\u0000"}', None),
    (b'{"prompt": "\\ud800"}', "prompt: found half of a surrogate pair (\\ud800)"),
    (b'{"prompt": "\\ud83d\\ude00"}', None),
    (b'{"id": "\\udc00", "prompt": "x"}', "id: found half of a surrogate pair (\\udc00)"),
    (
        b'{"prompt": "x", "metadata": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        "nested too deep, expected at most 100 levels",
    ),
    (b'{"prompt": "x", "metadata": {"a": ' + b"[" * 90 + b"]" * 90 + b"}}", None),
    (b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}", "a whole number has more than 4300 digits"),
    (b'{"prompt": "x", "seed": ' + b"9" * 30 + b"}", "seed: found 999999999999999999999999999999, expected a whole"),
    (b'{"prompt": "x", "temperature": NaN}', "NaN is no JSON number"),
    (b'{"prompt": "x", "temperature": 1e999}', "the number 1e999 is too large"),
    (b'{"prompt": "x", "prompt": "y"}', 'the key "prompt" is there twice in one object'),
    (b"\xef\xbb\xbf" + GOOD, "not valid JSON"),  # a mark in the middle of a file is none
    (GOOD + GOOD, "behind the end of the value: expected one value"),
]


def test_hostile_lines_have_one_outcome_each_and_spare_their_neighbours(tmp_path: Path) -> None:
    """Behind a byte order mark, with blank lines between them, and without an end of the last line."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\n\r\n".join(line for line, _ in HOSTILE))
    found = survey(path)
    items = list(RequestReader(path, found))
    assert [item.line for item in items] == [2 * n + 1 for n in range(len(HOSTILE))]
    for item, (line, says) in zip(items, HOSTILE, strict=True):
        if isinstance(item, BadLine) and item.code == "duplicate_custom_id":
            assert b'"good"' in line
            continue
        assert isinstance(item, BadLine) == (says is not None), line[:80]
        assert says is None or says in item.message
    assert found.num_bad == sum(isinstance(item, BadLine) for item in items)
