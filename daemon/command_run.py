"""`gapless run`: the daemon in the foreground."""

import argparse
import asyncio
import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from daemon.early_children import EarlyChildren
from daemon.errors import ExitCode

if TYPE_CHECKING:
    from daemon.config_watch import ConfigWatch
    from daemon.settings import Settings

# For how long a thread that reads a request file may keep the interpreter's lock from the event loop. While one surveyed 40,000
# chats, the loop came to what lay in a pipe 3 to 4 ms late at the median with Python's 5 ms and 0.7 ms late with this; the survey
# took no longer (2 cores, Python 3.11, 2026-11-30).
SWITCH_S = 0.0005


def run(options: argparse.Namespace) -> int:
    """Run the daemon."""
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner() as runner:
        early = runner.run(EarlyChildren.launch())
        try:
            from daemon.command_context import config_paths, settings_of  # noqa: PLC0415  the processes start meanwhile
            from daemon.config_watch import ConfigWatch  # noqa: PLC0415  likewise

            given = [*(options.config or ()), *options.configs]
            configs = config_paths(given)
            watch = None if options.once else ConfigWatch(configs)  # before they are read, so that no edit is missed
            settings = settings_of(given)  # not in the loop: Ctrl-C ends a read that hangs
            return runner.run(_run(settings, configs, watch, early, once=options.once))
        finally:
            runner.run(early.end())


async def _run(
    settings: "Settings", configs: Sequence[Path], watch: "ConfigWatch | None", early: EarlyChildren, *, once: bool
) -> ExitCode:
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
