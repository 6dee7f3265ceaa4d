"""Completion of the command line in bash, zsh and fish: what may stand where, from the configuration and the folders."""

import argparse
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from daemon.errors import DaemonError, ExitCode

if TYPE_CHECKING:
    from daemon.settings import Settings

SHELLS = ("bash", "zsh", "fish")
Completer = Callable[..., list[str]]


def is_completing() -> bool:
    """Whether a shell asks what may stand at the cursor."""
    return "_ARGCOMPLETE" in os.environ


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell and end the process."""
    import argcomplete  # noqa: PLC0415  only where a shell asks

    argcomplete.autocomplete(parser)


def completion(options: argparse.Namespace) -> int:
    """Print the script that a shell has to read."""
    from argcomplete.shell_integration import shellcode  # noqa: PLC0415  as above

    print(shellcode(["gapless"], shell=options.shell))
    return ExitCode.OK


def pipelines(**given: Any) -> list[str]:
    """Return the names of pipelines."""
    settings = _settings(given)
    return [] if settings is None else list(settings.pipelines)


def stems_with(suffix: str) -> Completer:
    """Return a completer of those STEMs whose outbox holds STEM + `suffix`."""

    def stems(**given: Any) -> list[str]:
        settings = _settings(given)
        if settings is None:
            return []
        outboxes = [settings.daemon.spool / name / "outbox" for name in settings.pipelines]
        names = [path.name for outbox in outboxes if outbox.is_dir() for path in outbox.iterdir()]
        return sorted({name.removesuffix(suffix) for name in names if name.endswith(suffix)})

    return stems


def _settings(given: dict[str, Any]) -> "Settings | None":
    """Return the configuration of the line that is being written; None where there is none: then nothing is suggested."""
    from daemon.command_context import settings_that_run  # noqa: PLC0415  takes time, and only values need it

    with suppress(DaemonError, OSError):
        return settings_that_run(getattr(given.get("parsed_args"), "config", None), warn=lambda _: None)
    return None
