"""`gapless run`: the daemon in the foreground."""

import argparse
import asyncio
import sys

from daemon.command_context import config_paths, settings_of
from daemon.config_watch import ConfigWatch
from daemon.logs import set_up_logging
from daemon.service import Service

# For how long a thread that reads a request file may keep the interpreter's lock from the event loop. While one surveyed 40,000
# chats, the loop came to what lay in a pipe 3 to 4 ms late at the median with Python's 5 ms and 0.7 ms late with this; the survey
# took no longer (2 cores, Python 3.11, 2026-11-30).
SWITCH_S = 0.0005


def run(options: argparse.Namespace) -> int:
    """Run the daemon."""
    sys.setswitchinterval(SWITCH_S)
    given = [*(options.config or ()), *options.configs]
    configs = config_paths(given)
    watch = None if options.once else ConfigWatch(configs)  # before they are read, so that no edit is missed
    settings = settings_of(given)
    tail = set_up_logging(settings.daemon.log)
    return asyncio.run(Service(settings, configs=configs, once=options.once, watch=watch, log_tail=tail).run())
