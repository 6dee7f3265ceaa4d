"""The workloads: token ids in, a fixed number of tokens out, greedy, end of sequence ignored.

`rollouts` and `offline` draw from the same generator in the same order as the scripts that measure other engines, so that all
get the same prompts and lengths. `mixed-cpu` is small enough for a machine without a GPU.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pipelines.core.request import TokenRequest

_FIRST_ID, _END_ID = 1_000, 120_000  # prompts are drawn from these ids
_SIGMA, _MEAN = 0.6, 1.2  # of the log-normal lengths; the mean of exp(normal(0, 0.6)) is about 1.2
_MIN_LENGTH = 4  # tokens
_MIN_NEW_TOKENS = 8  # of the mean, however small the scale
_ROUND_TO = 64  # tokens; a context is a multiple of it
_MIN_ROOM = 64  # tokens behind the longest prompt: a timeline may answer longer than a scaled workload does


class WorkloadName(StrEnum):
    """What can be asked for."""

    ROLLOUTS = "rollouts"
    OFFLINE = "offline"
    MIXED_CPU = "mixed-cpu"


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a workload."""

    num_requests: int
    max_num_seqs: int  # sequences at once
    prompt_len: int  # tokens; the mean where lengths are mixed
    new_tokens: int  # likewise
    is_mixed: bool  # lengths are log-normal around the means
    max_num_batched_tokens: int


SHAPES = {
    WorkloadName.ROLLOUTS: Shape(32, 32, 256, 8_192, is_mixed=False, max_num_batched_tokens=8_192),
    WorkloadName.OFFLINE: Shape(1_024, 256, 512, 256, is_mixed=True, max_num_batched_tokens=8_192),
    WorkloadName.MIXED_CPU: Shape(48, 8, 40, 64, is_mixed=True, max_num_batched_tokens=512),
}


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts, and how many tokens each is answered with."""

    name: WorkloadName
    scale: float  # of the new tokens
    prompts: Sequence[Sequence[int]]
    new_tokens: Sequence[int]

    @property
    def shape(self) -> Shape:
        """Its sizes at scale 1."""
        return SHAPES[self.name]

    @property
    def num_prompt_tokens(self) -> int:
        """Of all prompts together."""
        return sum(map(len, self.prompts))

    @property
    def num_new_tokens(self) -> int:
        """Of all answers together."""
        return sum(self.new_tokens)

    @property
    def context(self) -> int:
        """Tokens of the longest sequence, rounded up."""
        longest = max(len(prompt) + new for prompt, new in zip(self.prompts, self.new_tokens, strict=True))
        return round_up(max(longest, max(map(len, self.prompts)) + _MIN_ROOM))

    def requests(self, vocab_size: int) -> list[TokenRequest]:
        """Return them as the engine takes them."""
        return requests_of(self.prompts, self.new_tokens, vocab_size)


def build_workload(name: WorkloadName, scale: float = 1.0, seed: int = 0) -> Workload:
    """Draw a workload; `scale` shortens the answers, never the prompts."""
    shape = SHAPES[name]
    new_tokens = max(_MIN_NEW_TOKENS, int(shape.new_tokens * scale))
    generator = random.Random(seed)  # noqa: S311  a workload has to be the same every time

    def length(mean: int) -> int:
        if not shape.is_mixed:
            return mean
        return max(_MIN_LENGTH, int(generator.lognormvariate(0, _SIGMA) * mean / _MEAN))

    # The order of the draws is part of what a workload is: length and ids of each prompt in turn, then all answers' lengths.
    prompts = [_draw_ids(generator, length(shape.prompt_len)) for _ in range(shape.num_requests)]
    return Workload(name, scale, prompts, [length(new_tokens) for _ in prompts])


def equal_prompts(num_prompts: int, length: int, seed: int = 0) -> list[list[int]]:
    """Draw prompts of one length."""
    generator = random.Random(seed)  # noqa: S311  as above
    return [_draw_ids(generator, length) for _ in range(num_prompts)]


def requests_of(prompts: Sequence[Sequence[int]], new_tokens: Sequence[int], vocab_size: int) -> list[TokenRequest]:
    """Return greedy requests that only their length ends; ids beyond a smaller vocabulary are folded into it."""
    return [
        TokenRequest(
            key=key,
            file=0,
            priority=0,
            prompt_token_ids=tuple(token % vocab_size for token in prompt),
            max_tokens=num_tokens,
            temperature=0.0,
            top_k=0,
            top_p=1.0,
            seed=0,
            n=1,
            stop_token_ids=(),
            wants_deltas=False,
        )
        for key, (prompt, num_tokens) in enumerate(zip(prompts, new_tokens, strict=True))
    ]


def round_up(num_tokens: int) -> int:
    """Return a context that holds so many tokens."""
    return -(-num_tokens // _ROUND_TO) * _ROUND_TO


def _draw_ids(generator: random.Random, length: int) -> list[int]:
    return [generator.randrange(_FIRST_ID, _END_ID) for _ in range(length)]
