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


def completions(line, cwd):
    """What a shell is told that may stand at the end of `line`; nothing else may be said to it."""
    read, write = os.pipe()
    program = (
        "import os, sys; os.dup2(int(sys.argv[1]), 8); sys.argv = ['gapless']; from daemon.cli import main; main()"
    )
    environment = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": "bash", "COMP_LINE": line, "COMP_POINT": str(len(line)),
                   "_ARGCOMPLETE_IFS": "\n"}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", program, str(write)], cwd=cwd, env=os.environ | environment,
                          pass_fds=[write], capture_output=True, check=False, timeout=60)  # fmt: skip
    os.close(write)
    assert done.stdout + done.stderr == b""
    with os.fdopen(read) as file:
        return sorted(word.strip() for word in file.read().splitlines())


def _environment(extra):
    return {key: value for key, value in os.environ.items() if key != "GAPLESS_TRACEBACK"} | extra
