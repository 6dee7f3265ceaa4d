"""What a chat template knows of tools and thoughts, read from its source: the names that it uses, not the prose in it."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import Environment, TemplateSyntaxError

from pipelines.core.request import ToolFormat
from pipelines.text.refusal import RefusalCode, RefusalError
from pipelines.text.tool_calls import CALL_OPENS, CALLS_FOLLOW

Message = Mapping[str, Any]
_OTHER_TAGGED = ("<function=", "<arg_key>", "<parameter=")  # what other models write between Hermes' tags
_NUM_ID_CHARS = 9
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_ASKS_SHORT_ID = re.compile(r"length\s*[!=]=\s*9")  # Mistral's templates raise at other ids


@dataclass(frozen=True, slots=True)
class TemplateWords:
    """What stands in the code of a template."""

    names: frozenset[str]  # variables
    words: frozenset[str]  # attributes and texts that are compared or written


@lru_cache(maxsize=16)
def read_template(source: str) -> TemplateWords:
    """Return the words of a template. One that is no Jinja has none: it will be refused where it is used."""
    names: set[str] = set()
    words: set[str] = set()
    before = ""
    try:
        tokens = [token for token in Environment(autoescape=True).lex(source) if token[1] != "whitespace"]
    except TemplateSyntaxError:
        return TemplateWords(frozenset(), frozenset())
    for _, kind, text in tokens:
        if kind == "name":
            (words if before == "." else names).add(text)
        elif kind == "string":
            words.add(text[1:-1])
        before = text
    return TemplateWords(frozenset(names), frozenset(words))


@lru_cache(maxsize=16)
def find_tool_format(source: str) -> ToolFormat | None:
    """Return how a model was taught to write calls, None where its template does not say for sure."""
    if "tools" not in read_template(source).names:
        return None
    if CALLS_FOLLOW in source:
        return ToolFormat.MISTRAL
    if CALL_OPENS in source:
        is_hermes = "arguments" in source and not any(tag in source for tag in _OTHER_TAGGED)
        return ToolFormat.HERMES if is_hermes else None
    is_llama = "<|start_header_id|>" in source and '{"name": function name, "parameters": ' in source
    return ToolFormat.LLAMA3_JSON if is_llama else None


def check_tools(source: str, messages: Sequence[Message], *, has_tools: bool) -> None:
    """Look whether a template knows what a chat says of tools.

    Raises:
        RefusalError: it would pass over it in silence, or write what the model never saw.
    """
    known = read_template(source)
    if has_tools and "tools" not in known.names:
        raise _unknown("tools", "tools")
    for i, message in enumerate(messages):
        if message.get("tool_calls") and "tool_calls" not in known.words:
            raise _unknown(f"messages[{i}].tool_calls", "calls of tools")
        if message["role"] == "tool" and "tool" not in known.words:
            raise _unknown(f"messages[{i}].role", "what a tool says")


def check_thoughts(source: str, messages: Sequence[Message]) -> None:
    """Look whether a template knows the thoughts of earlier answers, where a chat has any.

    Raises:
        RefusalError: it would pass over them in silence.
    """
    for i, message in enumerate(messages):
        if "reasoning_content" in message and "reasoning_content" not in read_template(source).words:
            param = f"messages[{i}].reasoning_content"
            text = f"{param}: this model's chat template does not show a model what it thought before: expected no such key"
            raise RefusalError(RefusalCode.UNSUPPORTED_PARAMETER, param, text)


def with_short_ids(source: str, messages: Sequence[Message]) -> Sequence[Message]:
    """Return messages whose calls have ids that the template takes: the same id has the same short one each time."""
    if not _ASKS_SHORT_ID.search(source):
        return messages
    return [_with_short_ids(message) for message in messages]


def _with_short_ids(message: Message) -> Message:
    changed = dict(message)
    if "tool_calls" in message:
        changed["tool_calls"] = [{**call, "id": _short(call["id"])} for call in message["tool_calls"]]
    if "tool_call_id" in message:
        changed["tool_call_id"] = _short(message["tool_call_id"])
    return changed


def _short(call_id: str) -> str:
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.blake2b(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:_NUM_ID_CHARS]


def _unknown(param: str, what: str) -> RefusalError:
    message = (
        f"{param}: this model's chat template does not know {what}: expected none, or a model that was taught to call"
    )
    return RefusalError(RefusalCode.UNSUPPORTED_PARAMETER, param, message)
