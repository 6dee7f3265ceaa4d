"""Makes the text process's request out of a parsed one: the pipeline's defaults stand in where the request says nothing."""

import json
from collections.abc import Sequence
from typing import Any

from daemon.request_grammar import grammar_of_answer
from daemon.request_record import ParsedRequest
from daemon.result_line import Refusal, default_seed
from daemon.settings_pipeline import PipelineSettings, Reasoning
from pipelines.core.request import SamplingParams, TextRequest, ToolUse

_BYTES_PER_TOKEN = 4


def to_text_request(parsed: ParsedRequest, settings: PipelineSettings, fingerprint: str, *, file: int) -> TextRequest:
    """Return the request as it is run: always the same for the same content and settings. Its key is given when it is sent."""
    return TextRequest(
        key=0,
        file=file,
        priority=settings.priority,
        sampling=_sampling(parsed, settings, fingerprint),
        messages=_messages(parsed, settings.system),
        text=parsed.text,
        token_ids=parsed.token_ids,
        clamp_max_tokens=parsed.sampling.max_tokens is None,
        template_kwargs=_template_kwargs(parsed, settings),
        continues_message=parsed.continues_message,
        wants_token_ids=parsed.wants_token_ids,
        grammar=grammar_of_answer(settings.answer) if parsed.grammar is None else parsed.grammar,
        tools=parsed.tools,
        tool_format=settings.tool_calls,
        splits_reasoning=settings.reasoning is Reasoning.SPLIT,
    )


def model_refusal(parsed: ParsedRequest, settings: PipelineSettings) -> Refusal | None:
    """Return the refusal of a request that names a model which is not served; None if it may run."""
    if not settings.strict_model or parsed.model is None or parsed.model in settings.models:
        return None
    names = ", ".join(settings.models) or "none"
    message = f"body.model: found {parsed.model!r}, expected one of the pipeline's models: {names}"
    return Refusal("model_not_found", message, "model", status=404)


def num_tokens_of(parsed: ParsedRequest, request: TextRequest, context: int) -> int:
    """Return about how many tokens a request takes, by which files take turns; `context` (0: unknown) bounds the answer."""
    num_bytes = _num_bytes(parsed.text) if parsed.text else 0
    for message in request.messages or ():
        num_bytes += _num_bytes(message["content"] or "")
    if parsed.tools is not None:
        num_bytes += _num_bytes(_tools_text(parsed.tools, parsed.messages or ()))
    num_prompt = len(parsed.token_ids or ()) + num_bytes // _BYTES_PER_TOKEN
    max_tokens = request.sampling.max_tokens
    room = max(context - num_prompt, 1)
    num_answer = room if max_tokens is None else max_tokens
    if context:
        num_answer = min(num_answer, room)  # a request that asks for more will be refused
    return num_prompt + request.sampling.n * num_answer


def _tools_text(tools: ToolUse, messages: Sequence[dict[str, Any]]) -> str:
    """Return about what the model reads of tools, besides what the messages say."""
    calls = [message["tool_calls"] for message in messages if "tool_calls" in message]
    return json.dumps([tools.definitions, calls])


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _sampling(parsed: ParsedRequest, settings: PipelineSettings, fingerprint: str) -> SamplingParams:
    given, defaults = parsed.sampling, settings.sampling
    return SamplingParams(
        max_tokens=defaults.max_tokens if given.max_tokens is None else given.max_tokens,
        temperature=defaults.temperature if given.temperature is None else given.temperature,
        top_k=defaults.top_k if given.top_k is None else given.top_k,
        top_p=defaults.top_p if given.top_p is None else given.top_p,
        seed=default_seed(fingerprint, parsed.index) if parsed.seed is None else parsed.seed,
        n=given.n,
        stop=given.stop,
        stop_token_ids=given.stop_token_ids,
        ignore_eos=given.ignore_eos,
        min_p=defaults.min_p if given.min_p is None else given.min_p,
        presence_penalty=defaults.presence_penalty if given.presence_penalty is None else given.presence_penalty,
        frequency_penalty=defaults.frequency_penalty if given.frequency_penalty is None else given.frequency_penalty,
        repetition_penalty=(
            defaults.repetition_penalty if given.repetition_penalty is None else given.repetition_penalty
        ),
        logit_bias=given.logit_bias,
        min_tokens=given.min_tokens,
        num_logprobs=given.num_logprobs,
    )


def _template_kwargs(parsed: ParsedRequest, settings: PipelineSettings) -> dict[str, Any] | None:
    if parsed.messages is None or not settings.chat_template_kwargs:
        return parsed.template_kwargs
    return {**settings.chat_template_kwargs, **(parsed.template_kwargs or {})}


def _messages(parsed: ParsedRequest, system: str | None) -> tuple[dict[str, Any], ...] | None:
    if parsed.messages is None or system is None or any(message["role"] == "system" for message in parsed.messages):
        return parsed.messages
    return ({"role": "system", "content": system}, *parsed.messages)
