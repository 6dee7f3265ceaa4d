"""Where commands look for the daemon: where it said that it listens, else where the configuration has it."""

import pytest

from daemon import address
from daemon.address import Announcement, address_of, read_token, url_of
from daemon.errors import DiskFullError, StorageError
from daemon.settings_daemon import HttpSettings
from daemon.spool_lock import lock_of_spool


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:9400"),
        ("0.0.0.0", "http://127.0.0.1:9400"),  # noqa: S104  as somebody configures it
        ("::", "http://[::1]:9400"),
        ("fe80::1", "http://[fe80::1]:9400"),
        ("gpu-box", "http://gpu-box:9400"),
    ],
)
def test_an_address_to_listen_on_becomes_one_to_ask(host, url):
    """What listens everywhere is asked on this machine; IPv6 stands in brackets."""
    assert url_of(host, 9400) == url


def test_what_a_running_daemon_announced_counts_and_what_a_dead_one_left_does_not(tmp_path):
    """A port that was free to choose is known only so; after its end the file says nothing."""
    http = HttpSettings(port=0)
    with lock_of_spool(tmp_path):
        assert address_of(tmp_path, http) == "http://127.0.0.1:0"
        Announcement(tmp_path, "127.0.0.1", 43210).make(0.0)
        assert address_of(tmp_path, http) == "http://127.0.0.1:43210"
        (tmp_path / ".gapless.http").write_text("nonsense")
        assert address_of(tmp_path, http) == "http://127.0.0.1:0"
        Announcement(tmp_path, "127.0.0.1", 43210).make(0.0)
    assert address_of(tmp_path, http) == "http://127.0.0.1:0"


def test_a_token_is_read_without_the_end_of_its_line(tmp_path):
    """And a file that is not there is an error of one line."""
    (tmp_path / "token").write_text("secret\n")
    assert read_token(tmp_path / "token") == "secret"
    with pytest.raises(StorageError, match="cannot read"):
        read_token(tmp_path / "none")


def test_an_address_that_finds_no_room_is_written_when_there_is_some(tmp_path, monkeypatch):
    """Until then the one of an earlier daemon is gone, and the configured one counts; a try costs something, so not at once."""
    http, there = HttpSettings(port=9400), tmp_path / ".gapless.http"
    there.write_text("http://127.0.0.1:1\n")
    announcement = Announcement(tmp_path, "127.0.0.1", 43210)

    def full(*_, **__):
        raise DiskFullError("no space is left", there, None)

    with lock_of_spool(tmp_path), monkeypatch.context() as patch:
        patch.setattr(address, "atomic_write_bytes", full)
        announcement.make(10.0)
        assert address_of(tmp_path, http) == "http://127.0.0.1:9400"
        patch.undo()
        announcement.make(10.5)
        assert address_of(tmp_path, http) == "http://127.0.0.1:9400"
        announcement.make(13.0)
        assert address_of(tmp_path, http) == "http://127.0.0.1:43210"
