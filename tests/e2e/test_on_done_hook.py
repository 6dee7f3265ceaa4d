"""`on_done` of a real daemon: told after the results are there, repeated after a crash, never in the way."""

import json
import shlex
import sys

import pytest
from daemon_process import request_lines


@pytest.fixture
def hook(tmp_path):
    """A program that notes what it is told, and what lies in the outbox then; it fails as long as `fail` is there."""
    path = tmp_path / "hook.py"
    path.write_text(
        "import json, os, pathlib, sys\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "batch = json.load(sys.stdin)\n"
        "there = sorted(os.listdir(os.path.dirname(os.environ['GAPLESS_BATCH'])))\n"
        "with open(folder / 'told', 'a') as file:\n"
        "    file.write(json.dumps([os.environ['GAPLESS_STEM'], batch['status'], there]) + '\\n')\n"
        "sys.exit((folder / 'fail').exists())\n"
    )
    return path


def told(hook):
    path = hook.parent / "told"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def with_hook(make_daemon, hook, **options):
    command = json.dumps([sys.executable, str(hook)])
    return make_daemon("fake:", pipeline=f", on_done: {command}", **options)


def test_it_is_told_once_the_results_are_there_and_once_waits_for_it(make_daemon, hook):
    """A file that is done and one that cannot be run; the daemon does not end before both were told of."""
    daemon = with_hook(make_daemon, hook)
    daemon.drop("good.jsonl", request_lines(2))
    daemon.drop("word.json", '"hello"')
    daemon.start("--once")
    assert daemon.process.wait(60) == 3
    by_stem = {stem: (status, there) for stem, status, there in told(hook)}
    assert by_stem["good"][0] == "completed"
    assert {"good.output.jsonl", "good.batch.json", "good.report.json"} <= set(by_stem["good"][1])
    assert by_stem["word"][0] == "failed"
    assert len(told(hook)) == 2
    assert not list((daemon.root / "work").iterdir())


def test_a_crash_before_it_was_told_repeats_it(make_daemon, hook):
    """Killed between two tries: at least once, over the restart."""
    (hook.parent / "fail").touch()
    daemon = with_hook(make_daemon, hook).start()
    daemon.drop("f.jsonl", request_lines(2))
    daemon.until(lambda: told(hook), "the first try")
    daemon.until(lambda: "try 1 of 5" in daemon.log.read_text(), "which failed")
    daemon.kill()
    (hook.parent / "fail").unlink()
    before = len(told(hook))
    daemon.start("--once")
    assert daemon.process.wait(60) == 0
    assert [stem for stem, _, _ in told(hook)[before:]] == ["f"]
    assert len(daemon.results("f")) == 2
    assert not list((daemon.root / "work").iterdir())


def test_a_hook_that_fails_holds_up_no_file_and_is_counted(make_daemon):
    """The next files are done while it is tried; a text is split into words, not given to a shell."""
    command = shlex.join([sys.executable, "-c", "import sys; sys.exit('no way')"])
    daemon = make_daemon("fake:", pipeline=f", on_done: {json.dumps(command)}").start()
    for number in range(6):
        daemon.drop(f"f{number}.jsonl", request_lines(1))
    for number in range(6):
        daemon.until(lambda number=number: (daemon.batch(f"f{number}") or {}).get("status") == "completed", "done")
    daemon.until(lambda: "no way" in daemon.log.read_text(), "logged")
    assert 'gapless_on_done_total{outcome="failed",pipeline="p"} 0.0' in daemon.get("/metrics")
    assert daemon.stop() == 0
    assert len(list((daemon.root / "work").glob("*.on_done"))) == 6
