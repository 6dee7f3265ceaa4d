"""`gapless run`: the daemon in the foreground."""

import argparse
import asyncio

from daemon.command_context import config_paths, settings_of
from daemon.config_watch import ConfigWatch
from daemon.logs import set_up_logging
from daemon.service import Service


def run(options: argparse.Namespace) -> int:
    """Run the daemon."""
    configs = config_paths(options.configs)
    watch = None if options.once else ConfigWatch(configs)  # before they are read, so that no edit is missed
    settings = settings_of(options.configs)
    tail = set_up_logging(settings.daemon.log)
    return asyncio.run(Service(settings, configs=configs, once=options.once, watch=watch, log_tail=tail).run())
