"""A journal that is damaged, foreign or newer: what is cut, what is refused, and that no wrong byte becomes a result."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from journal_world import NUMBERS, line_of, reopened, written

from daemon.durable import DiskStorage
from daemon.errors import JournalError
from daemon.journal import Journal
from daemon.journal_records import FILE_HEAD, MAGIC, RecordType, encode, encode_json


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.journal"


def test_a_torn_tail_is_cut_wherever_it_is_torn(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every length the file can have: the whole records are there, the rest is cut and said, and appending goes on."""
    monkeypatch.setattr(DiskStorage, "sync", lambda *_: None)  # nothing is lost here, and there are many lengths
    data, ends = written(path)
    for size in range(ends[0], len(data) + 1):
        path.write_bytes(data[:size])
        journal, recovery = Journal.open(path)
        whole = sum(end <= size for end in ends)
        assert recovery.cut_bytes == size - ends[whole - 1]
        assert recovery.num_lines == max(0, whole - 2)
        assert path.stat().st_size == ends[whole - 1]
        if whole >= 2:
            journal.append_result(3, line_of(3), NUMBERS)
            journal.sync()
            journal = reopened(journal)
            assert journal.read_line(3).line == line_of(3)
        journal.close()


@pytest.mark.parametrize("change", [lambda byte: byte ^ 1, lambda _: 0, lambda _: 255])
def test_a_changed_byte_cuts_the_file_before_its_record(
    path: Path, change: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No changed byte anywhere behind the header is ever taken for a result."""
    monkeypatch.setattr(DiskStorage, "sync", lambda *_: None)  # as above
    data, ends = written(path)
    for position in range(ends[0], len(data)):
        if change(data[position]) == data[position]:
            continue
        changed = bytearray(data)
        changed[position] = change(data[position])
        path.write_bytes(changed)
        journal, recovery = Journal.open(path)
        whole = sum(end <= position for end in ends)
        assert recovery.cut_bytes == len(data) - ends[whole - 1]
        journal.close()


def test_zeros_behind_the_end_are_cut(path: Path) -> None:
    """A file whose length outlived a crash but whose data did not ends in zeros; they are no records."""
    data, _ = written(path)
    for num_zeros in (1, 9, 30, 5000):
        path.write_bytes(data + bytes(num_zeros))
        journal, recovery = Journal.open(path)
        assert (recovery.cut_bytes, recovery.num_lines) == (num_zeros, 3)
        journal.close()


def test_bytes_that_changed_under_an_open_journal_are_not_published(path: Path) -> None:
    """Reading back checks the checksum again."""
    data, ends = written(path)
    journal, _ = Journal.open(path)
    changed = bytearray(data)
    changed[ends[2] - 3] ^= 1  # in the line of request 2
    path.write_bytes(changed)
    with pytest.raises(JournalError, match="found other bytes at"):
        journal.read_line(2)
    with pytest.raises(JournalError, match="found other bytes at"):
        list(journal.lines_from(0))
    assert journal.read_line(1).line == line_of(1)


def test_a_newer_format_is_refused_by_name(path: Path) -> None:
    """A downgrade says what to do and touches nothing."""
    data, _ = written(path)
    newer = FILE_HEAD.pack(MAGIC, 2) + data[FILE_HEAD.size :]
    path.write_bytes(newer)
    with pytest.raises(JournalError, match="found format 2, expected 1; run the newer gapless") as caught:
        Journal.open(path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == newer


@pytest.mark.parametrize("content", [b"", b"GAPL", b"{}\n" * 10, FILE_HEAD.pack(MAGIC, 1)])
def test_what_is_no_journal_is_refused(path: Path, content: bytes) -> None:
    """A stranger's file under our name is named and left alone."""
    path.write_bytes(content)
    with pytest.raises(JournalError, match="expected"):
        Journal.open(path)
    assert path.read_bytes() == content


def test_a_whole_record_that_says_nothing_known_is_an_error_not_a_tail(path: Path) -> None:
    """A record with a right checksum was written on purpose: by other code, so it must not be cut off silently."""
    data, _ = written(path)
    strange = [
        encode(99, b""),  # type: ignore[arg-type]
        encode_json(RecordType.STARTED, {"at": 1, "num_requests": 4}),
        encode_json(RecordType.SEALED, {"batch": "{}"}),
        encode_json(RecordType.HEADER, {}),
        encode(RecordType.ATTEMPT, b"1"),
        encode(RecordType.RESULT, struct.pack("<IBHHIII", 3, 200, 0, 0, 0, 0, 0)),
        encode(RecordType.RESULT, struct.pack("<IBHHIII", 2, 1, 0, 0, 0, 0, 0)),
    ]
    for record in strange:
        path.write_bytes(data + record)
        with pytest.raises(JournalError, match="may not stand there"):
            Journal.open(path)
        assert path.read_bytes() == data + record
