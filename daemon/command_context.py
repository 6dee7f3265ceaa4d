"""What commands share: the configuration they run with, a pipeline's folders, and where the parts of a STEM lie."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from daemon.durable import printable
from daemon.errors import CommandError, DaemonError, SettingsError
from daemon.file_kinds import OUTBOX_SUFFIXES, kind_of, stem_of
from daemon.folders import Folders
from daemon.reload_files import ReloadFiles
from daemon.running import spool_of_running
from daemon.settings import Settings, load_settings
from daemon.spool_lock import holder_of


@dataclass(frozen=True, slots=True)
class FoundStem:
    """A STEM of one pipeline."""

    pipeline: str
    stem: str
    folders: Folders


def config_paths(given: Sequence[Path] | None) -> list[Path]:
    """Return the configuration's files: those of the command line, else `$GAPLESS_CONFIG`, else `./gapless.yaml`."""
    return list(given or ()) or [Path(os.environ.get("GAPLESS_CONFIG") or "gapless.yaml")]


def settings_of(given: Sequence[Path] | None) -> Settings:
    """Return the configuration that a command runs with.

    Raises:
        CommandError: none is named, and none lies here.
        SettingsError: with all mistakes.
    """
    paths = config_paths(given)
    if not given and not os.environ.get("GAPLESS_CONFIG") and not paths[0].exists():
        raise CommandError(
            f"found no {paths[0]} in this folder, expected one here, or named by --config or $GAPLESS_CONFIG; "
            "`gapless init` writes one"
        )
    return load_settings(paths)


def _warn(text: str) -> None:
    print(f"WARNING: {text}", file=sys.stderr)


def settings_that_run(
    given: Sequence[Path] | None, warn: Callable[[str], None] = _warn, *, with_leaving: bool = False
) -> Settings:
    """Return the settings for a command that has to do with the daemon; where one runs, its spool and address are the daemon's.

    The rest is what the files say. If they hold a mistake, all of it is what the daemon runs with, and `warn` is told of that.
    With `with_leaving`, pipelines and engines that the files no longer have are there as long as they run something.

    Raises:
        CommandError: no configuration is named, and none lies here.
        SettingsError: with all mistakes, where no daemon runs whose settings could be read.
    """
    paths = config_paths(given)
    try:
        settings = settings_of(given)
    except (SettingsError, CommandError) as error:
        running = _running(spool_of_running(paths))
        if running is None:
            raise
        warn(f"{_first_mistake(error)}\nso this goes by what the daemon runs with, on {_shown_spool(running)}")
        return running
    spool = settings.daemon.spool
    if holder_of(spool) is None and (other := spool_of_running(paths)) is not None:
        warn(f"daemon.spool is {printable(spool)}, but the daemon runs on {printable(other)} until it is restarted")
        spool = other
    running = _running(spool)
    if running is None:
        return replace(settings, daemon=settings.daemon.model_copy(update={"spool": spool}))
    if with_leaving:
        engines, pipelines = running.engines | settings.engines, running.pipelines | settings.pipelines
        return replace(settings, daemon=running.daemon, engines=engines, pipelines=pipelines)
    return replace(settings, daemon=running.daemon)


def _running(spool: Path | None) -> Settings | None:
    """Return the settings of the daemon that runs on a spool, None if none does or they cannot be read."""
    if spool is None or holder_of(spool) is None:
        return None
    with suppress(DaemonError, OSError):
        return load_settings([ReloadFiles(spool).running])
    return None


def _first_mistake(error: DaemonError) -> str:
    first, *more = str(error).splitlines()
    return f"{first} (and {len(more)} more: `gapless check`)" if more else first


def _shown_spool(settings: Settings) -> str:
    return printable(settings.daemon.spool)


def pick_pipeline(settings: Settings, name: str | None) -> str:
    """Return the pipeline that a person means; there is no need to name the only one.

    Raises:
        CommandError: there is none of that name, or several and none is named.
    """
    names = list(settings.pipelines)
    if name is None and len(names) > 1:
        raise CommandError(f"--pipeline: found none, expected one of {', '.join(names)}")
    chosen = names[0] if name is None else name
    if chosen not in settings.pipelines:
        raise CommandError(f"--pipeline: found {chosen!r}, expected one of {', '.join(names)}")
    return chosen


def folders_of(settings: Settings, pipeline: str) -> Folders:
    """Return a pipeline's folders."""
    return Folders(settings.daemon.spool / pipeline)


def tell_whether_running(settings: Settings, otherwise: str) -> None:
    """Say that no daemon runs, if none does, and what comes of that."""
    if holder_of(settings.daemon.spool) is None:
        print(f"no daemon runs now: {otherwise}")


def as_place(settings: Settings, given: str) -> str:
    """Return STEM or PIPELINE/STEM for the path of an input or a result, as a shell completes it; else what was given."""
    folder = given.rpartition("/")[0]
    if not folder or folder in settings.pipelines:
        return given
    path = Path(os.path.abspath(given))  # noqa: PTH100  of a link its own place counts
    spool = Path(os.path.abspath(settings.daemon.spool))  # noqa: PTH100
    for name in settings.pipelines:
        if path.parent.parent == spool / name:
            return f"{name}/{path.name}"
    return path.name if os.path.lexists(path) else given


def find_stem(settings: Settings, given: str, suffix: str, command: str) -> FoundStem:
    """Return the pipeline in whose outbox STEM has the file STEM + `suffix`; `given` is STEM or PIPELINE/STEM, or a path.

    Raises:
        CommandError: none has it, or several have and `given` names none of them.
    """
    given = as_place(settings, given)
    found = [place for place in _places(settings, given) if (place.folders.outbox / (place.stem + suffix)).exists()]
    if not found:
        as_stem = _as_stem(given)
        if as_stem != given:  # the name of an input: its STEM is meant
            return find_stem(settings, as_stem, suffix, command)
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f"{place.pipeline}/{place.stem}" for place in found)
        raise CommandError(f"gapless {command} {given}: found in several pipelines, expected one of {names}")
    raise CommandError(f"gapless {command} {given}: {_why_missing(settings, given, suffix)}")


def stem_of_name(name: str) -> str:
    """Return the STEM that a person means by the name of an input or of one of its results."""
    return next((name.removesuffix(suffix) for suffix in OUTBOX_SUFFIXES if name.endswith(suffix)), name)


def _as_stem(given: str) -> str:
    """Return STEM or PIPELINE/STEM for the name of an input, else what was given."""
    pipeline, slash, name = given.rpartition("/")
    is_result = stem_of_name(name) != name  # STEM is known then
    return given if is_result or kind_of(name) is None else f"{pipeline}{slash}{stem_of(name)}"


def _places(settings: Settings, given: str) -> Iterator[FoundStem]:
    pipeline, _, name = given.rpartition("/")
    if pipeline and pipeline not in settings.pipelines:
        names = ", ".join(settings.pipelines)
        raise CommandError(f"{printable(given)}: found the pipeline {pipeline!r}, expected one of {names}")
    stem = stem_of_name(name)
    for other in [pipeline] if pipeline else list(settings.pipelines):
        yield FoundStem(other, stem, folders_of(settings, other))


def _why_missing(settings: Settings, given: str, suffix: str) -> str:
    for place in _places(settings, given):
        if (place.folders.outbox / f"{place.stem}.batch.json").exists():
            batch = printable(place.folders.outbox / f"{place.stem}.batch.json")
            return f"found no {printable(place.stem)}{suffix}; {batch} says how far the file is"
        for folder in (place.folders.inbox, place.folders.work):
            if folder.is_dir() and any(stem_of(path.name) == place.stem for path in folder.iterdir()):
                return f"it is in {printable(folder)} still: no {suffix.lstrip('.')} before it is done"
    pipelines = ", ".join(dict.fromkeys(place.pipeline for place in _places(settings, given)))
    return f"found no {printable(stem_of_name(given.rpartition('/')[2]))}{suffix} in the outbox of {pipelines}"
