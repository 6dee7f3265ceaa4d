"""Publishing on a file system that dies, fills up and forgets: whatever stops it, doing it again ends with the same outbox."""

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from crash_storage import Choose, CrashStorage, KilledError, chooser
from hypothesis import given
from hypothesis import strategies as st

from daemon.errors import StorageError
from daemon.journal import Journal
from daemon.journal_records import Header, LineNumbers, Outcome, Sealed
from daemon.outbox import FileNames, Publisher, PublishStep, partial_output

WORK, OUTBOX, DONE, FAILED = (Path("/", name) for name in ("work", "outbox", "done", "failed"))
INPUT = b'{"prompt": "x"}\n'
OPTIONS = b"priority: 3\n"
NUM_REQUESTS = 7
ARRIVALS = (4, 0, 1, 6, 2, 5, 3)  # the order in which requests finish
REFUSED = (1, 5)
NAMES = FileNames("in", WORK / "in.jsonl", OUTBOX, DONE, FAILED)
LOSSES: list[Choose] = [lambda _: 0, lambda n: n, lambda n: n // 2]


def line(index: int) -> bytes:
    """Return the line of a request: always the same, as a request that is run again gives the same answer."""
    return b'{"id":%d,"x":"%s"}\n' % (index, b"y" * index)


@dataclass
class Daemon:
    """What the service does with one file, reduced to its file operations; a restart is another call of `run`."""

    storage: CrashStorage
    in_input_order: bool = True
    with_reason: bool = False
    after_step: Callable[[PublishStep], None] = lambda _: None
    num_runs: int = 0
    seen: list[dict[str, bytes]] = field(default_factory=list)  # the outbox as people saw it behind each step

    def run(self) -> None:
        """From whatever is there to a published file."""
        self.num_runs += 1
        if not self.storage.exists(NAMES.journal):
            if not self.storage.exists(NAMES.input):
                return  # an earlier run got to its end
            journal = Journal.create(NAMES.journal, Header("f", 1, "in.jsonl", 1, 1, "m", {}), self.storage)
        else:
            journal, _ = Journal.open(NAMES.journal, self.storage)
        partial = partial_output(journal, NAMES, in_input_order=self.in_input_order, storage=self.storage)
        if journal.state.sealed is None:
            for _ in self.answer(journal):
                journal.sync()
                partial.advance()
            journal.append_sealed(self.seal())
        publisher = Publisher(journal, NAMES, partial, self.storage, self.note)
        publisher.publish()

    def answer(self, journal: Journal) -> Iterator[None]:
        """Append the missing lines, in two groups."""
        if journal.state.started is None:
            journal.append_started(1, NUM_REQUESTS)
        for number, index in enumerate(ARRIVALS):
            if not journal.state.lines.has(index):
                if index in REFUSED:
                    journal.append_refused(index, Outcome.REFUSED, line(index))
                else:
                    journal.append_result(index, line(index), LineNumbers(num_stop=1))
            if number == 3:
                yield
        yield

    def seal(self) -> Sealed:
        """Return documents that tell when they were made, as the real ones do."""
        return Sealed(
            batch=f'{{"completed_at": {self.num_runs}}}\n',
            report=f'{{"seconds": {self.num_runs}}}\n',
            reason=f'{{"at": {self.num_runs}}}\n' if self.with_reason else None,
        )

    def note(self, step: PublishStep) -> None:
        """Look at the outbox, then do what the test wants between two steps."""
        self.seen.append(self.storage.listing(OUTBOX))
        self.after_step(step)


def new_storage() -> CrashStorage:
    """A spool with one claimed file and its options."""
    storage = CrashStorage(WORK, OUTBOX, DONE, FAILED)
    storage.put(NAMES.input, INPUT)
    storage.put(NAMES.options, OPTIONS)
    return storage


def check_published(daemon: Daemon) -> None:
    """Everything is where it belongs, with the right bytes, and nothing else is anywhere."""
    storage = daemon.storage
    order = range(NUM_REQUESTS) if daemon.in_input_order else ARRIVALS
    outbox = storage.listing(OUTBOX)
    assert outbox.pop("in.output.jsonl") == b"".join(line(index) for index in order if index not in REFUSED)
    assert outbox.pop("in.errors.jsonl") == b"".join(line(index) for index in order if index in REFUSED)
    made_by = int(outbox["in.batch.json"].split(b":")[1].strip(b" }\n"))
    assert 1 <= made_by <= daemon.num_runs
    seal = Daemon(storage, with_reason=daemon.with_reason, num_runs=made_by).seal()
    assert outbox == {"in.batch.json": seal.batch.encode(), "in.report.json": seal.report.encode()}
    assert storage.listing(WORK) == {}
    here, there = (FAILED, DONE) if daemon.with_reason else (DONE, FAILED)
    moved = storage.listing(here)
    reasons = [moved.pop(name) for name in list(moved) if name.endswith(".reason.json")]
    assert set(reasons) == ({seal.reason.encode()} if seal.reason else set())
    options = [moved.pop(name) for name in list(moved) if name.endswith(".options.yaml")]
    assert set(options) == {OPTIONS}
    assert set(moved.values()) == {INPUT}  # twice, if a power cut in the middle of the rename left it in both folders
    assert storage.listing(there) == {}


def check_only_whole_files_were_seen(daemon: Daemon) -> None:
    """A name without `.partial` never had other bytes than in the end, and the Batch object came last."""
    final = daemon.storage.listing(OUTBOX)
    for outbox in daemon.seen:
        whole = {name: data for name, data in outbox.items() if not name.endswith((".partial", ".tmp"))}
        assert whole.items() <= final.items()
        if "in.batch.json" in whole:
            assert whole == final


@pytest.mark.parametrize("in_input_order", [True, False])
@pytest.mark.parametrize("with_reason", [True, False])
def test_a_file_is_published_undisturbed(in_input_order: bool, with_reason: bool) -> None:
    """The reference of the tests below, and the order in which names appear."""
    daemon = Daemon(new_storage(), in_input_order, with_reason)
    daemon.run()
    check_published(daemon)
    check_only_whole_files_were_seen(daemon)
    appeared = [sorted(name for name in outbox if not name.endswith(".partial")) for outbox in daemon.seen]
    output, errors, batch, report = "in.output.jsonl", "in.errors.jsonl", "in.batch.json", "in.report.json"
    everything = [batch, errors, output, report]
    assert appeared == [[output], [errors, output], [errors, output, report], *[everything] * 4]


@pytest.mark.parametrize("lose", [None, *LOSSES])
@pytest.mark.parametrize("with_reason", [True, False])
@pytest.mark.parametrize("in_input_order", [True, False])
def test_a_death_at_any_operation_changes_nothing_in_the_end(
    in_input_order: bool, with_reason: bool, lose: Choose | None
) -> None:
    """Deaths (None) and power cuts at every single file operation from the journal's creation to its removal."""
    operation = 0
    while True:
        operation += 1
        daemon = Daemon(new_storage(), in_input_order, with_reason)
        if not daemon.storage.kill_at(operation, daemon.run):
            break
        daemon.storage.end(lose)
        daemon.run()
        check_published(daemon)
        check_only_whole_files_were_seen(daemon)
    assert operation > 40


@given(
    st.lists(st.tuples(st.integers(1, 80), st.none() | st.lists(st.integers(0, 99), max_size=20)), max_size=4),
    st.booleans(),
    st.booleans(),
)
def test_many_deaths_in_a_row_change_nothing_in_the_end(
    deaths: list[tuple[int, list[int] | None]], in_input_order: bool, with_reason: bool
) -> None:
    """Restarts die too; power cuts keep any mixture of what was not synced."""
    daemon = Daemon(new_storage(), in_input_order, with_reason)
    for operation, choices in deaths:
        daemon.storage.kill_at(operation, daemon.run)
        daemon.storage.end(None if choices is None else chooser(choices))
    daemon.run()
    check_published(daemon)
    check_only_whole_files_were_seen(daemon)


@pytest.mark.parametrize("step", PublishStep)
@pytest.mark.parametrize("lose", [None, *LOSSES])
def test_a_death_between_two_steps_leaves_what_is_done_alone(step: PublishStep, lose: Choose | None) -> None:
    """After each step, by name: what was published is there again, byte for byte, and the rest follows.

    The names of output and errors outlive a power cut together with that of the report; until then they may be missing.
    """

    def die(done: PublishStep) -> None:
        if done is step:
            raise KilledError

    daemon = Daemon(new_storage(), after_step=die)
    with pytest.raises(KilledError):
        daemon.run()
    before = daemon.seen[-1]
    daemon.storage.end(lose)
    published = {name: data for name, data in before.items() if not name.endswith(".partial")}
    if lose is None or step not in {PublishStep.OUTPUT, PublishStep.ERRORS}:
        assert published.items() <= daemon.storage.listing(OUTBOX).items()
    else:
        there = {name: data for name, data in daemon.storage.listing(OUTBOX).items() if name in published}
        assert there.items() <= published.items()
    daemon.after_step = lambda _: None
    daemon.run()
    check_published(daemon)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_publishing_again_in_the_same_process_ends_the_same(code: int) -> None:
    """A disk that refuses at any operation of publishing is waited for: the same call goes through later."""
    operation = 0
    while True:
        operation += 1
        daemon = Daemon(new_storage())
        journal = Journal.create(NAMES.journal, Header("f", 1, "in.jsonl", 1, 1, "m", {}), daemon.storage)
        partial = partial_output(journal, NAMES, in_input_order=True, storage=daemon.storage)
        for _ in daemon.answer(journal):
            journal.sync()
            partial.advance()
        daemon.num_runs = 1
        journal.append_sealed(daemon.seal())
        publisher = Publisher(journal, NAMES, partial, daemon.storage)
        daemon.storage.fail_at = {daemon.storage.num_operations + operation: OSError(code, "refused")}
        try:
            publisher.publish()
        except StorageError:
            publisher.publish()
            check_published(daemon)
        else:
            break
    assert operation > 25


def test_a_full_disk_leaves_whole_lines_in_the_partial_files() -> None:
    """What is readable in the outbox never ends in the middle of a line, and the copy goes on where it was."""
    daemon = Daemon(new_storage())
    journal = Journal.create(NAMES.journal, Header("f", 1, "in.jsonl", 1, 1, "m", {}), daemon.storage)
    partial = partial_output(journal, NAMES, in_input_order=False, storage=daemon.storage)
    groups = daemon.answer(journal)
    next(groups)
    journal.sync()
    partial.advance()
    before = daemon.storage.listing(OUTBOX)
    next(groups)
    journal.sync()
    for operation in (1, 2, 3):  # the write of the output, its rest after a short write, the write of the errors
        daemon.storage.fail_at = {daemon.storage.num_operations + operation: OSError(errno.ENOSPC, "full")}
        with pytest.raises(StorageError):
            partial.advance()
        assert daemon.storage.listing(OUTBOX) == before
    daemon.storage.fail_at = {}
    assert partial.advance() == 3
    assert daemon.storage.read(OUTBOX / "in.output.jsonl.partial") == b"".join(map(line, (4, 0, 6, 2, 3)))


def test_taken_results_do_not_come_back() -> None:
    """Once the Batch object was there people move files away; a restart before the journal went does not make them anew."""

    def die(done: PublishStep) -> None:
        if done is PublishStep.MARK:
            raise KilledError

    daemon = Daemon(new_storage(), after_step=die)
    with pytest.raises(KilledError):
        daemon.run()
    daemon.storage.kill()
    for name in list(daemon.storage.listing(OUTBOX)):
        daemon.storage.unlink(OUTBOX / name)
    daemon.after_step = lambda _: None
    daemon.run()
    assert daemon.storage.listing(OUTBOX) == {}
    assert daemon.storage.listing(WORK) == {}
    assert daemon.storage.listing(DONE) == {"in.jsonl": INPUT, "in.options.yaml": OPTIONS}


def test_space_is_not_asked_for_twice() -> None:
    """An output that is in its place is not written a second time: with a full disk there would be no room for it."""
    written: list[int] = []
    daemon = Daemon(new_storage())
    storage = daemon.storage
    pwrite = storage.pwrite

    def die(done: PublishStep) -> None:
        if done is PublishStep.ERRORS:
            raise KilledError

    def count(fd: int, data: bytes | memoryview, offset: int) -> int:
        written.append(len(data))
        return pwrite(fd, data, offset)

    daemon.after_step = die
    with pytest.raises(KilledError):
        daemon.run()
    storage.kill()
    storage.pwrite = count  # type: ignore[method-assign]
    daemon.after_step = lambda _: None
    daemon.run()
    check_published(daemon)
    documents = daemon.seal()
    assert sum(written) <= 2 * (len(documents.batch) + len(documents.report)) + 100


@pytest.mark.parametrize("leave_out", ["sync", "sync_dir"])
def test_these_tests_notice_a_missing_sync(leave_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proof that the double is strict enough: without file or folder syncs a power cut after publishing loses something."""
    daemon = Daemon(new_storage())
    monkeypatch.setattr(daemon.storage, leave_out, lambda *_: None)
    daemon.run()
    daemon.storage.lose_power(lambda _: 0)
    with pytest.raises((AssertionError, KeyError)):
        check_published(daemon)
