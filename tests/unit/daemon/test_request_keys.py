"""Keys that cannot be honoured, or that nobody knows, are refused by name; values that ask for nothing may stay."""

from typing import Any

import pytest
from request_bodies import USER, chat, fault

from daemon.request_body import read_body
from daemon.request_keys import BODY_RULES
from daemon.request_problem import InvalidRequestError
from daemon.request_record import Url
from daemon.request_schema import ChatBody, CompletionBody, ResponseBody

NEUTRAL: list[tuple[str, Any]] = [
    ("stream", False),
    ("store", False),
    ("background", False),
    ("tools", []),
    ("tool_choice", "none"),
    ("tool_choice", "auto"),
    ("response_format", {"type": "text"}),
    ("text", {"format": {"type": "text"}}),
    ("modalities", ["text"]),
    ("logit_bias", {}),
    ("logprobs", False),
    ("top_logprobs", 0),
    ("best_of", 1),
    ("echo", False),
    ("suffix", ""),
    ("min_tokens", 0),
    ("skip_special_tokens", True),
    ("user", "u"),
    ("metadata", {"a": "b"}),
    ("service_tier", "flex"),
    ("safety_identifier", "s"),
    ("prompt_cache_key", "k"),
    ("parallel_tool_calls", True),
]


@pytest.mark.parametrize(("key", "value"), NEUTRAL)
def test_value_that_asks_for_nothing_may_stay(key: str, value: Any) -> None:
    assert chat(**{key: value}) == chat()


ASKING: list[tuple[str, Any]] = [
    ("stream", True),
    ("stream_options", {"include_usage": True}),
    ("store", True),
    ("background", True),
    ("functions", [{}]),
    ("guided_grammar", "x"),
    ("modalities", ["text", "audio"]),
    ("audio", {}),
    ("prompt_logprobs", 1),
    ("best_of", 2),
    ("echo", True),
    ("suffix", "x"),
    ("previous_response_id", "r"),
    ("skip_special_tokens", False),
    ("skip_special_tokens", 1),
]


@pytest.mark.parametrize(("key", "value"), ASKING)
def test_key_that_cannot_be_honoured_is_refused_by_name(key: str, value: Any) -> None:
    error = fault(Url.CHAT, **{key: value})
    assert (error.code, error.param) == ("unsupported_parameter", key)
    assert error.text.endswith("no such key: it is not supported")


@pytest.mark.parametrize(
    "key", ["enable_thinking", "extra_body", "extra_headers", "timeout", "thinking", "system", "inputs"]
)
def test_what_has_its_place_elsewhere_is_told_where(key: str) -> None:
    error = fault(Url.CHAT, **{key: 1})
    assert (error.code, error.param) == ("unsupported_parameter", key)
    assert "expected no such key here; its place is in " in error.text


@pytest.mark.parametrize("url", list(Url))
def test_unknown_key_is_named_with_the_nearest_known(url: Url) -> None:
    error = fault(url, temprature=1)
    assert (error.code, error.param) == ("unknown_parameter", "temprature")
    assert error.text == 'unknown key, the nearest known key is "temperature"'
    assert fault(url, qqqq=1).text == "unknown key"


@pytest.mark.parametrize("url", list(Url))
def test_a_key_that_would_be_refused_is_no_advice(url: Url) -> None:
    """Whoever renames it to that has the next refusal; one that was meant is said not to be supported."""
    assert fault(url, question=1).text == "unknown key", "not conversation"
    assert fault(url, streem=True).text == 'unknown key; "stream", which is much like it, is not supported either'


def test_misspelt_key_is_said_rather_than_that_the_right_one_is_missing() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_body(Url.CHAT, {"mesages": [USER]})
    assert (caught.value.code, caught.value.param) == ("unknown_parameter", "mesages")


def test_no_field_is_also_a_key_that_is_not_honoured() -> None:
    """But for those that some endpoints honour and others do not."""
    limits = {"max_tokens", "max_completion_tokens"}
    of_chats = {"n", "chat_template_kwargs", "reasoning_effort", "continue_final_message", "add_generation_prompt"}
    told = {"logprobs", "return_token_ids"}
    of_chats |= {"tools", "tool_choice", "parallel_tool_calls"}
    assert ChatBody.model_fields.keys() & BODY_RULES.keys() == of_chats | limits | told | {"top_logprobs"}
    assert CompletionBody.model_fields.keys() & BODY_RULES.keys() == {"n", "max_tokens"} | told
    assert ResponseBody.model_fields.keys() & BODY_RULES.keys() == {"text", "max_output_tokens"}
