"""The journal on a file system that dies, fills up and forgets: reopening gives what was durable, and nothing made up."""

import errno
from contextlib import suppress
from pathlib import Path

import pytest
from crash_storage import Choose, CrashStorage, chooser
from hypothesis import given
from hypothesis import strategies as st

from daemon.errors import DiskFullError, StorageError
from daemon.journal import Journal
from daemon.journal_records import Header, LineNumbers, Outcome

WORK = Path("/work")
PATH = WORK / "x.journal"
HEADER = Header("f", 1, "x.jsonl", 1, 1, "m", {})
NUM_REQUESTS = 40
ERRORS = [errno.ENOSPC, errno.EIO, errno.EDQUOT]

# what a caller does: append a line of so many bytes, or sync
ACTIONS = st.lists(st.one_of(st.integers(0, 200), st.just("sync")), min_size=1, max_size=NUM_REQUESTS)
CHOICES = st.lists(st.integers(0, 2**16), max_size=12)


def line(index: int, size: int) -> bytes:
    """Return a line of its own."""
    return (b"%d:" % index + b"x" * size)[: size + 3] + b"\n"


class Writer:
    """Drives a journal and keeps the model: which lines were appended, and how many of them a sync has confirmed."""

    def __init__(self, storage: CrashStorage) -> None:
        self.storage = storage
        self.appended: list[tuple[int, bytes]] = []  # in the order in which they came
        self.num_confirmed = 0
        self.journal = Journal.create(PATH, HEADER, storage)
        self.journal.append_started(1, NUM_REQUESTS)
        self.journal.sync()

    def do(self, action: int | str) -> None:
        """Append or sync."""
        if isinstance(action, str):
            self.sync()
            return
        index = (len(self.appended) * 7) % NUM_REQUESTS  # in no order, each once: 7 and 40 have no common divisor
        content = line(index, action)
        self.appended.append((index, content))
        if index % 3:
            self.journal.append_result(index, content, LineNumbers(completion_tokens=index))
        else:
            self.journal.append_refused(index, Outcome.REFUSED, content)

    def sync(self) -> None:
        """Sync; only if that returns is it confirmed."""
        num_appended = len(self.appended)
        self.journal.sync()
        self.num_confirmed = num_appended

    def reopen(self) -> list[tuple[int, bytes]]:
        """Open the journal as a new process would; return its lines, read by index and checked against those in order."""
        self.journal, recovery = Journal.open(PATH, self.storage)
        found = [(record.index, record.line) for record, _ in self.journal.lines_from(0)]
        assert found == [(index, self.journal.read_line(index).line) for index, _ in found]
        assert recovery.num_lines == len(found) == self.journal.state.tally.num_lines
        return found


@given(ACTIONS, st.integers(1, 200), st.booleans(), CHOICES)
def test_after_a_crash_the_journal_is_a_prefix_that_holds_all_that_was_durable(
    actions: list[int | str], kill_at: int, loses_power: bool, choices: list[int]
) -> None:
    """At whichever operation the process or the machine dies, and whatever of the unsynced bytes survives.

    After a mere kill it is all that was written. Then it goes on: the missing lines are appended, synced and there.
    """
    storage = CrashStorage(WORK)
    writer = Writer(storage)
    storage.kill_at(kill_at, lambda: [writer.do(action) for action in actions])
    storage.end(chooser(choices) if loses_power else None)
    found = writer.reopen()
    assert found == writer.appended[: len(found)]
    assert len(found) >= writer.num_confirmed
    rest = writer.appended[len(found) :]
    for index, content in rest:
        writer.journal.append_result(index, content, LineNumbers())
    writer.journal.sync()
    storage.lose_power(lambda _: 0)
    assert writer.reopen() == writer.appended


@given(ACTIONS, st.dictionaries(st.integers(1, 60), st.sampled_from(ERRORS), max_size=20), CHOICES)
def test_a_disk_that_refuses_now_and_then_loses_nothing(
    actions: list[int | str], faults: dict[int, int], choices: list[int]
) -> None:
    """Failed syncs raise and may be repeated; appends go on between; in the end every line is there once, in order.

    A sync that failed confirms nothing even if the next one succeeds without writing: the pages are gone.
    """
    storage = CrashStorage(WORK)
    writer = Writer(storage)
    first = storage.num_operations
    storage.fail_at = {first + operation: OSError(code, "refused") for operation, code in faults.items()}
    for action in actions:
        with suppress(StorageError):
            writer.do(action)
    while True:
        try:
            writer.sync()
            break
        except StorageError:
            continue
    storage.lose_power(chooser(choices))
    assert writer.reopen() == writer.appended


def test_a_full_disk_leaves_whole_records_and_a_typed_error() -> None:
    """The record that did not fit is cut back at once, the caller learns why, and the same sync goes through later."""
    storage = CrashStorage(WORK)
    writer = Writer(storage)
    writer.do(50)
    writer.sync()
    whole = storage.read(PATH)
    writer.do(60)
    storage.fail_at = {storage.num_operations + 1: OSError(errno.ENOSPC, "full")}
    with pytest.raises(DiskFullError, match=r"cannot write /work/x\.journal: no space is left on its file system"):
        writer.sync()
    assert storage.read(PATH) == whole
    assert writer.journal.durable_offset == len(whole)
    assert not writer.journal.is_durable(7)
    writer.do(70)
    writer.sync()
    assert len(writer.reopen()) == 3


def test_a_failed_sync_is_never_believed_later() -> None:
    """After fdatasync has failed the next one succeeds without writing the lost pages: the journal writes them again first."""
    storage = CrashStorage(WORK)
    writer = Writer(storage)
    writer.do(50)
    for operation in range(1, 4):  # among them the fdatasync
        storage.fail_at[storage.num_operations + operation] = OSError(errno.EIO, "lost")
        with pytest.raises(StorageError):
            writer.sync()
        storage.fail_at.clear()
    writer.sync()
    storage.lose_power(lambda _: 0)
    assert writer.reopen() == writer.appended


def test_lines_appended_during_a_sync_that_fails_come_after_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has the lines in the order of their offsets, whatever happens while one thread syncs and the other appends."""
    storage = CrashStorage(WORK)
    writer = Writer(storage)
    pwrite = storage.pwrite

    def append_meanwhile(fd: int, data: bytes | memoryview, offset: int) -> int:
        writer.do(30)
        return pwrite(fd, data, offset)

    writer.do(20)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "pwrite", append_meanwhile)
        storage.fail_at = {storage.num_operations + 1: OSError(errno.ENOSPC, "full")}
        with pytest.raises(DiskFullError):
            writer.sync()
    writer.sync()
    assert len(writer.appended) == 2
    assert writer.reopen() == writer.appended


@pytest.mark.parametrize("lose", [lambda _: 0, lambda n: n, lambda n: n // 2])
def test_a_journal_is_there_whole_or_not_at_all(lose: Choose) -> None:
    """Creating one is one step: whenever the power goes there is none, or one with its whole header."""
    seen: set[bool] = set()
    operation = 0
    while True:
        operation += 1
        storage = CrashStorage(WORK)
        is_killed = storage.kill_at(operation, lambda storage=storage: Journal.create(PATH, HEADER, storage))
        storage.lose_power(lose)
        if not is_killed:
            assert Journal.open(PATH, storage)[0].state.header == HEADER
            break
        seen.add(storage.exists(PATH))
        if storage.exists(PATH):
            assert Journal.open(PATH, storage)[0].state.header == HEADER
        else:
            Journal.create(PATH, HEADER, storage)
    assert False in seen


def test_a_cut_is_durable_before_anything_is_appended() -> None:
    """A torn tail that was cut does not come back after a power cut, in the middle of what was appended since."""
    storage = CrashStorage(WORK)
    writer = Writer(storage)
    whole = storage.read(PATH)
    storage.put(PATH, whole + b"\x30\0\0\0torn")
    writer.journal, recovery = Journal.open(PATH, storage)
    assert recovery.cut_bytes == 8
    storage.lose_power(lambda _: 0)
    assert storage.read(PATH) == whole


@pytest.mark.parametrize("leave_out", ["sync", "truncate"])
def test_these_tests_notice_a_disk_that_does_not_sync(leave_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proof that the double forgets: without fdatasync a confirmed line is lost, without the cut a torn tail stays."""
    storage = CrashStorage(WORK)
    writer = Writer(storage)
    monkeypatch.setattr(storage, leave_out, lambda *_: None)
    if leave_out == "sync":
        writer.do(10)
        writer.sync()
        storage.lose_power(lambda _: 0)
        assert writer.num_confirmed == 1
        assert writer.reopen() == []
    else:
        storage.put(PATH, storage.read(PATH) + b"torn")
        Journal.open(PATH, storage)
        assert storage.read(PATH).endswith(b"torn")
