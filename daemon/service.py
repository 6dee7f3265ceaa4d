"""The daemon: startup, main loop, shutdown."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from daemon.address import Announcement
from daemon.config_watch import ConfigWatch
from daemon.early_children import StartChild
from daemon.engine_client import EngineClient
from daemon.errors import DiskFullError, ExitCode
from daemon.forgotten import count_left, forgotten_pipelines
from daemon.gpu_metrics import GpuSampler
from daemon.gpu_reader import GpuReader, open_nvml
from daemon.http import HttpServer
from daemon.logs import LogTail, set_up_logging
from daemon.metrics import Metrics
from daemon.notify import Notifier
from daemon.on_done import OnDone
from daemon.pipeline import Pipeline
from daemon.plant import Plant, PlantParts, end_tasks
from daemon.reload import Reloader
from daemon.reload_files import ReloadFiles
from daemon.running import noted
from daemon.settings import Settings
from daemon.shared_sync import SharedDiskStorage
from daemon.site import Views
from daemon.spool_lock import lock_of_spool
from daemon.status import ConfigStatus, EngineState, EngineStatus, StatusSnapshot
from daemon.tracing import open_tracing
from daemon.waiting import wait_for_event
from pipelines.core.request import IdleCause

log = logging.getLogger(__name__)

_TICK_S = 0.25
_TELL_S = 10.0  # that `on_done` gets at the end at most; what is left then is done at the next start
_ROOM_S = 2.0  # between two tries at a full disk
_NUM_THREADS = 64  # they mostly wait for disks: syncs of many files at once take about as long as one
_END_S = 60.0  # that a supervisor should give the daemon besides `drain_s`: to record results and end the engines


class Service:
    """Runs the engines and pipelines of one configuration until told to stop; with `once`, until the inboxes are empty."""

    def __init__(
        self,
        settings: Settings,
        *,
        configs: Sequence[Path] = (),
        once: bool = False,
        watch: ConfigWatch | None = None,
        log_tail: LogTail | None = None,
        start_child: StartChild | None = None,
        open_gpus: Callable[[], GpuReader | None] = open_nvml,
    ) -> None:
        self.should_exit = asyncio.Event()
        self.force_exit = asyncio.Event()
        self._settings = settings
        self._configs = configs  # the files of the configuration
        self._once = once
        self._log_tail = log_tail or LogTail()
        self._open_gpus = open_gpus
        self._started_s = time.monotonic()
        self._metrics = Metrics()
        self._storage = SharedDiskStorage()
        self._on_done = OnDone(self._metrics.count_on_done)
        self._notifier = Notifier.of_environment(os.environ, time.monotonic)
        self._tracing = open_tracing(**dict(settings.daemon.tracing))
        self._plant = Plant(
            PlantParts(self._metrics, self._storage, self._on_done.add, self._why_empty, self._tracing, start_child)
        )
        self._engines, self._pipelines = self._plant.engines, self._plant.pipelines
        self._announcement: Announcement | None = None  # once there is a port
        self._reloader: Reloader | None = None
        if watch is not None:
            self._reloader = Reloader(
                settings, watch, self._plant, self._metrics, partial(set_up_logging, tail=self._log_tail)
            )
        self._is_draining = False
        self._config_status = ConfigStatus(time.time())
        self._is_stuck = False  # with `once`: what is left cannot be run without a person
        self._num_left = 0  # files, when a signal had ended it
        self._snapshot = StatusSnapshot(self._started_s, self._started_s, (), (), config=ConfigStatus(time.time()))

    async def run(self) -> ExitCode:
        """Run to the end.

        Raises:
            DaemonError: it could not start.
        """
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_NUM_THREADS, "disk"))
        spool = Path(self._settings.daemon.spool)
        with self._signals(), ExitStack() as held:
            if not await self._lock_spool(held):
                return ExitCode.OK
            held.enter_context(noted(self._configs, spool))
            with suppress(DiskFullError):  # then commands read the configuration's files instead
                ReloadFiles(spool).note_running(self._settings)
            self._build()
            server = self._start_http()
            self._notifier.ready()
            try:
                with self._gpu_metrics():
                    await self._main_loop()
            finally:
                server.close()
        failed = sum(
            pipeline.num_failed_requests + pipeline.num_failed_files + pipeline.num_unusable_files
            for pipeline in self._pipelines.values()
        )
        is_held = any(pipeline.held_because is not None for pipeline in self._pipelines.values())
        is_incomplete = failed or is_held or self._is_stuck or self._num_left
        return ExitCode.SOME_FAILED if self._once and is_incomplete else ExitCode.OK

    async def _tell_what_is_left(self) -> int:
        """Say what a signal kept from being run, and return how many files that are."""
        begun, waiting = await asyncio.to_thread(count_left, Path(self._settings.daemon.spool), list(self._pipelines))
        if begun or waiting:
            log.info("left for the next start: files begun: %d, in inboxes: %d", begun, waiting)
        return begun + waiting

    async def _lock_spool(self, held: ExitStack) -> bool:
        """Lock the spool as soon as its disk has room for the lock; return False if the daemon is told to stop before."""
        is_said = False
        while not self.should_exit.is_set():
            try:
                held.enter_context(lock_of_spool(Path(self._settings.daemon.spool)))
            except DiskFullError as error:
                if not is_said:
                    log.error("nothing is started before there is room: %s", error)  # noqa: TRY400  one line
                is_said = True
                await wait_for_event(self.should_exit, _ROOM_S)
            else:
                return True
        return False

    def _build(self) -> None:
        for name, engine in self._settings.engines.items():
            self._plant.add_engine(name, engine, is_vital=True)
        for name, settings in self._settings.pipelines.items():
            pipeline = self._plant.make_pipeline(name, settings, self._settings.daemon, waits_for_room=True)
            self._plant.add_pipeline(pipeline)

    def _start_http(self) -> HttpServer:
        http = self._settings.daemon.http
        views = Views(self._metrics, lambda: self._snapshot, self._log_tail, self._find_report)
        server = HttpServer(http.host, http.port, views=views, token_file=http.token_file, names=http.names)
        self._tick()
        server.start()
        self._announcement = Announcement(Path(self._settings.daemon.spool), http.host, server.port)
        self._announcement.make(time.monotonic())
        log.info("metrics and status: http://%s:%d/", http.host, server.port)
        for pipeline in self._pipelines.values():
            log.info("pipeline %s: drop files into %s", pipeline.name, pipeline.inbox_folder)
        for forgotten in forgotten_pipelines(Path(self._settings.daemon.spool), self._pipelines):
            log.warning("%s", forgotten)
        return server

    @contextmanager
    def _gpu_metrics(self) -> Iterator[None]:
        """Read the GPUs, where there are any to read."""
        reader = self._open_gpus()
        if reader is None:
            yield
            return
        sampler = GpuSampler(reader, self._metrics)
        sampler.start()
        try:
            yield
        finally:
            sampler.close()

    async def _main_loop(self) -> None:
        """Run everything until there is a reason to stop, then shut down: files first, engines last."""
        self._plant.start()
        reloading = [asyncio.create_task(self._reloader.run())] if self._reloader else []
        try:
            while not self._is_over(reloading):
                self._tick()
                await wait_for_event(self.should_exit, _TICK_S)
        finally:
            await end_tasks(reloading)
            await self._shutdown()

    def _is_over(self, reloading: Sequence[asyncio.Task[None]]) -> bool:
        self._plant.check()
        for task in reloading:
            if task.done():
                task.result()  # raises what ended it
        pipelines = self._pipelines.values()
        if self._once and not self._on_done.num_pending and all(map(self._is_settled, pipelines)):
            self._is_stuck = not all(pipeline.is_idle for pipeline in pipelines)
            return True
        return self.should_exit.is_set()

    def _is_settled(self, pipeline: Pipeline) -> bool:
        """Whether a pipeline will do nothing more by itself."""
        return pipeline.is_idle or self._is_down(pipeline)

    def _is_down(self, pipeline: Pipeline) -> bool:
        """Whether a pipeline's engine is paused, so that only a person can have its files go on."""
        return self._engines[pipeline.settings.engine].state is EngineState.DOWN

    async def _shutdown(self) -> None:
        self._is_draining = True
        drain_s = (self._reloader.wanted if self._reloader else self._settings).daemon.drain_s
        self._notifier.stopping(drain_s + _END_S)
        await self._plant.end_pipelines()
        for feeder in self._plant.feeders.values():
            feeder.stop()
        if self.should_exit.is_set():
            log.info("stopping: running requests get up to %g s", drain_s)
        drains = [asyncio.create_task(pipeline.drain(drain_s)) for pipeline in self._pipelines.values()]
        while not all(drain.done() for drain in drains) and not self.force_exit.is_set():
            self._tick()
            await wait_for_event(self.force_exit, _TICK_S)
        for pipeline in self._pipelines.values():
            pipeline.abandon()
        await asyncio.gather(*drains, return_exceptions=True)
        await self._on_done.drain(0.0 if self.force_exit.is_set() else min(drain_s, _TELL_S))
        await self._plant.end_engines()
        await asyncio.to_thread(self._tracing.close)
        self._num_left = await self._tell_what_is_left() if self.should_exit.is_set() else 0
        log.info("stopped")

    def _find_report(self, pipeline: str, number: int) -> str | None:
        """Called from the HTTP server's threads."""
        found = self._pipelines.get(pipeline)
        return None if found is None else found.report_of(number)

    def _why_empty(self, engine: str) -> IdleCause:
        """Return why an engine holds no request."""
        pipelines = [pipeline for pipeline in self._pipelines.values() if pipeline.settings.engine == engine]
        if self._is_draining:
            return IdleCause.DRAIN
        if any(pipeline.awaits_disk for pipeline in pipelines):
            return IdleCause.OUTPUT
        return IdleCause.FEED if any(pipeline.has_work for pipeline in pipelines) else IdleCause.NO_WORK

    def _tick(self) -> None:
        """Take the snapshot that the HTTP server shows; its age tells whether this loop runs."""
        now_s = time.monotonic()
        if self._announcement is not None:
            self._announcement.make(now_s)
        self._metrics.note_round()
        for engine in self._engines.values():
            engine.monitor.look(is_ready=engine.is_ready.is_set())
        for pipeline in self._pipelines.values():
            pipeline.look_at_switch()
        self._snapshot = StatusSnapshot(
            taken_s=now_s,
            started_s=self._started_s,
            engines=tuple(self._engine_status(engine, now_s) for engine in self._engines.values()),
            pipelines=tuple(pipeline.status() for pipeline in self._pipelines.values()),
            is_draining=self._is_draining,
            config=self._reloader.status if self._reloader else self._config_status,
        )
        self._notifier.look(self._snapshot, () if self._is_draining else self._hanging())

    def _hanging(self) -> tuple[str, ...]:
        now_s = time.monotonic()
        return tuple(pipeline.name for pipeline in self._pipelines.values() if pipeline.is_hanging(now_s))

    def _engine_status(self, engine: EngineClient, now_s: float) -> EngineStatus:
        monitor, stats, ready = engine.monitor, engine.monitor.stats, engine.monitor.ready
        return EngineStatus(
            name=engine.config.name,
            state=engine.state,
            detail=engine.describe(),
            model=engine.model,
            schedule=engine.config.schedule,
            num_waiting=stats.num_waiting if stats else 0,
            num_running=stats.num_running if stats else 0,
            num_seats=ready.max_num_seqs if ready else 0,
            num_used_blocks=stats.num_used_blocks if stats else 0,
            num_blocks=ready.num_blocks if ready else 0,
            num_restarts=engine.num_restarts,
            prompt_tokens_per_s=round(monitor.prompt_rate.per_s, 1),
            generation_tokens_per_s=round(monitor.generation_rate.per_s, 1),
            busy_ratio=round(monitor.history.busy_ratio, 4),
            band=monitor.history.band,
            phase=monitor.heartbeat.phase,
            progress_age_s=round(monitor.heartbeat.age_s(now_s), 3),
            stall_s=engine.stall_s,
        )

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Handle signals: the first SIGTERM or SIGINT drains, the second stops at once; SIGHUP is `gapless reload`."""
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            if self.should_exit.is_set():
                self.force_exit.set()
            self.should_exit.set()

        handlers = dict.fromkeys((signal.SIGTERM, signal.SIGINT), on_signal)
        if self._reloader is not None:
            handlers[signal.SIGHUP] = self._reloader.look_now.set
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)
