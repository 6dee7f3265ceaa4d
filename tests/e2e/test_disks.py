"""Real small disks that fill up, turn read-only and go away under a daemon; the same by a fault layer: test_life_crashes."""

import os
import shutil
import subprocess

import pytest
from daemon_process import request_lines
from small_disk import small_disk

COUNT = 120


def _mount(*arguments):
    program = shutil.which(arguments[0])
    return subprocess.run([program, *arguments[1:]], check=True, capture_output=True)


@pytest.fixture
def daemon(make_daemon):
    """A slow daemon whose pipeline's folder is a tmpfs of 3 MiB."""
    daemon = make_daemon("fake:step_ms=20", daemon=", min_free_bytes: 0")
    daemon.root.parent.mkdir()
    with small_disk(daemon.root, "3m") as disk:
        if disk is None:
            pytest.skip("no tmpfs can be mounted here; the fault layer's tests ran")
        daemon.disk = disk
        yield daemon
        daemon.kill()


def _in_mid_file(daemon):
    daemon.start()
    daemon.drop("f.jsonl", request_lines(COUNT))
    partial = daemon.outbox / "f.output.jsonl.partial"
    daemon.until(lambda: partial.exists() and partial.stat().st_size, "in mid-file")


def _ends_well(daemon):
    daemon.wait_going_on()
    assert daemon.wait_done("f")["request_counts"] == {"total": COUNT, "completed": COUNT, "failed": 0}
    assert len(daemon.results("f")) == COUNT
    daemon.drop("g.jsonl", request_lines(2))
    daemon.wait_done("g")
    assert daemon.stop() == 0


def test_a_full_disk_pauses_and_room_lets_it_go_on(daemon):
    """ENOSPC in mid-file: the reason in log, status and metric; what was finished stays; all it takes is room."""
    _in_mid_file(daemon)
    daemon.disk.fill()
    assert "no space is left" in daemon.wait_paused("disk_full")
    before = (daemon.outbox / "f.output.jsonl.partial").read_bytes()
    daemon.disk.empty()
    _ends_well(daemon)
    assert (daemon.outbox / "f.output.jsonl").read_bytes().startswith(before[: before.rindex(b"\n") + 1])


def test_a_daemon_killed_on_a_full_disk_goes_on_when_there_is_room(daemon):
    _in_mid_file(daemon)
    daemon.disk.fill()
    daemon.wait_paused("disk_full")
    daemon.kill()
    daemon.disk.empty()
    daemon.start()
    assert daemon.wait_done("f")["request_counts"] == {"total": COUNT, "completed": COUNT, "failed": 0}


@pytest.fixture
def spool(make_daemon):
    """A daemon whose whole spool is a tmpfs of 3 MiB."""
    daemon = make_daemon("fake:step_ms=20", daemon=", min_free_bytes: 0")
    with small_disk(daemon.folder / "spool", "3m") as disk:
        if disk is None:
            pytest.skip("no tmpfs can be mounted here; the fault layer's tests ran")
        daemon.disk = disk
        yield daemon
        daemon.kill()


def test_a_daemon_that_starts_on_a_full_disk_comes_up_paused(spool):
    """For the first time there; with room it makes its folders, says where it listens, and runs what is dropped."""
    spool.disk.fill()
    spool.start()
    assert "no space is left" in spool.wait_paused("disk_full")
    assert not (spool.folder / "spool" / ".gapless.http").exists()
    spool.disk.empty()
    spool.wait_going_on()
    spool.drop("f.jsonl", request_lines(2))
    assert spool.wait_done("f")["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    spool.until((spool.folder / "spool" / ".gapless.http").exists, "commands find it")
    spool.until((spool.folder / "spool" / ".gapless.settings.yaml").exists, "so does a dry run of a reload")
    assert spool.stop() == 0


def test_a_daemon_that_starts_again_on_a_full_disk_goes_on_where_it_was(spool):
    """A file in the middle, its journal and its claim on the full disk: nothing is lost by the start."""
    _in_mid_file(spool)
    spool.kill()
    spool.disk.fill()
    spool.start()
    assert "no space is left" in spool.wait_paused("disk_full")
    spool.disk.empty()
    _ends_well(spool)


def test_a_daemon_without_room_for_its_lock_waits_and_can_be_stopped(spool):
    """Nothing is started without the lock, as another daemon could hold it by then; it is not given up either."""
    spool.inbox.mkdir(parents=True)
    spool.disk.change("nr_inodes=3")  # for the spool, its pipeline and the inbox
    words = "nothing is started before there is room"
    spool.start()
    spool.until(lambda: words in spool.log.read_text(), "the log says so")
    assert spool.stop() == 0
    spool.start()
    spool.until(lambda: spool.log.read_text().count(words) == 2, "so does the next one")
    spool.disk.change("nr_inodes=1000")
    spool.until(spool.port, "up")
    spool.drop("f.jsonl", request_lines(2))
    spool.wait_done("f")


def test_a_read_only_outbox_pauses_and_a_writable_one_lets_it_go_on(daemon):
    _in_mid_file(daemon)
    _mount("mount", "--bind", str(daemon.outbox), str(daemon.outbox))
    _mount("mount", "-o", "remount,bind,ro", str(daemon.outbox))
    try:
        assert "read-only" in daemon.wait_paused("read_only")
    finally:
        _mount("umount", "-l", str(daemon.outbox))
    _ends_well(daemon)


def test_a_disk_that_goes_away_pauses_and_is_gone_on_with_when_it_is_back(make_daemon, tmp_path):
    """A mount that vanishes under a running file: nothing is made at the empty mount point, nothing is taken for deleted."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    daemon = make_daemon("fake:step_ms=20")
    store = tmp_path / "store"
    store.mkdir()
    daemon.root.mkdir(parents=True)
    try:
        _mount("mount", "--bind", str(store), str(daemon.root))
    except subprocess.CalledProcessError:
        pytest.skip("nothing can be mounted here; test_dropped_files has the same with folders that are moved")
    try:
        _in_mid_file(daemon)
        _mount("umount", "-l", str(daemon.root))
        reason = daemon.wait_paused("gone")
        assert "is its disk mounted?" in reason
        daemon.until(lambda: not daemon.status()["files"], "its runs have ended")
        assert list(daemon.root.iterdir()) == []
        assert (store / "work" / "f.jsonl").exists()
        _mount("mount", "--bind", str(store), str(daemon.root))
        _ends_well(daemon)
        assert reason in daemon.log.read_text()
    finally:
        daemon.kill()
        subprocess.run([shutil.which("umount"), "-l", str(daemon.root)], check=False, capture_output=True)
