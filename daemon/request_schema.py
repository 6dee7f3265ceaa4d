"""The bodies of requests as pydantic models: what is honoured, of which type, in which range.

Strict: no value is turned into one of another type. `null` means not given. Keys that are no fields here land in
`model_extra`; `daemon.request_keys` says what becomes of them. Every field has its phrase in `EXPECTED`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from pipelines.core.request import MAX_LOGPROBS

MAX_STOP_STRINGS = 4
MAX_CHOICES = 128
MAX_BIASES = 1024

# What a field has to be, as messages say it; `name[]` is an element of a list.
EXPECTED: Mapping[str, str] = {
    "model": "a string",
    "temperature": "a number from 0 to 2",
    "top_p": "a number from 0 to 1",
    "top_k": "a whole number, -1 or more",
    "seed": "a whole number from -2**63 to 2**63 - 1",
    "stop": f"a string or a list of at most {MAX_STOP_STRINGS} strings",
    "stop[]": "a string that is not empty",
    "stop_token_ids": "a list of token ids",
    "stop_token_ids[]": "a token id, a whole number of 0 or more",
    "ignore_eos": "true or false",
    "min_p": "a number from 0 to 1",
    "presence_penalty": "a number from -2 to 2",
    "frequency_penalty": "a number from -2 to 2",
    "repetition_penalty": "a number above 0 and at most 10",
    "logit_bias": f"an object of at most {MAX_BIASES} token ids, each with a number from -100 to 100",
    "min_tokens": "a whole number of 0 or more, at most max_tokens",
    "n": f"a whole number from 1 to {MAX_CHOICES}",
    "max_tokens": "a whole number, 1 or more",
    "max_completion_tokens": "a whole number, 1 or more",
    "max_output_tokens": "a whole number, 1 or more",
    "chat_template_kwargs": "an object: names that the model's chat template knows, and their values",
    "reasoning_effort": "a string",
    "return_token_ids": "true or false",
    "continue_final_message": "true or false",
    "add_generation_prompt": "true or false",
    "logprobs": f"true or false in a chat, a whole number from 0 to {MAX_LOGPROBS} in a completion",
    "top_logprobs": f"a whole number from 0 to {MAX_LOGPROBS}",
    "prompt": "a string or a list of token ids",
    "prompt[]": "a token id, a whole number of 0 or more",
    "response_format": 'an object, {"type", ...}',
    "structured_outputs": "an object",
    "guided_json": "a JSON Schema, an object",
    "guided_regex": "a regular expression",
    "guided_choice": "a list of at least one text, none of them empty",
    "format": 'an object, {"type", ...}',
    "instructions": "a string",
    "input": "a string or a list of at least one message",
    "input[]": 'an object, {"role", "content"}',
    "messages": "a list of at least one message",
    "messages[]": 'an object, {"role", "content"}',
    "role": '"system", "developer", "user", "assistant" or, in a chat, "tool"',
    "tool_calls": "a list of calls",
    "tool_call_id": "the id of a call in an earlier message",
    "reasoning_content": "a string",
    "reasoning": "a string",
    "name": "a string",
    "tools": "a list of tools",
    "tool_choice": '"none", "auto", "required" or one tool',
    "parallel_tool_calls": "true or false",
    "content": "a string or a list of text parts",
    "content[]": 'an object, {"type", "text"}',
    "type": '"message"',
    "part.type": '"text", "input_text" or "output_text"',
    "text": 'a string in a part; an object, {"format"}, in a body',
}

# Branches of a union, as pydantic names them in its paths, which otherwise hold only the fields below and positions.
_PARTS = "<parts>"
_STRING = "<string>"
_NOTHING = "<nothing>"


def is_tag(step: int | str) -> bool:
    """Return whether a step of one of pydantic's paths names a branch of a union and no field."""
    return step in {_PARTS, _STRING, _NOTHING}


def _branch(content: Any) -> str:
    return _PARTS if isinstance(content, list) else _STRING


def _branch_or_none(content: Any) -> str:
    return _NOTHING if content is None else _branch(content)


def _listed(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


def _as_items(given: Any) -> Any:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


_Count = Annotated[int, Field(ge=1)]
_TokenId = Annotated[int, Field(ge=0)]
_NumLogprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
_NonEmpty = Annotated[str, Field(min_length=1)]
_Stop = Annotated[list[_NonEmpty], Field(max_length=MAX_STOP_STRINGS, fail_fast=True), BeforeValidator(_listed)]


class Record(BaseModel):
    """What all parts of a body have: strict fields, and room for keys that are none."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    @property
    def extras(self) -> dict[str, Any]:
        """The keys that are no fields."""
        return self.model_extra or {}


class Part(Record):
    """One part of a message's content."""

    type: Literal["text", "input_text", "output_text"]
    text: str


_Text = Annotated[str, Tag(_STRING)]
_Parts = Annotated[list[Part], Field(min_length=1, fail_fast=True), Tag(_PARTS)]


class Message(Record):
    """One turn of a chat; `daemon.request_body` reads what it says of tools, and whether it may be without content."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[_Text | _Parts | Annotated[None, Tag(_NOTHING)], Discriminator(_branch_or_none)] = None
    tool_calls: Any = None
    tool_call_id: Any = None
    name: str | None = None
    reasoning_content: str | None = None  # what an answer that is sent in again was thought out with
    reasoning: str | None = None  # the same, as other servers call it


class Item(Record):
    """One input item of a response; only messages are built."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[_Text | _Parts, Discriminator(_branch)]
    type: Literal["message"] | None = None


class SampledBody(Record):
    """What all bodies have: how to sample and when to stop."""

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: _Stop | None = None
    stop_token_ids: Annotated[list[_TokenId], Field(fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    logit_bias: Any = None  # `daemon.request_body` reads it: its keys are numbers written as texts
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    # What the answer must look like; `daemon.request_grammar` reads them.
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None


class ChatBody(SampledBody):
    """Body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    logprobs: bool | None = None
    top_logprobs: _NumLogprobs | None = None
    return_token_ids: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    # What may be called; `daemon.request_tools` reads it.
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None


class CompletionBody(SampledBody):
    """Body of /v1/completions."""

    logprobs: _NumLogprobs | None = None
    return_token_ids: bool | None = None
    prompt: Any = None  # a union too loose for a model; `daemon.request_body` reads it
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: _Count | None = None


class ResponseBody(SampledBody):
    """Body of /v1/responses."""

    input: Annotated[list[Item], Field(min_length=1, fail_fast=True), BeforeValidator(_as_items)]
    instructions: str | None = None
    max_output_tokens: _Count | None = None
    text: dict[str, Any] | None = None
