"""What each command does. A command takes the parsed options and returns an exit code."""

import argparse
import asyncio
import subprocess
import sys

from daemon.command_context import config_paths, settings_of, settings_that_run
from daemon.config_watch import ConfigWatch
from daemon.errors import ExitCode
from daemon.logs import set_up_logging


def run(options: argparse.Namespace) -> int:
    """Run the daemon."""
    from daemon.service import Service  # noqa: PLC0415  the other commands start faster without it

    configs = config_paths(options.configs)
    watch = None if options.once else ConfigWatch(configs)  # before they are read, so that no edit is missed
    settings = settings_of(options.configs)
    tail = set_up_logging(settings.daemon.log)
    return asyncio.run(Service(settings, configs=configs, once=options.once, watch=watch, log_tail=tail).run())


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
