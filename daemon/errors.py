"""What can go wrong in the service; each class one line, with typed fields where a program needs them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import ClassVar


class ExitCode(IntEnum):
    """What a command's exit says about who has to do something."""

    OK = 0
    OUR_FAULT = 1
    FIX_INPUT = 2  # an edit of the command line or the YAML mends it
    SOME_FAILED = 3  # some requests or files failed (`--once`, `--wait`), or would fail (`check FILE`)
    ENVIRONMENT = 4  # port, permissions, disk, GPU


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a configuration file."""

    file: Path
    line: int | None  # from 1; None where the file as a whole is at fault
    column: int | None  # from 1, in characters
    path: str  # dotted, `engines.main.batch`; empty at the top
    found: str
    expected: str
    hint: str = ""  # what would mend it, where that can be guessed

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        subject = f"{self.path}: " if self.path else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{place}: {subject}found {self.found}, expected {self.expected}{hint}"


class DaemonError(Exception):
    """Root of the service's errors; its text is one line a mistake, each of which a person can act on."""

    exit_code: ClassVar[ExitCode] = ExitCode.OUR_FAULT


class SettingsError(DaemonError):
    """The configuration files hold mistakes: all of them, in the order of the files."""

    exit_code = ExitCode.FIX_INPUT

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class InvariantError(DaemonError):
    """A state machine was driven against its numbered invariants: a fault of ours, never of the input."""


class StorageError(DaemonError):
    """A file operation failed; the text says which, on what, and why. Doing it again is right once the reason is gone."""

    exit_code = ExitCode.ENVIRONMENT

    def __init__(self, message: str, path: Path, code: int | None) -> None:
        super().__init__(message)
        self.path = path
        self.code = code  # errno


class DiskFullError(StorageError):
    """No space or no quota is left."""


class ReadOnlyError(StorageError):
    """The file system is mounted read-only, or became so after an error of its own."""


class AccessDeniedError(StorageError):
    """The daemon's user may not do this."""


class FoldersGoneError(StorageError):
    """A pipeline's folders are not those that were found at start: moved away, or their disk is not mounted."""


class JournalError(DaemonError):
    """A journal cannot be used as it is: no journal, of another format version, or written by other code."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path


class FileError(DaemonError):
    """A request file cannot be run at all; it goes to failed/."""

    exit_code = ExitCode.FIX_INPUT

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line  # at fault, from 1; None where it is the file as a whole


class FileFormatError(FileError):
    """It can be read, but holds nothing in which requests could be told apart."""


class InputModifiedError(DaemonError):
    """A request file is no longer what it was when it was surveyed."""

    exit_code = ExitCode.FIX_INPUT


class ReadCancelledError(DaemonError):
    """Reading a request file was stopped because its caller asked for that; no fault."""


class HttpServerError(DaemonError):
    """The HTTP server cannot start: port in use, no permission, no such address."""

    exit_code = ExitCode.ENVIRONMENT


class TokenFileError(DaemonError):
    """The file of the HTTP server's token cannot be read or holds no token."""

    exit_code = ExitCode.FIX_INPUT


class TracingError(DaemonError):
    """Traces are asked for, and what makes them is not installed."""

    exit_code = ExitCode.FIX_INPUT


class EngineStartError(DaemonError):
    """An engine could not be brought up for the first time."""


class EngineConfigError(EngineStartError):
    """An edit of the YAML mends it: no such model, no such option."""

    exit_code = ExitCode.FIX_INPUT


class EngineEnvironmentError(EngineStartError):
    """The machine is at fault: memory, GPU, disk."""

    exit_code = ExitCode.ENVIRONMENT


class SpoolInUseError(DaemonError):
    """Another daemon runs on this spool."""

    exit_code = ExitCode.ENVIRONMENT


class CommandError(DaemonError):
    """The command line names something that is not there."""

    exit_code = ExitCode.FIX_INPUT


class NotRunningError(DaemonError):
    """No daemon answers."""

    exit_code = ExitCode.ENVIRONMENT
