"""What a chat says of tools: every field's form, and what is wrong with one is named."""

import json
from typing import Any

import pytest

from daemon.quick_body import read_body_quickly
from daemon.request_body import Body, read_body
from daemon.request_problem import InvalidRequestError
from daemon.request_record import Url
from pipelines.core.request import ToolUse

USER = {"role": "user", "content": "Hi"}
WEATHER = {
    "name": "weather",
    "description": "Of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
TOOL = {"type": "function", "function": WEATHER}
TIME = {"type": "function", "function": {"name": "time"}}
NAMED = {"type": "function", "function": {"name": "time"}}


def called(**function: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'} | function}


ASKS = {"role": "assistant", "content": None, "tool_calls": [called()]}


def chat(**fields: Any) -> Body:
    given = {"messages": [USER]} | fields
    body = read_body(Url.CHAT, given)
    assert read_body_quickly(Url.CHAT, given) == body
    return body


def fault(**fields: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        read_body(Url.CHAT, {"messages": [USER]} | fields)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"tools": []}, None),
        ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": False}, None),
        ({"tools": [TOOL]}, ToolUse((TOOL,))),
        ({"tools": [TOOL, TIME], "tool_choice": "auto", "parallel_tool_calls": True}, ToolUse((TOOL, TIME))),
        ({"tools": [TOOL], "tool_choice": "none", "parallel_tool_calls": False}, None),
        ({"tools": [TOOL], "tool_choice": "required"}, ToolUse((TOOL,), must_call=True)),
        (
            {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
            ToolUse((TOOL,), must_call=True, calls_once=True),
        ),
        ({"tools": [TIME], "tool_choice": NAMED}, ToolUse((TIME,), must_call=True, function="time", calls_once=True)),
        ({"tools": [{"function": {"name": "time"}}]}, ToolUse((TIME,))),
        ({"tools": [{"type": "function", "function": {"name": "time", "strict": True, "parameters": None}}]}, ToolUse((TIME,))),
        ({"messages": [USER, ASKS, {"role": "tool", "tool_call_id": "c1", "content": "x"}]}, ToolUse()),
    ],
)  # fmt: skip
def test_what_is_asked_of_tools(fields: dict[str, Any], expected: ToolUse | None) -> None:
    assert chat(**fields).tools == expected


def test_calls_and_results_are_read_as_templates_write_them() -> None:
    """Arguments become an object, however they are given; a result has its call's name where it brings none."""
    calls = [called(), called(arguments=""), called(arguments={"city": "Oslo"})]
    turns = [
        USER,
        {"role": "assistant", "tool_calls": calls, "content": "I look."},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sun"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "", "name": "own"},
        ASKS,
    ]
    messages = chat(messages=turns).messages or ()
    assert [call["function"]["arguments"] for call in messages[1]["tool_calls"]] == [
        {"city": "Rome"},
        {},
        {"city": "Oslo"},
    ]
    assert messages[1]["content"] == "I look."
    assert messages[2:4] == (
        {"role": "tool", "content": "sun", "tool_call_id": "c1", "name": "weather"},
        {"role": "tool", "content": "", "tool_call_id": "c1", "name": "own"},
    )
    function = {"name": "weather", "arguments": {"city": "Rome"}}
    call = {"id": "c1", "type": "function", "function": function}
    assert messages[4] == {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize(
    ("fields", "code", "param", "text"),
    [
        (
            {"tools": {}},
            "invalid_type",
            "tools",
            "found an empty object, expected a list of at most 128, each element an object",
        ),
        ({"tools": [TOOL] * 129}, "invalid_value", "tools", "found a list of 129"),
        ({"tools": ["x"]}, "invalid_type", "tools[0]", 'found "x", expected an object, {"type": "function", '),
        (
            {"tools": [{"type": "web_search"}]},
            "unsupported_value",
            "tools[0].type",
            'found "web_search", expected "function"',
        ),
        ({"tools": [{"type": 1}]}, "invalid_type", "tools[0].type", "found 1"),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].function", "found nothing"),
        (
            {"tools": [TOOL | {"functions": {}}]},
            "unknown_parameter",
            "tools[0].functions",
            'unknown key, the nearest known key is "function"',
        ),
        (
            {"tools": [{"type": "function", "function": {}}]},
            "missing_required_parameter",
            "tools[0].function.name",
            "found nothing",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": ""}}]},
            "invalid_value",
            "tools[0].function.name",
            'found ""',
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": "{}"}}]},
            "invalid_type",
            "tools[0].function.parameters",
            'found "{}", expected a JSON Schema, an object',
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameter": {}}}]},
            "unknown_parameter",
            "tools[0].function.parameter",
            "unknown key, the nearest",
        ),
        (
            {"tools": [TOOL, TOOL]},
            "invalid_value",
            "tools[1].function.name",
            'found "weather", expected a name that no tool before',
        ),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice", 'found "required", expected tools beside it'),
        (
            {"tool_choice": "any", "tools": [TOOL]},
            "invalid_value",
            "tool_choice",
            'found "any", expected "none", "auto"',
        ),
        ({"tool_choice": 1, "tools": [TOOL]}, "invalid_type", "tool_choice", "found 1"),
        (
            {"tool_choice": {"type": "allowed_tools"}, "tools": [TOOL]},
            "unsupported_value",
            "tool_choice.type",
            'found "allowed_tools"',
        ),
        (
            {"tool_choice": NAMED, "tools": [TOOL]},
            "invalid_value",
            "tool_choice.function.name",
            'found "time", expected the name of one',
        ),
        (
            {"tools": [TOOL], "parallel_tool_calls": False},
            "unsupported_value",
            "parallel_tool_calls",
            'found false, expected true or no such key, or tool_choice "required"',
        ),
        ({"tools": [TOOL], "parallel_tool_calls": "no"}, "invalid_type", "parallel_tool_calls", 'found "no"'),
        ({"functions": [WEATHER]}, "unsupported_parameter", "functions", "found a list of 1"),
    ],
)
def test_field_at_fault_is_named(fields: dict[str, Any], code: str, param: str, text: str) -> None:
    error = fault(**fields)
    assert (error.code, error.param) == (code, param)
    assert error.text.startswith(text)


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ({"role": "assistant", "tool_calls": {}}, "invalid_type", "tool_calls"),
        ({"role": "assistant", "tool_calls": [5]}, "invalid_type", "tool_calls[0]"),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "type": "custom"}]},
            "unsupported_value",
            "tool_calls[0].type",
        ),
        (
            {"role": "assistant", "tool_calls": [called() | {"id": None}]},
            "missing_required_parameter",
            "tool_calls[0].id",
        ),
        ({"role": "assistant", "tool_calls": [called(name=3)]}, "invalid_type", "tool_calls[0].function.name"),
        (
            {"role": "assistant", "tool_calls": [called(arguments=None)]},
            "missing_required_parameter",
            "tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [called(arguments="{")]},
            "invalid_value",
            "tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [called(arguments="[]")]},
            "invalid_value",
            "tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [called(arguments=5)]},
            "invalid_type",
            "tool_calls[0].function.arguments",
        ),
        ({"role": "assistant", "tool_calls": []}, "missing_required_parameter", "content"),
        ({"role": "assistant", "content": 5, "tool_calls": [called()]}, "invalid_type", "content"),
        ({"role": "tool", "content": "x"}, "missing_required_parameter", "tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": "c2"}, "invalid_value", "tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": 5}, "invalid_type", "tool_call_id"),
        ({"role": "tool", "tool_call_id": "c1"}, "missing_required_parameter", "content"),
        (
            {"role": "tool", "content": "x", "tool_call_id": "c1", "tool_calls": [called()]},
            "unsupported_parameter",
            "tool_calls",
        ),
    ],
)
def test_message_at_fault_is_named(message: dict[str, Any], code: str, param: str) -> None:
    error = fault(messages=[USER, ASKS, message])
    assert (error.code, error.param) == (code, f"messages[2].{param}")


def test_broken_arguments_say_where_they_break() -> None:
    error = fault(messages=[USER, {"role": "assistant", "tool_calls": [called(arguments='{"city": }')]}])
    assert error.text.startswith('found "{\\"city\\": }", expected a JSON object, written as a text (not valid JSON: ')


def test_an_answer_cannot_go_on_with_a_call() -> None:
    error = fault(messages=[USER, ASKS], continue_final_message=True)
    assert (error.code, error.param) == ("unsupported_value", "messages[1].tool_calls")


@pytest.mark.parametrize("url", [Url.COMPLETIONS, Url.RESPONSES])
def test_tools_are_of_a_chat(url: Url) -> None:
    prompt = "prompt" if url is Url.COMPLETIONS else "input"
    with pytest.raises(InvalidRequestError) as caught:
        read_body(url, {prompt: "x", "tools": [TOOL]})
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "tools")


def test_a_line_of_an_answer_can_be_sent_in_again() -> None:
    """As scripts do that answer the calls: the message of a result, then one of role tool."""
    answer = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [called()]}
    turns = json.loads(json.dumps([USER, answer, {"role": "tool", "tool_call_id": "c1", "content": "sun"}]))
    assert len(chat(messages=turns, tools=[TOOL]).messages or ()) == 3
