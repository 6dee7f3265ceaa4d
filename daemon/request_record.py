"""What one line of a request file becomes: a parsed request, or a bad line that says what is wrong with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pipelines.core.request import Grammar, SamplingParams, ToolUse


class Url(StrEnum):
    """The endpoints that requests may name."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request stands in its file."""

    index: int  # from 0, counting requests (bad ones included, blank lines not); the key of everything
    line: int  # from 1, physical; for an element of an array the line on which it starts


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What stands in a file where a request should be, and is not looked into."""

    text: str  # what was found, what was expected


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A valid request. Exactly one of the three prompts is given."""

    index: int  # see Place
    line: int  # see Place
    custom_id: str  # as given, else `line-N`
    url: Url
    is_plain: bool  # not in the form of an OpenAI Batch line
    model: str | None  # the name asked for; whether it is served is the pipeline's to say
    sampling: SamplingParams  # its seed means nothing: see `seed`
    seed: int | None  # [0, 2**63); None = not given
    messages: tuple[dict[str, Any], ...] | None = None  # see `TextRequest`
    text: str | None = None
    token_ids: tuple[int, ...] | None = None  # each >= 0; whether the vocabulary has them only the tokenizer knows
    template_kwargs: dict[str, Any] | None = None  # of a chat; whether the model's template knows them only it can say
    continues_message: bool = False  # of a chat: its last message is the assistant's, and the answer goes on with it
    wants_token_ids: bool = False
    grammar: Grammar | None = None  # whether it can be enforced only the text process knows
    tools: ToolUse | None = None  # of a chat; whether the model knows how to call only the text process can say


@dataclass(frozen=True, slots=True)
class BadLine:
    """A request that cannot be run; becomes an error line."""

    index: int  # see Place
    line: int  # see Place
    custom_id: str  # as given, else (and where it could not be read) `line-N`
    code: str  # OpenAI's word, e.g. invalid_value
    message: str  # one line: file, line, field, what was found, what was expected
    param: str | None  # the field at fault, as seen from the body (or from the line, where that has it)


@dataclass(frozen=True, slots=True)
class Survey:
    """What the validating pass over a file found."""

    fingerprint: str  # SHA-256 of the content, hexadecimal
    num_bytes: int
    num_lines: int  # physical lines
    num_blank: int  # of them blank; always 0 for .json and text
    num_requests: int  # bad ones included: indexes are 0 .. num_requests - 1
    num_bad: int  # of them bad, duplicates included
    bad_lines: tuple[BadLine, ...]  # the first of them, in order
    endpoint: str  # the url of the first request that can be read
    duplicates: Mapping[int, Place]  # index of a request whose custom_id was there before -> where it was first
