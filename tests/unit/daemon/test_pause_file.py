"""The switch by which a person pauses a pipeline: a file, so that it outlives everything."""

import pytest

from daemon.pause_file import NO_REASON, PauseFile


@pytest.mark.parametrize(
    ("written", "read"),
    [("maintenance until 5\n", "maintenance until 5"), ("a\nb\tc", "a b c"), ("", NO_REASON), ("\x1b[2J", r"\x1b[2J")],
)
def test_a_reason_comes_back_on_one_line(tmp_path, written, read):
    """Whatever a person wrote, with a command or an editor."""
    (tmp_path / "paused").write_text(written)
    assert PauseFile(tmp_path).reason() == read


def test_pausing_and_resuming(tmp_path):
    """The daemon hears of the wish to go on once; resuming what is not paused says so."""
    switch = PauseFile(tmp_path)
    assert switch.reason() is None
    switch.pause("the GPU is needed")
    assert PauseFile(tmp_path).reason() == "the GPU is needed"
    assert not switch.take_resume()
    assert switch.resume()
    assert switch.reason() is None
    assert not switch.resume()
    assert switch.take_resume()
    assert not switch.take_resume()


def test_a_switch_that_cannot_be_read_pauses(tmp_path):
    """Going on although somebody may have said stop would be worse."""
    (tmp_path / "paused").mkdir()
    assert "cannot be read" in PauseFile(tmp_path).reason()


def test_a_folder_that_is_not_there_is_not_paused(tmp_path):
    """Before the first start there is no spool."""
    assert PauseFile(tmp_path / "none").reason() is None
