"""What the run of one file works with: what it shares with others, and what it is once its journal is open."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from daemon.durable import Storage
from daemon.ending import Ending
from daemon.engine_client import EngineClient
from daemon.feeder import Feeder
from daemon.folders import Folders
from daemon.journal import Journal
from daemon.ledger import Ledger
from daemon.live_batch import LiveBatch
from daemon.metrics import Metrics
from daemon.outbox import FileNames
from daemon.partial_output import PartialOutput
from daemon.pause import Troubles
from daemon.request_record import Survey
from daemon.settings_pipeline import PipelineSettings
from daemon.tracing import FileTrace, NoTracing, Tracing


async def _is_synced() -> None:
    return


@dataclass(frozen=True, slots=True)
class RunParts:
    """What a run shares with others."""

    pipeline: str
    engine: EngineClient
    feeder: Feeder
    metrics: Metrics
    folders: Folders
    storage: Storage
    troubles: Troubles  # storage errors that runs wait out
    price_per_gpu_hour: float | None = None  # for the report
    is_held: Callable[[], bool] = lambda: False  # whether somebody paused the pipeline
    tell: Callable[[Path], None] = lambda _: None  # given the note of a file that is published
    ledger: Ledger | None = None  # of what is published, for retention
    find_engine: Callable[[str], tuple[EngineClient, Feeder] | None] = lambda _: None  # by its name
    tracing: Tracing = field(default_factory=NoTracing)
    claim_synced: Callable[[], Awaitable[None]] = _is_synced  # waits until no power cut can undo the claim


@dataclass(frozen=True, slots=True)
class OpenFile:
    """One file whose journal is open."""

    who: str  # the pipeline and the file, for the log
    name: str  # as it was dropped
    number: int  # within this run of the daemon
    names: FileNames
    settings: PipelineSettings
    journal: Journal
    partial: PartialOutput
    survey: Survey | None  # None where it could not be read, or need not be
    batch: LiveBatch
    ending: Ending
    nudge: asyncio.Event  # wakes the run: there is something to sync or to do
    trace: FileTrace
    orders: set[Path]  # files that ask for a cancel; removed once it is recorded
    models_asked: Counter[str] = field(default_factory=Counter)
