"""Files of pipelines that are in no configuration any more are told of, and nothing else is."""

import pytest

from daemon.folders import Folders
from daemon.forgotten import forgotten_pipelines


@pytest.fixture
def old(tmp_path):
    folders = Folders(tmp_path / "old")
    folders.make()
    return folders


def test_files_that_were_begun_and_files_that_wait_are_counted(old, tmp_path):
    (old.work / "a.jsonl").write_text("x")
    (old.work / "a.journal").write_text("x")
    (old.inbox / "b.csv").write_text("x")
    (old.inbox / "c.txt").write_text("x")
    (old.done / "d.txt").write_text("x")
    (found,) = forgotten_pipelines(tmp_path, ["p"])
    assert (found.begun, found.waiting) == ((old.work / "a.jsonl",), (old.inbox / "b.csv", old.inbox / "c.txt"))
    assert f"{old.root} has files (begun: 1, in the inbox: 2) and the configuration no pipeline old" in str(found)


def test_a_pipeline_that_is_there_or_has_no_files_or_is_none_is_not_told_of(old, tmp_path):
    assert list(forgotten_pipelines(tmp_path, [])) == []
    (old.inbox / "b.csv").write_text("x")
    (tmp_path / "mine" / "inbox").mkdir(parents=True)
    (tmp_path / "mine" / "inbox" / "b.csv").write_text("x")
    assert list(forgotten_pipelines(tmp_path, ["old"])) == []
    assert [found.folders.root.name for found in forgotten_pipelines(tmp_path, [])] == ["old"]
    assert list(forgotten_pipelines(tmp_path / "nowhere", [])) == []
