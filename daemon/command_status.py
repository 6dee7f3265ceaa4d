"""`gapless status`: what the running daemon says of itself."""

import argparse
import sys

from daemon.ask import fetch_status
from daemon.command_context import settings_that_run
from daemon.errors import ExitCode
from daemon.json_text import json_document
from daemon.status_table import render_status


def status(options: argparse.Namespace) -> int:
    """Print it as tables or as JSON."""
    found = fetch_status(settings_that_run(options.config))
    sys.stdout.write(json_document(found).decode() if options.json else render_status(found))
    return ExitCode.OK
