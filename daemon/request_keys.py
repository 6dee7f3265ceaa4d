"""Keys of a request that are known but not honoured: which of their values ask for nothing and may therefore stay.

Nothing is ignored in silence: a key that would change the answer is refused by name unless its value asks for what is
done anyway. Keys that only label a request, or say how OpenAI should bill or place it, have no bearing here and may hold
any value of their type.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from daemon.request_problem import mismatch, unknown


@dataclass(frozen=True, slots=True)
class KeyRule:
    """Which values of a key may stay."""

    allows: Callable[[Any], bool]
    expected: str
    code: str  # of the error where the value is not allowed


def _only(*values: Any) -> KeyRule:
    """Allow the values that ask for nothing; a whole number and a float that are equal are the same, a boolean is not."""
    choices = "".join(f"{json.dumps(value)} or " for value in values)
    expected = f"{choices}no such key: it is not supported"

    def allows(found: Any) -> bool:
        return any(found == value and isinstance(found, bool) is isinstance(value, bool) for value in values)

    return KeyRule(allows, expected, "unsupported_parameter")


def _any(kind: type, expected: str) -> KeyRule:
    """Allow every value of a type."""
    is_flag = kind is bool
    return KeyRule(
        lambda found: isinstance(found, kind) and isinstance(found, bool) is is_flag, expected, "invalid_type"
    )


def _elsewhere(where: str) -> KeyRule:
    """Allow no value, and say where what is meant has its place."""
    return KeyRule(lambda _: False, f"no such key here; its place is in {where}", "unsupported_parameter")


_NEVER = _only()
_FALSE = _only(False)
_TRUE = _only(True)
_ZERO = _only(0)
_ONE = _only(1)
_EMPTY_LIST = _only([])
_EMPTY_OBJECT = _only({})
_STRING = _any(str, "a string")
_LIST = _any(list, "a list")

_LIMIT = KeyRule(
    lambda _: False,
    "max_tokens or max_completion_tokens in a chat, max_tokens in a completion, max_output_tokens in a response",
    "unknown_parameter",
)

BODY_RULES: Mapping[str, KeyRule] = {
    # labels, and hints of how to serve that no answer depends on
    "user": _STRING,
    "metadata": _any(dict, "an object"),
    "service_tier": _STRING,
    "safety_identifier": _STRING,
    "prompt_cache_key": _STRING,
    "prompt_cache_retention": _STRING,
    "parallel_tool_calls": _any(bool, "true or false"),  # of a response; chats honour it
    "max_tool_calls": _any(int, "a whole number"),
    "store": _FALSE,
    # OpenAI's, not built
    "stream": _FALSE,
    "stream_options": _NEVER,
    "background": _FALSE,
    "tools": _EMPTY_LIST,  # of a response; chats honour it, as the next one
    "tool_choice": _only("none", "auto"),
    "functions": _EMPTY_LIST,
    "function_call": _only("none", "auto"),
    "web_search_options": _NEVER,
    "text": _only({"format": {"type": "text"}}, {}),
    "modalities": _only(["text"]),
    "audio": _NEVER,
    "prediction": _NEVER,
    "reasoning_effort": _NEVER,  # a thinking model would answer otherwise; chats honour it
    "reasoning": _EMPTY_OBJECT,
    "verbosity": _only("medium"),
    "logprobs": _FALSE,  # of a response; the other endpoints honour it, as the next one chats
    "top_logprobs": _ZERO,
    "n": _ONE,  # of a response; the other endpoints honour it
    "best_of": _ONE,
    "echo": _FALSE,
    "suffix": _only(""),
    "previous_response_id": _NEVER,
    "conversation": _NEVER,
    "include": _EMPTY_LIST,
    "truncation": _only("disabled"),
    # each endpoint's own; what another has for it is too like other keys for a guess
    "max_tokens": _LIMIT,
    "max_completion_tokens": _LIMIT,
    "max_output_tokens": _LIMIT,
    # other servers', not built
    "length_penalty": _ONE,
    "use_beam_search": _FALSE,
    "bad_words": _EMPTY_LIST,
    "allowed_token_ids": _NEVER,
    "logits_processors": _NEVER,
    "prompt_logprobs": _NEVER,
    "return_token_ids": _FALSE,  # of a response; the other endpoints honour it
    "skip_special_tokens": _TRUE,
    "spaces_between_special_tokens": _TRUE,
    "include_stop_str_in_output": _FALSE,
    "add_generation_prompt": _TRUE,  # chats honour it, as the next one
    "continue_final_message": _FALSE,
    "add_special_tokens": _NEVER,
    "truncate_prompt_tokens": _NEVER,
    "chat_template": _NEVER,
    "chat_template_kwargs": _EMPTY_OBJECT,  # chats honour it
    "enable_thinking": _elsewhere('"chat_template_kwargs": {"enable_thinking": ...}'),
    "thinking": _elsewhere('"chat_template_kwargs", under the name that the model\'s template has for it'),
    "extra_body": _elsewhere("a client's call: here its keys stand beside the others"),
    "extra_headers": _elsewhere("a client: a file has no headers"),
    "extra_query": _elsewhere("a client: a file has no address"),
    "timeout": _elsewhere("limits.request_timeout_s of the pipeline"),
    # what other services and data sets call what has another name here
    "system": _elsewhere('a message of role "system", or system of the pipeline'),
    "conversations": _elsewhere('"messages", each with "role" and "content"'),
    "contents": _elsewhere('"messages", each with "role" and "content"'),
    "inputs": _elsewhere('"prompt"'),
    "max_new_tokens": _elsewhere('"max_tokens"'),
    "stop_sequences": _elsewhere('"stop"'),
    "documents": _EMPTY_LIST,
    "guided_grammar": _NEVER,
    "priority": _ZERO,  # a file's, not a request's
}

MESSAGE_RULES: Mapping[str, KeyRule] = {
    "name": _NEVER,  # chat templates do not say it to the model, so the answer would not know of it
    "tool_calls": _EMPTY_LIST,
    "tool_call_id": _NEVER,
    "function_call": _NEVER,
    "audio": _NEVER,
    "refusal": _only(""),
    "annotations": _LIST,  # what an answer carries that is sent in again as a message
    "reasoning": _only(""),
    "reasoning_content": _only(""),
}

ITEM_RULES: Mapping[str, KeyRule] = {**MESSAGE_RULES, "id": _STRING, "status": _STRING, "phase": _STRING}

PART_RULES: Mapping[str, KeyRule] = {"annotations": _LIST, "logprobs": _LIST}


def check_keys(path: str, values: Mapping[str, Any], rules: Mapping[str, KeyRule], honoured: Collection[str]) -> None:
    """Check the keys of a record but those that it honours; `path` leads to the record and is empty or ends in a dot.

    Raises:
        InvalidRequestError: a key asks for something that is not built, or is not known at all.
    """
    for key, value in values.items():
        if value is None or key in honoured:
            continue
        rule = rules.get(key)
        if rule is None:
            raise unknown(path, key, honoured, rules)
        if not rule.allows(value):
            raise mismatch(rule.code, path + key, value, rule.expected)
