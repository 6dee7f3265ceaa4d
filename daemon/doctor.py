"""What `gapless doctor` looks at: one finding a subject, each with advice where something is to be done."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from daemon.errors import ExitCode


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"  # it runs, but not as well or as safely as it could
    FAIL = "fail"  # it does not run


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one subject."""

    subject: str
    level: Level
    text: str
    advice: str = ""  # what to do
    exit_code: ExitCode = ExitCode.OK  # with which a daemon would end at its start

    def as_dict(self) -> dict[str, Any]:
        """Return it for programs."""
        return {key: value for key, value in asdict(self).items() if key != "exit_code"}


def ok(subject: str, text: str) -> Finding:
    """All is well."""
    return Finding(subject, Level.OK, text)


def warn(subject: str, text: str, advice: str) -> Finding:
    """It could be better."""
    return Finding(subject, Level.WARN, text, advice)


def fail(subject: str, text: str, advice: str, exit_code: ExitCode = ExitCode.ENVIRONMENT) -> Finding:
    """It has to be mended."""
    return Finding(subject, Level.FAIL, text, advice, exit_code)


def as_gib(num_bytes: float) -> str:
    """Return a size for people."""
    return f"{num_bytes / 2**30:,.1f} GiB"
