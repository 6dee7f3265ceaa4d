"""Files that a power cut left under two names, on the real file system: links stand for renames that are half done."""

import pytest

from daemon.durable import DiskStorage
from daemon.recovery import end_renames


def names_left(folders):
    end_renames(folders, DiskStorage())
    everything = (folders.inbox, folders.work, folders.done, folders.failed)
    return {
        folder.name: sorted(path.name for path in folder.iterdir()) for folder in everything if any(folder.iterdir())
    }


@pytest.mark.parametrize(
    ("dropped", "claimed"),
    [
        ("a.jsonl", "a.jsonl"),
        ("a.jsonl", "a~2.jsonl"),
        ("A~2.JSON", "A~2.JSON"),
        ("a.options.yaml", "a~3.options.yaml"),
        ("a.jsonl.options.yaml", "a.options.yaml"),
    ],
)
def test_a_claim_that_is_half_done_is_ended(folders, dropped, claimed):
    """The file stays where it was going; options too, by each of the names that they may have."""
    (folders.inbox / dropped).write_text("x")
    (folders.work / claimed).hardlink_to(folders.inbox / dropped)
    assert names_left(folders) == {"work": [claimed]}


@pytest.mark.parametrize("folder", ["done", "failed"])
def test_a_publication_that_is_half_done_is_ended(folders, folder):
    """Also where the input got a number because an older file had its name."""
    (folders.work / "a.jsonl").write_text("x")
    (folders.root / folder / "a.jsonl").write_text("older")
    (folders.root / folder / "a~2.jsonl").hardlink_to(folders.work / "a.jsonl")
    assert names_left(folders) == {folder: ["a.jsonl", "a~2.jsonl"]}


def test_other_files_and_links_of_other_names_are_left_alone(folders):
    """Somebody may have dropped one file under two names, or a file of the same name and content again."""
    (folders.work / "a.jsonl").write_text("x")
    (folders.inbox / "a.jsonl").write_text("x")
    (folders.inbox / "b.jsonl").hardlink_to(folders.work / "a.jsonl")
    (folders.inbox / "a.options.yaml").hardlink_to(folders.work / "a.jsonl")
    (folders.done / "a.jsonl").write_text("x")
    assert names_left(folders) == {
        "inbox": ["a.jsonl", "a.options.yaml", "b.jsonl"],
        "work": ["a.jsonl"],
        "done": ["a.jsonl"],
    }
