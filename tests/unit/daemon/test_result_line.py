"""Output and error lines: OpenAI's own models read them, and they depend on nothing but the file and the answer."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from pydantic import BaseModel

from daemon.errors import InvariantError
from daemon.made_with import MadeWith
from daemon.request_record import Url
from daemon.result_line import LineBuilder, LineError, LineFormat, Refusal, default_seed
from pipelines.core.request import Choice, FinishReason, RequestOutput, TextLogprob, TextLogprobs, ToolCall

STOPPED = Choice("Paris \u00fc\U0001f600", FinishReason.STOP, 5)
CUT = Choice('a "quoted"\nline', FinishReason.LENGTH, 7)
OUTPUT = RequestOutput(key=9, choices=(STOPPED,), num_prompt_tokens=11, num_cached_tokens=3)
REFUSAL = Refusal("context_length_exceeded", "x.jsonl:3: messages: found 9 tokens, expected 8", "messages")
CREATED = 1_700_000_000
MODELS: dict[Url, type[BaseModel]] = {
    Url.CHAT: ChatCompletion,
    Url.COMPLETIONS: Completion,
    Url.RESPONSES: Response,
}


def builder(line_format: LineFormat = LineFormat.BATCH, fingerprint: str = "f") -> LineBuilder:
    return LineBuilder(fingerprint, CREATED, MadeWith("SmolLM2", "123"), line_format)


def parsed(line: bytes) -> Any:
    """Parse one line and see that it is one."""
    assert line.endswith(b"\n")
    assert len(line.decode().splitlines()) == 1
    return json.loads(line)


def check_body(url: Url, body: dict[str, Any]) -> BaseModel:
    """Validate a body with OpenAI's model; every required field is there, with a right value."""
    return MODELS[url].model_validate(body, strict=True)


def told(text: str, data: bytes, logprob: float) -> TextLogprob:
    return TextLogprob(text, data, logprob)


TOLD = (
    TextLogprobs(told("Par", b"Par", -0.25), (told("Par", b"Par", -0.25), told("Lon", b"Lon", -2.0))),
    TextLogprobs(told("\ufffd", b"\xc3", -0.5), (told("\ufffd", b"\xc3", -0.5), told("\ufffd", b"\xc5", -3.0))),
    TextLogprobs(told("<|end|>", b"", -0.125), ()),
)


CALLS = (ToolCall("f", '{"x": 1}'), ToolCall("f", '{"x": 1}'))


def test_calls_are_in_openais_form_and_each_has_an_id_of_its_own() -> None:
    """Which depends on the file's content, the request, the choice and the call's place, and on nothing else."""
    calling = Choice("", FinishReason.STOP, 5, tool_calls=CALLS)
    speaking = replace(calling, text="Look: ")
    line = builder().result(3, "c", Url.CHAT, replace(OUTPUT, choices=(calling, speaking)))
    body = parsed(line)["response"]["body"]
    chat = check_body(Url.CHAT, body)
    assert isinstance(chat, ChatCompletion)
    assert [choice.message.content for choice in chat.choices] == [None, "Look: "]
    assert {choice.finish_reason for choice in chat.choices} == {"tool_calls"}
    calls = [call for choice in body["choices"] for call in choice["message"]["tool_calls"]]
    assert [call["function"] for call in calls] == [{"name": "f", "arguments": '{"x": 1}'}] * 4
    ids = {call["id"] for call in calls}
    assert len(ids) == 4
    assert builder().result(3, "c", Url.CHAT, replace(OUTPUT, choices=(calling, speaking))) == line
    for other in (builder().result(4, "c", Url.CHAT, replace(OUTPUT, choices=(calling,))),
                  builder(fingerprint="g").result(3, "c", Url.CHAT, replace(OUTPUT, choices=(calling,)))):  # fmt: skip
        found = parsed(other)["response"]["body"]["choices"][0]["message"]["tool_calls"]
        assert not ids & {call["id"] for call in found}


def test_an_answer_that_was_cut_says_so_whatever_it_called() -> None:
    cut = Choice("", FinishReason.LENGTH, 5, tool_calls=CALLS)
    (choice,) = parsed(builder().result(0, "c", Url.CHAT, replace(OUTPUT, choices=(cut,))))["response"]["body"][
        "choices"
    ]
    assert (choice["finish_reason"], len(choice["message"]["tool_calls"])) == ("length", 2)


@pytest.mark.parametrize("url", [Url.CHAT, Url.RESPONSES])
def test_a_thought_stands_apart_and_its_tokens_are_counted(url: Url) -> None:
    thinking = Choice("Yes", FinishReason.STOP, 9, reasoning="Hm.", num_reasoning_tokens=6)
    body = parsed(builder().result(0, "c", url, replace(OUTPUT, choices=(thinking,))))["response"]["body"]
    read = check_body(url, body)
    if isinstance(read, ChatCompletion):
        assert body["choices"][0]["message"]["reasoning_content"] == "Hm."
        assert body["choices"][0]["message"]["content"] == "Yes"
        assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 6
    else:
        assert isinstance(read, Response)
        assert read.output_text == "Yes"
        assert [item.type for item in read.output] == ["reasoning", "message"]
        assert body["output"][0]["content"] == [{"type": "reasoning_text", "text": "Hm."}]
        assert body["usage"]["output_tokens_details"] == {"reasoning_tokens": 6}


def test_a_text_is_the_answer_without_its_thought() -> None:
    thinking = Choice("Yes", FinishReason.STOP, 9, reasoning="Hm.", num_reasoning_tokens=6)
    assert builder(LineFormat.TEXT).result(0, None, Url.CHAT, replace(OUTPUT, choices=(thinking,))) == b"Yes\n"
    plain = parsed(builder(LineFormat.PLAIN).result(0, "c", Url.CHAT, replace(OUTPUT, choices=(thinking,))))
    assert (plain["text"], plain["reasoning_content"]) == ("Yes", "Hm.")


def test_log_probabilities_are_in_openais_forms() -> None:
    """One entry a token; control tokens have a name and no bytes; of two with one text the likelier stands in the map."""
    output = replace(OUTPUT, choices=(replace(STOPPED, logprobs=TOLD),))
    chat = check_body(Url.CHAT, parsed(builder().result(0, "a", Url.CHAT, output))["response"]["body"])
    assert isinstance(chat, ChatCompletion)
    found = chat.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert [(one.token, one.logprob, one.bytes) for one in found.content] == [
        ("Par", -0.25, [80, 97, 114]),
        ("\ufffd", -0.5, [195]),
        ("<|end|>", -0.125, None),
    ]
    assert [[other.token for other in one.top_logprobs] for one in found.content] == [
        ["Par", "Lon"],
        ["\ufffd"] * 2,
        [],
    ]
    completion = check_body(
        Url.COMPLETIONS, parsed(builder().result(0, "a", Url.COMPLETIONS, output))["response"]["body"]
    )
    assert isinstance(completion, Completion)
    old = completion.choices[0].logprobs
    assert old is not None
    assert (old.tokens, old.token_logprobs, old.text_offset) == (
        ["Par", "\ufffd", "<|end|>"],
        [-0.25, -0.5, -0.125],
        [0, 3, 4],
    )
    assert old.top_logprobs == [{"Par": -0.25, "Lon": -2.0}, {"\ufffd": -0.5}, {}]
    plain = parsed(builder(LineFormat.PLAIN).result(0, "a", Url.CHAT, output))
    assert plain["logprobs"] == chat.choices[0].logprobs.model_dump()["content"]  # type: ignore[union-attr]


@pytest.mark.parametrize("url", Url)
def test_a_batch_line_has_openais_shape(url: Url) -> None:
    """The envelope has just OpenAI's keys; the body is read by the model of its url."""
    line = parsed(builder().result(3, "my id", url, OUTPUT))
    assert list(line) == ["id", "custom_id", "response", "error"]
    assert list(line["response"]) == ["status_code", "request_id", "body"]
    assert (line["custom_id"], line["error"], line["response"]["status_code"]) == ("my id", None, 200)
    assert line["id"].startswith("batch_req_")
    body = check_body(url, line["response"]["body"])
    assert body.model == "SmolLM2"
    assert getattr(body, "created", None) or body.created_at == CREATED


def test_a_chat_completion_says_what_was_answered() -> None:
    """All choices, in order, with their reasons and the sum of their tokens."""
    output = replace(OUTPUT, choices=(STOPPED, CUT))
    body = ChatCompletion.model_validate(parsed(builder().result(0, "x", Url.CHAT, output))["response"]["body"])
    assert [choice.message.content for choice in body.choices] == [STOPPED.text, CUT.text]
    assert [choice.finish_reason for choice in body.choices] == ["stop", "length"]
    assert [choice.index for choice in body.choices] == [0, 1]
    assert body.choices[0].message.role == "assistant"
    assert body.usage is not None
    assert (body.usage.prompt_tokens, body.usage.completion_tokens, body.usage.total_tokens) == (11, 12, 23)
    assert body.system_fingerprint == "fp_123"
    assert body.id.startswith("chatcmpl-")


def test_token_ids_stand_where_vllm_has_them() -> None:
    """OpenAI's models pass over them; without being asked for there are none."""
    choices = (replace(STOPPED, token_ids=(1, 2)), replace(CUT, token_ids=(3,)))
    output = replace(OUTPUT, choices=choices, prompt_token_ids=(7, 8))
    chat = parsed(builder().result(0, "x", Url.CHAT, output))["response"]["body"]
    check_body(Url.CHAT, chat)
    assert (chat["prompt_token_ids"], [choice["token_ids"] for choice in chat["choices"]]) == ([7, 8], [[1, 2], [3]])
    completion = parsed(builder().result(0, "x", Url.COMPLETIONS, output))["response"]["body"]
    check_body(Url.COMPLETIONS, completion)
    assert [choice["prompt_token_ids"] for choice in completion["choices"]] == [[7, 8], [7, 8]]
    plain = parsed(builder(LineFormat.PLAIN).result(0, "x", Url.CHAT, replace(output, choices=choices[:1])))
    assert (plain["token_ids"], plain["prompt_token_ids"]) == ([1, 2], [7, 8])
    plain = parsed(builder(LineFormat.PLAIN).result(0, "x", Url.CHAT, output))
    assert [choice["token_ids"] for choice in plain["choices"]] == [[1, 2], [3]]
    assert b"token_ids" not in builder().result(0, "x", Url.CHAT, OUTPUT)


@pytest.mark.parametrize("url", [Url.CHAT, Url.COMPLETIONS])
@pytest.mark.parametrize("num_choices", [1, 2, 128])
def test_any_number_of_choices_is_read_by_openais_model(url: Url, num_choices: int) -> None:
    """Strictly: with no value of another type than the model says, whatever mixture of ends there is."""
    choices = tuple(CUT if number % 2 else STOPPED for number in range(num_choices))
    body = parsed(builder().result(0, "x", url, replace(OUTPUT, choices=choices, seed=1)))["response"]["body"]
    checked = check_body(url, body)
    assert [choice.index for choice in checked.choices] == list(range(num_choices))
    assert checked.usage.completion_tokens == sum(choice.num_tokens for choice in choices)


def test_a_completion_says_what_was_answered() -> None:
    """The text form, with two choices."""
    output = replace(OUTPUT, choices=(STOPPED, CUT))
    body = Completion.model_validate(parsed(builder().result(0, "x", Url.COMPLETIONS, output))["response"]["body"])
    assert [(choice.text, choice.finish_reason) for choice in body.choices] == [
        (STOPPED.text, "stop"),
        (CUT.text, "length"),
    ]
    assert body.usage is not None
    assert body.usage.total_tokens == 23


@pytest.mark.parametrize(
    ("choice", "status", "reason"), [(STOPPED, "completed", None), (CUT, "incomplete", "max_output_tokens")]
)
def test_a_response_says_what_was_answered(choice: Choice, status: str, reason: str | None) -> None:
    """OpenAI's convenience property finds the text; a cut answer is incomplete and says why."""
    output = replace(OUTPUT, choices=(choice,))
    body = Response.model_validate(parsed(builder().result(0, "x", Url.RESPONSES, output))["response"]["body"])
    assert (body.output_text, body.status) == (choice.text, status)
    assert (body.incomplete_details.reason if body.incomplete_details else None) == reason
    assert body.usage is not None
    assert (body.usage.input_tokens, body.usage.output_tokens) == (11, choice.num_tokens)


@pytest.mark.parametrize("url", Url)
def test_the_seed_of_a_sampled_request_is_recorded(url: Url) -> None:
    """It stands in the body whole, up to 2**63 - 1, and OpenAI's model still reads it; a greedy request has none."""
    seed = 2**63 - 1
    body = parsed(builder().result(0, "x", url, replace(OUTPUT, seed=seed)))["response"]["body"]
    assert body["seed"] == seed
    check_body(url, body)
    assert "seed" not in parsed(builder().result(0, "x", url, OUTPUT))["response"]["body"]
    assert parsed(builder(LineFormat.PLAIN).result(0, "x", url, replace(OUTPUT, seed=seed)))["seed"] == seed


@pytest.mark.parametrize("line_format", [LineFormat.BATCH, LineFormat.TEXT])
def test_a_refused_request_has_openais_error_body(line_format: LineFormat) -> None:
    """As OpenAI does it: `error` null, the reason in the response's body; also beside a bare text answer."""
    line = parsed(builder(line_format).refused(2, "c", REFUSAL))
    assert (line["custom_id"], line["error"], line["response"]["status_code"]) == ("c", None, 400)
    assert line["response"]["body"] == {
        "error": {
            "message": REFUSAL.message,
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    }


@pytest.mark.parametrize("code", LineError)
def test_a_request_without_answer_has_a_line_level_error(code: LineError) -> None:
    """No response, an error with its code."""
    line = parsed(builder().failed(2, "c", code, "why"))
    assert list(line) == ["id", "custom_id", "response", "error"]
    assert (line["response"], line["error"]) == (None, {"code": code.value, "message": "why"})
    assert [error.value for error in LineError] == [
        "batch_expired", "batch_cancelled", "request_timeout", "engine_error",
    ]  # fmt: skip


def test_plain_lines() -> None:
    """Id, text, reason, usage, model and nothing else; several choices in a list; errors under `error`."""
    plain = builder(LineFormat.PLAIN)
    usage = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
    assert parsed(plain.result(0, "x", Url.CHAT, OUTPUT)) == {
        "id": "x", "text": STOPPED.text, "finish_reason": "stop", "usage": usage, "model": "SmolLM2",
        "system_fingerprint": "fp_123",
    }  # fmt: skip
    both = parsed(plain.result(0, "x", Url.CHAT, replace(OUTPUT, choices=(STOPPED, CUT))))
    assert list(both) == ["id", "choices", "usage", "model", "system_fingerprint"]
    assert both["choices"][1] == {"text": CUT.text, "finish_reason": "length"}
    refused = parsed(plain.refused(0, "x", REFUSAL))
    assert refused["id"] == "x"
    assert refused["error"]["param"] == "messages"
    failed = parsed(plain.failed(0, "x", LineError.EXPIRED, "late"))
    assert failed == {"id": "x", "error": {"code": "batch_expired", "message": "late"}}


@pytest.mark.parametrize(("text", "expected"), [("Paris.", b"Paris.\n"), ("Paris.\n", b"Paris.\n"), ("", b"\n")])
def test_a_text_answer_is_bare_and_ends_in_a_newline(text: str, expected: bytes) -> None:
    """As text files do; what is there already is not doubled."""
    output = replace(OUTPUT, choices=(Choice(text, FinishReason.STOP, 1),))
    assert builder(LineFormat.TEXT).result(0, "x", Url.CHAT, output) == expected


def test_lines_depend_on_nothing_but_file_index_and_answer() -> None:
    """The same request gives the same bytes; what depends on scheduling (key, cached tokens) is not in them."""
    for line_format in LineFormat:
        first = builder(line_format).result(3, "x", Url.CHAT, replace(OUTPUT, seed=5))
        again = builder(line_format).result(3, "x", Url.CHAT, replace(OUTPUT, key=77, num_cached_tokens=0, seed=5))
        assert first == again


def test_ids_are_those_of_file_and_request() -> None:
    """Another file or another index has another id; they are known forever, so this one is pinned."""
    lines = [
        parsed(builder(fingerprint=fingerprint).result(index, "x", Url.RESPONSES, OUTPUT))
        for fingerprint in ("f", "g")
        for index in (0, 1, 10)
    ]
    for ids in (
        [line["id"] for line in lines],
        [line["response"]["request_id"] for line in lines],
        [line["response"]["body"]["id"] for line in lines],
        [line["response"]["body"]["output"][0]["id"] for line in lines],
    ):
        assert len(set(ids)) == len(lines)
    assert lines[0]["id"] == "batch_req_7f34523c2ef8bda5fbcd68d117d3fc1d"


def test_default_seeds_are_spread_and_known_forever() -> None:
    """In [0, 2**63), different for each request and file, above 2**62 for half of them, and pinned."""
    seeds = [default_seed(fingerprint, index) for fingerprint in ("f", "g") for index in range(1000)]
    assert len(set(seeds)) == 2000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert 900 < sum(seed >= 2**62 for seed in seeds) < 1100
    assert default_seed("f", 0) == 8_706_623_313_313_791_093


def test_a_cancelled_choice_is_no_result() -> None:
    """Half an answer never looks like a whole one."""
    output = replace(OUTPUT, choices=(STOPPED, Choice("par", FinishReason.CANCELLED, 1)))
    with pytest.raises(InvariantError, match="cancelled"):
        builder().result(0, "x", Url.CHAT, output)


def test_a_response_has_one_choice() -> None:
    """OpenAI's form has no place for a second."""
    with pytest.raises(InvariantError, match="one choice"):
        builder().result(0, "x", Url.RESPONSES, replace(OUTPUT, choices=(STOPPED, CUT)))


@given(st.text(), st.text(), st.sampled_from(Url), st.sampled_from([LineFormat.BATCH, LineFormat.PLAIN]))
def test_any_text_comes_back_as_it_was(text: str, custom_id: str, url: Url, line_format: LineFormat) -> None:
    """Whatever the model or the person writes: one line, valid UTF-8, and the same after parsing."""
    output = replace(OUTPUT, choices=(Choice(text, FinishReason.STOP, 1),))
    line = parsed(builder(line_format).result(0, custom_id, url, output))
    if line_format is LineFormat.PLAIN:
        assert (line["id"], line["text"]) == (custom_id, text)
        return
    assert line["custom_id"] == custom_id
    body = line["response"]["body"]
    match url:
        case Url.CHAT:
            assert body["choices"][0]["message"]["content"] == text
        case Url.COMPLETIONS:
            assert body["choices"][0]["text"] == text
        case Url.RESPONSES:
            assert body["output"][0]["content"][0]["text"] == text
