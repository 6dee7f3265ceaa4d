"""What runs add up to: the figures of one mode, and what the asynchronous mode saves over the synchronous one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.benchmark.measure import Run
from pipelines.benchmark.traffic import Roofline, Traffic
from pipelines.config import Schedule

MAX_RESIDUE = 1e-3  # of the time: what the account of the device may fail to explain
_CLOCK_S = 1e-2  # and may in any case: a busy machine takes the processor away between two readings of a clock


@dataclass(frozen=True, slots=True)
class ModeResult:
    """The run of median length among the repeats of one mode."""

    run: Run
    all_seconds: tuple[float, ...]  # of the repeats, in order
    roofline: Roofline | None

    @classmethod
    def of(cls, runs: Sequence[Run], traffic: Traffic | None, bytes_per_s: float | None) -> "ModeResult":
        """Choose the run, and hold it against the bandwidth where there is one."""
        run = sorted(runs, key=lambda one: one.seconds)[len(runs) // 2]
        roofline = None
        if traffic is not None and bytes_per_s is not None:
            roofline = Roofline.of(run.steps, run.durations_s, traffic, bytes_per_s)
        return cls(run, tuple(one.seconds for one in runs), roofline)

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens, over the whole time."""
        return self.run.num_tokens / self.run.seconds

    @property
    def ms_per_step(self) -> float:
        """The whole time over all steps."""
        return 1e3 * self.run.seconds / len(self.run.steps)

    def share(self, seconds: float) -> float:
        """Return a part of the time as a share of it."""
        return seconds / self.run.seconds

    @property
    def busy_share(self) -> float:
        """Of the time, in which the compute stream was busy for sure."""
        return self.share(self.run.device.busy_s)

    @property
    def is_explained(self) -> bool:
        """Whether busy, unproven and idle add up to the time."""
        return abs(self.run.residue_s) <= max(MAX_RESIDUE * self.run.seconds, _CLOCK_S)

    def to_record(self) -> dict[str, Any]:
        """Return it for JSON."""
        run, device = self.run, self.run.device
        record: dict[str, Any] = {
            "seconds": run.seconds,
            "all_seconds": list(self.all_seconds),
            "generated_tokens": run.num_tokens,
            "tokens_per_s": self.tokens_per_s,
            "steps": len(run.steps),
            "ms_per_step": self.ms_per_step,
            "preemptions": run.num_preemptions,
            "device_s": {
                "busy": device.busy_s,
                "unproven": device.unproven_s,
                "idle_host": device.host_s,
                "idle_h2d": device.h2d_s,
                "idle_empty": device.empty_s,
                "residue": run.residue_s,
            },
            "busy_share": self.busy_share,
            "roofline": None,
        }
        if self.roofline is not None:
            record["roofline"] = {
                "ratio": self.roofline.ratio,
                "decode_steps": self.roofline.num_steps,
                "device_ms_per_decode_step": 1e3 * self.roofline.device_s / self.roofline.num_steps,
                "floor_ms_per_decode_step": 1e3 * self.roofline.floor_s / self.roofline.num_steps,
            }
        return record


@dataclass(frozen=True, slots=True)
class Saving:
    """The asynchronous mode beside the synchronous one."""

    synchronous: ModeResult
    asynchronous: ModeResult

    @classmethod
    def of(cls, results: dict[Schedule, ModeResult]) -> "Saving | None":
        """None where one of the modes was not run."""
        if Schedule.SYNC not in results or Schedule.ASYNC not in results:
            return None
        return cls(results[Schedule.SYNC], results[Schedule.ASYNC])

    @property
    def speedup(self) -> float:
        """How many times as fast."""
        return self.synchronous.run.seconds / self.asynchronous.run.seconds

    @property
    def saved_s(self) -> float:
        """Seconds of the run."""
        return self.synchronous.run.seconds - self.asynchronous.run.seconds

    @property
    def saved_share(self) -> float:
        """Of the synchronous run's time."""
        return self.saved_s / self.synchronous.run.seconds

    @property
    def saved_host_share(self) -> float | None:
        """Of the time that the device waited for the host in the synchronous run; None where it did not."""
        before_s = self.synchronous.run.device.host_s
        return (before_s - self.asynchronous.run.device.host_s) / before_s if before_s > 0 else None

    @property
    def has_same_tokens(self) -> bool:
        """Whether both gave every request the same tokens."""
        return self.synchronous.run.tokens == self.asynchronous.run.tokens

    def to_record(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "speedup": self.speedup,
            "saved_s": self.saved_s,
            "saved_share": self.saved_share,
            "saved_host_share": self.saved_host_share,
            "same_tokens": self.has_same_tokens,
        }
