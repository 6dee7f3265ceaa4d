"""What a body may ask for: every field's type and range, and every key that is refused by name."""

from typing import Any

import pytest
from pydantic import ValidationError

from daemon.request_body import Body, read_body
from daemon.request_keys import BODY_RULES
from daemon.request_problem import InvalidRequestError
from daemon.request_record import Url
from daemon.request_schema import EXPECTED, ChatBody, CompletionBody, Item, Message, Part, ResponseBody
from pipelines.core.request import SamplingParams

USER = {"role": "user", "content": "Hi"}


def chat(**fields: Any) -> Body:
    return read_body(Url.CHAT, {"messages": [USER]} | fields)


def completion(**fields: Any) -> Body:
    return read_body(Url.COMPLETIONS, {"prompt": "Hi"} | fields)


def response(**fields: Any) -> Body:
    return read_body(Url.RESPONSES, {"input": "Hi"} | fields)


def fault(url: Url, **fields: Any) -> InvalidRequestError:
    prompt = {Url.CHAT: {"messages": [USER]}, Url.COMPLETIONS: {"prompt": "Hi"}, Url.RESPONSES: {"input": "Hi"}}[url]
    with pytest.raises(InvalidRequestError) as caught:
        read_body(url, prompt | fields)
    return caught.value


def message_fault(**message: Any) -> InvalidRequestError:
    return fault(Url.CHAT, messages=[USER, message])


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


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ({"role": "wizard", "content": "x"}, "invalid_value", "messages[1].role"),
        ({"role": 5, "content": "x"}, "invalid_type", "messages[1].role"),
        ({"content": "x"}, "missing_required_parameter", "messages[1].role"),
        ({"role": None, "content": "x"}, "missing_required_parameter", "messages[1].role"),
        ({"role": "function", "content": "x", "name": "f"}, "unsupported_value", "messages[1].role"),
        ({"role": "user"}, "missing_required_parameter", "messages[1].content"),
        ({"role": "user", "content": None}, "missing_required_parameter", "messages[1].content"),
        ({"role": "user", "content": 5}, "invalid_type", "messages[1].content"),
        ({"role": "user", "content": {}}, "invalid_type", "messages[1].content"),
        ({"role": "user", "content": []}, "invalid_value", "messages[1].content"),
        ({"role": "user", "content": ["x"]}, "invalid_type", "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": "txt", "text": ""}]}, "invalid_value", "messages[1].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "missing_required_parameter", "messages[1].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "invalid_type", "messages[1].content[0].text"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "unsupported_value",
            "messages[1].content[0].type",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "x", "colour": 1}]},
            "unknown_parameter",
            "messages[1].content[0].colour",
        ),
        ({"role": "user", "content": "x", "name": "Ada"}, "unsupported_parameter", "messages[1].name"),
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "unsupported_parameter", "messages[1].tool_calls"),
        ({"role": "user", "content": "x", "tool_call_id": "1"}, "unsupported_parameter", "messages[1].tool_call_id"),
        ({"role": "user", "contents": "x", "content": "y"}, "unknown_parameter", "messages[1].contents"),
    ],
)
def test_message_at_fault_is_named_by_its_number(message: dict[str, Any], code: str, param: str) -> None:
    error = message_fault(**message)
    assert (error.code, error.param) == (code, param)


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_thoughts_are_of_answers(key: str) -> None:
    """As a pipeline that splits them gives them; under the one name that templates have."""
    user = {"role": "user", "content": "x"}
    body = chat(messages=[user, {"role": "assistant", "content": "a", key: "Hm."}])
    assert (body.messages or ())[1] == {"role": "assistant", "content": "a", "reasoning_content": "Hm."}
    assert chat(messages=[user, {"role": "assistant", "content": "a", key: ""}]).messages[1].keys() == {
        "role",
        "content",
    }
    error = message_fault(role="user", content="x", **{key: "Hm."})
    assert (error.code, error.param) == ("unsupported_parameter", f"messages[1].{key}")
    error = message_fault(role="assistant", content="x", **{key: 1})
    assert (error.code, error.param) == ("invalid_type", f"messages[1].{key}")


def test_messages_are_made_one_form() -> None:
    """Parts are joined, developer speaks as system, and what a former answer carries besides does not matter."""
    body = chat(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"role": "assistant", "content": "c", "refusal": None, "tool_calls": [], "annotations": [], "audio": None},
            {"role": "system", "content": ""},
        ]
    )
    assert body.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "c"},
        {"role": "system", "content": ""},
    )


def test_input_of_a_response() -> None:
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"id": "m", "status": "completed", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
    ]
    body = response(input=items, instructions="Be brief.")
    assert body.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    )
    assert response(input="").messages == ({"role": "user", "content": ""},)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"input": None}, "missing_required_parameter", "input"),
        ({"input": []}, "invalid_value", "input"),
        ({"input": 5}, "invalid_type", "input"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "unsupported_value", "input[0].type"),
        ({"input": [{"type": "message", "content": "x"}]}, "missing_required_parameter", "input[0].role"),
        ({"input": [USER | {"type": "item_reference"}]}, "unsupported_value", "input[0].type"),
        ({"instructions": 5}, "invalid_type", "instructions"),
        ({"n": 2}, "unsupported_parameter", "n"),
        ({"messages": [USER]}, "unknown_parameter", "messages"),
        ({"reasoning": {"effort": "low"}}, "unsupported_parameter", "reasoning"),
        ({"text": {"format": {"type": "xml"}}}, "unsupported_value", "text.format.type"),
    ],
)
def test_response_at_fault(fields: dict[str, Any], code: str, param: str) -> None:
    error = fault(Url.RESPONSES, **fields)
    assert (error.code, error.param) == (code, param)


def test_prompt_is_a_string_or_token_ids_alone_or_in_a_list_of_one() -> None:
    assert completion(prompt="x").text == completion(prompt=["x"]).text == "x"
    assert completion(prompt=[1, 0]).token_ids == completion(prompt=[[1, 0]]).token_ids == (1, 0)
    assert completion(prompt="").text == ""


@pytest.mark.parametrize(
    ("prompt", "code", "param"),
    [
        (None, "missing_required_parameter", "prompt"),
        (5, "invalid_type", "prompt"),
        ({}, "invalid_type", "prompt"),
        ([], "invalid_value", "prompt"),
        ([[]], "invalid_value", "prompt[0]"),
        (["a", "b"], "unsupported_parameter", "prompt"),
        ([[1], [2]], "unsupported_parameter", "prompt"),
        ([1, "a"], "invalid_type", "prompt[1]"),
        ([1, True], "invalid_type", "prompt[1]"),
        ([1, 2.0], "invalid_type", "prompt[1]"),
        ([1, -2], "invalid_value", "prompt[1]"),
        ([[1, [2]]], "invalid_type", "prompt[0][1]"),
    ],
)
def test_prompt_at_fault(prompt: Any, code: str, param: str) -> None:
    error = fault(Url.COMPLETIONS, prompt=prompt)
    assert (error.code, error.param) == (code, param)


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


def test_what_a_chat_template_is_told_besides() -> None:
    assert chat().template_kwargs is None
    assert chat(chat_template_kwargs={}).template_kwargs is None
    assert chat(chat_template_kwargs={"enable_thinking": False}).template_kwargs == {"enable_thinking": False}
    assert chat(reasoning_effort="low").template_kwargs == {"reasoning_effort": "low"}
    both = chat(chat_template_kwargs={"reasoning_effort": "low", "x": [1]}, reasoning_effort="low")
    assert both.template_kwargs == {"reasoning_effort": "low", "x": [1]}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"chat_template_kwargs": [1]}, "invalid_type", "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tools": []}}, "unsupported_parameter", "chat_template_kwargs.tools"),
        ({"chat_template_kwargs": {"tokenize": True}}, "unsupported_parameter", "chat_template_kwargs.tokenize"),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
            "invalid_value",
            "reasoning_effort",
        ),
        ({"reasoning_effort": 1}, "invalid_type", "reasoning_effort"),
        ({"add_generation_prompt": False}, "unsupported_value", "add_generation_prompt"),
        ({"continue_final_message": True}, "invalid_value", "messages[0].role"),
        ({"continue_final_message": "yes"}, "invalid_type", "continue_final_message"),
    ],
)
def test_what_a_chat_template_cannot_be_told(fields: dict[str, Any], code: str, param: str) -> None:
    error = fault(Url.CHAT, **fields)
    assert (error.code, error.param) == (code, param)


def test_an_answer_goes_on_with_the_assistants_message_only_where_asked_for() -> None:
    turns = [USER, {"role": "assistant", "content": "Sure"}]
    assert not chat(messages=turns).continues_message
    assert chat(messages=turns, continue_final_message=True).continues_message
    assert chat(messages=turns, continue_final_message=True, add_generation_prompt=False).continues_message
    error = fault(Url.CHAT, messages=turns, continue_final_message=True, add_generation_prompt=True)
    assert (error.code, error.param) == ("unsupported_value", "add_generation_prompt")


@pytest.mark.parametrize("key", ["chat_template_kwargs", "reasoning_effort", "continue_final_message"])
def test_what_concerns_a_chat_template_is_no_field_of_a_completion(key: str) -> None:
    value = {"chat_template_kwargs": {"a": 1}, "reasoning_effort": "low", "continue_final_message": True}[key]
    error = fault(Url.COMPLETIONS, **{key: value})
    assert (error.code, error.param) == ("unsupported_parameter", key)


@pytest.mark.parametrize("key", ["enable_thinking", "extra_body", "extra_headers", "timeout", "thinking"])
def test_what_has_its_place_elsewhere_is_told_where(key: str) -> None:
    error = fault(Url.CHAT, **{key: 1})
    assert (error.code, error.param) == ("unsupported_parameter", key)
    assert "expected no such key here; its place is in " in error.text


def test_a_message_says_what_of_it_is_not_supported_rather_than_what_is_missing() -> None:
    """Spoken words have no content, an image no text: that these are missing is not the point."""
    error = message_fault(role="assistant", content=None, audio={"id": "1"})
    assert (error.code, error.param) == ("unsupported_parameter", "messages[1].audio")
    error = message_fault(role="user", content=[{"type": "image_url", "image_url": {"url": "x"}}])
    assert (error.code, error.param) == ("unsupported_value", "messages[1].content[0].type")
    assert error.text == 'found "image_url", which is not supported, expected "text", "input_text" or "output_text"'


@pytest.mark.parametrize("url", list(Url))
def test_unknown_key_is_named_with_the_nearest_known(url: Url) -> None:
    error = fault(url, temprature=1)
    assert (error.code, error.param) == ("unknown_parameter", "temprature")
    assert error.text == 'unknown key, the nearest known key is "temperature"'
    assert fault(url, qqqq=1).text == "unknown key"


def test_misspelt_key_is_said_rather_than_that_the_right_one_is_missing() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_body(Url.CHAT, {"mesages": [USER]})
    assert (caught.value.code, caught.value.param) == ("unknown_parameter", "mesages")


def test_every_field_has_its_phrase() -> None:
    """A field added without one would make its error a KeyError."""
    for model in (ChatBody, CompletionBody, ResponseBody, Item, Message, Part):
        assert set(model.model_fields) <= set(EXPECTED)


def test_no_field_is_also_a_key_that_is_not_honoured() -> None:
    """But for those that some endpoints honour and others do not."""
    limits = {"max_tokens", "max_completion_tokens"}
    of_chats = {"n", "chat_template_kwargs", "reasoning_effort", "continue_final_message", "add_generation_prompt"}
    told = {"logprobs", "return_token_ids"}
    of_chats |= {"tools", "tool_choice", "parallel_tool_calls"}
    assert ChatBody.model_fields.keys() & BODY_RULES.keys() == of_chats | limits | told | {"top_logprobs"}
    assert CompletionBody.model_fields.keys() & BODY_RULES.keys() == {"n", "max_tokens"} | told
    assert ResponseBody.model_fields.keys() & BODY_RULES.keys() == {"text", "max_output_tokens"}


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
