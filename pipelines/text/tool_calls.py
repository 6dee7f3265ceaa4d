"""Finds the calls of tools in an answer, as models of each kind write them.

    hermes       text <tool_call>{"name": "f", "arguments": {}}</tool_call>
    llama3_json  {"name": "f", "parameters": {}}; {"name": ...        nothing else, or behind <|python_tag|>
    mistral      text [TOOL_CALLS][{"name": "f", "arguments": {}}]    or [TOOL_CALLS]f[ARGS]{}, once a call

1. An answer is cut into pieces, text and calls; put together again they are the answer.
2. What reads like a call and is none stays text. So does what was cut in the middle of one.
3. A mark within the JSON of a call is a part of that JSON.
"""

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NoReturn, assert_never

from pipelines.core.request import ToolCall, ToolFormat

CALL_OPENS, CALL_CLOSES = "<tool_call>", "</tool_call>"
CALLS_FOLLOW = "[TOOL_CALLS]"
PYTHON_TAG = "<|python_tag|>"
ID_FOLLOWS, ARGUMENTS_FOLLOW = "[CALL_ID]", "[ARGS]"
# Some models have a control token for each of these, which is no text elsewhere.
CALL_MARKS = frozenset({CALL_OPENS, CALL_CLOSES, CALLS_FOLLOW, PYTHON_TAG, ID_FOLLOWS, ARGUMENTS_FOLLOW})

_NAMED = re.compile(r"([\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)")
_BLANKS = re.compile(r"\s*")
_BETWEEN = re.compile(r"\s*;?\s*")  # of two calls of Llama's
_Found = tuple[tuple[ToolCall, ...], int]  # calls, and where in the text they end


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer."""

    written: str
    calls: tuple[ToolCall, ...] = ()  # that it says; none: it is text


def find_calls(text: str, form: ToolFormat, names: Collection[str]) -> list[Piece]:
    """Return the pieces of an answer, none of them empty; `names` are of the tools that may be called.

    Where a mark says that a call follows, it may be of any name: that no such tool is there is for others to say.
    """
    match form:
        case ToolFormat.HERMES:
            return _marked(text, CALL_OPENS, _tagged)
        case ToolFormat.MISTRAL:
            return _marked(text, CALLS_FOLLOW, _listed)
        case ToolFormat.LLAMA3_JSON:
            return _bare(text, names)
        case ToolFormat.AUTO | ToolFormat.TEXT:
            return [Piece(text)] if text else []
        case _:
            assert_never(form)


def _marked(text: str, mark: str, read: Callable[[str, int], _Found | None]) -> list[Piece]:
    """Return the pieces of a text in which each mark is followed by what `read` reads, or else is text."""
    pieces: list[Piece] = []
    end = 0  # of the last call
    start = text.find(mark)
    while start >= 0:
        found = read(text, start + len(mark))
        if found is not None:
            calls, stop = found
            pieces += [Piece(text[end:start]), Piece(text[start:stop], calls)]
            end = stop
        start = text.find(mark, start + len(mark) if found is None else end)
    return [piece for piece in (*pieces, Piece(text[end:])) if piece.written]


def _tagged(text: str, at: int) -> _Found | None:
    """Read a call between tags; the closing one may be missing at the end, or where another call begins."""
    found = _value(text, _behind(_BLANKS, text, at))
    call = _call(found[0]) if found else None
    if found is None or call is None:
        return None
    close = _behind(_BLANKS, text, found[1])
    if text.startswith(CALL_CLOSES, close):
        return (call,), close + len(CALL_CLOSES)
    if CALL_CLOSES.startswith(text[close : close + len(CALL_CLOSES)]):
        return (call,), len(text)
    return ((call,), close) if text.startswith(CALL_OPENS, close) else None


def _listed(text: str, at: int) -> _Found | None:
    """Read a list of calls, or one call with its name in front of its arguments."""
    at = _behind(_BLANKS, text, at)
    if named := _NAMED.match(text, at):
        found = _value(text, named.end())
        call = _call({"name": named[1], "arguments": found[0]}) if found else None
        return ((call,), found[1]) if found and call else None
    found = _value(text, at)
    if found is None:
        return None
    values = found[0] if isinstance(found[0], list) else [found[0]]
    calls = [call for value in values if (call := _call(value))]
    return (tuple(calls), found[1]) if calls and len(calls) == len(values) else None


def _bare(text: str, names: Collection[str]) -> list[Piece]:
    """Return the pieces of a text that is calls and nothing else; JSON of another kind is an answer, not a call."""
    calls = _sequence(text, 0)
    if calls and all(call.name in names for call in calls):
        return [Piece(text, calls)]
    start = text.find(PYTHON_TAG)
    calls = _sequence(text, start + len(PYTHON_TAG)) if start >= 0 else ()
    pieces = (Piece(text[:start]), Piece(text[start:], calls)) if calls else (Piece(text),)
    return [piece for piece in pieces if piece.written]


def _sequence(text: str, at: int) -> tuple[ToolCall, ...]:
    """Return the calls from `at` to the end of a text, none if anything else is there."""
    calls: list[ToolCall] = []
    at = _behind(_BLANKS, text, at)
    while at < len(text):
        found = _value(text, at)
        call = _call(found[0]) if found else None
        if found is None or call is None:
            return ()
        calls.append(call)
        at = _behind(_BETWEEN, text, found[1])
    return tuple(calls)


def _behind(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _call(value: Any) -> ToolCall | None:
    """Return the call that a JSON value says; arguments may be an object, or one written as a text."""
    if not isinstance(value, dict):
        return None
    name = value.get("name")
    key = next((key for key in ("arguments", "parameters") if key in value), None)
    if not isinstance(name, str) or not name or key is None:
        return None
    arguments = value[key]
    if isinstance(arguments, str):
        found = _value(arguments, 0)
        arguments = found[0] if found and not arguments[found[1] :].strip() else None
    elif arguments is None:
        arguments = {}
    text = _written(arguments) if isinstance(arguments, dict) else None
    return None if text is None else ToolCall(name, text)


def _written(arguments: dict[str, Any]) -> str | None:
    """Return JSON of these, None where a number is too large for it or they nest too deep; what has no UTF-8 form is escaped."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(arguments)
    except (ValueError, RecursionError):  # writing reaches less deep than reading
        return None
    return text


def _value(text: str, at: int) -> tuple[Any, int] | None:
    """Return the JSON value that begins at `at`, and where it ends; None if there is none."""
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key is there twice")  # one of them would be lost
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


# Line ends within texts, which JSON does not allow, are what some models write.
_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_refuse_constant, strict=False)
