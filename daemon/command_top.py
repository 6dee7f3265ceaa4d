"""`gapless top`: what the daemon does, live in a terminal."""

import argparse
import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from daemon.ask import fetch_status
from daemon.command_context import settings_that_run
from daemon.errors import ExitCode, NotRunningError
from daemon.top_view import render_top


def top(options: argparse.Namespace) -> int:
    """Draw the status again and again until Ctrl-C; once where no terminal is, or where that is asked for."""
    settings = settings_that_run(options.config)
    console = Console()
    first = fetch_status(settings)  # raises where no daemon is
    if options.once or not console.is_terminal:
        console.print(render_top(first, console.width))
        return ExitCode.OK
    with Live(render_top(first, console.width), console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                time.sleep(options.every)
                live.update(render_top(fetch_status(settings), console.width), refresh=True)
            except NotRunningError as error:
                live.update(Text(f"{error}\nwaiting for it; Ctrl-C ends this"), refresh=True)
            except KeyboardInterrupt:
                return ExitCode.OK
