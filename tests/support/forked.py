"""The project's programs in processes forked from one that has their imports behind it: a start takes 20 ms instead of 900.

What runs is the same: a process of its own, its arguments, streams, folder and environment, and Python's end behind it. Only
the hash seed is the server's; there are two servers, so that a later start can have another one.
"""

import atexit
import functools
import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

from fork_server import MAX_REQUEST_BYTES, WORD

SERVER = Path(__file__).with_name("fork_server.py")
OF_THE_START = ("PYTHON", "LC_", "LANG", "LD_")  # variables that Python or its libraries read when they start


class ForkedProcess:
    """What `subprocess.Popen` gives of a process, as far as tests ask for it."""

    def __init__(self, arguments, pipe):
        self.args = arguments
        self.returncode = None
        self._pipe = pipe
        (self.pid,) = WORD.unpack(self._read())

    def poll(self):
        return self._look(0)

    def wait(self, timeout=None):
        if self._look(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(9)

    def _look(self, timeout):
        if self.returncode is None and select.select([self._pipe], [], [], timeout)[0]:
            (status,) = WORD.unpack(self._read())
            self.returncode = os.waitstatus_to_exitcode(status)
            os.close(self._pipe)
        return self.returncode

    def _read(self):
        data = os.read(self._pipe, WORD.size)
        if not data:
            raise RuntimeError(f"the fork server has gone, with {self.args} below it")
        return data


@functools.cache
def _server(_):
    """Start a server of this process, one a number; it ends with its socket, at the latest when this process does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_REQUEST_BYTES)
    with theirs:
        process = subprocess.Popen([sys.executable, str(SERVER), str(theirs.fileno())], pass_fds=[theirs.fileno()])

    def end():
        ours.close()
        process.wait()

    atexit.register(end)
    return ours, _of_the_start(os.environ)


def _of_the_start(environment):
    return {name: value for name, value in environment.items() if name.startswith(OF_THE_START)}


def start_module(module, *arguments, cwd, environment, streams, server=0):
    """Start `python -m module arguments`; `streams`: its stdin, stdout and stderr, as descriptors, files or DEVNULL.

    What comes from `server` 0 and from `server` 1 has not the same hash seed.
    """
    command = [sys.executable, "-m", module, *arguments]
    server, known = _server(server)
    if _of_the_start(environment) != known:
        return subprocess.Popen(
            command, cwd=cwd, env=environment, stdin=streams[0], stdout=streams[1], stderr=streams[2]
        )
    request = {
        "module": module,
        "arguments": arguments,
        "cwd": os.path.abspath(cwd),  # noqa: PTH100
        "environment": dict(environment),
        "umask": _umask(),
    }
    read, write = os.pipe()
    nothing = os.open(os.devnull, os.O_RDWR)
    descriptors = [nothing if stream == subprocess.DEVNULL else _number(stream) for stream in streams]
    try:
        socket.send_fds(server, [json.dumps(request).encode()], [*descriptors, write])
    finally:
        os.close(write)
        os.close(nothing)
    return ForkedProcess(command, read)


def _umask():
    """Return this process's umask, which can be read by setting it alone."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _number(stream):
    return stream if isinstance(stream, int) else stream.fileno()
