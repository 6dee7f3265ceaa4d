"""Brings running engines to the settings that the configuration wants for them.

    as wanted --edit within what is allocated--> adjusted at once
        |
        `--any other edit--> draining --no file runs on it--> loading --it is up--> as wanted
                                ^                                |
                                `---- further edits              `--it cannot be loaded--> back to the last good settings

While it drains and loads, no file is taken for it. An engine that is given up is not waited for: its files are left to their
journals and go on with it when it is up. Nor is one waited for that is to cut over: its files stay open, what is answered
stays, and the rest runs with the new settings.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from daemon.engine_client import EngineClient
from daemon.plant import Plant
from daemon.settings_diff import needs_drain
from daemon.settings_engine import EngineSettings
from daemon.status import EngineState

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Change:
    """One engine on its way to other settings."""

    wanted: EngineSettings
    is_loading: bool = False
    cuts_over: bool = False  # it does not wait for the files that the engine runs


class EngineChanges:
    """What each engine runs with, and the changes that are under way. Used from the event loop's thread."""

    def __init__(self, plant: Plant, engines: Mapping[str, EngineSettings]) -> None:
        self.effective = dict(engines)  # what each runs with
        self.failures: dict[str, str] = {}  # engines whose last change led back to the settings before it, and why
        self._plant = plant
        self._started = dict(engines)  # what the processes of each were started with
        self._failed: dict[str, EngineSettings] = {}  # what could not be loaded is not tried again by itself
        self._changes: dict[str, _Change] = {}
        self._leaving: set[str] = set()

    def to_check(self, engines: Mapping[str, EngineSettings], *, tries_again: bool) -> dict[str, EngineSettings]:
        """Return those of the wanted engines for which a model would be loaded that is not tried yet."""
        return {
            name: wanted
            for name, wanted in engines.items()
            if name not in self._plant.engines or self._is_new(name, wanted, tries_again=tries_again)
        }

    def _is_new(self, name: str, wanted: EngineSettings, *, tries_again: bool) -> bool:
        change = self._changes.get(name)
        if (change is not None and change.wanted == wanted) or not needs_drain(self._started[name], wanted):
            return False
        return tries_again or self._failed.get(name) != wanted

    def want(self, engines: Mapping[str, EngineSettings], *, tries_again: bool) -> None:
        """Begin to bring all engines to what is wanted; `tries_again` also what could not be loaded before."""
        self._leaving -= engines.keys()
        for name, wanted in engines.items():
            if name not in self._plant.engines:
                self._add(name, wanted)
            elif tries_again or self._failed.get(name) != wanted:
                self._want(name, wanted)
        for name in self._plant.engines.keys() - engines.keys():
            self._dismiss(name)

    def cut_over(self) -> list[str]:
        """Wait for no file any more; return the names of the engines that did."""
        waiting = {name: change for name, change in self._changes.items() if not change.is_loading}
        for change in waiting.values():
            change.cuts_over = True
        return list(waiting)

    async def advance(self) -> list[str]:
        """Do what can be done now; return the names of engines with which something has come to an end."""
        ended = [name for name, change in list(self._changes.items()) if self._advance(name, change)]
        for name in sorted(self._leaving):
            if not self._is_needed(name):
                await self._remove(name)
                ended.append(name)
        return ended

    def _add(self, name: str, wanted: EngineSettings) -> None:
        self._plant.add_engine(name, wanted, is_vital=False)
        self.effective[name] = self._started[name] = wanted

    def _want(self, name: str, wanted: EngineSettings) -> None:
        self.failures.pop(name, None)
        self._failed.pop(name, None)
        change = self._changes.get(name)
        if change is not None and change.is_loading and change.wanted == wanted:
            return
        engine = self._plant.engines[name]
        if engine.is_changing or needs_drain(self._started[name], wanted):
            if change is None:
                log.info(
                    "engine %s takes no more files: it gets other settings once those that it runs have ended", name
                )
            self._changes[name] = _Change(wanted)
            engine.is_closed = True
        else:
            self._settle(name, wanted)

    def _settle(self, name: str, settings: EngineSettings) -> None:
        """Let an engine go on with settings that need nothing but what it has allocated."""
        self._changes.pop(name, None)
        self.effective[name] = settings
        engine = self._plant.engines[name]
        _supervise(engine, settings)
        config = settings.to_engine_config(name)
        if config != engine.config:
            engine.adjust(config)
        engine.is_closed, engine.notice = False, ""
        self._wake_pipelines()

    def _dismiss(self, name: str) -> None:
        """Let an engine go once nothing needs it; what it runs ends as it began."""
        if name not in self._leaving:
            self._leaving.add(name)
            log.info("engine %s is not in the configuration any more and ends with its last file", name)
        self.failures.pop(name, None)
        self._failed.pop(name, None)
        change = self._changes.get(name)
        if change is not None and not change.is_loading:
            self._settle(name, self.effective[name])

    def _advance(self, name: str, change: _Change) -> bool:
        engine = self._plant.engines[name]
        if change.is_loading:
            return self._finish(name, change)
        num_files = sum(pipeline.num_runs_on(engine) for pipeline in self._plant.pipelines.values())
        is_given_up = engine.state is EngineState.DOWN
        if num_files and is_given_up:
            self._leave_runs(engine)
        if num_files and (is_given_up or not change.cuts_over):
            engine.notice = f"takes no more files: other settings wait for the {num_files} that it runs to end"
            return False
        engine.notice = ""
        _supervise(engine, change.wanted)
        going_on = f"; {num_files} of its files go on with them" if num_files else ""
        log.info("engine %s is started anew with other settings%s", name, going_on)
        engine.restart(change.wanted.to_engine_config(name), falls_back=not is_given_up)
        change.is_loading = True
        return False

    def _finish(self, name: str, change: _Change) -> bool:
        """Note how a start with other settings went, if it is over."""
        engine = self._plant.engines[name]
        if engine.is_changing:
            return False
        if engine.failed_change:
            self.failures[name] = (
                f"engine {name} runs with the last good settings, not with these: {engine.failed_change}"
            )
            self._failed[name] = change.wanted
            self._settle(name, self.effective[name])
        else:
            self._started[name] = change.wanted
            self._settle(name, change.wanted)
        return True

    def _is_needed(self, name: str) -> bool:
        engine = self._plant.engines[name]
        pipelines = self._plant.pipelines.values()
        is_used = any(pipeline.settings.engine == name or pipeline.num_runs_on(engine) for pipeline in pipelines)
        return is_used or name in self._changes

    async def _remove(self, name: str) -> None:
        self._leaving.discard(name)
        del self.effective[name], self._started[name]
        await self._plant.remove_engine(name)
        log.info("engine %s is gone", name)

    def _leave_runs(self, engine: EngineClient) -> None:
        for pipeline in self._plant.pipelines.values():
            if pipeline.num_runs_on(engine):
                pipeline.leave_runs()

    def _wake_pipelines(self) -> None:
        for pipeline in self._plant.pipelines.values():
            pipeline.look_soon()


def _supervise(engine: EngineClient, settings: EngineSettings) -> None:
    """Watch over an engine as its settings have it."""
    engine.max_restarts, engine.stall_s = settings.max_restarts, settings.stall_s
    engine.idle_unload_s = settings.idle_unload_s
