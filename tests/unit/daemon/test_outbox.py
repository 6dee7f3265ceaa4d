"""The outbox on the real disk: names of all kinds, what appears when, and whose files are never replaced."""

import json
import os
from pathlib import Path

import pytest
from outbox_world import SEALED, Spool, publish, running

from daemon.batch_object import BatchInfo, BatchObject, BatchStatus
from daemon.durable import DiskStorage
from daemon.errors import InvariantError, StorageError
from daemon.file_kinds import FileKind
from daemon.journal import Journal
from daemon.journal_records import Header, LineNumbers, Outcome, Sealed
from daemon.outbox import (
    Publisher,
    free_stem,
    move_input,
    output_is_published,
    partial_output,
    reason_document,
    write_batch_object,
)

NAMES = [
    b"plain.jsonl",
    b'with space \'and "quotes".jsonl',
    b"new\nline and \ttab.jsonl",
    "\u00fcml\u00e4ut \u65e5\u672c\u8a9e \U0001f600.jsonl".encode(),
    b"not \xff\xfe utf-8.jsonl",
    b"..dots..json",
    b"%s {x} $HOME `id` \\.txt",
    b"-rf.md",
    b"a" * 194 + b".jsonl",
    b"\xf0\x9f\x98\x80" * 48 + b"x.jsonl",
]


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path)


@pytest.mark.parametrize("raw", NAMES)
def test_a_name_of_any_kind_goes_all_the_way(spool: Spool, raw: bytes, journals: list[Journal]) -> None:
    """Up to 200 bytes, blanks, quotes, newlines, non-UTF-8: all files appear under the stem, all JSON is valid UTF-8."""
    name = os.fsdecode(raw)
    stem = free_stem(Path(name).stem, spool.work, spool.outbox)
    assert stem == Path(name).stem
    names = spool.claim(name)
    journal = running(names, 1, journals)
    info = BatchInfo(stem, name, "chat", "m", "/v1/chat/completions", created_at=1)
    batch = BatchObject(info, clock=lambda: 2.0)
    write_batch_object(names, batch.as_dict())
    assert free_stem(Path(name).stem, spool.work, spool.outbox) == f"{stem}~2"
    journal.append_result(0, b"{}\n", LineNumbers())
    for status in (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.COMPLETED):
        batch.advance(status)
    batch.name_files(names.lines.name, None)
    target = publish(journal, names, Sealed(batch.as_json(), "{}\n"))
    assert target == spool.done / name
    assert target.read_bytes() == b"input\n"
    assert spool.names_in("outbox") == sorted(
        stem + suffix for suffix in (".batch.json", ".output.jsonl", ".report.json")
    )
    document = json.loads(names.batch.read_bytes().decode("utf-8"))
    assert document["status"] == "completed"
    assert document["metadata"]["source"] == raw.decode("utf-8", "backslashreplace")
    assert spool.names_in("work") == []


def test_a_stem_is_free_when_nothing_of_it_is_anywhere(spool: Spool) -> None:
    """Each kind of file in work/ or outbox/ reserves its stem; other stems, and stems that only begin alike, do not."""
    assert free_stem("a", spool.work, spool.outbox) == "a"
    for folder, suffixes in (
        (spool.work, [".journal", ".jsonl", ".json", ".txt", ".md", ".jsonl.gz", ".jsonl.zst"]),
        (spool.outbox, [".output.jsonl", ".output.txt", ".errors.jsonl", ".batch.json", ".report.json"]),
        (spool.outbox, [".output.jsonl.partial", ".errors.jsonl.partial", ".output.txt.partial"]),
    ):
        for suffix in suffixes:
            path = folder / f"a{suffix}"
            path.touch()
            assert free_stem("a", spool.work, spool.outbox) == "a~2", suffix
            path.unlink()
    (spool.work / "a.b.jsonl").touch()
    (spool.outbox / "a~2.batch.json").touch()
    assert free_stem("a", spool.work, spool.outbox) == "a"
    assert free_stem("a", spool.work, spool.outbox, taken={"a"}) == "a~3"
    (spool.work / "a.jsonl").symlink_to("nowhere")
    assert free_stem("a", spool.work, spool.outbox) == "a~3"


def test_a_text_file_gets_its_bare_answer(spool: Spool, journals: list[Journal]) -> None:
    """A .txt's output is .txt; refused, it has an errors file and no empty answer."""
    names = spool.claim("ask.txt", kind=FileKind.TEXT)
    journal = running(names, 1, journals)
    journal.append_result(0, b"Paris.\n", LineNumbers())
    publish(journal, names, SEALED)
    assert (spool.outbox / "ask.output.txt").read_bytes() == b"Paris.\n"
    names = spool.claim("bad.txt", kind=FileKind.TEXT)
    journal = running(names, 1, journals)
    journal.append_refused(0, Outcome.REFUSED, b"{}\n")
    publish(journal, names, SEALED)
    assert [name for name in spool.names_in("outbox") if name.startswith("bad")] == [
        "bad.batch.json", "bad.errors.jsonl", "bad.report.json",
    ]  # fmt: skip


@pytest.mark.parametrize("num_requests", [0, 2])
def test_a_file_without_any_answer_has_an_empty_output(
    spool: Spool, journals: list[Journal], num_requests: int
) -> None:
    """Whoever waits for the output of a file that ran finds one, and an errors file only if there are errors."""
    names = spool.claim()
    journal = running(names, num_requests, journals)
    for index in range(num_requests):
        journal.append_refused(index, Outcome.REFUSED, b"{}\n")
    publish(journal, names, SEALED)
    assert names.lines.read_bytes() == b""
    assert names.errors.exists() == (num_requests > 0)


def test_a_file_that_cannot_be_run_goes_to_failed_with_its_reason(spool: Spool, journals: list[Journal]) -> None:
    """No output, the report and the Batch object, the input beside its reason."""
    names = spool.claim()
    journal = Journal.create(names.journal, Header("f", 1, "in.jsonl", 1, 1, "m", {}))
    journals.append(journal)
    reason = reason_document("in.jsonl", "invalid_file", "found nothing, expected a request")
    target = publish(journal, names, Sealed("{}\n", "{}\n", reason.decode()))
    assert target == spool.failed / "in.jsonl"
    assert spool.names_in("failed") == ["in.jsonl", "in.reason.json"]
    assert json.loads((spool.failed / "in.reason.json").read_bytes()) == {
        "file": "in.jsonl",
        "code": "invalid_file",
        "message": "found nothing, expected a request",
        "errors": None,
    }
    assert spool.names_in("outbox") == ["in.batch.json", "in.report.json"]
    assert spool.names_in("done") == []


def test_finished_results_of_a_file_that_was_changed_are_published(spool: Spool, journals: list[Journal]) -> None:
    """Holes in the order are passed over once nothing more will come."""
    names = spool.claim()
    journal = running(names, 6, journals)
    for index in (4, 1):
        journal.append_result(index, b"%d\n" % index, LineNumbers())
    publish(journal, names, Sealed("{}\n", "{}\n", "{}\n"))
    assert names.lines.read_bytes() == b"1\n4\n"
    assert spool.names_in("failed") == ["in.jsonl", "in.reason.json"]


def test_no_file_of_a_person_is_replaced_in_done_or_failed(spool: Spool, journals: list[Journal]) -> None:
    """The third file of one name stands beside the first two, its reason under the same number."""
    for number in range(3):
        names = spool.claim(content=b"%d" % number)
        publish(running(names, 0, journals), names, SEALED)
        for path in spool.outbox.iterdir():
            path.unlink()
    assert {path.name: path.read_bytes() for path in spool.done.iterdir()} == {
        "in.jsonl": b"0",
        "in~2.jsonl": b"1",
        "in~3.jsonl": b"2",
    }
    (spool.failed / "in.reason.json").write_bytes(b"a reason of old, whose input somebody took away")
    source = spool.claim().input
    assert move_input(DiskStorage(), source, "in", spool.failed, b"{}") == spool.failed / "in~2.jsonl"
    assert (spool.failed / "in~2.reason.json").read_bytes() == b"{}"
    assert (spool.failed / "in.reason.json").read_bytes().startswith(b"a reason of old")


def test_an_input_that_vanished_from_work_does_not_stop_publishing(spool: Spool, journals: list[Journal]) -> None:
    """The results are there whatever somebody did in work/."""
    names = spool.claim()
    journal = running(names, 1, journals)
    journal.append_result(0, b"{}\n", LineNumbers())
    names.input.unlink()
    assert publish(journal, names, SEALED) is None
    assert names.lines.read_bytes() == b"{}\n"
    assert spool.names_in("work") == []


def test_nothing_is_published_before_the_journal_is_sealed(spool: Spool, journals: list[Journal]) -> None:
    """Publishing too early is refused before it touches anything."""
    names = spool.claim()
    journal = running(names, 0, journals)
    with pytest.raises(InvariantError):
        Publisher(journal, names, partial_output(journal, names, in_input_order=True)).publish()
    assert spool.names_in("outbox") == []
    assert spool.names_in("work") == ["in.journal", "in.jsonl"]


def test_an_outbox_that_is_gone_is_one_clear_line(spool: Spool, journals: list[Journal]) -> None:
    """The folder was removed: an error that names it; once it is back, publishing goes through."""
    names = spool.claim()
    journal = running(names, 1, journals)
    journal.append_result(0, b"{}\n", LineNumbers())
    journal.append_sealed(SEALED)
    publisher = Publisher(journal, names, partial_output(journal, names, in_input_order=True))
    spool.outbox.rmdir()
    with pytest.raises(StorageError, match=r"cannot write .*in\.output\.jsonl\.partial: No such file or directory"):
        publisher.publish()
    spool.outbox.mkdir()
    assert publisher.publish() == spool.done / "in.jsonl"
    assert names.lines.read_bytes() == b"{}\n"


@pytest.mark.parametrize(
    ("reason", "num_completed", "is_text", "expected"),
    [
        (None, 1, False, True),
        (None, 0, False, True),
        (None, 0, True, False),
        (None, 1, True, True),
        ("{}", 0, False, False),
        ("{}", 1, False, True),
    ],
)
def test_when_there_is_an_output_file(reason: str | None, num_completed: int, is_text: bool, expected: bool) -> None:
    """The rule that the Batch object's output_file_id follows too."""
    assert output_is_published(Sealed("", "", reason), num_completed, is_text=is_text) is expected


def test_the_live_batch_object_is_always_whole(spool: Spool) -> None:
    """It is replaced at once and leaves nothing beside it."""
    names = spool.claim()
    for status in ("validating", "in_progress"):
        write_batch_object(names, {"status": status})
        assert json.loads(names.batch.read_bytes()) == {"status": status}
    assert spool.names_in("outbox") == ["in.batch.json"]
