"""Applies edits of the configuration to the running daemon: each as a whole, or not at all.

look --> load, all files as one --> compare --> check models --> refused: nothing changes; the reason is shown until it is mended
                                                     `------> applied: live keys at once, engines as `engine_changes` has it,
                                                              pipelines that are gone once they run nothing more

Models that an edit would load are checked first, in a process of their own, while everything that runs goes on. A further edit
ends that check.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from daemon.config_watch import LOOK_S, ConfigWatch, Content, read_content
from daemon.engine_changes import EngineChanges
from daemon.errors import SettingsError, StorageError
from daemon.folders import Folders
from daemon.forgotten import forgotten_pipelines
from daemon.metrics import Metrics
from daemon.pipeline import Pipeline
from daemon.plant import Plant
from daemon.preflight import check_engines
from daemon.reload_files import ReloadAnswer, ReloadFiles, ReloadOrder, ReloadOutcome
from daemon.settings import Settings, load_settings
from daemon.settings_daemon import LogSettings
from daemon.settings_diff import diff_settings
from daemon.status import ConfigStatus
from daemon.waiting import wait_for_event

log = logging.getLogger(__name__)

_ORDER_LOOK_S = 0.1  # between two looks for orders
_NUM_TRIES = 5
_NOTE_S = 2.0  # between two tries at a disk that takes no writes
_NOTHING = "the files say what runs already"


class Reloader:
    """Looks at the files of the configuration and applies their edits. Used from the event loop's thread.

    `set_up_log` is called with the settings of the log when they change.
    """

    def __init__(
        self,
        settings: Settings,
        watch: ConfigWatch,
        plant: Plant,
        metrics: Metrics,
        set_up_log: Callable[[LogSettings], object],
    ) -> None:
        self.wanted = settings  # the last configuration that was accepted
        self.status = ConfigStatus(time.time())
        self.look_now = asyncio.Event()
        self._watch = watch
        self._plant = plant
        self._metrics = metrics
        self._set_up_log = set_up_log
        self._spool = Path(settings.daemon.spool)
        self._files = ReloadFiles(self._spool)
        self._engines = EngineChanges(plant, settings.engines)
        self._refusal: str | None = None  # why the last edit is not applied
        self._last_lines: list[str] = []  # what the last edit changed
        self._last_s = 0.0  # CLOCK_MONOTONIC, of that edit
        self._noted: Settings | None = None  # the settings in effect, as written for other processes to read
        self._unnoted: Settings | None = None  # those that could not be written, as the log says already
        self._next_note_s = 0.0
        self._next_look_s = 0.0
        self._order: ReloadOrder | None = None  # came while models were checked
        self._checking = ""  # the check that an edit waits for, in words; empty: none

    @property
    def effective(self) -> Settings:
        """What is in effect: engines that wait for a drain, or fell back, have other settings than wanted.

        Pipelines and engines that are no longer wanted are part of it until they are gone.
        """
        leaving = {
            name: pipeline.settings
            for name, pipeline in self._plant.pipelines.items()
            if name not in self.wanted.pipelines
        }
        names = [*self.wanted.engines, *(name for name in self._engines.effective if name not in self.wanted.engines)]
        engines = {name: self._engines.effective[name] for name in names}
        return replace(self.wanted, engines=engines, pipelines=self.wanted.pipelines | leaving)

    async def run(self) -> None:
        """Look and apply until cancelled."""
        await self._note_running()
        while True:
            await self._look()
            await self._advance()
            await self._note_running()
            await wait_for_event(self.look_now, _ORDER_LOOK_S)

    async def _look(self) -> None:
        """Load the files if their content is new, or if somebody asks for it."""
        order, self._order = self._order, None
        order = order or await asyncio.to_thread(self._files.take_order)
        if order is not None or self.look_now.is_set():
            self.look_now.clear()
            answer = await self._load_now()
            if order is not None:
                if order.cuts_over:
                    answer = self._cut_over(answer)
                await self._answer(replace(answer, order=order.name))
        elif time.monotonic() >= self._next_look_s:
            self._next_look_s = time.monotonic() + LOOK_S
            content = await asyncio.to_thread(self._watch.look)
            if content is not None:
                await self._load(content, is_asked=False)

    async def _load_now(self) -> ReloadAnswer:
        """Load what the files hold now; it takes more than one try if somebody is writing them."""
        for _ in range(_NUM_TRIES):
            content = await asyncio.to_thread(read_content, self._watch.paths)
            if answer := await self._load(content, is_asked=True):
                return answer
        return ReloadAnswer("", ReloadOutcome.REFUSED, ("somebody is writing the files all the time",))

    def _cut_over(self, answer: ReloadAnswer) -> ReloadAnswer:
        """Start engines anew without waiting for their files, also those that wait since an earlier edit."""
        if answer.outcome is ReloadOutcome.REFUSED or not (names := self._engines.cut_over()):
            return answer
        fresh = answer.lines if answer.outcome is ReloadOutcome.APPLIED else ()
        lines = [f"engines.{name}: started anew at once; the files that it runs go on with it" for name in names]
        return replace(answer, outcome=ReloadOutcome.APPLIED, lines=(*fresh, *lines))

    async def _load(self, content: Content, *, is_asked: bool) -> ReloadAnswer | None:
        """Read the files and apply what they say. If they no longer hold `content` afterwards, return None and apply nothing."""
        try:
            settings = await asyncio.to_thread(load_settings, self._watch.paths)
        except SettingsError as error:
            settings, refusal = None, str(error)
        if await asyncio.to_thread(read_content, self._watch.paths) != content:
            return None
        if settings is None:
            self._watch.known = content
            return self._refuse(refusal)
        diff = diff_settings(self.wanted, settings)
        problems = diff.refusals or await self._check_models(settings, content, is_asked=is_asked)
        if problems is None:
            return None
        self._watch.known = content
        if problems:
            return self._refuse("\n".join(problems))
        return await self._take(settings, diff.lines(), is_asked=is_asked)

    async def _check_models(self, settings: Settings, content: Content, *, is_asked: bool) -> Sequence[str] | None:
        """Return what is wrong with the models that would be loaded; None if a newer edit or order came meanwhile."""
        engines = self._engines.to_check(settings.engines, tries_again=is_asked)
        if not engines:
            return []
        names = ", ".join(f"engine {name}" for name in engines)
        self._note_check(f"the model of {names} is checked before anything changes")
        log.info("%s", self._checking)
        checking = asyncio.create_task(check_engines(engines, self._note_check))
        try:
            while not checking.done():
                await self._answer(ReloadAnswer("", ReloadOutcome.CHECKING, (self._checking,)))
                await asyncio.wait([checking], timeout=LOOK_S)
                await self._advance()
                if await self._is_overtaken(content, is_asked=is_asked):
                    return None
            return checking.result()
        finally:
            self._note_check("")
            await self._answer(
                ReloadAnswer("", ReloadOutcome.UNCHANGED, ())
            )  # so that nobody believes that the check goes on
            checking.cancel()
            await asyncio.gather(checking, return_exceptions=True)

    async def _is_overtaken(self, content: Content, *, is_asked: bool) -> bool:
        """Whether the files hold something else than what is being checked, or somebody asks for a look and had not before."""
        if not is_asked and self._order is None:
            self._order = await asyncio.to_thread(self._files.take_order)
        is_asked_now = self._order is not None and not is_asked
        return is_asked_now or await asyncio.to_thread(read_content, self._watch.paths) != content

    def _note_check(self, text: str) -> None:
        self._checking = text
        self._show()

    async def _take(self, settings: Settings, lines: list[str], *, is_asked: bool) -> ReloadAnswer:
        if is_asked:
            lines += [
                f"engines.{name}: tried once more with what it could not be started with"
                for name in self._engines.failures
            ]
        try:
            await self._make_folders(settings)
        except StorageError as error:
            return self._refuse(str(error))
        self._apply(settings, tries_again=is_asked)
        if lines or self._refusal is not None:
            self._metrics.count_config_reload(is_applied=True)
        for line in lines or [_NOTHING]:
            log.info("the configuration was read anew: %s", line)
        self._refusal = None
        self._show()
        if lines:
            self._last_lines, self._last_s = lines, time.monotonic()
            return ReloadAnswer("", ReloadOutcome.APPLIED, tuple(lines))
        ago_s = time.monotonic() - self._last_s
        return ReloadAnswer(
            "", ReloadOutcome.UNCHANGED, tuple(f"{ago_s:.0f} s ago: {line}" for line in self._last_lines)
        )

    def _refuse(self, reason: str) -> ReloadAnswer:
        if reason != self._refusal:
            self._metrics.count_config_reload(is_applied=False)
            for line in reason.splitlines():
                log.error("the configuration is not what the files say, the one before holds: %s", line)
            self._refusal = reason
            self._show()
        return ReloadAnswer("", ReloadOutcome.REFUSED, tuple(reason.splitlines()))

    async def _make_folders(self, settings: Settings) -> None:
        """Make the folders of new pipelines before anything is applied, so that a failure leaves everything as it was.

        Raises:
            StorageError: one cannot be made.
        """
        for name in settings.pipelines:
            if name not in self._plant.pipelines:
                await asyncio.to_thread(Folders(Path(settings.daemon.spool) / name).make)

    def _apply(self, settings: Settings, *, tries_again: bool) -> None:
        """Apply a whole configuration."""
        if settings.daemon.log != self.wanted.daemon.log:
            self._set_up_log(settings.daemon.log)
        self._engines.want(settings.engines, tries_again=tries_again)
        for name, pipeline in self._plant.pipelines.items():
            self._reconfigure(name, pipeline, settings)
        for name in [name for name in settings.pipelines if name not in self._plant.pipelines]:
            self._add_pipeline(name, settings)
        self._plant.start()
        self.wanted = settings

    def _add_pipeline(self, name: str, settings: Settings) -> None:
        try:
            pipeline = self._plant.make_pipeline(name, settings.pipelines[name], settings.daemon)
        except StorageError as error:  # its folders were just made, so something has happened to the disk since
            log.error("pipeline %s is not started, `gapless reload` tries again: %s", name, error)  # noqa: TRY400  one line
        else:
            self._plant.add_pipeline(pipeline)
            log.info("pipeline %s: drop files into %s", name, pipeline.inbox_folder)

    def _reconfigure(self, name: str, pipeline: Pipeline, settings: Settings) -> None:
        own = settings.pipelines.get(name)
        if own is None:
            pipeline.retire()
        else:
            pipeline.reconfigure(own, settings.daemon, self._plant.parts_of(own.engine))

    async def _advance(self) -> None:
        """Take the next step of changes that wait for something: engines for their files, pipelines for their end."""
        ended = await self._engines.advance()
        for name in ended:
            if name in self._engines.failures:
                self._metrics.count_config_reload(is_applied=False)
        if ended:
            self._show()
        for name, pipeline in list(self._plant.pipelines.items()):
            if pipeline.is_retired:
                await self._plant.remove_pipeline(name)
                log.info("pipeline %s is not in the configuration any more and runs nothing: it is gone", name)
                await asyncio.to_thread(self._tell_of_forgotten, name, list(self._plant.pipelines))

    def _tell_of_forgotten(self, gone: str, there: Collection[str]) -> None:
        """In a thread: log what lies in the inbox of a pipeline that is gone, perhaps because it was renamed."""
        for forgotten in forgotten_pipelines(self._spool, there):
            if forgotten.folders.root.name == gone:
                log.warning("%s", forgotten)

    def _show(self) -> None:
        """Show in status and metrics whether what runs is what the files say."""
        reasons = [self._refusal] if self._refusal is not None else [*self._engines.failures.values()]
        changed_s = self.status.changed_s if self._checking else time.time()
        self.status = ConfigStatus(changed_s, "\n".join(reasons) or None, self._checking)
        self._metrics.set_config_successful(is_successful=not reasons)

    async def _answer(self, answer: ReloadAnswer) -> None:
        await self._note_running()
        try:
            await asyncio.to_thread(self._files.give_answer, answer)
        except StorageError as error:
            log.warning("`gapless reload` gets no answer: %s", error)

    async def _note_running(self) -> None:
        """Write down what is in effect, for other processes to read, whenever it changes."""
        effective = self.effective
        if effective == self._noted or (effective == self._unnoted and time.monotonic() < self._next_note_s):
            return
        try:
            await asyncio.to_thread(self._files.note_running, effective)
        except StorageError as error:
            if effective != self._unnoted:
                log.warning("`gapless reload --dry-run` knows nothing of what runs: %s", error)
            self._unnoted, self._next_note_s = effective, time.monotonic() + _NOTE_S
        else:
            self._noted = effective
