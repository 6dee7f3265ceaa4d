"""Publishing a table on a file system that dies, fills up and forgets: whatever stops it, doing it again gives the same bytes."""

import errno
import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from crash_storage import Choose, CrashStorage
from pyarrow import parquet

from daemon.errors import InputModifiedError, StorageError
from daemon.file_kinds import kind_of
from daemon.journal import Journal
from daemon.journal_records import Header, LineNumbers, Outcome, Sealed
from daemon.made_with import MadeWith
from daemon.outbox import FileNames, Publisher, partial_output
from daemon.request_record import Url
from daemon.result_line import LineBuilder, LineFormat, Refusal
from pipelines.core.request import Choice, FinishReason, RequestOutput

WORK, OUTBOX, DONE, FAILED = (Path("/", name) for name in ("work", "outbox", "done", "failed"))
LOSSES: list[Choose] = [lambda _: 0, lambda n: n, lambda n: n // 2]
TEXTS = ["one", "two", "three"]


def parquet_input() -> bytes:
    sink = io.BytesIO()
    parquet.write_table(pa.table({"text": TEXTS}), sink)
    return sink.getvalue()


INPUTS = {"in.csv": "\n".join(["text", *TEXTS, ""]).encode(), "in.parquet": parquet_input()}


@dataclass
class Daemon:
    """What the service does with one table, reduced to its file operations; a restart is another call of `run`."""

    storage: CrashStorage
    name: str
    reason: str | None = None

    @property
    def names(self) -> FileNames:
        kind = kind_of(self.name)
        assert kind is not None
        return FileNames("in", WORK / self.name, OUTBOX, DONE, FAILED, kind)

    def run(self) -> None:
        names, storage = self.names, self.storage
        if not storage.exists(names.journal):
            if not storage.exists(names.input):
                return  # an earlier run got to its end
            fingerprint = hashlib.sha256(INPUTS[self.name]).hexdigest()
            journal = Journal.create(names.journal, Header(fingerprint, 1, self.name, 1, 1, "m", {}), storage)
        else:
            journal, _ = Journal.open(names.journal, storage)
        partial = partial_output(journal, names, in_input_order=True, storage=storage)
        if journal.state.sealed is None:
            self.answer(journal)
            journal.sync()
            partial.advance()
            journal.append_sealed(Sealed("{}", "{}", self.reason))
        Publisher(journal, names, partial, storage).publish()

    def answer(self, journal: Journal) -> None:
        if journal.state.started is None:
            journal.append_started(1, len(TEXTS))
        lines = LineBuilder("f", 1, MadeWith("m", "1"), LineFormat.TABLE)
        for index, text in enumerate(TEXTS):
            if journal.state.lines.has(index):
                continue
            if index == 1:
                journal.append_refused(index, Outcome.REFUSED, lines.refused(index, "x", Refusal("code", "why")))
                continue
            output = RequestOutput(1, (Choice(text[::-1], FinishReason.STOP, 2),), 3, 0)
            journal.append_result(index, lines.result(index, "x", Url.CHAT, output), LineNumbers.of_output(output))


def new_daemon(name: str, reason: str | None = None) -> Daemon:
    storage = CrashStorage(WORK, OUTBOX, DONE, FAILED)
    storage.put(WORK / name, INPUTS[name])
    return Daemon(storage, name, reason)


def undisturbed(name: str) -> dict[str, bytes]:
    daemon = new_daemon(name)
    daemon.run()
    return daemon.storage.listing(OUTBOX)


NAMES = pytest.mark.parametrize("name", INPUTS)


@NAMES
def test_the_outbox_of_a_table(name: str) -> None:
    """A table, the error lines, report and Batch object; the copy of lines that was there while it ran is gone."""
    outbox = undisturbed(name)
    suffix = Path(name).suffix
    assert sorted(outbox) == ["in.batch.json", "in.errors.jsonl", f"in.output{suffix}", "in.report.json"]
    if suffix == ".csv":
        assert b"one,eno,stop,,,3,2,m\ntwo,,,code,why,,,\nthree,eerht,stop,,,3,2,m\n" in outbox["in.output.csv"]
    else:
        assert parquet.read_table(io.BytesIO(outbox["in.output.parquet"]))["output"].to_pylist() == [
            "eno",
            None,
            "eerht",
        ]


@NAMES
@pytest.mark.parametrize("lose", [None, *LOSSES])
def test_a_table_has_the_same_bytes_wherever_the_daemon_died(name: str, lose: Choose | None) -> None:
    """At each file operation of claim, run and publication once; with a power cut as well, that loses what is not synced."""
    expected = undisturbed(name)
    for operation in range(1, 1000):
        daemon = new_daemon(name)
        if not daemon.storage.kill_at(operation, daemon.run):
            assert operation > 30, "the operations were counted"
            return
        daemon.storage.end(lose)
        daemon.run()
        outbox = daemon.storage.listing(OUTBOX)
        assert outbox == expected, operation
        assert daemon.storage.listing(WORK) == {}
    raise AssertionError("it never ended")


@NAMES
def test_a_full_disk_is_said_and_trying_again_ends_the_same(name: str) -> None:
    """At each operation once; what was written of the table goes with the next try."""
    expected = undisturbed(name)
    num_failures = 0
    for operation in range(1, 1000):
        daemon = new_daemon(name)
        daemon.storage.fail_at = {operation: OSError(errno.ENOSPC, "No space left on device")}
        try:
            daemon.run()
        except StorageError:
            num_failures += 1
        daemon.run()
        assert daemon.storage.listing(OUTBOX) == expected, operation
        if daemon.storage.num_operations < operation:
            break
    assert num_failures > 20


@NAMES
def test_a_table_that_did_not_run_to_its_end_leaves_lines(name: str) -> None:
    """Its input cannot be trusted to be the one that was run, so nothing is joined with it."""
    daemon = new_daemon(name, reason="{}")
    daemon.run()
    outbox = daemon.storage.listing(OUTBOX)
    assert sorted(outbox) == ["in.batch.json", "in.errors.jsonl", "in.output.jsonl", "in.report.json"]
    assert outbox["in.output.jsonl"].count(b"\n") == 2
    assert sorted(daemon.storage.listing(FAILED)) == sorted([name, "in.reason.json"])


@NAMES
def test_a_table_that_was_changed_before_its_publication_stays(name: str) -> None:
    """Nothing is published, nothing is lost: with the right input back in its place it goes on."""
    daemon = new_daemon(name)
    original = INPUTS[name]
    daemon.storage.put(WORK / name, original + b"more\n" if name == "in.csv" else original[:-1])
    with pytest.raises(InputModifiedError, match="was changed after it was run"):
        daemon.run()
    assert "in.batch.json" not in daemon.storage.listing(OUTBOX)
    daemon.storage.put(WORK / name, original)
    daemon.run()
    assert daemon.storage.listing(OUTBOX) == undisturbed(name)
