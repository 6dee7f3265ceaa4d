"""What an answer that has to call a tool must look like: the calls as the model's kind writes them, by each tool's own schema.

Each schema is a grammar of its own within, so that what refers to its root (`#/$defs/...`) finds it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from pipelines.core.request import Grammar, GrammarKind, ToolFormat, ToolUse
from pipelines.text.grammar import JSON_OPTIONS
from pipelines.text.tool_calls import CALL_CLOSES, CALL_OPENS

_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def call_grammar(tools: ToolUse, form: ToolFormat) -> Grammar:
    """Return what an answer must look like that has to call."""
    named = [tool["function"] for tool in tools.definitions if tools.function in ("", tool["function"]["name"])]
    rules = [_start(form, calls_once=tools.calls_once), "call: " + " | ".join(f"call_{i}" for i in range(len(named)))]
    key = "parameters" if form is ToolFormat.LLAMA3_JSON else "arguments"
    for i, function in enumerate(named):
        head = f'{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "{key}": '
        rules.append(f"call_{i}: {_quoted(head)} arguments_{i} {_quoted('}')}")
        rules.append(f"arguments_{i}: %json {json.dumps({**_schema(function), 'x-guidance': JSON_OPTIONS})}")
    return Grammar(GrammarKind.CALLS, "\n".join(rules) + "\n", "tools")


def _schema(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON Schema of a function's arguments, which are an object; a function that names none has none."""
    given = function.get("parameters")
    return _NO_ARGUMENTS if given is None else {"type": "object", **given}


def schemas_of(tools: ToolUse) -> Sequence[Grammar]:
    """Return the schemas of all that may be called, each under the name of its field."""
    return [
        Grammar(GrammarKind.JSON_SCHEMA, json.dumps(_schema(tool["function"])), f"tools[{i}].function.parameters")
        for i, tool in enumerate(tools.definitions)
        if tools.function in ("", tool["function"]["name"])
    ]


def _start(form: ToolFormat, *, calls_once: bool) -> str:
    match form:
        case ToolFormat.HERMES:
            one = f"{_quoted(CALL_OPENS)} {_quoted(chr(10))} call {_quoted(chr(10) + CALL_CLOSES)}"
            return f"start: {one}" if calls_once else f"start: {one} ({_quoted(chr(10))} {one})*"
        case ToolFormat.MISTRAL:
            more = "" if calls_once else f" ({_quoted(', ')} call)*"
            return f"start: {_quoted('[')} call{more} {_quoted(']')}"
        case ToolFormat.LLAMA3_JSON:
            return "start: call"  # of several it was not taught a sure way
        case ToolFormat.AUTO | ToolFormat.TEXT:
            raise ValueError(f"{form} is no way to write a call")
        case _:
            assert_never(form)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
