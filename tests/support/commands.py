"""Commands run as a person runs them, and what they said."""

import os
import subprocess
import sys
import tempfile

from forked import start_module


def gapless(*arguments, cwd, timeout_s=100, **environment):
    """Run a command to its end; return (exit code, what it said). A traceback is never a word to a person."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = start_module(
            "daemon.cli",
            *map(str, arguments),
            cwd=cwd,
            environment=_environment(environment),
            streams=(subprocess.DEVNULL, stdout, stderr),
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        said = "".join(map(_content, (stdout, stderr)))
    assert "Traceback" not in said
    return code, said.strip()


def _content(file):
    file.seek(0)
    return file.read().decode()


def start_gapless(*arguments, cwd, **environment):
    """Start a command and return its process, whose output can be read line by line."""
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "daemon.cli", *map(str, arguments)],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_environment(environment),
    )  # fmt: skip


def _environment(extra):
    return {key: value for key, value in os.environ.items() if key != "GAPLESS_TRACEBACK"} | extra
