"""Who may read what: journals are the daemon's alone, results follow umask and setgid, other users' files are dealt with."""

import os
import stat
import subprocess
import sys

import pytest
from commands import gapless
from daemon_process import request_lines

OTHER_USER, GROUP = 54321, 54322
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def with_umask(daemon, mask, *options):
    before = os.umask(mask)
    try:
        return daemon.start(*options)
    finally:
        os.umask(before)


def test_journals_are_private_and_results_follow_the_umask(make_daemon):
    """While it runs and afterwards, with an ordinary umask and with a strict one."""
    daemon = with_umask(make_daemon("fake:step_ms=20", pipeline=", on_done: 'false'"), 0o027)
    daemon.drop("f.jsonl", request_lines(60) + "{broken\n")
    daemon.until((daemon.outbox / "f.output.jsonl.partial").exists, "running")
    assert mode_of(daemon.root / "work" / "f.journal") == 0o600
    assert mode_of(daemon.outbox / "f.output.jsonl.partial") == 0o640
    daemon.until(lambda: daemon.batch("f")["status"] == "completed", "done")
    assert {path.name: mode_of(path) for path in daemon.outbox.iterdir()} == {
        f"f.{name}": 0o640 for name in ("output.jsonl", "errors.jsonl", "report.json", "batch.json")
    }
    assert mode_of(daemon.root / "work" / "f.on_done") == 0o600
    assert mode_of(daemon.outbox) == 0o750


def test_a_journal_stays_private_under_any_umask(make_daemon):
    """A umask that lets everybody in is no reason."""
    daemon = with_umask(make_daemon("fake:step_ms=20"), 0)
    daemon.drop("f.jsonl", request_lines(60))
    daemon.until((daemon.root / "work" / "f.journal").exists, "claimed")
    assert mode_of(daemon.root / "work" / "f.journal") == 0o600


@needs_root
def test_results_in_a_setgid_outbox_have_its_group(make_daemon):
    """So that a team reads what the daemon writes; the input keeps its own owner and mode."""
    daemon = make_daemon("fake:")
    daemon.outbox.mkdir(parents=True)
    os.chown(daemon.outbox, -1, GROUP)
    daemon.outbox.chmod(0o2775)
    daemon.drop("f.jsonl", request_lines(2) + "{broken\n")
    os.chown(daemon.inbox / "f.jsonl", OTHER_USER, GROUP)
    (daemon.inbox / "f.jsonl").chmod(0o440)
    daemon.start("--once")
    assert daemon.process.wait(60) == 3
    assert {path.stat().st_gid for path in daemon.outbox.iterdir()} == {GROUP}
    done = (daemon.root / "done" / "f.jsonl").stat()
    assert (done.st_uid, done.st_gid, stat.S_IMODE(done.st_mode)) == (OTHER_USER, GROUP, 0o440)


@needs_root
def test_submitting_what_the_daemon_may_not_read_is_said(make_daemon):
    """A strict umask makes a copy that only its owner may read; the inbox is somebody else's."""
    daemon = make_daemon("fake:")
    daemon.inbox.mkdir(parents=True)
    os.chown(daemon.inbox, OTHER_USER, GROUP)
    (daemon.folder / "f.jsonl").write_text(request_lines(1))
    program = "import os, sys; os.umask(0o077); from daemon.cli import main; sys.exit(main(['submit', 'f.jsonl']))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=daemon.folder, capture_output=True, text=True, check=True
    )
    assert f"only you may read it, but the inbox is user {OTHER_USER}'s" in done.stderr
    assert "only you may read it" not in gapless("submit", "f.jsonl", cwd=daemon.folder)[1]
