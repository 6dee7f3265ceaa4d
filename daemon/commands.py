"""What each command does. A command takes the parsed options and returns an exit code."""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from daemon.durable import printable, storage_errors
from daemon.errors import CommandError, ExitCode, NotRunningError
from daemon.file_kinds import kind_of, split_name
from daemon.folders import Folders
from daemon.inbox import Inbox
from daemon.logs import set_up_logging
from daemon.outbox import free_stem
from daemon.report import render_report
from daemon.settings import Settings, load_settings, render_effective
from daemon.survey import survey

_POLL_S = 0.2
_FINAL = frozenset({"completed", "failed", "expired", "cancelled"})
_YAML = frozenset({".yaml", ".yml"})


def run(options: argparse.Namespace) -> int:
    """Run the daemon."""
    from daemon.service import Service  # noqa: PLC0415  the other commands start faster without it

    settings = settings_of(options.configs)
    set_up_logging(settings.daemon.log)
    return asyncio.run(Service(settings, once=options.once).run())


def check(options: argparse.Namespace) -> int:
    """Print the effective configuration, or what is wrong with request files."""
    configs = [path for path in options.files if path.suffix in _YAML]
    requests = [path for path in options.files if path.suffix not in _YAML]
    if configs or not requests:
        print(render_effective(settings_of(configs or options.config)), end="")
    codes = [_check_requests(path) for path in requests]
    return max(codes, default=ExitCode.OK)


def submit(options: argparse.Namespace) -> int:
    """Copy a file into an inbox under a hidden name, then rename it: the daemon never sees half of it."""
    settings = settings_of(options.config)
    folders = _folders(settings, options.pipeline)
    if kind_of(options.file.name) is None:
        raise CommandError(f"{options.file}: files with extension {options.file.suffix!r} cannot be run")
    dropped_stem, suffix = split_name(options.file.name)
    stem = free_stem(dropped_stem, folders.work, folders.outbox)
    target = folders.inbox / f"{stem}{suffix}"
    hidden = folders.inbox / f".{target.name}.tmp"
    with storage_errors("copy", options.file):
        shutil.copyfile(options.file, hidden)
        hidden.rename(target)
    print(f"submitted {printable(target)}")
    return _wait_for(folders, stem) if options.wait else ExitCode.OK


def status(options: argparse.Namespace) -> int:
    """Print what the daemon says of itself."""
    found = fetch_status(settings_of(options.config))
    print(json.dumps(found, indent=2) if options.json else render_status(found))
    return ExitCode.OK


def explain(options: argparse.Namespace) -> int:
    """Say where a file is and why."""
    settings = settings_of(options.config)
    name = options.file.name
    lines = [
        line for pipeline in settings.pipelines for line in _places(Folders(settings.daemon.spool / pipeline), name)
    ]
    print("\n".join(lines) or f"{name}: found in no folder of {settings.daemon.spool}")
    return ExitCode.OK if lines else ExitCode.FIX_INPUT


def report(options: argparse.Namespace) -> int:
    """Print a report as a table."""
    settings = settings_of(options.config)
    pipeline, _, stem = options.stem.rpartition("/")
    names = [pipeline] if pipeline else list(settings.pipelines)
    for name in names:
        path = Folders(settings.daemon.spool / name).outbox / f"{stem}.report.json"
        if path.exists():
            print(render_report(json.loads(path.read_text(encoding="utf-8"))), end="")
            return ExitCode.OK
    raise CommandError(f"no {stem}.report.json in the outbox of {', '.join(names)}")


def bench(options: argparse.Namespace) -> int:
    """Run the benchmark in a process of its own: it needs torch, which stays out of this one."""
    program = [sys.executable, "-m", "pipelines.bench", *options.arguments]
    code = subprocess.run(program, check=False).returncode  # noqa: S603  ourselves
    return code if code >= 0 else 128 - code  # a signal ended it


def demo(options: argparse.Namespace) -> int:
    """Run the demonstration."""
    from daemon.demo import run_demo  # noqa: PLC0415  only here

    return run_demo(keep_running=options.keep_running)


def fetch_status(settings: Settings) -> dict[str, Any]:
    """Ask the running daemon.

    Raises:
        NotRunningError: it does not answer.
    """
    http = settings.daemon.http
    request = urllib.request.Request(f"http://{http.host}:{http.port}/status")
    if http.token_file is not None:
        token = Path(http.token_file).read_text(encoding="utf-8").strip()
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=5) as response:  # noqa: S310  our own address
            answer: dict[str, Any] = json.load(response)
            return answer
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise NotRunningError(f"no daemon answers at http://{http.host}:{http.port}/: {reason}") from error


def render_status(status: dict[str, Any]) -> str:
    """Return it as lines for people."""
    lines = [f"up for {status['uptime_s']:,.0f} s{', draining' if status['is_draining'] else ''}"]
    for engine in status["engines"]:
        counts = f"{engine['num_running']} running, {engine['num_waiting']} waiting"
        lines.append(f"engine {engine['name']}: {engine['state']}, {counts}: {engine['detail']}")
    for pipeline in status["pipelines"]:
        paused = f", PAUSED: {pipeline['paused_because']}" if pipeline["paused_because"] else ""
        lines.append(f"pipeline {pipeline['name']}: {pipeline['num_waiting_files']} files waiting{paused}")
        lines += [f"  {line}" for line in pipeline["left_files"]]
        for file in pipeline["files"]:
            total = "?" if file["num_total"] is None else f"{file['num_total']:,}"
            done = file["num_done"] + file["num_failed"]
            lines.append(
                f"  {file['name']}: {file['state']}, {done:,} of {total} requests, {file['num_failed']:,} in errors"
            )
    return "\n".join(lines)


def settings_of(paths: Sequence[Path] | None) -> Settings:
    """Return the configuration at these paths, else at $GAPLESS_CONFIG, else at ./gapless.yaml.

    Raises:
        SettingsError: it holds mistakes.
    """
    if paths:
        return load_settings(paths)
    fallback = os.environ.get("GAPLESS_CONFIG") or "gapless.yaml"
    return load_settings([Path(fallback)])


def _folders(settings: Settings, pipeline: str | None) -> Folders:
    names = list(settings.pipelines)
    if pipeline is None and len(names) > 1:
        raise CommandError(f"--pipeline: found none, expected one of {', '.join(names)}")
    name = pipeline or names[0]
    if name not in settings.pipelines:
        raise CommandError(f"--pipeline: found {name!r}, expected one of {', '.join(names)}")
    folders = Folders(settings.daemon.spool / name)
    folders.make()
    return folders


def _check_requests(path: Path) -> int:
    found = survey(path)
    for bad in found.bad_lines:
        print(bad.message)
    num_good = found.num_requests - found.num_bad
    print(f"{printable(path)}: {num_good:,} good requests, {found.num_bad:,} bad, {found.num_blank:,} blank lines")
    return ExitCode.SOME_FAILED if found.num_bad else ExitCode.OK


def _wait_for(folders: Folders, stem: str) -> int:
    batch = folders.outbox / f"{stem}.batch.json"
    while True:
        if batch.exists():
            found = json.loads(batch.read_text(encoding="utf-8"))
            if found["status"] in _FINAL:
                break
        time.sleep(_POLL_S)
    for path in sorted(folders.outbox.glob(f"{stem}.*")):
        print(printable(path))
    failed = found["status"] != "completed" or found["request_counts"]["failed"]
    return ExitCode.SOME_FAILED if failed else ExitCode.OK


def _places(folders: Folders, name: str) -> list[str]:
    """Where a file of this name is in one pipeline, and what that means."""
    stem, _ = split_name(name)
    inbox = Inbox(folders.inbox, folders.work, lambda given: given, 0.0, time.time)
    lines = []
    if os.path.lexists(folders.inbox / name):
        lines.append(f"{folders.inbox / name}: in the inbox; {inbox.why_left(name) or 'taken once it is complete'}")
    for folder, meaning in ((folders.work, "being run"), (folders.done, "done"), (folders.failed, "could not be run")):
        lines += [f"{path}: {meaning}" for path in _of_stem(folder, stem)]
    lines += [f"{path}: a result" for path in _of_stem(folders.outbox, stem)]
    return lines


def _of_stem(folder: Path, stem: str) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.name.startswith((f"{stem}.", f"{stem}~")))
