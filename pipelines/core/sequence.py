"""The engine's live state of one choice of one request."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from pipelines.core.request import FinishReason, TokenRequest


class TokenMask(Protocol):
    """Which tokens may come next, as a grammar says it."""

    def allowed(self, output_token_ids: list[int]) -> bytes:
        """Return one bit a vocabulary entry, least significant bit first, padded to whole 32-bit words."""
        ...


class SequenceStatus(StrEnum):
    """Where a sequence is; the scheduler alone changes it."""

    WAITING = "waiting"  # has no seat and no blocks
    RUNNING = "running"  # has a seat; is in every step that has room for it
    PREEMPTED = "preempted"  # lost its blocks; goes back to waiting when no step in flight holds it
    FINISHED = "finished"  # gets no further step; seat and blocks go when no step in flight holds it


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
    num_computed: int = 0  # positions whose keys and values are launched
    num_pending: int = 0  # sampled tokens in flight, unknown here
    num_holds: int = 0  # steps in flight that hold this sequence
    block_table: list[int] = field(default_factory=list)
    num_staged_blocks: int = 0  # entries of block_table that the device's seat knows
    seat: int | None = None
    seat_is_staged: bool = False  # whether the device's seat knows the sampling parameters

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_token_ids)

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
        return self.num_output_tokens >= self.request.max_tokens

    @property
    def seed(self) -> int:
        """Seed of this choice, [0, 2**63). Choice 0 uses the request's."""
        return (self.request.seed + self.choice * 0x9E3779B97F4A7C15) & (2**63 - 1)
