"""Milliseconds a decode step at several batch sizes: of those steps in which all sequences decode and nothing else is done.

The prompts are computed by a run before, and found in the prefix cache. Else large batches would never decode together at the
context that they are to have: the first sequences go on while the last ones' prompts are still computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pipelines.benchmark.measure import CheckError, Run, Subject, measure, warm_up
from pipelines.benchmark.report import aligned
from pipelines.benchmark.workload import equal_prompts, requests_of

PROMPT_LEN = 1_024  # tokens
_NUM_TOKENS = 288  # new ones of each sequence
CONTEXT = PROMPT_LEN + _NUM_TOKENS // 2  # tokens, the mean of those steps
MAX_CONTEXT = PROMPT_LEN + _NUM_TOKENS
BATCH_SIZES = (1, 8, 32, 64, 128, 256)
_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One batch size."""

    batch_size: int
    num_steps: int  # in which all sequences decoded
    context: float  # tokens, the mean of a row of these steps
    ms_per_step: float  # from the end of one step to the end of the next, on the device
    busy_share: float  # of that time
    floor_ms: float | None  # what the step's bytes take at the measured bandwidth

    @property
    def ratio(self) -> float | None:
        """The floor over the time."""
        return None if self.floor_ms is None else self.floor_ms / self.ms_per_step

    def to_record(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "batch_size": self.batch_size,
            "num_steps": self.num_steps,
            "context": self.context,
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
        CheckError: a request did not get exactly its number of tokens, or there was no step of all sequences.
        EngineError: a step failed.
    """
    warm_up(subject, _requests(subject, max(batch_sizes), _WARM_UP_TOKENS), _WARM_UP_TOKENS)
    rows = []
    for batch_size in batch_sizes:
        requests = _requests(subject, batch_size, _NUM_TOKENS)
        run = measure(subject, requests, subject.config.schedule, before=_requests(subject, batch_size, 1))
        rows.append(sweep_row(subject, batch_size, run, bytes_per_s))
        tell(f"batch {batch_size}: {rows[-1].ms_per_step:.3f} ms a step")
    return rows


def sweep_row(subject: Subject, batch_size: int, run: Run, bytes_per_s: float | None) -> SweepRow:
    """Return what a run says of its steps of so many decodes and nothing else.

    Raises:
        CheckError: there are none.
    """
    chosen = [index for index, step in enumerate(run.steps) if step.num_rows == step.num_tokens == batch_size]
    if not chosen:
        raise CheckError(f"found no step in which all {batch_size} sequences decoded")
    steps = [run.steps[index] for index in chosen]
    duration_s, gap_s = (fmean([times[index] for index in chosen]) for times in (run.durations_s, run.gaps_s))
    floor_ms = None
    if subject.traffic is not None and bytes_per_s is not None:
        floor_ms = 1e3 * fmean(map(subject.traffic.step_bytes, steps)) / bytes_per_s
    return SweepRow(
        batch_size=batch_size,
        num_steps=len(steps),
        context=fmean([step.num_context for step in steps]) / batch_size,
        ms_per_step=1e3 * (duration_s + gap_s),
        busy_share=duration_s / (duration_s + gap_s),
        floor_ms=floor_ms,
    )


def sweep_table(rows: Sequence[SweepRow]) -> list[str]:
    """Return it as lines."""
    cells = [
        [
            f"{row.batch_size}",
            f"{row.num_steps}",
            f"{row.context:,.0f}",
            f"{row.ms_per_step:.3f}",
            f"{100 * row.busy_share:.2f} %",
            "-" if row.floor_ms is None else f"{row.floor_ms:.3f}",
            "-" if row.ratio is None else f"{row.ratio:.3f}",
        ]
        for row in rows
    ]
    return aligned([["batch", "steps", "context", "ms a step", "stream-busy", "its bytes alone, ms", "ratio"], *cells])


def _requests(subject: Subject, batch_size: int, num_tokens: int) -> list[Any]:
    return requests_of(equal_prompts(batch_size, PROMPT_LEN), [num_tokens] * batch_size, subject.vocab_size)
