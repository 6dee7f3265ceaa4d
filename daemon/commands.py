"""What some commands do. A command takes the parsed options and returns an exit code."""

import argparse
import subprocess
import sys

from daemon.command_context import settings_that_run
from daemon.errors import ExitCode


def explain(options: argparse.Namespace) -> int:
    """Say where a file is, why, and what to do."""
    from daemon.ask import fetch_status  # noqa: PLC0415  the other commands start faster without them
    from daemon.explain import explain  # noqa: PLC0415

    settings = settings_that_run(options.config, with_leaving=True)
    found = explain(settings, options.file, lambda: fetch_status(settings))
    print(found)
    return ExitCode.OK if found.is_found else ExitCode.FIX_INPUT


def bench(options: argparse.Namespace) -> int:
    """Run the benchmark in a process of its own: it needs torch, which stays out of this one."""
    program = [sys.executable, "-m", "pipelines.bench", *options.arguments]
    code = subprocess.run(program, check=False).returncode  # noqa: S603  ourselves
    return code if code >= 0 else 128 - code  # a signal ended it


def demo(options: argparse.Namespace) -> int:
    """Run the demonstration."""
    from daemon.demo import run_demo  # noqa: PLC0415  only here

    return run_demo(keep_running=options.keep_running)
