"""Journals of one file, made, started and opened again."""

import os
from pathlib import Path

from daemon.journal import Journal
from daemon.journal_records import Header, LineNumbers, Sealed

HEADER = Header(
    fingerprint="ab" * 32,
    created=1_700_000_000,
    source_name=os.fsdecode(b"na\xc3\xafve \xff\n.jsonl"),
    input_bytes=123,
    input_mtime_ns=1_700_000_000_123_456_789,
    model_hash="m",
    settings={"sampling": {"temperature": None, "max_tokens": 7}, "system": "d\u00fc"},
)
NUMBERS = LineNumbers(num_stop=1, num_length=2, prompt_tokens=30, cached_tokens=10, completion_tokens=40)
SEALED = Sealed(batch='{"status": "completed", "x": "\u00fc"}\n', report="{}\n")


def line_of(index: int) -> bytes:
    """Some line, of a length that differs."""
    return b'{"custom_id":"%d","text":"%s"}\n' % (index, b"\xc3\xbc" * (index % 5))


def started(path: Path, num_requests: int) -> Journal:
    """Return a new journal that has started."""
    journal = Journal.create(path, HEADER)
    journal.append_started(at=1_700_000_001, num_requests=num_requests)
    return journal


def reopened(journal: Journal) -> Journal:
    """Close and open."""
    journal.close()
    return Journal.open(journal.path)[0]


def written(path: Path) -> tuple[bytes, list[int]]:
    """Write a journal of some lines; return its bytes and the ends of its records, the header's first."""
    journal = Journal.create(path, HEADER)
    ends = [journal.end_offset]
    journal.append_started(1, 4)
    ends.append(journal.end_offset)
    for index in (2, 0, 1):
        journal.append_result(index, line_of(index), NUMBERS)
        ends.append(journal.end_offset)
    journal.sync()
    journal.close()
    return path.read_bytes(), ends
