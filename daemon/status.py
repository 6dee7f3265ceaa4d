"""What the daemon says of itself at one instant, as the status page, `/readyz` and `gapless status` show it."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from daemon.batch_object import BatchStatus
from daemon.device_history import SLICE_S, BandSlice
from daemon.heartbeat import Phase
from pipelines.config import Schedule

HANG_S = 10.0  # without a round of the main loop


class EngineState(StrEnum):
    """Where an engine is, text process and engine process taken together."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"  # a process of it died
    UNLOADED = "unloaded"  # nothing needs it, and its memory is free; it is loaded when a file does
    DOWN = "down"  # given up, since it died too often
    ENDED = "ended"  # with the daemon

    @property
    def is_as_wanted(self) -> bool:
        """Whether nothing has to be mended or waited for."""
        return self in {EngineState.READY, EngineState.UNLOADED}


class FileState(StrEnum):
    """Where a file is that is not done yet; all but the first are words of OpenAI's Batch object."""

    WAITING = "waiting"  # in the inbox: still being written, or not taken yet
    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"


def why_stale(age_s: float, hang_s: float = HANG_S) -> str | None:
    """Say that a snapshot of this age is no longer how things are, as the main loop hangs; None if it is."""
    return f"the main loop has not come round for {age_s:.1f} s" if age_s > hang_s else None


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine."""

    name: str
    state: EngineState
    detail: str = ""  # one line: what it is, how far its start is, or why it is down
    num_waiting: int = 0
    num_running: int = 0
    num_restarts: int = 0
    model: str = ""
    schedule: Schedule = Schedule.ASYNC
    num_seats: int = 0  # sequences that it can run at once
    num_used_blocks: int = 0
    num_blocks: int = 0
    prompt_tokens_per_s: float = 0.0  # over the last seconds, like the next
    generation_tokens_per_s: float = 0.0
    busy_ratio: float = 0.0  # of the last minute
    band: tuple[BandSlice, ...] = ()  # of the last minutes, a slice each SLICE_S seconds, the oldest first
    phase: Phase = Phase.IDLE
    progress_age_s: float = 0.0  # since it last got on
    stall_s: float = 120.0  # beyond which it counts as stuck

    @property
    def is_stalled(self) -> bool:
        """Whether it has not got on for too long."""
        return self.progress_age_s > self.stall_s


@dataclass(frozen=True, slots=True)
class FileStatus:
    """One file that is being run."""

    name: str
    state: FileState
    num_done: int  # requests that ended well
    num_failed: int  # requests that ended as error lines
    num_total: int | None  # None: not counted yet
    stem: str = ""
    claimed_s: int = 0  # Unix time
    num_tokens: int = 0  # generated for its answers so far
    tokens_per_s: float = 0.0  # over the last while
    left_s: float | None = None  # at the speed of the last while; None: unknown

    @property
    def num_pending(self) -> int:
        """Requests without a result; 0 before they are counted."""
        return 0 if self.num_total is None else self.num_total - self.num_done - self.num_failed


@dataclass(frozen=True, slots=True)
class EndedFile:
    """One file that has ended in this run of the daemon."""

    name: str
    stem: str
    status: BatchStatus
    num_done: int
    num_failed: int
    ended_s: int  # Unix time
    taken_s: float  # from its claim
    number: int = 0  # 1, 2, 3... within its pipeline and this run of the daemon


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """One pipeline and the files of it that are not done yet."""

    name: str
    engine: str
    paused_because: str | None = None  # None: not paused
    num_waiting_files: int = 0  # in the inbox
    files: tuple[FileStatus, ...] = ()  # claimed
    watch: str = ""  # how new files are noticed
    left_files: tuple[str, ...] = ()  # things in the inbox that wait, one line each with the reason
    ended: tuple[EndedFile, ...] = ()  # the last ones, the newest first


@dataclass(frozen=True, slots=True)
class ConfigStatus:
    """What became of the last change of the configuration's files."""

    changed_s: float  # Unix time; the daemon's start where there was none since
    error: str | None = None  # why it was refused, so that the one before it holds
    checking: str = ""  # what is being done before a newer one is applied; empty: nothing


@dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """The whole daemon. The main loop takes it, others only read it; so its age tells whether the loop still runs."""

    taken_s: float  # CLOCK_MONOTONIC
    started_s: float  # CLOCK_MONOTONIC, start of the daemon
    engines: tuple[EngineStatus, ...]
    pipelines: tuple[PipelineStatus, ...]
    is_draining: bool = False
    config: ConfigStatus = ConfigStatus(0.0)

    def why_not_ready(self) -> list[str]:
        """Return what keeps the daemon from running requests, one line each; empty when it is ready."""
        reasons = ["the daemon is shutting down"] if self.is_draining else []
        for engine in self.engines:
            if not engine.state.is_as_wanted:
                detail = f": {engine.detail}" if engine.detail else ""
                reasons.append(f"engine {engine.name} is {engine.state}{detail}")
            if engine.is_stalled:
                reasons.append(
                    f"engine {engine.name} has not got on for {engine.progress_age_s:.0f} s (phase {engine.phase})"
                )
        return reasons

    def to_json(self, age_s: float = 0.0) -> dict[str, Any]:
        """Return it as JSON's types, times as durations up to the snapshot, which is `age_s` old, or in Unix seconds."""
        return {
            "age_s": age_s,
            "uptime_s": round(self.taken_s - self.started_s, 3),
            "is_draining": self.is_draining,
            "slice_s": SLICE_S,
            "config": asdict(self.config),
            "engines": [asdict(engine) for engine in self.engines],
            "pipelines": [asdict(pipeline) for pipeline in self.pipelines],
        }
