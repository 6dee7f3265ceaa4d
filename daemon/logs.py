"""The daemon's log on standard error: text for people at a terminal, JSON for everything else; and its last lines for the page.

Modules log through `logging`, as their libraries do; structlog gives the lines their form. What a task has said of itself by
`log_context` (its pipeline, its file) is on each of its JSON lines, and so is what a line brings itself: the request that it is
about. The text of a line names all that already.
"""

import logging
import sys
from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import structlog
from structlog.typing import EventDict, Processor

from daemon.settings_daemon import LogFormat, LogSettings
from pipelines.counted import counted

_OURS = ("daemon", "pipelines")  # whose lines of the level debug are wanted; libraries' say what nobody asked
_NAMES = ("pipeline", "file", "line", "custom_id", "request_id")  # that a line about one request brings itself
_BURST = 20  # lines of one kind that a window lets through
_WINDOW_S = 10.0


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line as people see it."""

    number: int  # 1, 2, 3... within this run
    time_s: float  # Unix time
    level: str
    message: str

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's types."""
        return {"number": self.number, "time_s": round(self.time_s, 3), "level": self.level, "message": self.message}


class LogTail(logging.Handler):
    """Keeps the last lines for the status page. Filled and read from any thread."""

    def __init__(self, max_lines: int = 200) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=max_lines)
        self._num_lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`; called with its lock held."""
        self._num_lines += 1
        message = record.getMessage()
        if record.exc_info and record.exc_info[1]:
            message += f": {record.exc_info[1]!r}"
        self._lines.append(LogLine(self._num_lines, record.created, record.levelname.lower(), message))

    def after(self, number: int) -> list[LogLine]:
        """Return the lines kept that came after the one of this number."""
        self.acquire()
        try:
            return [line for line in self._lines if line.number > number]
        finally:
            self.release()


@dataclass(slots=True)
class _Window:
    """Lines of one kind within one window."""

    began_s: float
    num_lines: int = 0


class LimitedHandler(logging.Handler):
    """Hands lines on to others, but of one kind (one call in the code) no more than a few in a window.

    What was left out is counted, and said with the next line of its kind that is let through. Lines of the level debug all pass.
    """

    def __init__(self, handlers: Sequence[logging.Handler]) -> None:
        super().__init__()
        self._handlers = handlers
        self._windows: dict[tuple[str, int], _Window] = {}  # by place in the code: as many as there are log calls

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`; called with its lock held."""
        if record.levelno <= logging.DEBUG:  # who asks for these wants to follow something through all of them
            self._hand_on(record)
            return
        place = record.pathname, record.lineno
        window = self._windows.setdefault(place, _Window(record.created))
        if record.created - window.began_s >= _WINDOW_S:
            if (num_left_out := window.num_lines - _BURST) > 0:
                record = copy(record)
                record.msg, record.args = (
                    f"{record.getMessage()} ({counted(num_left_out, 'line')} like this left out)",
                    None,
                )
            window = self._windows[place] = _Window(record.created)
        window.num_lines += 1
        if window.num_lines <= _BURST:
            self._hand_on(record)

    def _hand_on(self, record: logging.LogRecord) -> None:
        for handler in self._handlers:
            handler.handle(record)


def log_context(**names: str) -> None:
    """Put names on each JSON line that this task logs from now on, the threads that it waits for included."""
    structlog.contextvars.bind_contextvars(**names)


def set_up_logging(settings: LogSettings, tail: LogTail | None = None) -> LogTail:
    """Send the log where the settings say, for the whole process; return what keeps its last lines, `tail` where it is given."""
    is_text = settings.format is LogFormat.TEXT or (settings.format is LogFormat.AUTO and sys.stderr.isatty())
    handler = logging.StreamHandler()
    handler.setFormatter(text_formatter(colors=sys.stderr.isatty()) if is_text else json_formatter())
    tail = tail or LogTail()
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    logging.basicConfig(level=max(level, logging.INFO), handlers=[LimitedHandler([handler, tail])], force=True)
    for package in _OURS:
        logging.getLogger(package).setLevel(level)
    return tail


def json_formatter() -> logging.Formatter:
    """One JSON object a line: time (UTC), level, logger, message, the task's names, and the traceback of a fault of ours."""
    chain: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(_NAMES),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=chain,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("message"),
            _in_order,
            structlog.processors.JSONRenderer(),
        ],
    )


def text_formatter(*, colors: bool) -> logging.Formatter:
    """Lines for people: local time, level, message, and the traceback of a fault of ours."""
    chain: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
    ]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=chain,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.dev.ConsoleRenderer(
                colors=colors, pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
            ),
        ],
    )


def _in_order(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Put what every line has first."""
    first = ("time", "level", "logger", "message")
    if "exception" in event:
        event["traceback"] = event.pop("exception")
    return {name: event[name] for name in first} | {name: event[name] for name in event if name not in first}
