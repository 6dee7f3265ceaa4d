"""What the daemon says of itself at one instant, as the status page, `/readyz` and `gapless status` show it."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class EngineState(StrEnum):
    """Where an engine is, text process and engine process taken together."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"  # a process of it died
    DOWN = "down"  # given up, since it died too often; or the daemon ends


class FileState(StrEnum):
    """Where a file is that is not done yet; all but the first are words of OpenAI's Batch object."""

    WAITING = "waiting"  # in the inbox: still being written, or not taken yet
    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine."""

    name: str
    state: EngineState
    detail: str = ""  # one line: what it is, how far its start is, or why it is down
    num_waiting: int = 0
    num_running: int = 0
    num_restarts: int = 0


@dataclass(frozen=True, slots=True)
class FileStatus:
    """One file that is being run."""

    name: str
    state: FileState
    num_done: int  # requests that ended well
    num_failed: int  # requests that ended as error lines
    num_total: int | None  # None: not counted yet


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


@dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """The whole daemon. The main loop takes it, others only read it; so its age tells whether the loop still runs."""

    taken_s: float  # CLOCK_MONOTONIC
    started_s: float  # CLOCK_MONOTONIC, start of the daemon
    engines: tuple[EngineStatus, ...]
    pipelines: tuple[PipelineStatus, ...]
    is_draining: bool = False

    def why_not_ready(self) -> list[str]:
        """Return what keeps the daemon from running requests, one line each; empty when it is ready."""
        reasons = ["the daemon is shutting down"] if self.is_draining else []
        for engine in self.engines:
            if engine.state is not EngineState.READY:
                detail = f": {engine.detail}" if engine.detail else ""
                reasons.append(f"engine {engine.name} is {engine.state}{detail}")
        return reasons

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's types, times as durations up to the snapshot."""
        return {
            "uptime_s": round(self.taken_s - self.started_s, 3),
            "is_draining": self.is_draining,
            "engines": [asdict(engine) for engine in self.engines],
            "pipelines": [asdict(pipeline) for pipeline in self.pipelines],
        }
