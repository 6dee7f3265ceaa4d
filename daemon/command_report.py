"""`gapless report STEM`: what a finished file took, as a table or as JSON."""

import argparse
import json
import sys

from daemon.command_context import find_stem, settings_that_run
from daemon.durable import printable, storage_errors
from daemon.errors import CommandError, ExitCode
from daemon.report_table import render_report

_SUFFIX = ".report.json"


def report(options: argparse.Namespace) -> int:
    """Print the reports of the files that are named."""
    settings = settings_that_run(options.config)
    places = [find_stem(settings, stem, _SUFFIX, "report") for stem in options.stems]
    for number, place in enumerate(places):
        path = place.folders.outbox / (place.stem + _SUFFIX)
        with storage_errors("read", path):
            data = path.read_bytes()
        try:
            table = render_report(json.loads(data))
        except ValueError as error:
            raise CommandError(f"{printable(path)}: found {error}, expected a report as gapless writes it") from error
        sys.stdout.write(data.decode() if options.json else "\n" * bool(number) + table)
    return ExitCode.OK
