"""Where commands look for the daemon: where it said that it listens, else where the configuration has it."""

import pytest

from daemon.address import address_of, announce, read_token, url_of
from daemon.errors import StorageError
from daemon.settings_sections import HttpSettings
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
        announce(tmp_path, "127.0.0.1", 43210)
        assert address_of(tmp_path, http) == "http://127.0.0.1:43210"
        (tmp_path / ".gapless.http").write_text("nonsense")
        assert address_of(tmp_path, http) == "http://127.0.0.1:0"
        announce(tmp_path, "127.0.0.1", 43210)
    assert address_of(tmp_path, http) == "http://127.0.0.1:0"


def test_a_token_is_read_without_the_end_of_its_line(tmp_path):
    """And a file that is not there is an error of one line."""
    (tmp_path / "token").write_text("secret\n")
    assert read_token(tmp_path / "token") == "secret"
    with pytest.raises(StorageError, match="cannot read"):
        read_token(tmp_path / "none")
