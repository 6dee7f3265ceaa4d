"""What a body may ask for: the type and range of every field, and what is said of a value that is at fault."""

from typing import Any

import pytest
from pydantic import ValidationError
from request_bodies import USER, chat, completion, fault, response

from daemon.request_keys import BODY_RULES
from daemon.request_record import Url
from daemon.request_schema import EXPECTED, ChatBody, CompletionBody, Item, Message, Part, ResponseBody
from pipelines.core.request import SamplingParams


def test_all_sampling_fields_reach_the_engine() -> None:
    body = chat(
        model="m",
        temperature=2,
        top_p=0.5,
        top_k=40,
        seed=7,
        n=128,
        stop=["a", "b"],
        stop_token_ids=[1, 2],
        ignore_eos=True,
        max_completion_tokens=9,
        min_p=0.05,
        presence_penalty=-2,
        frequency_penalty=2.0,
        repetition_penalty=1.1,
        logit_bias={"50": 5, "7": -100, "07": 1.5},
        min_tokens=9,
    )
    assert body.sampling == SamplingParams(
        max_tokens=9,
        temperature=2.0,
        top_k=40,
        top_p=0.5,
        n=128,
        stop=("a", "b"),
        stop_token_ids=(1, 2),
        ignore_eos=True,
        min_p=0.05,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        repetition_penalty=1.1,
        logit_bias=((7, 1.5), (50, 5.0)),
        min_tokens=9,
    )
    assert (body.model, body.seed) == ("m", 7)


@pytest.mark.parametrize("make", [chat, completion, response])
def test_nothing_given_is_left_to_the_pipeline(make: Any) -> None:
    """A null is the same as nothing, for every field of every endpoint."""
    nulls = dict.fromkeys([*BODY_RULES, "model", "temperature", "top_p", "top_k", "seed", "stop", "stop_token_ids"])
    for body in (make(), make(**nulls)):
        assert body.sampling == SamplingParams()
        assert (body.model, body.seed) == (None, None)


def test_the_endpoints_names_for_the_limit() -> None:
    assert chat(max_tokens=5).sampling.max_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=5).sampling.max_tokens == 5
    assert completion(max_tokens=5).sampling.max_tokens == 5
    assert response(max_output_tokens=5).sampling.max_tokens == 5
    error = fault(Url.CHAT, max_tokens=5, max_completion_tokens=6)
    assert (error.code, error.param) == ("invalid_value", "max_tokens")
    for url, key in ((Url.RESPONSES, "max_tokens"), (Url.COMPLETIONS, "max_completion_tokens")):
        error = fault(url, **{key: 5})
        assert (error.code, error.param) == ("unknown_parameter", key)
        assert error.text.startswith("found 5, expected max_tokens or max_completion_tokens in a chat, max_tokens in a")


def test_token_ids_are_given_to_who_asks_for_them() -> None:
    assert not chat().wants_token_ids
    assert chat(return_token_ids=True).wants_token_ids
    assert completion(return_token_ids=True, prompt=[1, 2]).wants_token_ids
    assert fault(Url.RESPONSES, return_token_ids=True).param == "return_token_ids"


def test_values_with_two_spellings() -> None:
    assert chat(stop="x").sampling.stop == ("x",)
    assert chat(stop=[]).sampling.stop == ()
    assert chat(top_k=-1).sampling.top_k == 0
    assert chat(seed=-1).seed == 2**63 - 1
    assert chat(seed=-(2**63)).seed == 0


@pytest.mark.parametrize(
    ("fields", "code", "param", "found"),
    [
        ({"temperature": 2.01}, "invalid_value", "temperature", "2.01"),
        ({"temperature": "1"}, "invalid_type", "temperature", '"1"'),
        ({"temperature": True}, "invalid_type", "temperature", "true"),
        ({"temperature": 10**400}, "invalid_type", "temperature", "1000"),
        ({"temperature": float("inf")}, "invalid_value", "temperature", "Infinity"),
        ({"top_p": -0.1}, "invalid_value", "top_p", "-0.1"),
        ({"top_k": -2}, "invalid_value", "top_k", "-2"),
        ({"min_p": 1.1}, "invalid_value", "min_p", "1.1"),
        ({"presence_penalty": 2.1}, "invalid_value", "presence_penalty", "2.1"),
        ({"frequency_penalty": False}, "invalid_type", "frequency_penalty", "false"),
        ({"repetition_penalty": 0}, "invalid_value", "repetition_penalty", "0"),
        ({"logit_bias": [1]}, "invalid_type", "logit_bias", "a list of 1"),
        ({"logit_bias": {"a": 1}}, "invalid_value", "logit_bias", '"a"'),
        ({"logit_bias": {"-1": 1}}, "invalid_value", "logit_bias", '"-1"'),
        ({"logit_bias": {"9" * 10: 1}}, "invalid_value", "logit_bias", '"9999999999"'),
        ({"logit_bias": {"1": "2"}}, "invalid_type", "logit_bias.1", '"2"'),
        ({"logit_bias": {"1": True}}, "invalid_type", "logit_bias.1", "true"),
        ({"logit_bias": {"1": -101}}, "invalid_value", "logit_bias.1", "-101"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "invalid_value", "logit_bias", "an object"),
        ({"min_tokens": -1}, "invalid_value", "min_tokens", "-1"),
        ({"min_tokens": 5, "max_tokens": 4}, "invalid_value", "min_tokens", "5"),
        ({"top_k": 1.0}, "invalid_type", "top_k", "1.0"),
        ({"seed": 2**63}, "invalid_value", "seed", str(2**63)),
        ({"seed": "7"}, "invalid_type", "seed", '"7"'),
        ({"n": 0}, "invalid_value", "n", "0"),
        ({"n": 129}, "invalid_value", "n", "129"),
        ({"n": True}, "invalid_type", "n", "true"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens", "0"),
        ({"max_tokens": 1.5}, "invalid_type", "max_tokens", "1.5"),
        ({"max_completion_tokens": -1}, "invalid_value", "max_completion_tokens", "-1"),
        ({"stop": 5}, "invalid_type", "stop", "5"),
        ({"stop": ["a", 5]}, "invalid_type", "stop[1]", "5"),
        ({"stop": ["a", ""]}, "invalid_value", "stop[1]", '""'),
        ({"stop": ["a"] * 5}, "invalid_value", "stop", "a list of 5"),
        ({"stop_token_ids": [1, -1]}, "invalid_value", "stop_token_ids[1]", "-1"),
        ({"stop_token_ids": 3}, "invalid_type", "stop_token_ids", "3"),
        ({"ignore_eos": 1}, "invalid_type", "ignore_eos", "1"),
        ({"model": 3}, "invalid_type", "model", "3"),
        ({"messages": None}, "missing_required_parameter", "messages", "nothing"),
        ({"messages": {}}, "invalid_type", "messages", "an empty object"),
        ({"messages": []}, "invalid_value", "messages", "an empty list"),
        ({"messages": [USER, "x"]}, "invalid_type", "messages[1]", '"x"'),
        ({"user": 3}, "invalid_type", "user", "3"),
        ({"metadata": "x"}, "invalid_type", "metadata", '"x"'),
        ({"parallel_tool_calls": 1}, "invalid_type", "parallel_tool_calls", "1"),
        ({"max_tool_calls": True}, "invalid_type", "max_tool_calls", "true"),
    ],
)
def test_field_out_of_type_or_range(fields: dict[str, Any], code: str, param: str, found: str) -> None:
    error = fault(Url.CHAT, **fields)
    assert (error.code, error.param) == (code, param)
    assert error.text.startswith(f"found {found}")
    assert ", expected " in error.text


def test_log_probabilities_are_asked_for() -> None:
    """A chat says it with two fields, a completion with a number; 0 is the token's own alone."""
    assert chat().sampling.num_logprobs is completion().sampling.num_logprobs is None
    assert chat(logprobs=False, top_logprobs=0).sampling.num_logprobs is None
    assert chat(logprobs=True).sampling.num_logprobs == completion(logprobs=0).sampling.num_logprobs == 0
    assert chat(logprobs=True, top_logprobs=20).sampling.num_logprobs == 20
    assert completion(logprobs=5).sampling.num_logprobs == 5


@pytest.mark.parametrize(
    ("url", "fields", "code", "param"),
    [
        (Url.CHAT, {"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        (Url.CHAT, {"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
        (Url.CHAT, {"logprobs": 3}, "invalid_type", "logprobs"),
        (Url.CHAT, {"return_token_ids": 1}, "invalid_type", "return_token_ids"),
        (Url.COMPLETIONS, {"logprobs": True}, "invalid_type", "logprobs"),
        (Url.COMPLETIONS, {"logprobs": -1}, "invalid_value", "logprobs"),
        (Url.COMPLETIONS, {"top_logprobs": 3}, "unsupported_parameter", "top_logprobs"),
        (Url.RESPONSES, {"top_logprobs": 3}, "unsupported_parameter", "top_logprobs"),
        (Url.RESPONSES, {"return_token_ids": True}, "unsupported_parameter", "return_token_ids"),
    ],
)
def test_log_probabilities_at_fault(url: Url, fields: dict[str, Any], code: str, param: str) -> None:
    error = fault(url, **fields)
    assert (error.code, error.param) == (code, param)


def test_every_field_has_its_phrase() -> None:
    """A field added without one would make its error a KeyError."""
    for model in (ChatBody, CompletionBody, ResponseBody, Item, Message, Part):
        assert set(model.model_fields) <= set(EXPECTED)


def test_message_stays_short_whatever_was_found() -> None:
    for value in ("x" * 10**6, "\u2028\x1b[2J" * 1000, list(range(10**5)), 10**4000):
        text = fault(Url.CHAT, temperature=value).text
        assert len(text) < 200
        assert text.isprintable()
    error = fault(Url.CHAT, **{"k\n" * 1000: 1})
    assert len(error.param) < 200
    assert error.param.isprintable()


@pytest.mark.parametrize("field", ["messages", "stop_token_ids"])
def test_long_list_of_wrong_values_is_given_up_at_the_first(field: str) -> None:
    """One complaint is kept, not one an element."""
    with pytest.raises(ValidationError) as caught:
        ChatBody.model_validate({"messages": [USER], field: ["x"] * 1000})
    assert caught.value.error_count() == 1
