"""Makes token requests of text requests: rendered, tokenised, measured against the context, every default filled in."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from pipelines.core.request import Adjustments, RequestRefused, SamplingParams, TextRequest, TokenRequest, Vocabulary
from pipelines.counted import counted
from pipelines.models.facts import SamplingDefaults
from pipelines.text.chat import RenderedChat
from pipelines.text.refusal import RefusalCode, RefusalError
from pipelines.text.tokenizer import Tokenizer
from pipelines.text.tool_use import format_of

T = TypeVar("T", str, RenderedChat)
_NO_ADJUSTMENTS = Adjustments()
_LEAST_DIVISOR = 1e-30  # of scores: within float32, from 1e-45 to 3e38, nothing vanishes or overflows by it
_Prompts = dict[int, Sequence[int]]  # by index of the request
_Refusals = dict[int, RefusalError]  # likewise


class Preparer:
    """Prepares many requests at once; what is wrong with one is said of that one alone."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, context: int, defaults: SamplingDefaults) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._context = context
        self._defaults = defaults
        self._eos_ids = tuple(sorted({*tokenizer.eos_ids, *defaults.eos_ids}))

    def prepare(self, requests: Sequence[TextRequest]) -> list[TokenRequest | RequestRefused]:
        """Return a token request or a refusal for each, in order."""
        refusals: _Refusals = {}
        chats = self._rendered(requests, refusals)
        texts = {index: request.text for index, request in enumerate(requests) if request.text is not None}
        prompts = _encoded(self._tokenizer.encode_chats, chats, refusals)
        prompts |= _encoded(self._tokenizer.encode_texts, texts, refusals)
        return [
            _refused(request, refusals[index]) if index in refusals else self._finished(request, prompts.get(index))
            for index, request in enumerate(requests)
        ]

    def vocabulary(self) -> Vocabulary:
        """Return what the engine has to know of the tokenizer to follow grammars."""
        return Vocabulary(tuple(self._tokenizer.detokenizer.pieces), self._eos_ids, self._tokenizer.written())

    def _rendered(self, requests: Sequence[TextRequest], refusals: _Refusals) -> dict[int, RenderedChat]:
        chats: dict[int, RenderedChat] = {}
        for index, request in enumerate(requests):
            if request.messages is None:
                continue
            try:
                chats[index] = self._tokenizer.render(
                    request.messages,
                    request.template_kwargs or {},
                    tools=None if request.tools is None else request.tools.definitions,
                    continues=request.continues_message,
                )
            except Exception as error:  # noqa: BLE001  this request fails by it, the others go on
                refusals[index] = _as_refusal(error)
        return chats

    def _finished(self, request: TextRequest, prompt: Sequence[int] | None) -> TokenRequest | RequestRefused:
        try:
            return self._token_request(request, self._given_ids(request) if prompt is None else prompt)
        except Exception as error:  # noqa: BLE001  as above
            return _refused(request, _as_refusal(error))

    def _token_request(self, request: TextRequest, prompt: Sequence[int]) -> TokenRequest:
        sampling, defaults = request.sampling, self._defaults
        ids = tuple(prompt) or self._start()
        if not all(sampling.stop):
            raise RefusalError(RefusalCode.INVALID_STOP, "stop", "stop: found an empty string, expected text")
        return TokenRequest(
            key=request.key,
            file=request.file,
            priority=request.priority,
            prompt_token_ids=ids,
            max_tokens=self._max_tokens(request, len(ids)),
            temperature=_divisor(defaults.temperature if sampling.temperature is None else sampling.temperature),
            top_k=defaults.top_k if sampling.top_k is None else sampling.top_k,
            top_p=defaults.top_p if sampling.top_p is None else sampling.top_p,
            seed=sampling.seed,
            n=sampling.n,
            stop_token_ids=self._stop_token_ids(sampling),
            wants_deltas=bool(sampling.stop),
            grammar=self._grammar(request),
            adjustments=self._adjustments(request),
            num_logprobs=None if sampling.num_logprobs is None else min(sampling.num_logprobs, self._vocab_size),
        )

    def _adjustments(self, request: TextRequest) -> Adjustments | None:
        sampling = request.sampling
        if (held_by := _held_by(request)) and sampling.min_tokens:
            message = f"min_tokens: found {sampling.min_tokens}, but {held_by} says where the answer ends"
            raise RefusalError(RefusalCode.UNSUPPORTED_PARAMETER, "min_tokens", message)
        self._check_ids("logit_bias", [token_id for token_id, _ in sampling.logit_bias])
        adjustments = Adjustments(
            repetition_penalty=1.0 if sampling.repetition_penalty is None else _divisor(sampling.repetition_penalty),
            frequency_penalty=sampling.frequency_penalty or 0.0,
            presence_penalty=sampling.presence_penalty or 0.0,
            logit_bias=sampling.logit_bias,
            min_tokens=sampling.min_tokens,
            min_p=sampling.min_p or 0.0,
        )
        return None if adjustments == _NO_ADJUSTMENTS else adjustments

    def _grammar(self, request: TextRequest) -> str:
        form = None if request.tools is None else format_of(request, self._tokenizer)
        held_by = _held_by(request)
        if not held_by:
            return ""
        if request.sampling.ignore_eos or not self._eos_ids:
            param = "ignore_eos" if request.sampling.ignore_eos else held_by
            found = "true" if request.sampling.ignore_eos else "a model without a token that ends a text"
            message = f"{param}: found {found}, but {held_by} says where the answer ends"
            raise RefusalError(RefusalCode.UNSUPPORTED_PARAMETER, param, message)
        from pipelines.text.grammar import compile_grammar  # noqa: PLC0415  for requests that need it alone

        if request.tools is None or form is None:
            return compile_grammar(request.grammar) if request.grammar else ""
        from pipelines.text.tool_grammar import call_grammar, schemas_of  # noqa: PLC0415  as above

        for schema in schemas_of(request.tools):  # one by one first: what cannot be enforced is named by its field
            compile_grammar(schema)
        return compile_grammar(call_grammar(request.tools, form))

    def _given_ids(self, request: TextRequest) -> tuple[int, ...]:
        """Return a prompt that came as ids, checked."""
        self._check_ids("prompt", request.token_ids or ())
        return request.token_ids or ()

    def _check_ids(self, param: str, ids: Sequence[int]) -> None:
        if ids and not (min(ids) >= 0 and max(ids) < self._vocab_size):
            at = next(index for index, token_id in enumerate(ids) if not 0 <= token_id < self._vocab_size)
            raise RefusalError(
                RefusalCode.INVALID_TOKEN_ID,
                param,
                f"{param}[{at}]: found token id {ids[at]}, expected one from 0 to {self._vocab_size - 1}",
            )

    def _start(self) -> tuple[int, ...]:
        if self._tokenizer.start_id is None:
            raise RefusalError(
                RefusalCode.EMPTY_PROMPT,
                "prompt",
                "prompt: found no text, and this model has no token to start from: expected at least one character",
            )
        return (self._tokenizer.start_id,)

    def _stop_token_ids(self, sampling: SamplingParams) -> tuple[int, ...]:
        self._check_ids("stop_token_ids", sampling.stop_token_ids)
        eos_ids = () if sampling.ignore_eos else self._eos_ids
        if not sampling.stop_token_ids:
            return eos_ids
        ids = tuple(sorted({*eos_ids, *sampling.stop_token_ids}))
        if sampling.min_tokens and len(ids) >= self._vocab_size:
            message = "stop_token_ids: found every token there is, expected one that may come before min_tokens"
            raise RefusalError(RefusalCode.INVALID_STOP, "stop_token_ids", message)
        return ids

    def _max_tokens(self, request: TextRequest, num_prompt_tokens: int) -> int:
        """Return how many tokens may be generated: what was asked for, or what the context leaves."""
        wanted = request.sampling.max_tokens
        room = self._context - num_prompt_tokens
        if room < 1:
            raise RefusalError(
                RefusalCode.CONTEXT_LENGTH_EXCEEDED,
                "prompt" if request.messages is None else "messages",
                f"{self._found(num_prompt_tokens)}, expected at most {self._context - 1}",
            )
        if wanted is None or (wanted > room and request.clamp_max_tokens):
            return room
        if wanted > room:
            raise RefusalError(
                RefusalCode.CONTEXT_LENGTH_EXCEEDED,
                "max_tokens",
                f"{self._found(num_prompt_tokens)} and "
                f"max_tokens {wanted}, {num_prompt_tokens + wanted} in all; expected max_tokens of at most {room}",
            )
        return wanted

    def _found(self, num_prompt_tokens: int) -> str:
        context, prompt = counted(self._context, "token", ""), counted(num_prompt_tokens, "token", "")
        return f"this model's context is {context}: found a prompt of {prompt}"


def _divisor(value: float) -> float:
    """Return what scores are divided by: as far below 1 as makes a difference, and no nearer to 0, but 0 itself."""
    return max(value, _LEAST_DIVISOR) if value else value


def _encoded(
    encode: Callable[[list[T]], Sequence[Sequence[int]]], items: Mapping[int, T], refusals: _Refusals
) -> _Prompts:
    """Encode all at once; where that fails, one by one, to tell which of them it was."""
    if not items:
        return {}
    try:
        return dict(zip(items, encode(list(items.values())), strict=True))
    except Exception as error:  # noqa: BLE001  the text at fault is refused, the others go on
        if len(items) == 1:
            ((index, item),) = items.items()
            refusals[index] = _encode_refusal(item, error)
            return {}
    prompts: _Prompts = {}
    for index, item in items.items():
        prompts |= _encoded(encode, {index: item}, refusals)
    return prompts


def _encode_refusal(item: str | RenderedChat, error: Exception) -> RefusalError:
    text, param = (item, "prompt") if isinstance(item, str) else (item.text, "messages")
    try:
        text.encode()
    except UnicodeEncodeError as at:
        code_point = ord(text[at.start])
        return RefusalError(
            RefusalCode.INVALID_TEXT,
            param,
            f"{param}: found half of a surrogate pair, U+{code_point:04X}, expected Unicode text",
        )
    return _as_refusal(error)


def _held_by(request: TextRequest) -> str:
    """Return the field that says what the answer is to its end, "" if none does."""
    if request.grammar is not None:
        return request.grammar.param
    return "tool_choice" if request.tools is not None and request.tools.must_call else ""


def _as_refusal(error: Exception) -> RefusalError:
    if isinstance(error, RefusalError):
        return error
    return RefusalError(
        RefusalCode.INTERNAL_ERROR, None, f"the request could not be prepared: {type(error).__name__}: {error}"
    )


def _refused(request: TextRequest, error: RefusalError) -> RequestRefused:
    return RequestRefused(request.key, error.code.value, error.param, str(error))
