"""`gapless doctor`: looks at the machine, the spool and the models, and says what to do."""

import argparse
import os
import sys
from collections.abc import Iterator

from daemon import __version__
from daemon.command_context import config_paths
from daemon.doctor import Finding, Level, fail, ok
from daemon.doctor_machine import look_at_machine
from daemon.doctor_model import look_at_models
from daemon.doctor_spool import look_at_spool
from daemon.durable import printable
from daemon.errors import ExitCode, SettingsError
from daemon.json_text import json_document
from daemon.progress import StatusLine
from daemon.settings import Settings, load_settings

_SUBJECT_WIDTH = 14  # columns


def doctor(options: argparse.Namespace) -> int:
    """Say how everything is; the exit code is that of a daemon which is started now, 0 if it would run."""
    findings: list[Finding] = []
    for finding in _look(options):
        findings.append(finding)
        if not options.json:
            sys.stdout.write(_render(finding))
            sys.stdout.flush()
    worst = [finding for finding in findings if finding.level is Level.FAIL]
    if options.json:
        document = {"version": __version__, "ok": not worst, "findings": [finding.as_dict() for finding in findings]}
        sys.stdout.write(json_document(document).decode())
    return worst[0].exit_code if worst else ExitCode.OK


def _look(options: argparse.Namespace) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield ok("gapless", f"{__version__} on Python {version}, as user {os.geteuid()}")
    paths = config_paths(options.config)
    settings: Settings | None = None
    try:
        settings = load_settings(paths)
    except SettingsError as error:
        for problem in error.problems:
            is_there = os.path.lexists(problem.file)  # then `gapless init` would not replace it, and mends nothing
            advice = "" if is_there else "`gapless init` writes one that runs as it is"
            yield fail("configuration", str(problem), advice, ExitCode.FIX_INPUT)
    else:
        names = ", ".join(printable(path) for path in paths)
        counts = f"engines: {len(settings.engines)}, pipelines: {len(settings.pipelines)}"
        yield ok("configuration", f"{names}: {counts}")
    yield from look_at_machine(settings)
    if settings is None:
        return
    yield from look_at_spool(settings)
    if not options.no_models:
        line = StatusLine(sys.stderr)
        for finding in look_at_models(settings, line.show):
            line.end()
            yield finding


def _render(finding: Finding) -> str:
    head = f"{finding.level.value:<5} {finding.subject:<{_SUBJECT_WIDTH}} "
    advice = f"{'':<{len(head)}}-> {printable(finding.advice)}\n" if finding.advice else ""
    return f"{head}{printable(finding.text)}\n{advice}"
