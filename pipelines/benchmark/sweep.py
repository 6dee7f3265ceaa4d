"""Milliseconds a decode step at several batch sizes, as the difference of two runs, so that the prefill drops out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.benchmark.measure import Run, Subject, measure, warm_up
from pipelines.benchmark.report import aligned
from pipelines.benchmark.traffic import StepSize
from pipelines.benchmark.workload import equal_prompts, requests_of

PROMPT_LEN = 1_024  # tokens
_FEW, _MANY = 16, 272  # new tokens of the two runs
_NUM_STEPS = _MANY - _FEW  # decode steps of the difference
CONTEXT = PROMPT_LEN + (_FEW + _MANY) // 2  # tokens, the mean of those steps
MAX_CONTEXT = PROMPT_LEN + _MANY
BATCH_SIZES = (1, 8, 32, 64, 128, 256)
_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One batch size."""

    batch_size: int
    ms_per_step: float  # of the host's clock
    busy_share: float  # of the difference of the two runs
    floor_ms: float | None  # what the step's bytes take at the measured bandwidth

    @property
    def ratio(self) -> float | None:
        """The floor over the time; this is the wall clock's ratio, not the device's."""
        return None if self.floor_ms is None else self.floor_ms / self.ms_per_step

    def to_record(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "batch_size": self.batch_size,
            "context": CONTEXT,
            "ms_per_step": self.ms_per_step,
            "busy_share": self.busy_share,
            "floor_ms": self.floor_ms,
            "ratio": self.ratio,
        }


def sweep(
    subject: Subject, batch_sizes: Sequence[int], bytes_per_s: float | None, tell: Callable[[str], None]
) -> list[SweepRow]:
    """Measure each batch size.

    Raises:
        CheckError: a request did not get exactly its number of tokens.
        EngineError: a step failed.
    """
    largest = _requests(subject, max(batch_sizes), _WARM_UP_TOKENS)
    warm_up(subject, largest, _WARM_UP_TOKENS)
    rows = []
    for batch_size in batch_sizes:
        many = measure(subject, _requests(subject, batch_size, _MANY), subject.config.schedule)
        few = measure(subject, _requests(subject, batch_size, _FEW), subject.config.schedule)
        rows.append(difference(batch_size, few, many, _floor_ms(subject, batch_size, bytes_per_s)))
        tell(f"batch {batch_size}: {rows[-1].ms_per_step:.3f} ms a step")
    return rows


def difference(batch_size: int, few: Run, many: Run, floor_ms: float | None) -> SweepRow:
    """Return what the decode steps took that one run has and the other has not."""
    seconds = many.seconds - few.seconds
    busy_s = many.device.busy_s - few.device.busy_s
    return SweepRow(batch_size, 1e3 * seconds / _NUM_STEPS, busy_s / seconds, floor_ms)


def sweep_table(rows: Sequence[SweepRow]) -> list[str]:
    """Return it as lines."""
    cells = [
        [
            f"{row.batch_size}",
            f"{row.ms_per_step:.3f}",
            f"{100 * row.busy_share:.2f} %",
            "-" if row.floor_ms is None else f"{row.floor_ms:.3f}",
            "-" if row.ratio is None else f"{row.ratio:.3f}",
        ]
        for row in rows
    ]
    return aligned([["batch", "ms a step", "stream-busy", "its bytes alone, ms", "ratio"], *cells])


def _requests(subject: Subject, batch_size: int, num_tokens: int) -> list[Any]:
    return requests_of(equal_prompts(batch_size, PROMPT_LEN), [num_tokens] * batch_size, subject.vocab_size)


def _floor_ms(subject: Subject, batch_size: int, bytes_per_s: float | None) -> float | None:
    traffic = subject.traffic
    if traffic is None or bytes_per_s is None:
        return None
    windowed = min(CONTEXT, traffic.window or CONTEXT)
    step = StepSize(batch_size, batch_size, batch_size * CONTEXT, batch_size * windowed)
    return 1e3 * traffic.step_bytes(step) / bytes_per_s
