"""The exact bytes of a line of the output or errors file, in OpenAI's Batch form, the plain form, or a .txt's bare answer.

Nothing in a line depends on the clock or on chance: `created` is the claim time and ids are hashes of the file's fingerprint and
the request's index, so a request that is run again after a crash gets the line it would have had. For the same reason a line says
nothing of cached tokens, which depend on what ran before: they are counted in the Batch object and the report.

Where the form of OpenAI has no place for what we say, a field is added that its clients pass over: `seed` of a sampled request
lies in the body beside `system_fingerprint` (the model's hash), together what repeating the answer takes.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, assert_never

from daemon.answer_logprobs import chat_logprobs, completion_logprobs
from daemon.errors import InvariantError
from daemon.json_text import json_line, utf8
from daemon.made_with import MadeWith
from daemon.request_record import Url
from pipelines.core.request import Choice, FinishReason, RequestOutput

_ID_BYTES = 16
_CALL_ID_BYTES = 12
LINE_ID_PREFIX = "batch_req_"


class LineFormat(StrEnum):
    """How lines look."""

    BATCH = "batch"  # OpenAI's Batch output line
    PLAIN = "plain"  # id, text, finish_reason, usage
    TEXT = "text"  # the answer alone; its errors are in Batch form
    TABLE = "table"  # as PLAIN, for `table_output`; its errors are in Batch form


class LineError(StrEnum):
    """Why a valid request has no answer; OpenAI's `error.code`, or its like."""

    EXPIRED = "batch_expired"
    CANCELLED = "batch_cancelled"
    TIMED_OUT = "request_timeout"
    ENGINE = "engine_error"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is wrong; becomes OpenAI's error body."""

    code: str
    message: str
    param: str | None = None
    status: int = 400  # HTTP
    type: str = "invalid_request_error"


def default_seed(fingerprint: str, index: int) -> int:
    """Return the seed of a sampled request that names none: [0, 2**63), a hash of its file's content and its index."""
    digest = hashlib.blake2b(f"{fingerprint}/{index}".encode(), digest_size=8, person=b"gapless-seed")
    return int.from_bytes(digest.digest()) >> 1


class LineBuilder:
    """Builds the lines of one file."""

    def __init__(self, fingerprint: str, created: int, model: MadeWith, line_format: LineFormat) -> None:
        self.model = model  # of the results; it may change while the file runs
        self._hash = hashlib.blake2b(fingerprint.encode(), digest_size=_ID_BYTES, person=b"gapless-id")
        self._created = created
        self._format = line_format

    def result(self, index: int, custom_id: str | None, url: Url, output: RequestOutput) -> bytes:
        """Return the line of an answer.

        Raises:
            InvariantError: a choice was cancelled, so this is no answer; or a Response with other than one choice.
        """
        if any(choice.finish_reason is FinishReason.CANCELLED for choice in output.choices):
            raise InvariantError(f"request {index} was cancelled and has no result line")
        match self._format:
            case LineFormat.BATCH:
                identity = self._id(index)
                body = self._body(identity, url, output)
                _add_token_ids(body, url, output)
                if output.seed is not None:
                    body["seed"] = output.seed
                return _batch_line(identity, custom_id, 200, body)
            case LineFormat.PLAIN | LineFormat.TABLE:
                return json_line(_plain(custom_id, self._id(index), output, self.model))
            case LineFormat.TEXT:
                return b"".join(_text(choice) for choice in output.choices)
            case _:
                assert_never(self._format)

    def line_id(self, index: int) -> str:
        """Return the id of a request's line in OpenAI's form: it names the content and the place, whatever the custom_id."""
        return LINE_ID_PREFIX + self._id(index)

    def request_id(self, index: int) -> str:
        """Return the id under which the log and the traces speak of a request; OpenAI's form has it in the line too."""
        return f"req_{self._id(index)}"

    def refused(self, index: int, custom_id: str | None, refusal: Refusal) -> bytes:
        """Return the line of a request that is wrong."""
        error = {
            "message": refusal.message,
            "type": refusal.type,
            "param": refusal.param,
            "code": refusal.code,
        }
        if self._format is LineFormat.PLAIN:
            return json_line({"id": custom_id, "error": error})
        return _batch_line(self._id(index), custom_id, refusal.status, {"error": error})

    def failed(self, index: int, custom_id: str | None, code: LineError, message: str) -> bytes:
        """Return the line of a valid request that has no answer."""
        error = {"code": code.value, "message": message}
        if self._format is LineFormat.PLAIN:
            return json_line({"id": custom_id, "error": error})
        return json_line({"id": self.line_id(index), "custom_id": custom_id, "response": None, "error": error})

    def _body(self, identity: str, url: Url, output: RequestOutput) -> dict[str, Any]:
        match url:
            case Url.CHAT:
                return self._chat_body(identity, output)
            case Url.COMPLETIONS:
                return self._completion_body(identity, output)
            case Url.RESPONSES:
                return self._response_body(identity, output)
            case _:
                assert_never(url)

    def _chat_body(self, identity: str, output: RequestOutput) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{identity}",
            "object": "chat.completion",
            "created": self._created,
            "model": self.model.model,
            "choices": [
                {
                    "index": number,
                    "message": _message(identity, number, choice),
                    "logprobs": None if choice.logprobs is None else chat_logprobs(choice.logprobs),
                    "finish_reason": _finish_reason(choice),
                }
                for number, choice in enumerate(output.choices)
            ],
            "usage": _usage(output),
            "system_fingerprint": self.model.system_fingerprint,
        }

    def _completion_body(self, identity: str, output: RequestOutput) -> dict[str, Any]:
        return {
            "id": f"cmpl-{identity}",
            "object": "text_completion",
            "created": self._created,
            "model": self.model.model,
            "choices": [
                {
                    "index": number,
                    "text": choice.text,
                    "logprobs": None if choice.logprobs is None else completion_logprobs(choice.logprobs),
                    "finish_reason": choice.finish_reason.value,
                }
                for number, choice in enumerate(output.choices)
            ],
            "usage": _usage(output),
            "system_fingerprint": self.model.system_fingerprint,
        }

    def _response_body(self, identity: str, output: RequestOutput) -> dict[str, Any]:
        if len(output.choices) != 1:
            raise InvariantError(f"a Response has one choice, not {len(output.choices)}")
        choice = output.choices[0]
        is_cut = choice.finish_reason is FinishReason.LENGTH
        status = "incomplete" if is_cut else "completed"
        message: dict[str, Any] = {
            "id": f"msg_{identity}",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [{"type": "output_text", "text": choice.text, "annotations": []}],
        }
        return {
            "id": f"resp_{identity}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": self.model.model,
            "output": [message] if choice.reasoning is None else [_reasoning_item(identity, choice.reasoning), message],
            "parallel_tool_calls": False,
            "tool_choice": "none",
            "tools": [],
            "usage": _response_usage(output),
            "system_fingerprint": self.model.system_fingerprint,
        }

    def _id(self, index: int) -> str:
        digest = self._hash.copy()
        digest.update(b"/%d" % index)
        return digest.hexdigest()


def _message(identity: str, number: int, choice: Choice) -> dict[str, Any]:
    content = None if choice.tool_calls and not choice.text else choice.text
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    _add_parts(message, identity, number, choice)
    return message


def _add_parts(answer: dict[str, Any], identity: str, number: int, choice: Choice) -> None:
    """Add what is told apart from the text of a choice, where there is any."""
    if choice.reasoning is not None:
        answer["reasoning_content"] = choice.reasoning
    if choice.tool_calls:
        answer["tool_calls"] = [
            {
                "id": _call_id(identity, number, place),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for place, call in enumerate(choice.tool_calls)
        ]


def _call_id(identity: str, number: int, place: int) -> str:
    """Return the id of a call: it names the content of the file, the request, the choice and the call's place in it."""
    digest = hashlib.blake2b(
        f"{identity}/{number}/{place}".encode(), digest_size=_CALL_ID_BYTES, person=b"gapless-call"
    )
    return f"call_{digest.hexdigest()}"


def _finish_reason(choice: Choice) -> str:
    """Return why a choice ended; one that was cut says so, whatever it called before."""
    is_call = choice.tool_calls and choice.finish_reason is FinishReason.STOP
    return "tool_calls" if is_call else choice.finish_reason.value


def _reasoning_item(identity: str, reasoning: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": reasoning}]
    return {"id": f"rs_{identity}", "type": "reasoning", "summary": [], "content": content}


def _batch_line(identity: str, custom_id: str | None, status: int, body: dict[str, Any]) -> bytes:
    response = {"status_code": status, "request_id": f"req_{identity}", "body": body}
    return json_line({"id": LINE_ID_PREFIX + identity, "custom_id": custom_id, "response": response, "error": None})


def _add_token_ids(body: dict[str, Any], url: Url, output: RequestOutput) -> None:
    """Add them, where the request wants them, under vLLM's names: OpenAI has none."""
    if output.prompt_token_ids is None:
        return
    for answer, choice in zip(body["choices"], output.choices, strict=True):
        answer["token_ids"] = choice.token_ids
        if url is Url.COMPLETIONS:
            answer["prompt_token_ids"] = output.prompt_token_ids
    if url is Url.CHAT:
        body["prompt_token_ids"] = output.prompt_token_ids


def _num_completion_tokens(output: RequestOutput) -> int:
    return sum(choice.num_tokens for choice in output.choices)


def _num_reasoning_tokens(output: RequestOutput) -> int:
    return sum(choice.num_reasoning_tokens for choice in output.choices)


def _usage(output: RequestOutput) -> dict[str, Any]:
    num_completion = _num_completion_tokens(output)
    usage: dict[str, Any] = {
        "prompt_tokens": output.num_prompt_tokens,
        "completion_tokens": num_completion,
        "total_tokens": output.num_prompt_tokens + num_completion,
    }
    if any(choice.reasoning is not None for choice in output.choices):
        usage["completion_tokens_details"] = {"reasoning_tokens": _num_reasoning_tokens(output)}
    return usage


def _response_usage(output: RequestOutput) -> dict[str, Any]:
    num_output = _num_completion_tokens(output)
    return {
        "input_tokens": output.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": num_output,
        "output_tokens_details": {"reasoning_tokens": _num_reasoning_tokens(output)},
        "total_tokens": output.num_prompt_tokens + num_output,
    }


def _plain(custom_id: str | None, identity: str, output: RequestOutput, model: MadeWith) -> dict[str, Any]:
    answers = [_plain_answer(identity, number, choice) for number, choice in enumerate(output.choices)]
    line: dict[str, Any] = {"id": custom_id}
    line |= answers[0] if len(answers) == 1 else {"choices": answers}
    if output.prompt_token_ids is not None:
        line["prompt_token_ids"] = output.prompt_token_ids
    line["usage"] = _usage(output)
    if output.seed is not None:
        line["seed"] = output.seed
    line["model"] = model.model
    line["system_fingerprint"] = model.system_fingerprint
    return line


def _plain_answer(identity: str, number: int, choice: Choice) -> dict[str, Any]:
    answer: dict[str, Any] = {"text": choice.text, "finish_reason": _finish_reason(choice)}
    _add_parts(answer, identity, number, choice)
    if choice.logprobs is not None:
        answer["logprobs"] = chat_logprobs(choice.logprobs)["content"]
    if choice.token_ids is not None:
        answer["token_ids"] = choice.token_ids
    return answer


def _text(choice: Choice) -> bytes:
    """Return the answer as it is, with a newline at its end as text files have it."""
    text = utf8(choice.text)
    return text if text.endswith(b"\n") else text + b"\n"
