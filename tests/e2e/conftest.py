"""Daemons that end with their test."""

import pytest
from daemon_process import Daemon


@pytest.fixture
def make_daemon(tmp_path):
    """Make daemons that end with the test, whatever happens."""
    made = []

    def make(*args, **kwargs):
        folder = tmp_path / f"daemon{len(made)}"
        folder.mkdir()
        made.append(Daemon(folder, *args, is_forked=True, **kwargs))
        return made[-1]

    yield make
    for daemon in made:
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.kill()
