"""The daemon's log on standard error: text for people at a terminal, JSON for everything else."""

import json
import logging
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from daemon.settings_sections import LogFormat, LogSettings


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, and the traceback of a fault of ours."""

    def format(self, record: logging.LogRecord) -> str:
        """As `logging.Formatter`."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


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


def set_up_logging(settings: LogSettings) -> LogTail:
    """Send the log where the settings say, for the whole process; return what keeps its last lines."""
    is_text = settings.format is LogFormat.TEXT or (settings.format is LogFormat.AUTO and sys.stderr.isatty())
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
    handler.setFormatter(text if is_text else JsonFormatter())
    tail = LogTail()
    logging.basicConfig(level=settings.level.upper(), handlers=[handler, tail], force=True)
    return tail
