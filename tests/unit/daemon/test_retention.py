"""Retention removes what Gapless put there once it is old, and nothing that a person put there, however alike it looks."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.folders import Folders
from daemon.ledger import Finished, InputFile, Ledger
from daemon.retention import Retention, finished_file
from daemon.settings_daemon import RetentionSettings

DAY_S = 86400


class World:
    """A pipeline's folders with finished files in them."""

    def __init__(self, root):
        self.folders = Folders(root / "p")
        self.folders.make()
        self.ledger = Ledger(self.folders.root)

    def finish(self, stem, day=0.0, batch_id=None):
        source = self.folders.done / f"{stem}.jsonl"
        source.write_text(f"requests of {stem}")
        batch = json.dumps({"id": batch_id or f"batch_{stem}"})
        results = [self.folders.outbox / f"{stem}.{kind}" for kind in ("output.jsonl", "report.json", "batch.json")]
        for path in results:
            path.write_text(batch if path.name.endswith("batch.json") else "x")
        missing = self.folders.outbox / f"{stem}.errors.jsonl"
        self.ledger.add(finished_file(stem, batch, [*results, missing], source, day * DAY_S))

    def apply(self, day, done_days=None, outbox_days=None):
        settings = RetentionSettings(done_days=done_days, outbox_days=outbox_days)
        return Retention(self.folders, self.ledger, settings, lambda: day * DAY_S).apply()

    def names(self):
        return sorted(path.name for folder in (self.folders.done, self.folders.outbox) for path in folder.iterdir())


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_each_folder_has_its_own_age_and_what_is_younger_stays(world):
    """By the time of the end, not by a date of the file; what is gone altogether is forgotten."""
    world.finish("old", day=0)
    world.finish("new", day=8)
    os.utime(world.folders.done / "old.jsonl", ns=(0, (world.folders.done / "old.jsonl").stat().st_mtime_ns))
    assert world.apply(10) == []
    world.apply(9.99, done_days=10, outbox_days=10)
    assert "old.jsonl" in world.names()
    world.apply(10, done_days=10)
    assert "old.jsonl" not in world.names()
    assert "old.output.jsonl" in world.names()
    world.apply(10, outbox_days=10)
    assert world.names() == ["new.batch.json", "new.jsonl", "new.output.jsonl", "new.report.json"]
    assert [finished.stem for finished in world.ledger.read()] == ["new"]
    world.apply(8, done_days=0, outbox_days=0)
    assert world.names() == []
    assert world.ledger.read() == []


def test_what_a_person_put_there_stays(world):
    """A file of one's own, one in the place of ours, one that was written on, a link, a folder; and failed/ as a whole."""
    folders = world.folders
    for stem in ("replaced", "edited", "gone"):
        world.finish(stem)
    (folders.done / "mine.jsonl").write_text("x")
    (folders.outbox / "mine.output.jsonl").write_text("x")
    (folders.done / "replaced.jsonl").unlink()
    (folders.done / "spacer").write_text("takes the inode that is free now")
    (folders.done / "replaced.jsonl").write_text("mine by now")
    (folders.outbox / "replaced.batch.json").write_text('{"id": "batch_of_another"}')
    (folders.done / "edited.jsonl").open("a").close()
    os.utime(folders.done / "edited.jsonl")
    (folders.outbox / "edited.output.jsonl").unlink()
    (folders.outbox / "edited.output.jsonl").symlink_to(folders.done / "mine.jsonl")
    (folders.failed / "bad.jsonl").write_text("x")
    (folders.done / "folder").mkdir()
    world.apply(1000, done_days=0, outbox_days=0)
    left = world.names()
    assert {"mine.jsonl", "mine.output.jsonl", "replaced.jsonl", "replaced.output.jsonl", "folder"} <= set(left)
    assert {"edited.jsonl", "edited.output.jsonl"} <= set(left)
    assert not {"gone.jsonl", "gone.output.jsonl", "gone.batch.json"} & set(left)
    assert (folders.failed / "bad.jsonl").exists()


def test_an_input_is_known_under_another_name_too(world):
    """As when done/ held that name already."""
    world.finish("f")
    (world.folders.done / "f.jsonl").rename(world.folders.done / "f~2.jsonl")
    world.apply(1, done_days=1)
    assert "f~2.jsonl" not in world.names()


def test_a_stem_that_was_used_again_keeps_the_results_of_its_new_file(world):
    """The first one's were taken away by a person; then a file of that name was run, which is young."""
    world.finish("f", day=0, batch_id="first")
    for path in list(world.folders.outbox.iterdir()):
        path.unlink()
    world.finish("f", day=9, batch_id="second")
    world.apply(10, outbox_days=5)
    assert "f.output.jsonl" in world.names()
    world.apply(14, outbox_days=5)
    assert "f.output.jsonl" not in world.names()


def test_what_cannot_be_removed_is_tried_again(world, monkeypatch, caplog):
    """It stays in the ledger; the log says why."""
    world.finish("f")
    unlink = type(world.folders.done).unlink

    def refuse(path, *args, **kwargs):
        if path.name == "f.output.jsonl":
            raise PermissionError(13, "Permission denied")
        unlink(path, *args, **kwargs)

    monkeypatch.setattr(type(world.folders.done), "unlink", refuse)
    world.apply(1, done_days=0, outbox_days=0)
    assert "cannot remove" in caplog.text
    assert "f.output.jsonl" in world.names()


def test_a_torn_ledger_loses_its_torn_line_alone(world):
    """A crash may leave half a line; what cannot be understood is nobody's."""
    world.finish("a")
    path = world.folders.root / "finished.jsonl"
    with path.open("ab") as file:
        file.write(b'{"finished": 0, "stem": "b"\nnonsense\n[]\n{"input": null}\n')
    world.finish("c")
    assert [finished.stem for finished in world.ledger.read()] == ["a", "c"]


@given(st.lists(st.builds(
    Finished, st.integers(0, 2**40), st.text(), st.text(), st.lists(st.text()).map(tuple),
    st.none() | st.builds(InputFile, st.integers(0), st.integers(0), st.integers(0)))))  # fmt: skip
def test_the_ledger_gives_back_what_it_was_given(tmp_path_factory, records):
    """Any names, also those that are no UTF-8; dropping takes away what is named and keeps the rest."""
    ledger = Ledger(tmp_path_factory.mktemp("ledger"))
    for record in records:
        ledger.add(record)
    assert ledger.read() == records
    ledger.drop(records[:1])
    assert ledger.read() == [record for record in records if record not in records[:1]]
