"""What tests of the daemon share."""

import pytest

from daemon.durable import DiskStorage
from daemon.folders import Folders
from daemon.inbox import Inbox


@pytest.fixture
def folders(tmp_path):
    """The folders of a pipeline `p`."""
    made = Folders(tmp_path / "p")
    made.make()
    return made


@pytest.fixture
def inbox(folders):
    """Its inbox, whose files settle in 2 seconds and are claimed at 1234."""
    return Inbox(folders, 2.0, DiskStorage(), claimed_at=lambda _: 1234)


@pytest.fixture
def journals():
    """A list of journals, which are closed at the end."""
    opened = []
    yield opened
    for journal in opened:
        journal.close()
