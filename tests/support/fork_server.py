"""A Python that has the daemon's modules imported and forks for each program that it is asked to run: FD of a socket.

A request is JSON with the descriptors of the program's stdin, stdout and stderr and of a pipe, into which the server writes the
program's pid when it has begun and its wait status when it has ended. The server ends when the socket closes.
"""

import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

import daemon

MAX_REQUEST_BYTES = 1 << 17
WORD = struct.Struct("<i")  # what a pipe carries: the pid, then the wait status
_NUM_DESCRIPTORS = 4
_MAIN_MODULES = {"__init__", "cli", "settings_reference"}  # a main module is read afresh


class ForkServer:
    """Forks for requests; its children leave `serve` with what they are to be."""

    def __init__(self, server):
        self._server = server
        self._pipes = {}  # of the programs that run, by pid
        self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)  # written to when a program ends

    def serve(self):
        """Return (request, descriptors of the standard streams) in each child; the server itself never returns."""
        wake_read, wake_write = self._wake
        handlers = {signal.SIGCHLD: lambda *_: None, signal.SIGINT: signal.SIG_IGN}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            started = None
            while started is None:
                ready = {key.fileobj for key, _ in selector.select()}
                if wake_read in ready:
                    os.read(wake_read, 4096)
                    self._reap()
                if self._server in ready:
                    started = self._fork()
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
        return started

    def _fork(self):
        data, descriptors, _, _ = socket.recv_fds(self._server, MAX_REQUEST_BYTES, _NUM_DESCRIPTORS)
        if not data:
            sys.exit(0)
        *standard, pipe = descriptors
        pid = os.fork()
        if pid == 0:
            for descriptor in (pipe, *self._pipes.values(), *self._wake):
                os.close(descriptor)
            self._server.close()
            return json.loads(data), standard
        for descriptor in standard:
            os.close(descriptor)
        os.write(pipe, WORD.pack(pid))
        self._pipes[pid] = pipe
        return None

    def _reap(self):
        while self._pipes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            pipe = self._pipes.pop(pid)
            with suppress(BrokenPipeError):  # nobody wants to know
                os.write(pipe, WORD.pack(status))
            os.close(pipe)


def _become(request, standard):
    """Be what `python -m` would be: streams, umask, folder, environment, path and arguments."""
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = sys.__stdin__ = _stream(0, "rb", sys.__stdin__)
    sys.stdout = sys.__stdout__ = _stream(1, "wb", sys.__stdout__)
    sys.stderr = sys.__stderr__ = _stream(2, "wb", sys.__stderr__)
    os.umask(request["umask"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[0] = request["cwd"]
    sys.argv = ["-m", *request["arguments"]]


def _stream(descriptor, mode, like):
    return io.TextIOWrapper(
        open(descriptor, mode, buffering=0 if like.write_through else -1, closefd=False),
        like.encoding,
        like.errors,
        line_buffering=os.isatty(descriptor) or descriptor == 2,
        write_through=like.write_through,
    )


def main():
    for path in Path(daemon.__file__).parent.glob("*.py"):
        if path.stem not in _MAIN_MODULES:
            importlib.import_module(f"daemon.{path.stem}")
    request, standard = ForkServer(socket.socket(fileno=int(sys.argv[1]))).serve()
    _become(request, standard)
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
