"""The body of a request, read into a prompt and sampling parameters, whichever endpoint's form it has."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, assert_never

from pydantic import ValidationError

from daemon.request_grammar import GRAMMAR_FIELDS, read_grammar
from daemon.request_keys import BODY_RULES, ITEM_RULES, MESSAGE_RULES, PART_RULES, check_keys
from daemon.request_problem import InvalidRequestError, mismatch, missing, path_text, shown
from daemon.request_record import Url
from daemon.request_schema import (
    EXPECTED,
    MAX_BIASES,
    ChatBody,
    CompletionBody,
    Item,
    Message,
    Part,
    Record,
    ResponseBody,
    SampledBody,
    is_tag,
)
from daemon.request_tools import ToolTurns, read_tool_use
from pipelines.core.request import Grammar, SamplingParams, ToolUse

_R = TypeVar("_R", bound=Record)
SEED_SPAN = 2**63
_MAX_BIAS = 100
_MAX_ID_DIGITS = 10

# Names of what a chat template is given anyway, or of ways to call it.
_TEMPLATE_OWN = frozenset(
    {"messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt"}
    | {"continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict"}
    | {"return_assistant_tokens_mask", "tokenizer_kwargs"}
)

# What OpenAI knows and is not built here; any other word is simply wrong.
_NOT_BUILT: Mapping[str, frozenset[str]] = {
    "role": frozenset({"tool", "function"}),  # the first of them in a response alone
    "type": frozenset(
        {"image_url", "input_image", "image_file", "input_audio", "audio", "video_url", "file", "input_file", "refusal"}
        | {
            "function_call",
            "function_call_output",
            "reasoning",
            "item_reference",
            "web_search_call",
            "file_search_call",
        }
        | {"computer_call", "computer_call_output", "custom_tool_call", "custom_tool_call_output", "mcp_call"}
    ),
}

# Keys of a message that only some roles have; `tool_calls` may be empty in any.
_OF_ANSWERS = ("tool_calls", "reasoning_content", "reasoning")
_OF_RESULTS = ("tool_call_id", "name")
_OF_ROLE: Mapping[str, tuple[str, ...]] = {"assistant": _OF_ANSWERS, "tool": _OF_RESULTS}


@dataclass(frozen=True, slots=True)
class Body:
    """What a body asks for. Exactly one of the three prompts is given; see `ParsedRequest` for the fields."""

    model: str | None
    sampling: SamplingParams
    seed: int | None
    messages: tuple[dict[str, Any], ...] | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    template_kwargs: dict[str, Any] | None = None
    continues_message: bool = False
    grammar: Grammar | None = None
    wants_token_ids: bool = False
    tools: ToolUse | None = None


def read_body(url: Url, given: Mapping[str, Any]) -> Body:
    """Return the body `given` to an endpoint.

    Raises:
        InvalidRequestError: it is not one that the endpoint takes, or asks for what is not built.
    """
    match url:
        case Url.CHAT:
            return _chat(given)
        case Url.COMPLETIONS:
            return _completion(given)
        case Url.RESPONSES:
            return _response(given)
        case _:
            assert_never(url)


def plain_url(given: Mapping[str, Any]) -> Url:
    """Return which endpoint a plain request is for, by its prompt.

    Raises:
        InvalidRequestError: it has none, or two.
    """
    match given.get("messages") is not None, given.get("prompt") is not None:
        case True, True:
            raise InvalidRequestError("invalid_value", "prompt", "found both messages and prompt, expected one of them")
        case True, False:
            return Url.CHAT
        case False, True:
            return Url.COMPLETIONS
        case _:
            check_keys("", given, BODY_RULES, ChatBody.model_fields | CompletionBody.model_fields)
            raise missing("messages", "messages or a prompt")


def _chat(given: Mapping[str, Any]) -> Body:
    body = _validated(ChatBody, given)
    both = body.max_tokens is not None and body.max_completion_tokens is not None
    if both and body.max_tokens != body.max_completion_tokens:
        raise mismatch("invalid_value", "max_tokens", body.max_tokens, "the same as max_completion_tokens, or only one")
    max_tokens = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
    turns = ToolTurns()
    messages = tuple(_message(f"messages[{i}].", turn, turns) for i, turn in enumerate(body.messages))
    return Body(
        body.model,
        _sampling(body, max_tokens, body.n or 1, _chat_logprobs(body)),
        _seed(body),
        messages=messages,
        template_kwargs=_template_kwargs(body),
        continues_message=_continues_message(body),
        grammar=_grammar(body),
        wants_token_ids=bool(body.return_token_ids),
        tools=read_tool_use(body.tools, body.tool_choice, body.parallel_tool_calls, messages),
    )


def _chat_logprobs(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise mismatch(
            "invalid_value", "top_logprobs", body.top_logprobs, "0 or no such key, or logprobs: true beside it"
        )
    return None


def _template_kwargs(body: ChatBody) -> dict[str, Any] | None:
    """Return what a chat tells the model's template besides its messages; an effort is told under its own name."""
    kwargs = dict(body.chat_template_kwargs or {})
    for name in kwargs:
        if name in _TEMPLATE_OWN:
            expected = f"no {name} there: it has, or would have, a place of its own"
            raise InvalidRequestError("unsupported_parameter", f"chat_template_kwargs.{name}", f"expected {expected}")
    effort, told = body.reasoning_effort, kwargs.get("reasoning_effort")
    if effort is not None:
        if told is not None and told != effort:
            expected = "the same as chat_template_kwargs.reasoning_effort, or only one"
            raise mismatch("invalid_value", "reasoning_effort", effort, expected)
        kwargs["reasoning_effort"] = effort
    return kwargs or None


def _continues_message(body: ChatBody) -> bool:
    """Return whether the answer goes on with the last message instead of a turn of its own."""
    continues = bool(body.continue_final_message)
    if continues and body.messages[-1].role != "assistant":
        param = f"messages[{len(body.messages) - 1}].role"
        raise mismatch("invalid_value", param, body.messages[-1].role, '"assistant", with continue_final_message')
    if continues and body.messages[-1].tool_calls:
        param = f"messages[{len(body.messages) - 1}].tool_calls"
        raise mismatch("unsupported_value", param, body.messages[-1].tool_calls, "none, with continue_final_message")
    if body.add_generation_prompt is not None and body.add_generation_prompt is continues:
        expected = "false or no such key, with continue_final_message" if continues else "true or no such key"
        raise mismatch("unsupported_value", "add_generation_prompt", body.add_generation_prompt, expected)
    return continues


def _completion(given: Mapping[str, Any]) -> Body:
    body = _validated(CompletionBody, given)
    sampling = _sampling(body, body.max_tokens, body.n or 1, body.logprobs)
    prompt = _sole_prompt(body.prompt)
    return Body(
        body.model,
        sampling,
        _seed(body),
        text=prompt if isinstance(prompt, str) else None,
        token_ids=None if isinstance(prompt, str) else tuple(prompt),
        grammar=_grammar(body),
        wants_token_ids=bool(body.return_token_ids),
    )


def _response(given: Mapping[str, Any]) -> Body:
    body = _validated(ResponseBody, given)
    messages = [_item(f"input[{i}].", turn) for i, turn in enumerate(body.input)]
    if body.instructions is not None:
        messages.insert(0, {"role": "system", "content": body.instructions})
    sampling = _sampling(body, body.max_output_tokens, 1, None)
    return Body(body.model, sampling, _seed(body), messages=tuple(messages), grammar=_grammar(body))


def _grammar(body: SampledBody) -> Grammar | None:
    """Return what the answer must look like; most bodies do not say."""
    given = {name: value for name in GRAMMAR_FIELDS if (value := getattr(body, name)) is not None}
    if isinstance(body, ResponseBody) and body.text is not None:
        given["text"] = body.text
    return read_grammar(given) if given else None


def _validated(model: type[_R], given: Mapping[str, Any]) -> _R:
    try:
        body = model.model_validate(given)
    except ValidationError as error:
        # A misspelt key is a better thing to say than that the right one is missing.
        check_keys("", given, BODY_RULES, model.model_fields)
        _check_turn_at_fault(error, given)
        raise _refusal(error) from None
    check_keys("", body.extras, BODY_RULES, model.model_fields)
    return body


def _check_turn_at_fault(error: ValidationError, given: Mapping[str, Any]) -> None:
    """Say of a message that lacks something what of it is not built, if anything is: an image has no text, say.

    Raises:
        InvalidRequestError: it has such a type or key.
    """
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] != "missing" and first["input"] is not None:
        return
    match first["loc"]:
        case ("messages" | "input" as name, int(index), *_) if isinstance(turn := given[name][index], dict):
            kind = turn.get("type")
            if isinstance(kind, str) and kind in _NOT_BUILT["type"]:
                raise _unsupported(f"{name}[{index}].type", kind, EXPECTED["type"])
            is_message = name == "messages"
            fields = Message.model_fields if is_message else Item.model_fields
            check_keys(f"{name}[{index}].", turn, MESSAGE_RULES if is_message else ITEM_RULES, fields)
        case _:
            return


def _unsupported(param: str, value: str, expected: str) -> InvalidRequestError:
    text = f"found {shown(value)}, which is not supported, expected {expected}"
    return InvalidRequestError("unsupported_value", param, text)


def _refusal(error: ValidationError) -> InvalidRequestError:
    """Return the first of pydantic's complaints in our words."""
    first = error.errors(include_url=False, include_context=False)[0]
    location = [step for step in first["loc"] if not is_tag(step)]
    names = [step for step in location if isinstance(step, str)]
    name = "part.type" if names[-1] == "type" and "content" in names else names[-1]
    phrase = EXPECTED[name if location[-1] == names[-1] else f"{name}[]"]
    param, value = path_text(location), first["input"]
    if first["type"] == "missing" or value is None:
        return missing(param, phrase)
    if isinstance(value, str) and value in _NOT_BUILT.get(names[-1], ()):
        return _unsupported(param, value, phrase)
    is_type = first["type"].endswith("_type") or (first["type"] == "literal_error" and not isinstance(value, str))
    return mismatch("invalid_type" if is_type else "invalid_value", param, value, phrase)


def _sampling(body: SampledBody, max_tokens: int | None, num_choices: int, num_logprobs: int | None) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=body.temperature,
        top_k=0 if body.top_k == -1 else body.top_k,  # both mean all; -1 is another server's word
        top_p=body.top_p,
        n=num_choices,
        stop=tuple(body.stop or ()),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=() if body.logit_bias is None else _logit_bias(body.logit_bias),
        min_tokens=_min_tokens(body, max_tokens),
        num_logprobs=num_logprobs,
    )


def _min_tokens(body: SampledBody, max_tokens: int | None) -> int:
    if body.min_tokens is not None and max_tokens is not None and body.min_tokens > max_tokens:
        raise mismatch("invalid_value", "min_tokens", body.min_tokens, f"at most {max_tokens}, as many as there may be")
    return body.min_tokens or 0


def _logit_bias(given: Any) -> tuple[tuple[int, float], ...]:
    """Return token ids and what is added to their scores; an id that is written in two ways is one of them."""
    name = "logit_bias"
    if not isinstance(given, dict) or len(given) > MAX_BIASES:
        raise mismatch("invalid_value" if isinstance(given, dict) else "invalid_type", name, given, EXPECTED[name])
    biases: dict[int, float] = {}
    for key, value in given.items():
        if not (key.isascii() and key.isdecimal() and len(key) < _MAX_ID_DIGITS):
            raise mismatch("invalid_value", name, key, "a token id, a whole number written as a text")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise mismatch("invalid_type", f"{name}.{key}", value, "a number from -100 to 100")
        if not -_MAX_BIAS <= value <= _MAX_BIAS:
            raise mismatch("invalid_value", f"{name}.{key}", value, "a number from -100 to 100")
        biases[int(key)] = float(value)
    return tuple(sorted(biases.items()))


def _seed(body: SampledBody) -> int | None:
    """Return the seed in the engine's range; a negative one is as good as any other."""
    return None if body.seed is None else body.seed % SEED_SPAN


def _message(path: str, turn: Message, turns: ToolTurns) -> dict[str, Any]:
    if turn.extras:
        check_keys(path, turn.extras, MESSAGE_RULES, Message.model_fields)
    own = {name: value for name in (*_OF_ANSWERS, *_OF_RESULTS) if (value := getattr(turn, name)) is not None}
    check_keys(path, own, MESSAGE_RULES, _OF_ROLE.get(turn.role, ()))
    message = {"role": _role(turn), "content": None if turn.content is None else _content(path, turn.content)}
    if thought := turn.reasoning_content or turn.reasoning:
        message["reasoning_content"] = thought  # under the name that templates know
    if turn.role == "tool":
        message |= turns.result(path, turn.tool_call_id, turn.name)
    elif turn.tool_calls is not None and (calls := turns.calls(f"{path}tool_calls", turn.tool_calls)):
        return message | {"tool_calls": calls}
    if turn.content is None:
        raise missing(f"{path}content", EXPECTED["content"])
    return message


def _item(path: str, turn: Item) -> dict[str, Any]:
    if turn.extras:
        check_keys(path, turn.extras, ITEM_RULES, Item.model_fields)
    return {"role": _role(turn), "content": _content(path, turn.content)}


def _role(turn: Message | Item) -> str:
    return "system" if turn.role == "developer" else turn.role


def _content(path: str, content: str | list[Part]) -> str:
    if isinstance(content, str):
        return content
    for i, part in enumerate(content):
        check_keys(f"{path}content[{i}].", part.extras, PART_RULES, Part.model_fields)
    return "".join(part.text for part in content)


def _sole_prompt(prompt: Any) -> str | list[int]:
    """Return the one prompt of a completion, which may stand in a list of one."""
    param = "prompt"
    if prompt is None:
        raise missing(param, EXPECTED[param])
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            text = f"found {len(prompt)} prompts, expected one: several in one request are not supported"
            raise InvalidRequestError("unsupported_parameter", param, text)
        prompt, param = prompt[0], "prompt[0]"
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list) or not prompt:
        raise mismatch("invalid_value" if prompt == [] else "invalid_type", param, prompt, EXPECTED["prompt"])
    for i, token_id in enumerate(prompt):
        if type(token_id) is not int or token_id < 0:  # exact: a boolean is no token id
            code = "invalid_value" if type(token_id) is int else "invalid_type"
            raise mismatch(code, f"{param}[{i}]", token_id, EXPECTED["prompt[]"])
    return prompt
