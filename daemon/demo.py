"""`gapless demo`: start the daemon on a small real model, drop three kinds of files, show what comes out, stop."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daemon.ask import fetch_status
from daemon.errors import CommandError, ExitCode, NotRunningError
from daemon.file_kinds import kind_of
from daemon.folders import Folders
from daemon.outbox import free_stem, results_of
from daemon.progress import StatusLine
from daemon.report_table import render_report
from daemon.settings import Settings, load_settings

_ROOT = Path(__file__).resolve().parent.parent
_CONFIG = _ROOT / "configs" / "demo.yaml"
_EXAMPLES = _ROOT / "configs" / "examples"
_START_S = 900.0  # the first start converts the model, and may download it
_BAR_WIDTH = 32
_LOOK_S = 0.2
_FINAL = frozenset({"completed", "failed", "expired", "cancelled"})


def run_demo(*, keep_running: bool = False) -> int:
    """Run it; return an exit code.

    Raises:
        CommandError: Gapless was installed without its sources, where configuration and example files are.
    """
    if not _CONFIG.exists():
        raise CommandError(
            f"found no {_CONFIG}, expected the sources of Gapless around it: `make demo` runs the demo there"
        )
    settings = load_settings([_CONFIG])
    folders = Folders(settings.daemon.spool / next(iter(settings.pipelines)))
    folders.make()
    log_path = settings.daemon.spool / "demo.log"
    print(f"Starting: gapless run {_CONFIG.relative_to(_ROOT)}   (its log: {log_path})")
    started_s = time.monotonic()
    with log_path.open("wb") as log:
        daemon = subprocess.Popen([sys.executable, "-m", "daemon.cli", "run", str(_CONFIG)], stderr=log)  # noqa: S603  ourselves
        try:
            _wait_until_ready(daemon, settings, log_path)
            print(f"Ready after {time.monotonic() - started_s:.1f} s.\n")
            stems = _drop_examples(folders)
            batches = _follow(daemon, folders, stems, log_path)
            _show_results(folders, stems)
        finally:
            if not keep_running:
                _stop(daemon)
    if keep_running:
        print(f"\nThe daemon goes on (pid {daemon.pid}): drop files into {folders.inbox}")
    return ExitCode.OK if all(batch["status"] == "completed" for batch in batches.values()) else ExitCode.SOME_FAILED


def _wait_until_ready(daemon: subprocess.Popen[bytes], settings: Settings, log_path: Path) -> None:
    line = StatusLine(sys.stdout)
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s:
        _check_alive(daemon, log_path)
        try:
            engine = fetch_status(settings)["engines"][0]
        except NotRunningError:
            time.sleep(_LOOK_S)
            continue
        if engine["state"] == "ready":
            line.show(f"Engine: {engine['detail']}", is_news=True)
            line.end()
            return
        line.show(f"Waiting for the engine: {engine['detail'] or engine['state']}")
        time.sleep(_LOOK_S)
    raise CommandError(f"the engine was not ready after {_START_S:.0f} s; see {log_path}")


def _check_alive(daemon: subprocess.Popen[bytes], log_path: Path) -> None:
    if (code := daemon.poll()) is not None:
        last = log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise CommandError(f"the daemon ended with code {code}: {last[-1] if last else 'it said nothing'}")


def _drop_examples(folders: Folders) -> dict[str, Path]:
    """Copy the examples into the inbox as a person would; return them by the stem that they will have."""
    stems = {}
    print(f"Dropping files into {folders.inbox}:")
    for example in sorted(_EXAMPLES.iterdir()):
        kind = kind_of(example.name)
        if kind is None or kind.is_table:
            continue  # they have a configuration of their own there
        stem = free_stem(example.stem, folders.work, folders.outbox)
        target = folders.inbox / f"{stem}{example.suffix}"
        hidden = target.with_name(f".{target.name}.tmp")
        shutil.copyfile(example, hidden)
        hidden.rename(target)
        stems[stem] = example
        print(f"  {example.name}")
    return stems


def _follow(
    daemon: subprocess.Popen[bytes], folders: Folders, stems: Mapping[str, Path], log_path: Path
) -> dict[str, dict[str, Any]]:
    """Show progress until every file is done; return their Batch objects."""
    line = StatusLine(sys.stdout)
    while True:
        batches = {stem: batch for stem in stems if (batch := _read_batch(folders, stem)) is not None}
        counts = [batch["request_counts"] for batch in batches.values()]
        done = sum(count["completed"] + count["failed"] for count in counts)
        total = sum(count["total"] for count in counts)
        num_final = sum(batch["status"] in _FINAL for batch in batches.values())
        filled = _BAR_WIDTH * done // total if total else 0
        bar = "#" * filled + "." * (_BAR_WIDTH - filled)
        line.show(f"[{bar}] requests: {done}/{total or '?'}, files: {num_final}/{len(stems)}")
        if num_final == len(stems):
            line.end()
            print()
            return batches
        _check_alive(daemon, log_path)
        time.sleep(_LOOK_S)


def _read_batch(folders: Folders, stem: str) -> dict[str, Any] | None:
    path = folders.outbox / f"{stem}.batch.json"
    try:
        batch: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return batch


def _show_results(folders: Folders, stems: Mapping[str, Path]) -> None:
    for stem, example in stems.items():
        print(f"--- {example.name}")
        for answer in (*_answers(folders, stem), *_refusals(folders, stem)):
            print(f"  {answer}")
        print("  results:")
        for path in results_of(folders.outbox, stem):
            print(f"    {path}")
        report = json.loads((folders.outbox / f"{stem}.report.json").read_text(encoding="utf-8"))
        print("  report:")
        print("".join(f"    {line}\n" for line in render_report(report).splitlines()))


def _answers(folders: Folders, stem: str) -> list[str]:
    text = folders.outbox / f"{stem}.output.txt"
    if text.exists():
        return [_shortened(text.read_text(encoding="utf-8"))]
    answers = []
    for line in (folders.outbox / f"{stem}.output.jsonl").read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        choice = result["response"]["body"]["choices"][0]
        content = choice["message"]["content"] if "message" in choice else choice["text"]
        answers.append(f"{result['custom_id']}: {_shortened(content)}")
    return answers


def _refusals(folders: Folders, stem: str) -> list[str]:
    path = folders.outbox / f"{stem}.errors.jsonl"
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [f"{line['custom_id']}: refused: {line['response']['body']['error']['message']}" for line in lines]


def _shortened(text: str, width: int = 100) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 3]}..."


def _stop(daemon: subprocess.Popen[bytes]) -> None:
    """Stop it as a service manager would."""
    if daemon.poll() is None:
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(60)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
    print(f"The daemon has stopped (exit code {daemon.returncode}).")
