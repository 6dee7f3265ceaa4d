"""What a request is said to take up is what it does take up: else a bound on memory is none."""

import json
import sys
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.file_kinds import FileKind
from daemon.request_line import LineParser
from daemon.request_record import BadLine, ParsedRequest, Place
from daemon.request_size import memory_bytes

WORDS = "word " * 2000
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "x": [{}, [], {"y": [1]}] * 50}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": [[], {}] * 50})}}


def say(content: str | None, role: str = "user", **fields: object) -> dict[str, Any]:
    return {"role": role, "content": content} | fields


def item_of(**line: object) -> ParsedRequest | BadLine:
    return LineParser("f.jsonl", FileKind.LINES).parse(json.dumps(line).encode(), Place(0, 1))


def memory_of(value: object) -> int:
    """Bytes of a value and of all that it holds, without what the interpreter has once for everybody."""
    if value in (None, "", ()) or isinstance(value, bool | Enum) or (isinstance(value, int) and abs(value) < 256):
        return 0
    size = sys.getsizeof(value)
    if is_dataclass(value):
        return size + sum(memory_of(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, dict):
        return size + sum(memory_of(held) for held in value.values())
    return size + sum(map(memory_of, value)) if isinstance(value, list | tuple) else size


@pytest.mark.parametrize(
    "line",
    [
        {"prompt": "Why?"},
        {"messages": [say("Why?")], "max_tokens": 3},
        {"messages": [say("")] * 1000},
        {"messages": [say(WORDS), say(WORDS, "assistant"), say("\u65e5" * 1000)]},
        {"prompt": "\U0001f600" * 1000},
        {"prompt": list(range(1000, 2000))},
        {"prompt": "x", "stop_token_ids": list(range(1000, 1500))},
        {"prompt": "x", "stop": [WORDS, "y"]},
        {"prompt": "x", "logit_bias": {str(token): 1.5 for token in range(1000, 1300)}},
        {"prompt": "x", "id": WORDS, "model": WORDS},
        {"prompt": "x", "guided_regex": "(a|b)" * 1000},
        {"messages": [say("x")], "chat_template_kwargs": {"facts": [[], {"a": []}, "b", 1.5] * 100}},
        {"messages": [say("x")], "tools": [TOOL]},
        {"messages": [say("x"), say(None, "assistant", tool_calls=[CALL]), say("y", "tool", tool_call_id="c")]},
    ],
)
def test_a_request_takes_up_no_more_than_it_is_said_to(line: dict[str, Any]) -> None:
    item = item_of(**line)
    assert isinstance(item, ParsedRequest), item
    assert memory_of(item) <= memory_bytes(item) <= 8 * memory_of(item)


@pytest.mark.parametrize("line", [{"prompt": 3}, {"prompt": 3, "id": WORDS}, {"prompt": 3, "id": "\u65e5" * 1000}])
def test_a_bad_line_takes_up_no_more_than_it_is_said_to(line: dict[str, Any]) -> None:
    item = item_of(**line)
    assert isinstance(item, BadLine)
    assert memory_of(item) <= memory_bytes(item) <= 8 * memory_of(item)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda held: st.lists(held, max_size=4) | st.dictionaries(st.text(max_size=9), held, max_size=4),
)


@given(st.dictionaries(st.text(max_size=9), VALUES))
def test_what_a_template_is_told_counts_however_it_is_nested(told: dict[str, Any]) -> None:
    item = item_of(messages=[say("x")], chat_template_kwargs=told)
    if isinstance(item, ParsedRequest):  # some keys are refused
        assert memory_of(item) <= memory_bytes(item)
