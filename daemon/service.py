"""The daemon: startup, main loop, shutdown."""

import asyncio
import logging
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

from daemon.address import announce
from daemon.engine_client import EngineClient
from daemon.errors import DaemonError, ExitCode
from daemon.feeder import Feeder
from daemon.http import HttpServer
from daemon.metrics import Metrics
from daemon.on_done import OnDone
from daemon.pipeline import Pipeline, PipelineParts
from daemon.settings import Settings
from daemon.shared_sync import SharedDiskStorage
from daemon.spool_lock import lock_of_spool
from daemon.status import EngineState, EngineStatus, StatusSnapshot
from daemon.waiting import wait_for_event

log = logging.getLogger(__name__)

_TICK_S = 0.25
_TELL_S = 10.0  # that `on_done` gets at the end at most; what it does not do is done at the next start
_NUM_THREADS = 64  # they wait for disks; syncs of many files at once are about as fast as one


class Service:
    """Runs the engines and pipelines of one configuration until told to stop; with `once`, until the inboxes are empty."""

    def __init__(self, settings: Settings, *, once: bool = False) -> None:
        self.should_exit = asyncio.Event()
        self.force_exit = asyncio.Event()
        self._settings = settings
        self._once = once
        self._started_s = time.monotonic()
        self._metrics = Metrics()
        self._storage = SharedDiskStorage()
        self._engines: dict[str, EngineClient] = {}
        self._feeders: dict[str, Feeder] = {}
        self._pipelines: dict[str, Pipeline] = {}
        self._on_done = OnDone(self._metrics.count_on_done)
        self._is_draining = False
        self._is_stuck = False  # with `once`: nothing will come of what is left
        self._snapshot = StatusSnapshot(self._started_s, self._started_s, (), ())

    async def run(self) -> ExitCode:
        """Run to the end.

        Raises:
            DaemonError: it could not start.
        """
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_NUM_THREADS, "disk"))
        with lock_of_spool(Path(self._settings.daemon.spool)), self._signals():
            self._build()
            server = self._start_http()
            try:
                await self._main_loop()
            finally:
                server.close()
        failed = sum(
            pipeline.num_failed_requests + pipeline.num_failed_files + pipeline.num_unusable_files
            for pipeline in self._pipelines.values()
        )
        is_held = any(pipeline.held_because is not None for pipeline in self._pipelines.values())
        return ExitCode.SOME_FAILED if self._once and (failed or is_held or self._is_stuck) else ExitCode.OK

    def _build(self) -> None:
        numbers = count(1)
        for name, settings in self._settings.engines.items():
            has_work = partial(self._has_work, name)
            engine = EngineClient(settings.to_engine_config(name), self._metrics, settings.max_restarts, has_work)
            self._engines[name] = engine
            self._feeders[name] = Feeder(engine)
        for name, pipeline in self._settings.pipelines.items():
            engine, feeder = self._engines[pipeline.engine], self._feeders[pipeline.engine]
            parts = PipelineParts(
                engine, feeder, self._metrics, self._storage, partial(next, numbers), self._on_done.add
            )
            self._pipelines[name] = Pipeline(name, pipeline, self._settings.daemon, parts)
            self._pipelines[name].make_folders()

    def _start_http(self) -> HttpServer:
        http = self._settings.daemon.http
        server = HttpServer(
            http.host, http.port, metrics=self._metrics, status=lambda: self._snapshot, token_file=http.token_file
        )
        self._tick()
        server.start()
        announce(Path(self._settings.daemon.spool), http.host, server.port)
        log.info("metrics and status: http://%s:%d/", http.host, server.port)
        for pipeline in self._pipelines.values():
            log.info("pipeline %s: drop files into %s", pipeline.name, pipeline.inbox_folder)
        return server

    async def _main_loop(self) -> None:
        """Run everything until there is a reason to stop, then shut down: files first, engines last."""
        engines = [asyncio.create_task(engine.run()) for engine in self._engines.values()]
        feeders = [asyncio.create_task(feeder.run()) for feeder in self._feeders.values()]
        pipelines = [asyncio.create_task(pipeline.run()) for pipeline in self._pipelines.values()]
        tidy = [asyncio.create_task(pipeline.keep_tidy()) for pipeline in self._pipelines.values()]
        tasks = [*engines, *feeders, *pipelines, *tidy]
        try:
            while not self._is_over(tasks):
                self._tick()
                await wait_for_event(self.should_exit, _TICK_S)
        finally:
            await self._shutdown([*pipelines, *tidy], [*feeders, *engines])

    def _is_over(self, tasks: list[asyncio.Task[None]]) -> bool:
        for task in tasks:
            if task.done():
                task.result()  # raises what ended it
        pipelines = self._pipelines.values()
        if self._once and not self._on_done.num_pending and all(map(self._is_settled, pipelines)):
            self._is_stuck = not all(pipeline.is_idle for pipeline in pipelines)
            return True
        return self.should_exit.is_set()

    def _is_settled(self, pipeline: Pipeline) -> bool:
        """Whether nothing more will come of a pipeline by itself."""
        return pipeline.is_idle or self._is_down(pipeline)

    def _is_down(self, pipeline: Pipeline) -> bool:
        """Whether a pipeline's engine is paused, so that its files would wait for a person."""
        return self._engines[pipeline.settings.engine].state is EngineState.DOWN

    async def _shutdown(self, pipelines: list[asyncio.Task[None]], others: list[asyncio.Task[None]]) -> None:
        self._is_draining = True
        await _end(pipelines)
        for feeder in self._feeders.values():
            feeder.stop()
        drain_s = self._settings.daemon.drain_s
        if not self._once:
            log.info("stopping: running requests get up to %g s", drain_s)
        drains = [asyncio.create_task(pipeline.drain(drain_s)) for pipeline in self._pipelines.values()]
        while not all(drain.done() for drain in drains) and not self.force_exit.is_set():
            self._tick()
            await wait_for_event(self.force_exit, _TICK_S)
        for pipeline in self._pipelines.values():
            pipeline.abandon()
        await asyncio.gather(*drains, return_exceptions=True)
        await self._on_done.drain(0.0 if self.force_exit.is_set() else min(drain_s, _TELL_S))
        await _end(others)
        log.info("stopped")

    def _has_work(self, engine: str) -> bool:
        pipelines = self._pipelines.values()
        return any(pipeline.has_work for pipeline in pipelines if pipeline.settings.engine == engine)

    def _tick(self) -> None:
        """Take the snapshot that the HTTP server shows; its age tells whether this loop runs."""
        engines = tuple(self._engine_status(engine) for engine in self._engines.values())
        for pipeline in self._pipelines.values():
            pipeline.look_at_switch()
            pipeline.update_metrics()
        self._snapshot = StatusSnapshot(
            taken_s=time.monotonic(),
            started_s=self._started_s,
            engines=engines,
            pipelines=tuple(pipeline.status() for pipeline in self._pipelines.values()),
            is_draining=self._is_draining,
        )

    def _engine_status(self, engine: EngineClient) -> EngineStatus:
        stats = engine.stats
        return EngineStatus(
            name=engine.config.name,
            state=engine.state,
            detail=engine.describe(),
            num_waiting=stats.num_waiting if stats else 0,
            num_running=stats.num_running if stats else 0,
            num_restarts=engine.num_restarts,
        )

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first SIGTERM or SIGINT drains, the second stops at once."""
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            if self.should_exit.is_set():
                self.force_exit.set()
            self.should_exit.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for them; what they raise has been seen or is logged."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception) and not isinstance(result, DaemonError):
            log.error("while stopping", exc_info=result)
