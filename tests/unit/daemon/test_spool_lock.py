"""One daemon a spool, by a lock that the kernel gives back."""

import os
import subprocess
import sys

import pytest

from daemon.errors import ExitCode, SpoolInUseError
from daemon.spool_lock import LOCK, holder_of, lock_of_spool

HOLD = """
import sys, time
from pathlib import Path
from daemon.spool_lock import lock_of_spool
with lock_of_spool(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_second_is_told_who_holds_it_until_that_one_is_killed(tmp_path):
    spool = tmp_path / "spool"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(spool)], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(SpoolInUseError) as caught, lock_of_spool(spool):
            pass
        assert str(other.pid) in str(caught.value)
        assert str(spool / LOCK) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.exit_code is ExitCode.ENVIRONMENT
        assert holder_of(spool) == other.pid
        other.kill()
        other.wait()
    assert holder_of(spool) is None
    with lock_of_spool(spool):
        assert holder_of(spool) == os.getpid()


def test_two_spools_are_two_locks(tmp_path):
    with lock_of_spool(tmp_path / "a"), lock_of_spool(tmp_path / "b"):
        assert holder_of(tmp_path / "a") == holder_of(tmp_path / "b") == os.getpid()


def test_a_shorter_process_id_leaves_nothing_of_a_longer_one(tmp_path):
    (tmp_path / LOCK).write_text("123456789123\n")
    with lock_of_spool(tmp_path):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"


def test_asking_makes_nothing_and_a_lock_without_a_name_has_a_holder(tmp_path):
    assert holder_of(tmp_path / "none") is None
    assert not (tmp_path / "none").exists()
    with lock_of_spool(tmp_path):
        (tmp_path / LOCK).write_text("")
        assert holder_of(tmp_path) == 0
