"""A file is found through every move and under every name, by its inode."""

import json

import pytest

from daemon.follow import Followed, Stage


def dropped(folders, name="f.jsonl"):
    path = folders.inbox / name
    path.write_text("{}")
    return Followed(path, folders, path)


def show_batch(folders, stem, status, inode=None, **counts):
    batch = {
        "status": status,
        "request_counts": {"total": 0, "completed": 0, "failed": 0} | counts,
        "metadata": {} if inode is None else {"inode": str(inode)},
    }
    (folders.outbox / f"{stem}.batch.json").write_text(json.dumps(batch))


def test_it_is_followed_from_the_inbox_to_its_results(folders):
    """The ordinary way, with a name that was taken: each place in turn."""
    file = dropped(folders)
    assert file.look().stage is Stage.INBOX
    show_batch(folders, "f", "completed", inode=1)  # somebody else's
    (folders.inbox / "f.jsonl").rename(folders.work / "f~2.jsonl")
    sight = file.look()
    assert (sight.stage, sight.stem, sight.num_total) == (Stage.TAKEN, "f~2", 0)
    show_batch(folders, "f~2", "in_progress", total=4, completed=2, failed=1)
    sight = file.look()
    assert (sight.stage, sight.num_done, sight.num_failed, sight.num_total) == (Stage.TAKEN, 3, 1, 4)
    show_batch(folders, "f~2", "completed", total=4, completed=4)
    (folders.work / "f~2.jsonl").rename(folders.done / "f~7.jsonl")
    assert file.look().stage is Stage.DONE


def test_results_are_found_though_every_move_was_missed(folders):
    """A small file is through before anybody looks again; only the Batch object tells its new name."""
    file = dropped(folders)
    inode = (folders.inbox / "f.jsonl").stat().st_ino
    (folders.inbox / "f.jsonl").rename(folders.done / "f~9.jsonl")
    show_batch(folders, "f", "completed", inode=inode + 1)
    show_batch(folders, "fa~3", "completed", inode=inode)  # another stem
    assert file.look().stage is Stage.GONE
    show_batch(folders, "f~3", "failed", inode=inode)
    sight = file.look()
    assert (sight.stage, sight.stem) == (Stage.DONE, "f~3")


def test_another_file_of_the_same_name_is_not_taken_for_it(folders):
    """Taken out of the inbox by a person, who put another one there."""
    file = dropped(folders)
    (folders.inbox / "f.jsonl").rename(folders.root / "kept.jsonl")
    (folders.inbox / "f.jsonl").write_text("{}")
    assert file.look().stage is Stage.GONE


def test_results_that_were_taken_away_are_gone(folders):
    """Its stem is known, its Batch object is no more, and it is not being run."""
    file = dropped(folders)
    (folders.inbox / "f.jsonl").rename(folders.work / "f.jsonl")
    show_batch(folders, "f", "in_progress")
    assert file.look().stage is Stage.TAKEN
    (folders.work / "f.jsonl").rename(folders.done / "f.jsonl")
    (folders.outbox / "f.batch.json").unlink()
    assert file.look().stage is Stage.GONE


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"status": 1, "request_counts": 3}', "\xff"])
def test_a_batch_object_that_cannot_be_read_is_none(folders, text):
    """Whatever somebody put there."""
    file = dropped(folders)
    (folders.inbox / "f.jsonl").rename(folders.work / "f.jsonl")
    (folders.outbox / "f.batch.json").write_text(text)
    sight = file.look()
    assert (sight.stage, sight.batch) == (Stage.TAKEN, None)
