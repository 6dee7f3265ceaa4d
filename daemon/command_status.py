"""`gapless status`: what the running daemon says of itself."""

import argparse
import sys
from pathlib import Path

from daemon.ask import fetch_status
from daemon.command_context import settings_that_run
from daemon.errors import ExitCode
from daemon.forgotten import forgotten_pipelines
from daemon.json_text import json_document
from daemon.status_table import render_status


def status(options: argparse.Namespace) -> int:
    """Print it as tables or as JSON."""
    settings = settings_that_run(options.config)
    found = fetch_status(settings)
    if options.json:
        sys.stdout.write(json_document(found).decode())
        return ExitCode.OK
    sys.stdout.write(render_status(found))
    names = [entry["name"] for entry in found["pipelines"]]
    for forgotten in forgotten_pipelines(Path(settings.daemon.spool), names):  # the daemon does not look at them again
        sys.stdout.write(f"\n{forgotten}\n")
    return ExitCode.OK
