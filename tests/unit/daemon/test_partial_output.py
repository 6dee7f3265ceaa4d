"""What people can read of results while their file runs: whole lines that are durable, and no others."""

import os
from pathlib import Path

import pytest
from outbox_world import SEALED, Spool, publish, running

from daemon.journal import Journal
from daemon.journal_records import LineNumbers, Outcome
from daemon.outbox import Publisher, partial_output


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path)


def test_partial_files_grow_in_input_order(spool: Spool, journals: list[Journal]) -> None:
    """A line is copied once it and all before it are durable; errors go to their own file, made with the first one."""
    names = spool.claim()
    journal = running(names, 5, journals)
    partial = partial_output(journal, names, in_input_order=True)
    output, errors = spool.outbox / "in.output.jsonl.partial", spool.outbox / "in.errors.jsonl.partial"
    journal.append_result(1, b"one\n", LineNumbers())
    journal.append_result(0, b"zero\n", LineNumbers())
    assert partial.advance() == 0
    assert not output.exists()
    journal.sync()
    journal.append_result(2, b"two\n", LineNumbers())
    assert partial.advance() == 2
    assert output.read_bytes() == b"zero\none\n"
    assert not errors.exists()
    journal.append_refused(3, Outcome.REFUSED, b"three\n")
    journal.sync()
    assert partial.advance() == 2
    assert (output.read_bytes(), errors.read_bytes()) == (b"zero\none\ntwo\n", b"three\n")
    assert partial.advance() == 0


@pytest.mark.parametrize("in_input_order", [True, False])
def test_a_long_copy_is_made_in_pieces(spool: Spool, journals: list[Journal], in_input_order: bool) -> None:
    """So that a journal can be synced between them; each piece is whole lines, and the last one says that it is."""
    names = spool.claim()
    journal = running(names, 5, journals)
    partial = partial_output(journal, names, in_input_order=in_input_order)
    for index in range(5):
        journal.append_result(index, b"%d.....\n" % index, LineNumbers())
    journal.sync()
    sizes = []
    while not sizes or partial.is_behind:
        assert partial.advance(14) <= 2
        sizes.append((spool.outbox / "in.output.jsonl.partial").stat().st_size)
    assert sizes == [14, 28, 35]
    assert (partial.advance(14), partial.is_behind) == (0, False)


def test_partial_files_grow_in_the_order_of_completion(spool: Spool, journals: list[Journal]) -> None:
    """With `order: completion` nothing waits for an earlier request."""
    names = spool.claim()
    journal = running(names, 3, journals)
    partial = partial_output(journal, names, in_input_order=False)
    for index in (2, 0):
        journal.append_result(index, b"%d\n" % index, LineNumbers())
        journal.sync()
        partial.advance()
    assert (spool.outbox / "in.output.jsonl.partial").read_bytes() == b"2\n0\n"
    journal.append_result(1, b"1\n", LineNumbers())
    journal.append_sealed(SEALED)
    Publisher(journal, names, partial).publish()
    assert names.lines.read_bytes() == b"2\n0\n1\n"


def test_a_restart_writes_the_partial_files_anew(spool: Spool, journals: list[Journal]) -> None:
    """What a dead process left, longer or other than the journal says, is gone with the first line."""
    names = spool.claim()
    journal = running(names, 2, journals)
    left = spool.outbox / "in.output.jsonl.partial"
    left.write_bytes(b"something that was never durable\n" * 9)
    (spool.outbox / "in.errors.jsonl.partial").write_bytes(b"nor this\n")
    partial = partial_output(journal, names, in_input_order=True)
    journal.append_result(0, b"zero\n", LineNumbers())
    journal.sync()
    partial.advance()
    assert left.read_bytes() == b"zero\n"
    journal.append_result(1, b"one\n", LineNumbers())
    publish(journal, names, SEALED)
    assert names.lines.read_bytes() == b"zero\none\n"
    assert spool.names_in("outbox") == ["in.batch.json", "in.output.jsonl", "in.report.json"]


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_partial_file_that_somebody_changed_is_made_again(
    spool: Spool, journals: list[Journal], is_removed: bool
) -> None:
    """`rm outbox/*` or an editor in mid-run costs a rewrite, never a hole or a missing line in the output."""
    names = spool.claim()
    journal = running(names, 4, journals)
    partial = partial_output(journal, names, in_input_order=True)
    path = spool.outbox / "in.output.jsonl.partial"
    lines = [b"%d\n" % index * 20 for index in range(4)]
    for index in range(3):
        journal.append_result(index, lines[index], LineNumbers())
        journal.sync()
        partial.advance()
        if is_removed:
            path.unlink()
        else:
            path.write_bytes(b"edited")
    journal.append_result(3, lines[3], LineNumbers())
    journal.append_sealed(SEALED)
    Publisher(journal, names, partial).publish()
    assert names.lines.read_bytes() == b"".join(lines)


def test_more_lines_than_one_write_takes(spool: Spool, journals: list[Journal]) -> None:
    """Some megabytes at once, both files, come out in order."""
    names = spool.claim()
    journal = running(names, 3000, journals)
    lines = [os.urandom(700).replace(b"\n", b"") + b"\n" for _ in range(3000)]
    for index in reversed(range(3000)):
        if index % 5:
            journal.append_result(index, lines[index], LineNumbers())
        else:
            journal.append_refused(index, Outcome.REFUSED, lines[index])
    publish(journal, names, SEALED)
    assert names.lines.read_bytes() == b"".join(line for index, line in enumerate(lines) if index % 5)
    assert names.errors.read_bytes() == b"".join(lines[::5])
