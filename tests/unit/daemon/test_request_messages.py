"""What is said to the model: messages, inputs, prompts, and what a chat template is told besides."""

from typing import Any

import pytest
from request_bodies import USER, chat, completion, fault, message_fault, response

from daemon.request_record import Url


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


def test_a_message_says_what_of_it_is_not_supported_rather_than_what_is_missing() -> None:
    """Spoken words have no content, an image no text: that these are missing is not the point."""
    error = message_fault(role="assistant", content=None, audio={"id": "1"})
    assert (error.code, error.param) == ("unsupported_parameter", "messages[1].audio")
    error = message_fault(role="user", content=[{"type": "image_url", "image_url": {"url": "x"}}])
    assert (error.code, error.param) == ("unsupported_value", "messages[1].content[0].type")
    assert error.text == 'found "image_url", which is not supported, expected "text", "input_text" or "output_text"'
