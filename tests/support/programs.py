"""Programs that are not Python's: tests that need one skip loudly where it is missing, unless it has to be there."""

import os
import shutil
import socket

import pytest

REQUIRED = "GAPLESS_REQUIRE_PROGRAMS"  # set by .ci/run


def need_program(name: str, package: str) -> str:
    """Return a program's path, or skip the test; fail it where the programs are required."""
    path = shutil.which(name)
    if path is None:
        text = f"{name} is not installed (Debian: apt-get install {package})"
        if os.environ.get(REQUIRED):
            pytest.fail(f"{text}, and {REQUIRED} is set")
        pytest.skip(f"NOT TESTED: {text}")
    return path


def free_port() -> int:
    """Return a port that nobody listens on, for a program that has to be told which one to take."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port
