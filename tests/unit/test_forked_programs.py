"""Programs that tests have forked are what `python -m` would have made of them."""

import os
import signal
import subprocess
import sys

import pytest
from forked import start_module

PROGRAM = """\
import atexit, json, os, sys
atexit.register(print, "the end")
print(json.dumps([__name__, sys.argv[1:], os.getcwd(), os.environ["SEEN"], sys.path[0], sys.stdin.read(), os.umask(0)]))
print("a word", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "in").write_text("input")
    return tmp_path


def run(folder, start):
    """Return the exit code and what a program printed, started by `start`."""
    said = folder / "said"
    with (folder / "in").open() as stdin, said.open("w") as stdout:
        process = start(
            "program", "5", "a b", cwd=folder, environment=os.environ | {"SEEN": "1"}, streams=(stdin, stdout, stdout)
        )
        return process.wait(60), said.read_text()


def start_for_real(module, *arguments, cwd, environment, streams):
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, cwd=cwd, env=environment, stdin=streams[0], stdout=streams[1], stderr=streams[2])


def test_a_forked_program_sees_and_does_what_a_started_one_does(folder):
    """Name, arguments, folder, environment, path, input, umask; output, what runs at the end, exit code."""
    before = os.umask(0o027)
    try:
        forked, started = run(folder, start_module), run(folder, start_for_real)
    finally:
        os.umask(before)
    assert forked == started
    assert forked[0] == 5


def test_a_forked_program_can_be_killed_and_asked_for(tmp_path):
    """As of a process of our own; a second kill is for nobody."""
    (tmp_path / "sleeper.py").write_text("import time\ntime.sleep(100)\n")
    streams = (subprocess.DEVNULL, subprocess.DEVNULL, 2)
    process = start_module("sleeper", cwd=tmp_path, environment=os.environ, streams=streams)
    os.kill(process.pid, 0)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    process.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_what_python_reads_at_its_start_gets_a_python_of_its_own(folder):
    """A variable such as PYTHONUTF8 would come too late for one that is forked."""
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    process = start_module(
        "program", "0", cwd=folder, environment=environment | {"SEEN": ""}, streams=(subprocess.DEVNULL,) * 3
    )
    assert isinstance(process, subprocess.Popen)
    assert process.wait(60) == 0


def test_what_comes_from_another_server_has_another_hash_seed(tmp_path):
    """As two starts of Python have, and two forks of one have not."""
    (tmp_path / "hashing.py").write_text("print(hash('a word'))\n")
    said = [tmp_path / str(number) for number in range(3)]
    for path, server in zip(said, (0, 1, 0), strict=True):
        with path.open("w") as stdout:
            streams = (subprocess.DEVNULL, stdout, 2)
            process = start_module("hashing", cwd=tmp_path, environment=os.environ, streams=streams, server=server)
            assert process.wait(60) == 0
    first, other, again = (path.read_text() for path in said)
    assert first == again
    assert (first != other) == ("PYTHONHASHSEED" not in os.environ)
