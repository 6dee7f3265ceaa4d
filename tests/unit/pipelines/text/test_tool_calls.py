"""Calls of tools are found in answers of each kind of model, and what is none stays text."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.request import ToolCall, ToolFormat
from pipelines.text.tool_calls import CALL_MARKS, Piece, find_calls

FORMATS = [ToolFormat.HERMES, ToolFormat.LLAMA3_JSON, ToolFormat.MISTRAL]
NAMES = ("f", "get_weather")


def calls_in(text: str, form: ToolFormat) -> tuple[list[tuple[str, Any]], str]:
    """The calls with their arguments read, and the text beside them."""
    pieces = find_calls(text, form, NAMES)
    calls = [(call.name, json.loads(call.arguments)) for piece in pieces for call in piece.calls]
    return calls, "".join(piece.written for piece in pieces if not piece.calls)


def tagged(*calls: Any) -> str:
    return "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)


A = {"name": "f", "arguments": {"x": 1}}
B = {"name": "get_weather", "arguments": {"city": "Z\u00fcrich </tool_call>"}}


@pytest.mark.parametrize(
    ("form", "text", "calls", "rest"),
    [
        ("hermes", tagged(A), [("f", {"x": 1})], ""),
        ("hermes", f"Let me see.\n{tagged(A, B)}", [("f", {"x": 1}), ("get_weather", B["arguments"])], "Let me see.\n\n"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}', [("f", {})], ""),  # ended without the closing tag
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}\n</tool_', [("f", {})], ""),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}\n' + tagged(A), [("f", {}), ("f", {"x": 1})], ""),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"x\\": 2}"}</tool_call>', [("f", {"x": 2})], ""),
        ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', [("f", {})], ""),
        ("hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>', [("other", {})], ""),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"t": "a\nb"}}</tool_call>', [("f", {"t": "a\nb"})], ""),
        ("hermes", f"<tool_call>oops</tool_call>{tagged(A)}", [("f", {"x": 1})], "<tool_call>oops</tool_call>"),
        ("hermes", f"<tool_call>{tagged(A)}", [("f", {"x": 1})], "<tool_call>"),
        ("llama3_json", '{"name": "f", "parameters": {"x": 1}}', [("f", {"x": 1})], ""),
        ("llama3_json", ' {"name": "f", "parameters": {}}; {"name": "f", "parameters": {}}', [("f", {}), ("f", {})], ""),
        ("llama3_json", 'Hm.<|python_tag|>{"name": "new", "parameters": {}}', [("new", {})], "Hm."),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}, "id": "abcdefghi"}]', [("f", {"x": 1})], ""),
        ("mistral", f"Well. [TOOL_CALLS]{json.dumps([A, B])}", [("f", {"x": 1}), ("get_weather", B["arguments"])], "Well. "),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g-2[CALL_ID]abc123def[ARGS]{}', [("f", {"x": 1}), ("g-2", {})], ""),
    ],
)  # fmt: skip
def test_calls_are_found(form: str, text: str, calls: list[Any], rest: str) -> None:
    assert calls_in(text, ToolFormat(form)) == (calls, rest)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", "<tool_call>"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"x": '),  # cut
        ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"x": 1, "x": 2}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}} and more</tool_call>'),
        ("hermes", f"<tool_call>{'[' * 100_000}"),
        ("hermes", '{"name": "f", "arguments": {}}'),
        ("llama3_json", '{"name": "Ada", "parameters": {}}'),  # an answer in JSON: no tool is called so
        ("llama3_json", '{"name": "f", "parameters": {}} is what I would call'),
        ("llama3_json", 'I call {"name": "f", "parameters": {}}'),
        ("llama3_json", "  "),
        ("mistral", "[TOOL_CALLS][]"),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}, 5]'),  # half of a list would lose the rest
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}'),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"x"'),
        ("text", tagged(A)),
        ("auto", tagged(A)),
    ],
)
def test_what_is_no_call_stays_text(form: str, text: str) -> None:
    assert find_calls(text, ToolFormat(form), NAMES) == [Piece(text)]


def test_what_has_no_utf8_form_is_escaped() -> None:
    """Half a surrogate pair, which a model can write as an escape, would make the arguments unreadable as JSON."""
    (piece,) = find_calls(
        '<tool_call>{"name": "f", "arguments": {"x": "\\ud83d"}}</tool_call>', ToolFormat.HERMES, NAMES
    )
    assert piece.calls == (ToolCall("f", '{"x": "\\ud83d"}'),)


def test_a_call_of_any_depth_is_a_call_or_text() -> None:
    """The interpreter reads JSON a little deeper than it writes it."""
    for depth in range(100, 1100):
        text = f'<tool_call>{{"name": "f", "arguments": {{"x": {"[" * depth}{"]" * depth}}}}}</tool_call>'
        assert [piece.written for piece in find_calls(text, ToolFormat.HERMES, NAMES)] == [text]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
arguments = st.dictionaries(
    st.text() | st.sampled_from(sorted(CALL_MARKS)), json_values | st.sampled_from(sorted(CALL_MARKS))
)
fragments = st.sampled_from(
    [
        *sorted(CALL_MARKS),
        '{"name": "f", "arguments": {}}',
        '{"name": "f", "parameters": {}}',
        "[",
        "]",
        "{",
        "}",
        '"',
        ";",
        "\n",
        "f",
    ]
)
texts = st.lists(fragments | st.text(max_size=5), max_size=12).map("".join)


@pytest.mark.parametrize("form", FORMATS)
@given(text=texts)
def test_the_pieces_are_the_text(form: ToolFormat, text: str) -> None:
    """Whatever stands there: nothing is lost, nothing doubled, and what is called is JSON of an object."""
    pieces = find_calls(text, form, NAMES)
    assert "".join(piece.written for piece in pieces) == text
    assert all(piece.written for piece in pieces)
    for call in (call for piece in pieces for call in piece.calls):
        assert call.name
        assert isinstance(json.loads(call.arguments), dict)


def written(form: ToolFormat, calls: list[dict[str, Any]]) -> str:
    """Calls as a model of a kind writes them."""
    match form:
        case ToolFormat.HERMES:
            return tagged(*({"name": "f", "arguments": given} for given in calls))
        case ToolFormat.MISTRAL:
            return "[TOOL_CALLS]" + json.dumps(
                [{"name": "f", "arguments": given} for given in calls], ensure_ascii=False
            )
        case _:
            return "; ".join(json.dumps({"name": "f", "parameters": given}) for given in calls)


@pytest.mark.parametrize("form", FORMATS)
@given(calls=st.lists(arguments, min_size=1, max_size=3), data=st.data())
def test_calls_come_back_whatever_their_arguments_and_cut_anywhere_the_whole_ones_do(
    form: ToolFormat, calls: list[dict[str, Any]], data: st.DataObject
) -> None:
    """Marks among the arguments mislead nobody."""
    text = written(form, calls)
    assert [found for _, found in calls_in(text, form)[0]] == calls
    cut = text[: data.draw(st.integers(0, len(text)))]
    pieces = find_calls(cut, form, NAMES)
    assert "".join(piece.written for piece in pieces) == cut
    found = [json.loads(call.arguments) for piece in pieces for call in piece.calls]
    assert found == calls[: len(found)]
