"""The engine's live state of one choice of one request."""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Protocol

from pipelines.core.output_lengths import OutputLengths
from pipelines.core.request import FinishReason, TokenLogprobs, TokenRequest

UNRANKED = (0, -1)


class TokenMask(Protocol):
    """Which tokens may come next, as a grammar says it."""

    failure: str  # why it cannot go on; then only the end is allowed. "" = it can

    def fork(self) -> "TokenMask":
        """Return a mask for another choice of the same request, at its beginning."""
        ...

    def allowed(self, output_token_ids: list[int]) -> bytes:
        """Return one bit a vocabulary entry, least significant bit first, padded to whole 32-bit words."""
        ...


class SequenceStatus(StrEnum):
    """Where a sequence is; the scheduler alone changes it."""

    WAITING = "waiting"  # has no seat and no blocks
    RUNNING = "running"  # has a seat; is in every step that has room for it
    PREEMPTED = "preempted"  # lost its blocks; goes back to waiting when no step in flight holds it
    FINISHED = "finished"  # gets no further step; seat and blocks go when no step in flight holds it


class SampleKind(IntEnum):
    """How much work a row's sampling is, in the order in which the sampler takes them."""

    GREEDY = 0
    PLAIN = 1  # temperature alone
    FILTERED = 2  # top-k, top-p or min-p besides

    @classmethod
    def of(cls, request: TokenRequest) -> "SampleKind":
        """Return that of a request."""
        if request.temperature <= 0:
            return cls.GREEDY
        has_min_p = request.adjustments is not None and request.adjustments.min_p > 0
        return cls.FILTERED if request.top_k > 0 or request.top_p < 1 or has_min_p else cls.PLAIN


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice being generated. Tokens are counted in positions: prompt first, then output."""

    request: TokenRequest
    choice: int
    token_ids: list[int]  # prompt and committed output
    mask: TokenMask | None = None
    status: SequenceStatus = SequenceStatus.WAITING
    finish_reason: FinishReason | None = None
    ended_by_token: bool = False
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # of committed output, where the request wants them
    num_computed: int = 0  # positions whose keys and values are launched
    num_pending: int = 0  # sampled tokens in flight, unknown here
    num_holds: int = 0  # steps in flight that hold this sequence
    num_ready: int = 0  # below this position a decode needs no look at blocks or limits
    next_look: int = 0  # a commit that brings token_ids to this length looks at limits, names and listeners
    block_table: list[int] = field(default_factory=list)
    block_names: list[bytes] = field(default_factory=list)  # of the full blocks of token_ids, as far as asked for
    num_named_blocks: int = 0  # first entries of block_table that are committed and named, or were found cached
    num_cached_tokens: int | None = None  # of the prompt, found cached when it was first admitted
    num_staged_blocks: int = 0  # entries of block_table that the device's seat knows
    seat: int | None = None
    seat_is_staged: bool = False  # whether the device's seat knows the sampling parameters
    rank: tuple[int, int] = UNRANKED  # lower goes first: priority, then order of first admission
    is_displaced: bool = False  # made way for another file, and was not admitted again yet
    quantile: float = 0.5  # of the lengths that it may have, the one that is expected of it
    num_counted_tokens: int = 0  # of token_ids, that the file's lengths were learned from; the prompt counts as that
    arrived_s: float = 0.0  # CLOCK_MONOTONIC, as the next two; 0 for choices but the first, which fork from that
    first_step_s: float = 0.0  # when its first step was launched; 0 before
    first_token_s: float = 0.0  # when its first token was known; 0 before
    lengths: OutputLengths = field(init=False)  # its file's, given when it is opened
    num_prompt_tokens: int = field(init=False)
    max_num_tokens: int = field(init=False)  # that it may have in the end
    stop_token_ids: tuple[int, ...] = field(init=False)
    sample_kind: SampleKind = field(init=False)
    is_special: bool = field(init=False)  # its sampling takes more than that of others: mask, adjustments, logprobs
    is_plain: bool = field(init=False)  # greedy and not special, as mostly all of a step are

    def __post_init__(self) -> None:
        """Keep at hand what every step asks for."""
        self.num_prompt_tokens = self.num_counted_tokens = len(self.request.prompt_token_ids)
        self.max_num_tokens = self.num_prompt_tokens + self.request.max_tokens
        request = self.request
        self.stop_token_ids = request.stop_token_ids
        self.sample_kind = SampleKind.of(request)
        wants_more = request.adjustments is not None or request.num_logprobs is not None
        self.is_special = wants_more or self.mask is not None
        self.is_plain = self.sample_kind is SampleKind.GREEDY and not self.is_special

    @property
    def num_tokens(self) -> int:
        """Tokens that exist, those in flight included."""
        return len(self.token_ids) + self.num_pending

    @property
    def num_to_compute(self) -> int:
        """Tokens whose keys and values are not launched yet."""
        return self.num_tokens - self.num_computed

    @property
    def num_output_tokens(self) -> int:
        """Output tokens that exist, those in flight included."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """Committed output."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def has_all_launched(self) -> bool:
        """Whether max_tokens are committed or in flight, so that no further step is needed."""
        return self.num_tokens >= self.max_num_tokens

    @property
    def seed(self) -> int:
        """Seed of this choice, [0, 2**63). Choice 0 uses the request's."""
        return (self.request.seed + self.choice * 0x9E3779B97F4A7C15) & (2**63 - 1)
