"""The records that travel between daemon, text process and engine process, in the order in which one request meets them.

    daemon --TextRequest--> text --TokenRequest--> engine --TokenDelta, TokenOutput--> text --RequestOutput--> daemon
                                 `--RequestRefused--> daemon          text --StopSequence--> engine

A `key` names one attempt at one request within one run of the daemon. It is never used twice: a request that is sent again
after a death gets a new key, so what a process still says about the old one is recognised and dropped.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import Any

MAX_LOGPROBS = 20  # of the likeliest tokens that a request may be told, as OpenAI has it
CAPTURE_PHASE = "capture"  # graphs are being captured; the daemon accounts for that time under a cause of its own


class Record:
    """What travels in frames: a frozen dataclass that pickles as a call of its constructor, several times faster."""

    __slots__: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        """See `pickle`."""
        return type(self), _values_of(self.__slots__)(self)


@cache
def _values_of(names: tuple[str, ...]) -> Callable[[Record], tuple[Any, ...]]:
    """Return what gives a record's fields in order; an `attrgetter` does it in a third of a loop's time."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple([getattr(record, name) for name in names])


def _time() -> Any:
    """A field for when something happened, which is no part of what the record says: two with other times are equal."""
    return field(default=0.0, compare=False)


class FinishReason(StrEnum):
    """Why a sequence ended; the first two are OpenAI's words."""

    STOP = "stop"  # end-of-sequence token, stop token or stop string
    LENGTH = "length"  # max_tokens, or the end of the context
    CANCELLED = "cancelled"  # a Cancel reached the engine first


class GrammarKind(StrEnum):
    """How it is said what an answer must look like."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    CALLS = "calls"  # of tools; the text process alone makes it


@dataclass(frozen=True, slots=True)
class Grammar(Record):
    """What an answer must look like, to the last character."""

    kind: GrammarKind
    text: str  # a JSON Schema, a regular expression, a JSON list of texts of which it is one, or for CALLS Lark
    param: str  # the field that says it, for messages


class ToolFormat(StrEnum):
    """How a model writes the calls of tools into its answer."""

    AUTO = "auto"  # as its chat template tells, where that can be told
    HERMES = "hermes"  # <tool_call>{"name", "arguments"}</tool_call>, as Qwen has it too
    LLAMA3_JSON = "llama3_json"  # {"name", "parameters"} and nothing else
    MISTRAL = "mistral"  # [TOOL_CALLS][{"name", "arguments"}]
    TEXT = "text"  # whatever it is, they are part of the text


@dataclass(frozen=True, slots=True)
class ToolUse(Record):
    """What a chat has to do with tools."""

    definitions: tuple[dict[str, Any], ...] = ()  # as given; none: only messages speak of calls
    must_call: bool = False  # the answer is calls and nothing else
    function: str = ""  # the only one that may be called then; "" = any
    calls_once: bool = False  # the answer is one call then


@dataclass(frozen=True, slots=True)
class SamplingParams(Record):
    """How tokens are chosen and when to stop, as the request (or its pipeline) says it; `None` = the model's own."""

    max_tokens: int | None = None  # None = the rest of the context
    temperature: float | None = None  # 0 = greedy
    top_k: int | None = None  # 0 = all
    top_p: float | None = None  # 1 = all
    seed: int = 0  # [0, 2**63); with the position it alone decides a sampled token, never the batch
    n: int = 1  # choices; choice i samples with a seed of its own, derived from seed and i
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_p: float | None = None  # 0 = all
    presence_penalty: float | None = None  # 0 = none
    frequency_penalty: float | None = None  # 0 = none
    repetition_penalty: float | None = None  # 1 = none
    logit_bias: tuple[tuple[int, float], ...] = ()  # token ids, each once, and what is added to their scores
    min_tokens: int = 0  # before which nothing but max_tokens ends an answer
    num_logprobs: int | None = None  # of the likeliest tokens, told beside each token's own; None = not even that


@dataclass(frozen=True, slots=True)
class Adjustments(Record):
    """How scores are changed before a token is chosen; at least one of them has an effect. They come in this order."""

    repetition_penalty: float = 1.0  # for tokens in prompt or answer: divides scores above 0, multiplies others
    frequency_penalty: float = 0.0  # subtracted for each time that a token is in the answer
    presence_penalty: float = 0.0  # subtracted once from a token that is in the answer
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0  # before which stop tokens are not chosen
    min_p: float = 0.0  # tokens whose probability is below this share of the highest one's are not chosen

    @property
    def counts_tokens(self) -> bool:
        """Whether it depends on the tokens so far."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0


@dataclass(frozen=True, slots=True)
class TextRequest(Record):
    """A parsed, valid request on its way to the text process. Exactly one of the three prompts is given."""

    key: int
    file: int  # number of its file within this run of the daemon; fairness is between files
    priority: int  # higher goes first
    sampling: SamplingParams
    messages: tuple[dict[str, Any], ...] | None = None  # chat; content is a string, or None beside calls
    text: str | None = None  # completion
    token_ids: tuple[int, ...] | None = None  # completion, already tokenised
    clamp_max_tokens: bool = False  # max_tokens is the pipeline's default: shorten it to the context, do not refuse
    template_kwargs: dict[str, Any] | None = None  # chat: what the model's template is told besides; values are JSON
    continues_message: bool = False  # chat: the answer goes on with the last message, the assistant's
    grammar: Grammar | None = None
    wants_token_ids: bool = False  # of prompt and answers, beside the text
    tools: ToolUse | None = None  # chat: None where nothing in it speaks of any
    tool_format: ToolFormat = ToolFormat.AUTO
    splits_reasoning: bool = False  # chat: what the model thinks in front of its answer is told apart from it

    def with_key(self, key: int) -> "TextRequest":
        """Return the request as another attempt; a fraction of what `dataclasses.replace` costs, and each request needs it."""
        return TextRequest(key, *_values_of(self.__slots__)(self)[1:])


@dataclass(frozen=True, slots=True)
class TokenRequest(Record):
    """A tokenised request on its way to the engine; everything is resolved, nothing is None."""

    key: int
    file: int
    priority: int
    prompt_token_ids: tuple[int, ...]  # 1 .. context - 1 ids, each within the vocabulary
    max_tokens: int  # >= 1; prompt + max_tokens <= context
    temperature: float  # 0 = greedy
    top_k: int  # 0 = all
    top_p: float  # 1 = all
    seed: int
    n: int
    stop_token_ids: tuple[int, ...]  # the model's end-of-sequence ids among them unless ignore_eos
    wants_deltas: bool  # it has stop strings: send tokens as they are committed
    grammar: str = ""  # what the answer must look like, as llguidance reads it; "" = anything
    adjustments: Adjustments | None = None  # None: the scores are taken as they are
    num_logprobs: int | None = None  # 0 .. MAX_LOGPROBS; None = none at all


@dataclass(frozen=True, slots=True)
class Vocabulary(Record):
    """What grammars are made masks with. The text process sends it before its first request that has one."""

    pieces: tuple[bytes, ...]  # of each token; empty for control tokens
    eos_ids: tuple[int, ...]  # at least one
    tokenizer: str  # as the tokenizers library reads it; "" = the pieces are all there is to know


@dataclass(frozen=True, slots=True)
class TokenLogprobs(Record):
    """How likely the model found a token, and the likeliest ones in its place.

    Logarithms of shares of the model's own scores, before temperature, top-k, top-p and grammar change them.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]  # (token id, logprob), the likeliest first


@dataclass(frozen=True, slots=True)
class TokenDelta(Record):
    """Tokens just committed of a choice whose request has stop strings."""

    key: int
    choice: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()  # of each of them, where the request wants them
    first_step_s: float = _time()  # see `RequestOutput`, likewise the next
    first_token_s: float = _time()


@dataclass(frozen=True, slots=True)
class TokenOutput(Record):
    """All tokens of a finished choice, the stop token included."""

    key: int
    choice: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    ended_by_token: bool  # the last id is a stop token, not text
    num_cached_tokens: int = 0  # prompt tokens that came from the prefix cache
    logprobs: tuple[TokenLogprobs, ...] = ()  # of each token, where the request wants them
    failure: str = ""  # why it is no answer; "" = it is one
    first_step_s: float = _time()  # see `RequestOutput`, likewise the next
    first_token_s: float = _time()


@dataclass(frozen=True, slots=True)
class StopSequence(Record):
    """Text process to engine: a stop string is complete, drop what comes after."""

    key: int
    choice: int


@dataclass(frozen=True, slots=True)
class Cancel(Record):
    """Daemon to both: forget these keys; nothing more is said about them."""

    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TextLogprob(Record):
    """A token as people read it, and how likely the model found it."""

    text: str  # U+FFFD for bytes that are no whole character; a control token's name
    data: bytes  # what it adds to the answer; empty for a control token
    logprob: float


@dataclass(frozen=True, slots=True)
class TextLogprobs(Record):
    """One token of an answer, and the likeliest ones in its place."""

    token: TextLogprob
    top: tuple[TextLogprob, ...]


@dataclass(frozen=True, slots=True)
class ToolCall(Record):
    """A call of a tool that a model asks for."""

    name: str
    arguments: str  # a JSON object


@dataclass(frozen=True, slots=True)
class Choice(Record):
    """One answer of a request."""

    text: str  # but for what is told apart below
    finish_reason: FinishReason
    num_tokens: int  # up to and with the one that ended it
    token_ids: tuple[int, ...] | None = None  # these, where the request wants them
    logprobs: tuple[TextLogprobs, ...] | None = None  # of each of them, likewise
    tool_calls: tuple[ToolCall, ...] = ()  # in their order
    reasoning: str | None = None  # what was thought in front of it, where that is told apart; None: nothing was
    num_reasoning_tokens: int = 0  # of num_tokens, up to where the answer begins


@dataclass(frozen=True, slots=True)
class RequestOutput(Record):
    """The whole answer to a request, all its choices in order."""

    key: int
    choices: tuple[Choice, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    seed: int | None = None  # what its tokens were sampled with; None where they were not sampled
    prompt_token_ids: tuple[int, ...] | None = None  # where the request wants them
    first_step_s: float = _time()  # CLOCK_MONOTONIC, of its first choice: when its first step was launched; 0: unknown
    first_token_s: float = _time()  # likewise: when its first token was known


@dataclass(frozen=True, slots=True)
class RequestRefused(Record):
    """A request that only the tokenizer could know to be wrong; becomes an error line with status 400."""

    key: int
    code: str  # e.g. context_length_exceeded
    param: str | None  # the field at fault
    message: str


@dataclass(frozen=True, slots=True)
class Progress(Record):
    """A child is still starting; shown to the person who waits."""

    phase: str  # e.g. "download", "convert", "load", "warm up", `CAPTURE_PHASE`
    done: float  # 0 .. 1


@dataclass(frozen=True, slots=True)
class Ready(Record):
    """A child is up."""

    model: str  # the name it truly is, for `response.body.model`
    context: int  # tokens a sequence may have
    vocab_size: int
    max_num_seqs: int = 0  # engine only
    num_blocks: int = 0  # engine only
    block_size: int = 0  # engine only
    detail: str = ""  # one line for the log: device, dtype, implementation
    warnings: tuple[str, ...] = ()  # engine only: what does not run as it might, one line each


@dataclass(frozen=True, slots=True)
class Failed(Record):
    """A child cannot go on; its last words before it exits."""

    message: str
    is_config: bool  # whether an edit of the YAML fixes it (exit code 2), else the environment (4)


@dataclass(frozen=True, slots=True)
class Limits(Record):
    """Daemon to engine: what holds from the next step on; never more than was allocated at the start."""

    is_async: bool  # as many steps in flight as there are slots, else one
    max_num_seqs: int  # sequences that may begin beside those that run; none of these is cut
    max_num_batched_tokens: int


class IdleCause(StrEnum):
    """Why the device had nothing to do."""

    NO_WORK = "no_work"  # nothing waits anywhere
    FEED = "feed"  # files wait, the engine's queue is empty
    HOST = "host"  # launched late
    H2D = "h2d"  # launched in time, inputs late
    OUTPUT = "output"  # results cannot be written
    CAPTURE = "capture"
    STARTUP = "startup"
    DRAIN = "drain"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class DeviceTime(Record):
    """Where the time of the device went between two instants; busy + unproven + all idle = end_s - start_s."""

    start_s: float  # CLOCK_MONOTONIC, the same in all processes of one machine
    end_s: float
    busy_s: float
    unproven_s: float
    empty_s: float  # the engine held no request: the daemon knows whether that is `no_work` or `feed`
    host_s: float
    h2d_s: float


@dataclass(frozen=True, slots=True)
class EngineStats(Record):
    """What the engine says of itself a few times a second; counters are increments since the last report.

    The tuples hold a value for each step, request or sequence that got so far since then, in seconds where they end in `_s`.
    """

    device_time: DeviceTime
    num_waiting: int
    num_running: int
    num_used_blocks: int
    prompt_tokens: int
    generation_tokens: int
    preemptions: int
    step_s: tuple[float, ...]  # duration on the device of each step whose times are known
    num_batched: tuple[int, ...]  # sequences in each step launched
    steps_taken_back: int = 0  # that did not fit into the device's memory and were run again in smaller ones
    notices: tuple[str, ...] = ()  # what a person should know at once, one line each
    prefix_query_tokens: int = 0  # of sequences that got a seat
    prefix_hit_tokens: int = 0  # those of them that were in the prefix cache
    decode_s: float = 0.0  # device time of steps without prompt tokens; only where the next is known
    decode_floor_s: float = 0.0  # of these steps, what reading weights and context takes at the memory's peak bandwidth
    padding_tokens: int = 0  # computed for nothing, because captured graphs have fixed sizes
    gap_s: tuple[float, ...] = ()  # that the device waited in front of each of those steps, requests being there
    host_s: tuple[float, ...] = ()  # of the loop's own work for each step committed, waiting left out
    num_batched_tokens: tuple[int, ...] = ()  # tokens in each step launched
    queue_s: tuple[float, ...] = ()  # from a request's arrival at the engine to the launch of its first step
    first_token_s: tuple[float, ...] = ()  # from a request's arrival at the engine to its first token
    output_token_s: tuple[float, ...] = ()  # mean of a finished sequence's tokens after the first
