"""The engines and pipelines that run and the tasks that keep them; they come and go with the configuration."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from daemon.durable import Storage
from daemon.early_children import StartChild
from daemon.engine_client import EngineClient
from daemon.errors import DaemonError
from daemon.feeder import Feeder
from daemon.file_metrics import PipelineGauges
from daemon.metrics import Metrics
from daemon.pipeline import Pipeline, PipelineParts
from daemon.settings_daemon import DaemonSettings
from daemon.settings_engine import EngineSettings
from daemon.settings_pipeline import PipelineSettings
from daemon.tracing import Tracing
from pipelines.core.request import IdleCause

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlantParts:
    """What engines and pipelines share."""

    metrics: Metrics
    storage: Storage
    tell: Callable[[Path], None]  # given the note of a file that is published
    why_empty: Callable[[str], IdleCause]  # why the engine of this name holds no request, if it holds none
    tracing: Tracing
    start_child: StartChild | None = None  # starts the processes of engines; None: anew, each of them


class Plant:
    """Engines, their feeders, pipelines, and the tasks of all of them. Used from the event loop's thread."""

    def __init__(self, parts: PlantParts) -> None:
        self.engines: dict[str, EngineClient] = {}
        self.feeders: dict[str, Feeder] = {}
        self.pipelines: dict[str, Pipeline] = {}
        self._parts = parts
        self._numbers = count(1)
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}  # by `engines.NAME` and `pipelines.NAME`

    def add_engine(self, name: str, settings: EngineSettings, *, is_vital: bool) -> None:
        """Add an engine; `start` brings it up. If one that `is_vital` cannot be brought up, the daemon ends."""
        engine = EngineClient(
            settings.to_engine_config(name), self._parts.metrics, settings.max_restarts,
            partial(self._parts.why_empty, name), stall_s=settings.stall_s,
            idle_unload_s=settings.idle_unload_s, is_vital=is_vital and settings.idle_unload_s is None,
            start_child=self._parts.start_child,
        )  # fmt: skip
        self.engines[name], self.feeders[name] = engine, Feeder(engine)

    def make_pipeline(
        self, name: str, settings: PipelineSettings, daemon: DaemonSettings, *, waits_for_room: bool = False
    ) -> Pipeline:
        """Return a pipeline whose engine is there already, with its folders; `add_pipeline` has it take part.

        If it `waits_for_room`, a full disk does not keep it from coming up: it is paused.

        Raises:
            StorageError: a folder cannot be made or written.
        """
        pipeline = Pipeline(name, settings, daemon, self.parts_of(settings.engine))
        pipeline.make_folders(waits_for_room=waits_for_room)
        return pipeline

    def parts_of(self, engine: str) -> PipelineParts:
        """Return what a pipeline of this engine works with."""
        parts = self._parts
        return PipelineParts(
            self.engines[engine], self.feeders[engine], parts.metrics, parts.storage, partial(next, self._numbers),
            parts.tell, find_engine=self._find_engine, tracing=parts.tracing,
        )  # fmt: skip

    def add_pipeline(self, pipeline: Pipeline) -> None:
        """Add a pipeline; `start` lets it run."""
        self.pipelines[pipeline.name] = pipeline

    def start(self) -> None:
        """Start whatever does not run yet."""
        for name, engine in self.engines.items():
            self._start(f"engines.{name}", engine.run, self.feeders[name].run)
        for name, pipeline in self.pipelines.items():
            self._start(f"pipelines.{name}", pipeline.run, pipeline.keep_tidy)

    def check(self) -> None:
        """Return if everything still runs.

        Raises:
            DaemonError: what ended it; or any other exception that is a fault of ours.
        """
        for tasks in self._tasks.values():
            for task in tasks:
                if task.done():
                    task.result()

    async def end_pipelines(self) -> None:
        """End the rounds of all pipelines; what they run goes on."""
        await self._end("pipelines.")

    async def end_engines(self) -> None:
        """End all engines with their processes."""
        await self._end("engines.")

    async def remove_pipeline(self, name: str) -> None:
        """End a pipeline that runs no file and forget it."""
        await self._end(f"pipelines.{name}")
        await self.pipelines.pop(name).drain(0.0)
        self._parts.metrics.set_pipeline(name, PipelineGauges())

    async def remove_engine(self, name: str) -> None:
        """End an engine that no pipeline needs and forget it."""
        await self._end(f"engines.{name}")
        del self.engines[name], self.feeders[name]
        self._parts.metrics.note_engine_down(name)
        self._parts.metrics.forget_engine(name)

    def _find_engine(self, name: str) -> tuple[EngineClient, Feeder] | None:
        engine = self.engines.get(name)
        return None if engine is None else (engine, self.feeders[name])

    def _start(self, name: str, *works: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if name not in self._tasks:
            self._tasks[name] = [asyncio.create_task(work()) for work in works]

    async def _end(self, prefix: str) -> None:
        """Cancel the tasks of one name, or of all names that begin so if it ends in a dot."""
        names = [name for name in self._tasks if name == prefix or (prefix[-1] == "." and name.startswith(prefix))]
        await end_tasks([task for name in names for task in self._tasks.pop(name)])


async def end_tasks(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for them; what they raise has been seen or is logged."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception) and not isinstance(result, DaemonError):
            log.error("while stopping", exc_info=result)
