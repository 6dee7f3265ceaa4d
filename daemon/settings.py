"""Reads the configuration: YAML files in, frozen settings out, or every mistake in them at once.

Several files are one configuration: each may bring engines and pipelines of its own, one of them the daemon's section.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from daemon.device_shares import check_device_shares
from daemon.errors import Problem, SettingsError
from daemon.settings_checks import (
    SectionView,
    check_daemon,
    check_engine,
    check_engine_name,
    check_name,
    check_pipeline,
)
from daemon.settings_daemon import DaemonSettings
from daemon.settings_engine import EngineSettings
from daemon.settings_fields import Section
from daemon.settings_pipeline import PipelineSettings
from daemon.settings_report import KeyPath, Written, nearest, to_problems
from daemon.yaml_nodes import YamlEntry, describe
from daemon.yaml_schema import dump_yaml
from daemon.yaml_source import YamlSource, read_yaml

__all__ = ["DaemonSettings", "EngineSettings", "PipelineSettings", "Settings", "load_settings", "render_effective"]

TOP_KEYS = ("daemon", "engines", "pipelines")
SectionT = TypeVar("SectionT", bound=Section)


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration, defaults filled in."""

    daemon: DaemonSettings
    engines: dict[str, EngineSettings]  # by name, in the order of the files
    pipelines: dict[str, PipelineSettings]  # likewise


def load_settings(paths: Sequence[Path]) -> Settings:
    """Return the settings that the files at `paths` (at least one) say together.

    Raises:
        SettingsError: with all mistakes, in the order of the files.
    """
    draft = _Draft()
    for path in dict.fromkeys(paths):  # a file named twice is read once
        draft.add(read_yaml(path))
    settings = draft.build(paths[0])
    if draft.problems:
        order = {path: number for number, path in enumerate(dict.fromkeys(paths))}
        raise SettingsError(
            sorted(draft.problems, key=lambda problem: (order[problem.file], problem.line or 0, problem.column or 0))
        )
    return settings


def render_effective(settings: Settings) -> str:
    """Return YAML that says every key with its value; read again, it gives equal settings."""
    return dump_yaml(
        {
            "daemon": settings.daemon.model_dump(mode="json"),
            "engines": {name: engine.model_dump(mode="json") for name, engine in settings.engines.items()},
            "pipelines": {name: pipeline.model_dump(mode="json") for name, pipeline in settings.pipelines.items()},
        }
    )


@dataclass(slots=True)
class _Draft:
    """What the files say so far, and what is wrong with it."""

    problems: list[Problem] = field(default_factory=list)
    daemons: list[Written] = field(default_factory=list)
    engines: list[Written] = field(default_factory=list)
    pipelines: list[Written] = field(default_factory=list)
    pipelines_key: Written | None = None
    is_whole: bool = True  # everything could be read, so that what is not here is nowhere

    def add(self, source: YamlSource) -> None:
        """Take what one file holds."""
        self.problems += source.problems
        root = source.root
        if root is None or () in source.refused:
            self.is_whole = False
            return
        top = Written(source.file, (), YamlEntry(root.mark, root), source.refused)
        if not isinstance(root.plain, dict):
            self.is_whole = False
            self.problems.append(top.problem((), root.shown, "a mapping with the keys engines and pipelines"))
            return
        for name, entry in root.entries.items():
            self._add_key(top, str(name), entry)

    def _add_key(self, top: Written, name: str, entry: YamlEntry) -> None:
        part = replace(top, prefix=(name,), entry=entry)
        match name:
            case "daemon":
                self.daemons.append(part)
            case "engines":
                self.engines += self._named(part)
            case "pipelines":
                self.pipelines_key = part
                self.pipelines += self._named(part)
            case _:
                self.is_whole = False  # it may have been meant for one of them
                expected = f"one of {', '.join(TOP_KEYS)}"
                self.problems.append(top.key_problem((name,), "an unknown key", expected, nearest(name, TOP_KEYS)))

    def _named(self, part: Written) -> list[Written]:
        """Return the engines or pipelines that stand under one key."""
        if not isinstance(part.plain, dict | None):
            self.problems.append(part.problem((), describe(part.plain), "a mapping of names to their sections"))
            return []
        entries = part.entry.node.entries if part.entry else {}
        return [replace(part, prefix=(*part.prefix, str(name)), entry=entry) for name, entry in entries.items()]

    def build(self, first: Path) -> Settings:
        """Return the settings, to be used only if there are no problems then; `first` is the file that defaults belong to."""
        for written in (*self.engines, *self.pipelines):
            self.problems += check_name(written)
        for parts in (self.daemons, self.engines, self.pipelines):
            self.problems += _repeats(parts)
        daemons = self._read(DaemonSettings, self.daemons or [Written(first, ("daemon",))], check_daemon)
        engines = self._read(EngineSettings, self.engines, check_engine)
        pipelines = self._read(PipelineSettings, self.pipelines, check_pipeline)
        if self.is_whole:
            self._check_whole(first)
        self.problems += check_device_shares(engines, {written.prefix[-1]: written for written in self.engines})
        daemon = daemons.get("daemon") or DaemonSettings.read(None, first.parent)
        return Settings(daemon, engines, pipelines)

    def _read(
        self, kind: type[SectionT], parts: Sequence[Written], check: Callable[[SectionView], Iterator[Problem]]
    ) -> dict[str, SectionT]:
        sections: dict[str, SectionT] = {}
        for written in parts:
            faulty: frozenset[KeyPath] = frozenset()
            try:
                sections[written.prefix[-1]] = kind.read(written.plain, written.file.parent)
            except ValidationError as error:
                faulty = frozenset(mistake["loc"] for mistake in error.errors())
                self.problems += to_problems(error, kind, written)
            self.problems += check(SectionView(written, kind, faulty))
        return sections

    def _check_whole(self, first: Path) -> None:
        """Note what is missing from all files together."""
        engines = [written.prefix[-1] for written in self.engines]
        for written in self.pipelines:
            self.problems += check_engine_name(written, engines)
        if not self.pipelines and not any(problem.path == "pipelines" for problem in self.problems):
            place = self.pipelines_key or Written(first, ("pipelines",))
            self.problems.append(place.key_problem((), "no pipeline", "at least one"))


def _repeats(parts: Sequence[Written]) -> Iterator[Problem]:
    """Yield a problem for each section that another file has given already."""
    seen: dict[tuple[str, ...], Written] = {}
    for written in parts:
        first = seen.setdefault(written.prefix, written)
        if first is not written and first.entry:
            place = f"{first.file}:{first.entry.mark.line}:{first.entry.mark.column}"
            yield written.key_problem((), "the same section a second time", f"it once; the first is at {place}")
