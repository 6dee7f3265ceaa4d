"""What a chat says of tools: those that may be called, whether one must be, and the calls and results among its messages.

What a template is given of it is in one form: arguments of a call are an object, as templates write them, though OpenAI's are
a text; what stands beside a definition for the server alone (`strict`) is left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from daemon.request_json import read_json
from daemon.request_problem import InvalidRequestError, mismatch, missing, shown, unknown
from pipelines.core.request import ToolUse

_MAX_TOOLS = 128
_TOOL = 'an object, {"type": "function", "function": {"name", "description", "parameters"}}'
_CALL = 'an object, {"id", "type": "function", "function": {"name", "arguments"}}'
_NAME = "a string that is not empty"
_ARGUMENTS = "a JSON object, written as a text"
_CHOICES = '"none", "auto", "required" or {"type": "function", "function": {"name"}}'
_FUNCTION_KINDS: Mapping[str, tuple[type, str]] = {
    "description": (str, "a string"),
    "parameters": (dict, "a JSON Schema, an object"),
    "strict": (bool, "true or false"),
}


def read_tool_use(
    tools: Any, choice: Any, is_parallel: bool | None, messages: Sequence[Mapping[str, Any]]
) -> ToolUse | None:
    """Return what a chat has to do with tools, None if nothing; its messages are read already.

    Raises:
        InvalidRequestError: a field is wrong, or asks for what cannot be held.
    """
    definitions = _definitions(tools)
    must_call, function = _choice(choice, [tool["function"]["name"] for tool in definitions])
    if not definitions or choice == "none":
        speaks_of_tools = any(message["role"] == "tool" or "tool_calls" in message for message in messages)
        return ToolUse() if speaks_of_tools else None
    if is_parallel is False and not must_call:
        expected = (
            'true or no such key, or tool_choice "required": how often a model calls by itself is not in our hands'
        )
        raise mismatch("unsupported_value", "parallel_tool_calls", is_parallel, expected)
    return ToolUse(definitions, must_call, function, calls_once=must_call and (is_parallel is False or bool(function)))


class ToolTurns:
    """Reads the calls and results among the messages of one chat, in their order."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # of the functions called so far, by the ids of their calls

    def calls(self, path: str, given: Any) -> list[dict[str, Any]]:
        """Return the calls of an assistant's message; `path` leads to them.

        Raises:
            InvalidRequestError: they are not what they have to be.
        """
        if not isinstance(given, list):
            raise mismatch("invalid_type", path, given, f"a list, each element {_CALL}")
        return [self._call(f"{path}[{i}]", call) for i, call in enumerate(given)]

    def result(self, path: str, call_id: Any, name: str | None) -> dict[str, Any]:
        """Return what a tool's message has besides its content: the call that it answers; `path` ends in a dot.

        Raises:
            InvalidRequestError: it answers none.
        """
        param, expected = f"{path}tool_call_id", "the id of a call in an earlier message"
        if call_id is None:
            raise missing(param, expected)
        if not isinstance(call_id, str) or call_id not in self._names:
            raise mismatch("invalid_value" if isinstance(call_id, str) else "invalid_type", param, call_id, expected)
        return {"tool_call_id": call_id, "name": self._names[call_id] if name is None else name}

    def _call(self, path: str, call: Any) -> dict[str, Any]:
        function = _function_of(path, call, ("id", "type", "function"), _CALL)
        call_id = _text(f"{path}.id", call.get("id"), _NAME)
        _check_keys(f"{path}.function.", function, ("name", "arguments"))
        name = _text(f"{path}.function.name", function.get("name"), _NAME)
        arguments = _arguments(f"{path}.function.arguments", function.get("arguments"))
        self._names[call_id] = name
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _definitions(given: Any) -> tuple[dict[str, Any], ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or len(given) > _MAX_TOOLS:
        code = "invalid_value" if isinstance(given, list) else "invalid_type"
        raise mismatch(code, "tools", given, f"a list of at most {_MAX_TOOLS}, each element {_TOOL}")
    tools = tuple(_definition(f"tools[{i}]", tool) for i, tool in enumerate(given))
    seen: set[str] = set()
    for i, name in enumerate(tool["function"]["name"] for tool in tools):
        if name in seen:
            raise mismatch("invalid_value", f"tools[{i}].function.name", name, "a name that no tool before it has")
        seen.add(name)
    return tools


def _definition(path: str, tool: Any) -> dict[str, Any]:
    function = _function_of(path, tool, ("type", "function"), _TOOL)
    _check_keys(f"{path}.function.", function, ("name", *_FUNCTION_KINDS))
    _text(f"{path}.function.name", function.get("name"), _NAME)
    for key, (kind, expected) in _FUNCTION_KINDS.items():
        value = function.get(key)
        if value is not None and not isinstance(value, kind):
            raise mismatch("invalid_type", f"{path}.function.{key}", value, expected)
    told = {key: value for key, value in function.items() if value is not None and key != "strict"}
    return {"type": "function", "function": told}


def _function_of(path: str, given: Any, keys: tuple[str, ...], expected: str) -> dict[str, Any]:
    """Return the function of a tool or of a call, which is the only kind that there is here."""
    if not isinstance(given, dict):
        raise mismatch("invalid_type", path, given, expected)
    kind = given.get("type", "function")
    if kind != "function":
        raise mismatch(
            "unsupported_value" if isinstance(kind, str) else "invalid_type", f"{path}.type", kind, '"function"'
        )
    _check_keys(f"{path}.", given, keys)
    function = given.get("function")
    if function is None:
        raise missing(f"{path}.function", "an object")
    if not isinstance(function, dict):
        raise mismatch("invalid_type", f"{path}.function", function, "an object")
    return function


def _choice(given: Any, names: Sequence[str]) -> tuple[bool, str]:
    """Return whether a tool must be called, and which alone, "" if any."""
    if given is None or given in ("none", "auto"):
        return False, ""
    if not names:
        raise mismatch("invalid_value", "tool_choice", given, 'tools beside it, or "none" or "auto"')
    if given == "required":
        return True, ""
    if isinstance(given, str):
        raise mismatch("invalid_value", "tool_choice", given, _CHOICES)
    function = _function_of("tool_choice", given, ("type", "function"), _CHOICES)
    _check_keys("tool_choice.function.", function, ("name",))
    name = _text("tool_choice.function.name", function.get("name"), "the name of one of the tools")
    if name not in names:
        raise mismatch("invalid_value", "tool_choice.function.name", name, "the name of one of the tools")
    return True, name


def _arguments(param: str, given: Any) -> dict[str, Any]:
    """Return the arguments of a call; none at all may be an empty text, and an object that is no text is taken as well."""
    if given is None:
        raise missing(param, _ARGUMENTS)
    value = given
    if isinstance(given, str):
        try:
            value = read_json(given.encode()) if given.strip() else {}
        except InvalidRequestError as error:
            raise InvalidRequestError(
                "invalid_value", param, f"found {shown(given)}, expected {_ARGUMENTS} ({error.text})"
            ) from None
    if not isinstance(value, dict):
        raise mismatch("invalid_value" if isinstance(given, str) else "invalid_type", param, given, _ARGUMENTS)
    return value


def _text(param: str, value: Any, expected: str) -> str:
    if value is None:
        raise missing(param, expected)
    if not isinstance(value, str) or not value:
        raise mismatch("invalid_value" if value == "" else "invalid_type", param, value, expected)
    return value


def _check_keys(path: str, values: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key, value in values.items():
        if key not in known and value is not None:
            raise unknown(path, key, known)
