"""Speed and time left of the files that are being run, and what is kept of those that ended."""

import pytest

from daemon.batch_object import BatchStatus
from daemon.file_board import MAX_ENDED, FileBoard
from daemon.rates import RateMeter
from daemon.status import EndedFile, FileState, FileStatus


def file(done: int, total: int | None = 1000, failed: int = 0, stem: str = "f") -> FileStatus:
    """A file so far on."""
    state = FileState.VALIDATING if total is None else FileState.IN_PROGRESS
    return FileStatus(f"{stem}.jsonl", state, done, failed, total, stem=stem, num_tokens=10 * done)


def test_time_left_follows_the_speed_of_the_last_while() -> None:
    """A file that was slow at first is judged by what it does now."""
    board = FileBoard()
    for second in range(100):
        board.look(float(second), [file(second // 10)])
    for second in range(31):
        (found,) = board.look(100.0 + second, [file(10 + 4 * second, failed=second)])
    assert found.tokens_per_s == pytest.approx(40)
    assert found.left_s == pytest.approx((1000 - 130 - 30) / 5)


def test_nothing_is_said_of_what_is_not_known() -> None:
    """Neither before the requests are counted nor while none ends."""
    board = FileBoard()
    for second in range(5):
        found = board.look(float(second), [file(0, None, stem="a"), file(7, stem="b")])
    assert [entry.left_s for entry in found] == [None, None]


def test_a_file_of_the_same_name_starts_anew() -> None:
    """Once a file is gone its pace is forgotten."""
    board = FileBoard()
    board.look(0.0, [file(0)])
    board.look(10.0, [file(100)])
    board.look(11.0, [])
    (found,) = board.look(12.0, [file(0)])
    assert found.tokens_per_s == 0


def test_the_last_files_that_ended_are_kept() -> None:
    """The newest first, and no more than so many."""
    board = FileBoard()
    for number in range(MAX_ENDED + 5):
        board.note_end(EndedFile(f"{number}.txt", str(number), BatchStatus.COMPLETED, 1, 0, number, 1.0))
    assert len(board.ended) == MAX_ENDED
    assert board.ended[0].stem == str(MAX_ENDED + 4)


def test_a_rate_needs_two_samples() -> None:
    """Nothing is divided by nothing."""
    meter = RateMeter(10.0)
    assert meter.per_s == 0
    meter.note(5.0, 3)
    assert meter.per_s == 0
    meter.note(7.0, 9)
    assert meter.per_s == 3
