"""The daemon's log on standard error: text for people at a terminal, JSON for everything else."""

import json
import logging
import sys
import time

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


def set_up_logging(settings: LogSettings) -> None:
    """Send the log where the settings say, for the whole process."""
    is_text = settings.format is LogFormat.TEXT or (settings.format is LogFormat.AUTO and sys.stderr.isatty())
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
    handler.setFormatter(text if is_text else JsonFormatter())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
