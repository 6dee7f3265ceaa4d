"""`gapless run`: the daemon in the foreground."""

import argparse
import asyncio
import gc
import sys
from collections.abc import Sequence
from pathlib import Path

from daemon.early_children import EarlyChildren
from daemon.errors import ExitCode

# For how long a thread that reads a request file may keep the interpreter's lock from the event loop. While one surveyed 40,000
# chats, the loop came to what lay in a pipe 3 to 4 ms late at the median with Python's 5 ms and 0.7 ms late with this; the survey
# took no longer (2 cores, Python 3.11, 2026-11-30).
SWITCH_S = 0.0005


def run(options: argparse.Namespace) -> int:
    """Run the daemon."""
    sys.setswitchinterval(SWITCH_S)
    return asyncio.run(_run([*(options.config or ()), *options.configs], once=options.once))


async def _run(given: Sequence[Path], *, once: bool) -> ExitCode:
    async with EarlyChildren.launched() as early:
        from daemon.command_context import config_paths, settings_of  # noqa: PLC0415  the processes start meanwhile
        from daemon.config_watch import ConfigWatch  # noqa: PLC0415  likewise

        configs = config_paths(given)
        watch = None if once else ConfigWatch(configs)  # before they are read, so that no edit is missed
        settings = settings_of(given)
        loaded = [
            engine.to_engine_config(name) for name, engine in settings.engines.items() if engine.idle_unload_s is None
        ]
        await early.configure(Path(settings.daemon.spool), loaded)
        from daemon.logs import set_up_logging  # noqa: PLC0415  the engines load meanwhile
        from daemon.service import Service  # noqa: PLC0415  likewise

        gc.freeze()  # what is imported now stays
        tail = set_up_logging(settings.daemon.log)
        service = Service(settings, configs=configs, once=once, watch=watch, log_tail=tail, start_child=early.start)
        return await service.run()
