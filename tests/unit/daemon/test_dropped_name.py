"""A file that gets a number keeps its name through a crash before its journal; one that keeps its stem pays nothing."""

import os

import pytest

from daemon.dropped_name import dropped_name, forget_stray_names, note_dropped_name
from daemon.durable import DiskStorage
from daemon.inbox import Inbox
from daemon.recovery import leftovers


def claim(folders, name, stems_in_use=()):
    (folders.inbox / name).write_text("x")
    inbox = Inbox(folders, 0.0, DiskStorage())
    inbox.look(0.0)
    inbox.look(1.0)
    return inbox.claim(10, stems_in_use)


@pytest.mark.parametrize("name", ["a.jsonl", "a b.jsonl.gz", "line\nend.txt", os.fsdecode(b"caf\xe9.csv")])
def test_a_numbered_file_has_its_name_after_a_crash_before_its_journal(folders, name):
    """Whatever the name holds, bytes that are no UTF-8 too."""
    stem = name.partition(".")[0]
    (claimed,) = claim(folders, name, {stem})
    assert claimed.stem == f"{stem}~2"
    (left,) = leftovers(folders, DiskStorage())
    assert (left.name, left.stem, left.path) == (name, claimed.stem, claimed.path)
    assert sorted(folders.work.iterdir()) == sorted([claimed.path, folders.work / f"{stem}~2.dropped"])


def test_a_file_that_keeps_its_stem_leaves_nothing_beside_it(folders):
    """Also where its own name looks like a number, and an earlier claim of that stem came to nothing."""
    note_dropped_name(DiskStorage(), folders.work, "a~2", "a.jsonl")
    (claimed,) = claim(folders, "a~2.jsonl")
    assert [path.name for path in folders.work.iterdir()] == ["a~2.jsonl"]
    (left,) = leftovers(folders, DiskStorage())
    assert left.name == claimed.name == "a~2.jsonl"


def test_what_nobody_needs_any_more_goes(folders):
    """The name of a file that was not claimed after all, or whose journal has it; that of another stays."""
    storage = DiskStorage()
    for stem in ("not claimed~2", "has a journal~2", "needs it~2"):
        note_dropped_name(storage, folders.work, stem, "x.jsonl")
    for name in ("has a journal~2.jsonl", "has a journal~2.journal", "needs it~2.jsonl", "not claimed~2.other.jsonl"):
        (folders.work / name).touch()
    forget_stray_names(storage, folders.work)
    assert [path.name for path in folders.work.glob("*.dropped")] == ["needs it~2.dropped"]
    assert dropped_name(storage, folders.work, "needs it~2") == "x.jsonl"
