"""Commands run as a person runs them, and what they said."""

import os
import subprocess
import sys


def gapless(*arguments, cwd, **environment):
    """Run a command to its end; return (exit code, what it said). A traceback is never a word to a person."""
    done = subprocess.run(
        [sys.executable, "-m", "daemon.cli", *map(str, arguments)],
        cwd=cwd, capture_output=True, text=True, timeout=100, check=False, env=_environment(environment),
    )  # fmt: skip
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, (done.stdout + done.stderr).strip()


def start_gapless(*arguments, cwd, **environment):
    """Start a command and return its process, whose output can be read line by line."""
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "daemon.cli", *map(str, arguments)],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_environment(environment),
    )  # fmt: skip


def _environment(extra):
    return {key: value for key, value in os.environ.items() if key != "GAPLESS_TRACEBACK"} | extra
