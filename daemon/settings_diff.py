"""What an edit of the configuration changes: key by key, with the class that says when each can take effect."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from daemon.settings import Settings
from daemon.settings_engine import EngineSettings
from daemon.settings_fields import Change, Section, change_of, iterate_keys, shown_value


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key with another value."""

    path: str  # dotted, `pipelines.chat.sampling.max_tokens`
    change: Change
    before: str  # as YAML has it
    after: str

    def __str__(self) -> str:
        return f"{self.path}: {self.before} -> {self.after}; takes effect {self.change}"


@dataclass(frozen=True, slots=True)
class SettingsDiff:
    """The difference between two configurations."""

    keys: tuple[KeyChange, ...]  # of the daemon, and of engines and pipelines that are in both
    added: tuple[str, ...]  # `engines.NAME` and `pipelines.NAME`
    removed: tuple[str, ...]  # likewise

    def __bool__(self) -> bool:
        return bool(self.keys or self.added or self.removed)

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why the edit cannot take effect while the daemon runs, one line a key; empty if it can."""
        return tuple(
            f"{key.path}: found {key.after}, but the daemon runs with {key.before}, and a change waits for a restart"
            for key in self.keys
            if key.change is Change.RESTART
        )

    def lines(self) -> list[str]:
        """Return what changes and when, one line each."""
        added = [f"{path}: added; {_COMING[path.partition('.')[0]]}" for path in self.added]
        removed = [f"{path}: removed; {_GOING[path.partition('.')[0]]}" for path in self.removed]
        return [*map(str, self.keys), *added, *removed]


_COMING = {"engines": "it is started at once", "pipelines": "its inbox is looked at once it is there"}
_GOING = {
    "engines": "it ends when the last file that it runs has ended",
    "pipelines": "no file is taken any more, those that run finish; its folders stay",
}


def diff_settings(before: Settings, after: Settings) -> SettingsDiff:
    """Return what `after` says otherwise than `before`."""
    return SettingsDiff(
        keys=(
            *_changed("daemon", before.daemon, after.daemon),
            *_changed_parts("engines", before.engines, after.engines),
            *_changed_parts("pipelines", before.pipelines, after.pipelines),
        ),
        added=(
            *_missing("engines", after.engines, before.engines),
            *_missing("pipelines", after.pipelines, before.pipelines),
        ),
        removed=(
            *_missing("engines", before.engines, after.engines),
            *_missing("pipelines", before.pipelines, after.pipelines),
        ),
    )


def needs_drain(allocated: EngineSettings, wanted: EngineSettings) -> bool:
    """Whether an engine whose processes were started with `allocated` has to be started anew for `wanted`."""
    for path, field in iterate_keys(EngineSettings):
        have, want = _value(allocated, path), _value(wanted, path)
        match change_of(field):
            case Change.DRAIN if have != want:
                return True
            case Change.ALLOCATED if want > have:
                return True
            case _:
                continue
    return False


def _changed_parts(top: str, before: Mapping[str, Section], after: Mapping[str, Section]) -> Iterator[KeyChange]:
    for name in before:
        if name in after:
            yield from _changed(f"{top}.{name}", before[name], after[name])


def _changed(prefix: str, before: Section, after: Section) -> Iterator[KeyChange]:
    for path, field in iterate_keys(type(before)):
        if _value(before, path) != _value(after, path):
            shown = [shown_value(section, path) for section in (before, after)]
            yield KeyChange(".".join((prefix, *path)), change_of(field), *shown)


def _missing(top: str, there: Mapping[str, Section], elsewhere: Mapping[str, Section]) -> Iterator[str]:
    return (f"{top}.{name}" for name in there if name not in elsewhere)


def _value(section: Section, path: tuple[str, ...]) -> Any:
    value: Any = section
    for step in path:
        value = getattr(value, step)
    return value
