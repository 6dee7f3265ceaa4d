"""`gapless run`: the daemon in the foreground."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from daemon.command_context import config_paths, settings_of
from daemon.config_watch import ConfigWatch
from daemon.early_children import EarlyChildren
from daemon.errors import ExitCode
from daemon.settings import Settings

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
    return asyncio.run(_run(settings_of(given), configs, watch, once=options.once))


async def _run(settings: Settings, configs: Sequence[Path], watch: ConfigWatch | None, *, once: bool) -> ExitCode:
    loaded = [
        engine.to_engine_config(name) for name, engine in settings.engines.items() if engine.idle_unload_s is None
    ]
    async with EarlyChildren.on(Path(settings.daemon.spool), loaded) as early:
        from daemon.logs import set_up_logging  # noqa: PLC0415  the engines load meanwhile
        from daemon.service import Service  # noqa: PLC0415  likewise

        tail = set_up_logging(settings.daemon.log)
        service = Service(settings, configs=configs, once=once, watch=watch, log_tail=tail, start_child=early.start)
        return await service.run()
