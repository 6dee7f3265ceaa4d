"""A runner without a model: tokens are a hash of seed and position, a step takes as long as it is told to.

Under it run the real scheduler and the real loop, so that what is tested with it is everything but arithmetic. It is held to
the real runner by the conformance test. Chosen by `model.path: fake:` with options behind the colon, as in
`fake:step_ms=5,eos_every=50`.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import log
from typing import Any

from pipelines.core.batch import Batch, Row
from pipelines.core.request import TokenLogprobs
from pipelines.core.runner import MemoryTraffic, StepTime
from pipelines.counted import counted
from pipelines.errors import ModelError, OutOfMemoryError

_MASK = (1 << 64) - 1
_LINE_END = 10  # a token of the fake engine's tokenizer is a byte


@dataclass(frozen=True, slots=True)
class FakeOptions:
    """What stands behind `fake:`."""

    context: int = 8192  # tokens a sequence may have
    step_ms: float = 0.0  # how long the device works on a step
    load_ms: float = 0.0  # how long the model takes to load
    eos_every: int = 0  # a token in so many ends the sequence; 0 = none does
    company: bool = False  # tokens depend on the batch, as real arithmetic may
    weight_mb: float = 0.0  # megabytes that a decode step reads; 0 = unknown
    memory_gb_s: float = 0.0  # gigabytes a second that can be read; 0 = unknown
    token_bytes: int = 1  # of text that a token of an answer stands for
    poison: int = -1  # a prompt token at which the process dies on the spot; -1 = none
    memory: int = 0  # tokens of the largest step that fits into its memory; 0 = any
    load_fails: bool = False  # as what no check before can know
    echo: bool = False  # an answer is what the last turn of its chat says, then its end

    @classmethod
    def parse(cls, path: str) -> "FakeOptions":
        """Read `fake:name=value,...`.

        Raises:
            ModelError: an option that is not there, or no number.
        """
        values = {}
        known = {field.name: field.type for field in fields(cls)}
        for part in filter(None, path.removeprefix("fake:").split(",")):
            name, _, value = part.partition("=")
            if name not in known:
                raise ModelError(f"model.path {path}: found option {name!r}, expected one of {', '.join(known)}")
            try:
                values[name] = _READERS[known[name]](value)
            except ValueError:
                raise ModelError(f"model.path {path}: {name}: found {value!r}, expected a number") from None
        return cls(**values)


_READERS: dict[Any, Callable[[str], Any]] = {int: int, float: float, bool: lambda text: bool(int(text))}


class FakeSlot:
    """Holds a batch and, once sampled, its tokens."""

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.end_s = 0.0

    def stage(self, batch: Batch) -> None:
        """Keep the batch."""
        self.batch = batch
        self.tokens = []

    def read_tokens(self) -> list[int]:
        """Wait until the device would be done."""
        wait_s = self.end_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        return self.tokens

    def read_logprobs(self) -> list[TokenLogprobs]:
        """What the device would say of the tokens."""
        return self.logprobs


class FakeRunner:
    """Computes tokens at launch and hands them out when the device would have them."""

    def __init__(self, options: FakeOptions, alphabet: Sequence[int], eos_id: int, num_slots: int = 2) -> None:
        self.slots = [FakeSlot() for _ in range(num_slots)]
        self._options = options
        self._alphabet = alphabet  # ids of the tokens that make up its text
        self._eos_id = eos_id
        self._busy_until_s = 0.0
        self._step_times: deque[StepTime] = deque()

    @property
    def traffic(self) -> MemoryTraffic | None:
        """What a decode step has to read, where the options say it."""
        options = self._options
        if not (options.weight_mb and options.memory_gb_s):
            return None
        return MemoryTraffic(round(options.weight_mb * 1e6), 0, options.memory_gb_s * 1e9)

    def launch_forward(self, slot: FakeSlot) -> None:
        """Die if the batch holds poison; refuse one that is too large."""
        if slot.batch is None:
            return
        if slot.batch.num_tokens > self._options.memory > 0:
            raise OutOfMemoryError(f"model.path has room for {counted(self._options.memory, 'token')}")
        poison = self._options.poison
        if poison >= 0 and any(poison in row.token_ids for row in slot.batch.rows):
            raise SystemExit(86)

    def launch_sample(self, slot: FakeSlot, masks: dict[int, bytes]) -> None:
        """Decide the tokens and when they are there."""
        if slot.batch is None:
            raise ModelError("a slot was launched before it was staged")
        launched_s = time.monotonic()
        start_s = max(launched_s, self._busy_until_s)
        slot.end_s = self._busy_until_s = start_s + self._options.step_ms / 1e3
        self._step_times.append(StepTime(slot.batch.step, launched_s, launched_s, start_s, slot.end_s, slot.end_s))
        company = slot.batch.num_rows if self._options.company else 0
        slot.tokens = [self._token(row, company, masks.get(index)) for index, row in enumerate(slot.batch.sampled_rows)]
        slot.logprobs = [self._logprobs(row, slot.tokens[index]) for index, row in slot.batch.told_rows]

    def abandon(self, slot: FakeSlot) -> None:
        """Forget the step; nothing of it runs."""
        slot.batch = None

    def take_step_times(self) -> list[StepTime]:
        """Return the times of the steps that are over."""
        now_s = time.monotonic()
        over = []
        while self._step_times and self._step_times[0].end_s <= now_s:
            over.append(self._step_times.popleft())
        return over

    def close(self) -> None:
        """Nothing to stop."""

    def _token(self, row: Row, company: int, mask: bytes | None) -> int:
        if mask is None and self._options.echo:
            return _echoed(row, self._eos_id)
        value = _mixed(row.sequence.seed + row.context_len * 0x9E3779B97F4A7C15 + company)
        alphabet = self._alphabet
        if mask is None and self._options.eos_every and value % self._options.eos_every == 0:
            return self._eos_id
        if mask is not None:
            alphabet = [token for token in range(8 * len(mask)) if mask[token // 8] >> token % 8 & 1]
        return alphabet[(value >> 16) % len(alphabet)]

    def _logprobs(self, row: Row, token: int) -> TokenLogprobs:
        """All tokens of its alphabet are equally likely, so any of them are the likeliest."""
        logprob = -log(len(self._alphabet))
        others = [other for other in self._alphabet if other != token]
        top = [token, *others][: row.sequence.request.num_logprobs]
        return TokenLogprobs(logprob, tuple((other, logprob) for other in top))


def _echoed(row: Row, eos_id: int) -> int:
    """Return the next token of the last turn: what stands between its first line, which is its role, and its end."""
    prompt = row.sequence.request.prompt_token_ids
    if eos_id not in prompt:
        return eos_id
    end = len(prompt) - 1 - prompt[::-1].index(eos_id)
    opens = max((index for index in range(end) if prompt[index] > eos_id), default=-1)
    turn = prompt[opens + 1 : end + 1]
    start = turn.index(_LINE_END) + 1 if _LINE_END in turn else 0
    at = start + row.context_len - len(prompt)
    return turn[at] if at < len(turn) else eos_id


def _mixed(value: int) -> int:
    """Splitmix64's finaliser: spreads neighbouring values over 64 bits."""
    value &= _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
