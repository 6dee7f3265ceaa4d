"""The journal on the real disk: what is written is read back, and what may not be written is refused."""

import os
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from journal_world import HEADER, NUMBERS, SEALED, line_of, reopened, started, written

from daemon.errors import InvariantError, JournalError, StorageError
from daemon.journal import Journal
from daemon.journal_records import LineNumbers, Outcome, Sealed
from pipelines.core.request import Choice, FinishReason, RequestOutput


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.journal"


def test_everything_appended_and_synced_is_read_back(path: Path) -> None:
    """All record types and all their fields survive closing and opening."""
    journal = started(path, 4)
    journal.append_result(2, line_of(2), NUMBERS)
    journal.append_attempt(0, 1)
    journal.append_attempt(0, 2)
    journal.append_refused(0, Outcome.ENGINE_ERROR, line_of(0))
    journal.append_cancelled(1_700_000_005)
    journal.append_expired(1_700_000_006)
    journal.append_refused(3, Outcome.CANCELLED, line_of(3), LineNumbers(prompt_tokens=5))
    journal.append_result(1, line_of(1), replace(NUMBERS, reasoning_tokens=9))
    journal.append_sealed(SEALED)
    journal.append_published()
    journal.sync()
    assert journal.state.tally.reasoning_tokens == 9
    assert journal.read_line(1).line == line_of(1)
    journal.close()
    journal, recovery = Journal.open(path)
    state = journal.state
    assert (recovery.num_lines, recovery.cut_bytes) == (4, 0)
    assert (state.header, state.started) == (HEADER, journal.state.started)
    assert state.started is not None
    assert (state.started.at, state.started.num_requests) == (1_700_000_001, 4)
    assert (state.cancelled_at, state.expired_at) == (1_700_000_005, 1_700_000_006)
    assert (state.sealed, state.is_published, state.attempts) == (SEALED, True, {0: 2})
    tally = state.tally
    assert [tally.count(outcome) for outcome in Outcome] == [2, 0, 0, 1, 0, 0, 1]
    assert (tally.num_stop, tally.num_length) == (2, 4)
    assert (tally.prompt_tokens, tally.cached_tokens, tally.completion_tokens) == (65, 20, 80)
    assert tally.reasoning_tokens == 9
    assert tally.output_bytes == len(line_of(1) + line_of(2))
    assert tally.errors_bytes == len(line_of(0) + line_of(3))
    for index in range(4):
        assert journal.read_line(index).line == line_of(index)
    assert [state.lines.outcome(index) for index in (0, 1)] == [Outcome.ENGINE_ERROR, Outcome.COMPLETED]


def test_lines_come_in_the_order_in_which_they_were_finished(path: Path) -> None:
    """`lines_from` gives durable lines only, and goes on where it stopped."""
    journal = started(path, 5)
    for index in (3, 1):
        journal.append_result(index, line_of(index), NUMBERS)
    assert list(journal.lines_from(0)) == []
    journal.sync()
    first = list(journal.lines_from(0))
    assert [record.index for record, _ in first] == [3, 1]
    journal.append_attempt(4, 1)
    journal.append_refused(4, Outcome.REFUSED, line_of(4))
    journal.sync()
    assert [(record.index, record.outcome) for record, _ in journal.lines_from(first[-1][1])] == [(4, Outcome.REFUSED)]


def test_a_line_longer_than_one_read_comes_back_whole(path: Path) -> None:
    """Lines around and far above the sizes of one read and one chunk are the same bytes, by index and in order."""
    lines = [os.urandom(size) for size in (4_000, 4_096, 5_000, 1 << 20, 3_000_000, 1)]
    journal = started(path, len(lines))
    for index, line in enumerate(lines):
        journal.append_result(index, line, NUMBERS)
    journal.sync()
    journal = reopened(journal)
    assert [journal.read_line(index).line for index in range(len(lines))] == lines
    assert [record.line for record, _ in journal.lines_from(0)] == lines


def test_a_line_is_not_handed_out_before_it_is_durable(path: Path) -> None:
    """Invariant 3: what was only appended cannot be read."""
    journal = started(path, 1)
    journal.append_result(0, line_of(0), NUMBERS)
    assert not journal.is_durable(0)
    with pytest.raises(InvariantError, match="invariant 3"):
        journal.read_line(0)
    assert journal.num_unsynced_bytes > 0
    assert journal.sync() == journal.durable_offset == journal.end_offset == path.stat().st_size
    assert journal.is_durable(0)
    assert journal.num_unsynced_bytes == 0


def test_appending_touches_no_file(path: Path) -> None:
    """Appends cost no disk access, so the thread that takes answers never waits for the disk."""
    journal = started(path, 1000)
    journal.sync()
    size = path.stat().st_size
    for index in range(1000):
        journal.append_result(index, line_of(index) * 100, NUMBERS)
    assert path.stat().st_size == size


BROKEN: dict[str, tuple[int, Callable[[Journal], None]]] = {
    "second line": (2, lambda journal: journal.append_result(1, b"x\n", NUMBERS)),
    "second line, of the other file": (2, lambda journal: journal.append_refused(1, Outcome.REFUSED, b"x\n")),
    "request beyond the last": (5, lambda journal: journal.append_result(2, b"x\n", NUMBERS)),
    "attempt beyond the last": (5, lambda journal: journal.append_attempt(2, 1)),
    "started twice": (5, lambda journal: journal.append_started(1, 2)),
    "sealed too early": (5, lambda journal: journal.append_sealed(SEALED)),
    "published too early": (6, lambda journal: journal.append_published()),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_may_not_be_recorded_is_refused_and_leaves_no_trace(path: Path, name: str) -> None:
    """Each invariant holds when driven against; the journal is as if nobody had tried."""
    invariant, action = BROKEN[name]
    journal = started(path, 2)
    journal.append_result(1, line_of(1), NUMBERS)
    end, tally = journal.end_offset, repr(journal.state.tally)
    with pytest.raises(InvariantError, match=f"invariant {invariant}"):
        action(journal)
    assert (journal.end_offset, repr(journal.state.tally)) == (end, tally)
    journal.sync()
    assert reopened(journal).read_line(1).line == line_of(1)


def test_a_completed_request_is_no_error_line(path: Path) -> None:
    """The errors file never gets a line that is counted as answered."""
    with pytest.raises(InvariantError):
        started(path, 1).append_refused(0, Outcome.COMPLETED, b"x\n")


@pytest.mark.parametrize(
    "action",
    [
        lambda journal: journal.append_result(0, b"x\n", NUMBERS),
        lambda journal: journal.append_attempt(0, 1),
        lambda journal: journal.append_cancelled(1),
        lambda journal: journal.append_expired(1),
        lambda journal: journal.append_sealed(SEALED),
        lambda journal: journal.append_started(1, 1),
    ],
)
def test_nothing_but_published_follows_sealed(path: Path, action: Callable[[Journal], None]) -> None:
    """Invariant 6, for a file sealed before it started because it cannot be run."""
    journal = Journal.create(path, HEADER)
    journal.append_sealed(Sealed("{}", "{}", reason="{}"))
    with pytest.raises(InvariantError, match="invariant 6"):
        action(journal)
    journal.append_published()
    journal.sync()
    assert reopened(journal).state.is_published


def test_a_file_with_a_reason_is_sealed_without_all_its_lines(path: Path) -> None:
    """A file changed while it ran keeps its finished lines and is sealed all the same."""
    journal = started(path, 3)
    journal.append_result(1, line_of(1), NUMBERS)
    journal.append_sealed(Sealed("{}", "{}", reason="{}"))
    journal.sync()
    assert reopened(journal).state.tally.num_lines == 1


def test_a_journal_is_never_written_over(path: Path) -> None:
    """Creating where one is fails and leaves it; opening where none is fails and makes none."""
    with pytest.raises(StorageError, match="cannot open"):
        Journal.open(path)
    assert not path.exists()
    data, _ = written(path)
    with pytest.raises(JournalError, match="found a journal, expected none yet"):
        Journal.create(path, HEADER)
    assert path.read_bytes() == data


def test_closing_twice_is_harmless(path: Path) -> None:
    """Publishing may be repeated, and it closes."""
    journal = Journal.create(path, HEADER)
    journal.close()
    journal.close()


def test_syncs_in_one_thread_while_another_appends(path: Path) -> None:
    """At each moment the file up to `durable_offset` is whole records: just the lines appended first; in the end all of them."""
    num_lines = 20_000
    journal = started(path, num_lines)
    errors: list[str] = []
    is_done = threading.Event()

    def sync() -> None:
        while not is_done.is_set():
            durable = journal.sync()
            copy = path.with_suffix(".copy")
            copy.write_bytes(path.read_bytes()[:durable])
            seen, recovery = Journal.open(copy)
            num_seen = seen.state.tally.num_lines
            if recovery.cut_bytes or (num_seen < num_lines and seen.state.lines.next_missing() != num_seen):
                errors.append(f"{recovery} at {durable}")
            seen.close()

    thread = threading.Thread(target=sync)
    thread.start()
    for index in range(num_lines):
        journal.append_result(index, line_of(index), NUMBERS)
    is_done.set()
    thread.join()
    journal.sync()
    assert errors == []
    journal = reopened(journal)
    assert [record.line for record, _ in journal.lines_from(0)] == [line_of(index) for index in range(num_lines)]


def test_a_million_requests_take_few_bytes_each(path: Path) -> None:
    """The index of a large file stays small: under 16 bytes a request, lines themselves are not kept."""
    num_requests = 1_000_000
    journal = Journal.create(path, HEADER)
    tracemalloc.start()
    journal.append_started(1, num_requests)
    for index in range(0, num_requests, 100):
        journal.append_result(index, line_of(index), NUMBERS)
    journal.sync()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    held = peak - 10_000 * 100  # what was unsynced at once
    assert held < 20 * num_requests
    assert journal.state.lines.next_missing(100) == 101


def test_numbers_of_an_answer() -> None:
    """Counts are by choice, and a choice that was cut counts as cut."""
    choices = (
        Choice("a", FinishReason.STOP, 3),
        Choice("b", FinishReason.LENGTH, 5, reasoning="Hm.", num_reasoning_tokens=2),
        Choice("c", FinishReason.STOP, 1),
    )
    output = RequestOutput(key=1, choices=choices, num_prompt_tokens=7, num_cached_tokens=4)
    assert LineNumbers.of_output(output) == LineNumbers(2, 1, 7, 4, 9, 2)
