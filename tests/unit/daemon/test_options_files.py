"""Options travel with their file: never without it, never after it."""

import json

import pytest

from daemon.dropped_name import forget_stray_names, note_dropped_name
from daemon.durable import DiskStorage
from daemon.file_rules import why_name_is_left
from daemon.options_files import put_orphans_back


def drop(folders, *names):
    for name in names:
        (folders.inbox / name).write_text(name)


def claims(inbox, now_s):
    inbox.look(now_s)
    return [claimed.name for claimed in inbox.claim(100, {"taken"})]


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("options", ["f.options.yaml", "f.jsonl.options.yaml"])
def test_options_are_taken_with_their_file(folders, inbox, options):
    drop(folders, "f.jsonl", options)
    claims(inbox, 0.0)
    assert claims(inbox, 2.0) == ["f.jsonl"]
    assert names_in(folders.work) == ["f.jsonl", "f.options.yaml"]
    assert names_in(folders.inbox) == []


def test_options_get_the_stem_that_the_file_gets(folders, inbox):
    drop(folders, "taken.jsonl", "taken.options.yaml")
    claims(inbox, 0.0)
    claims(inbox, 2.0)
    assert names_in(folders.work) == ["taken~2.dropped", "taken~2.jsonl", "taken~2.options.yaml"]


def test_options_named_for_the_whole_name_go_before_those_for_the_stem(folders, inbox):
    drop(folders, "f.jsonl", "f.jsonl.options.yaml", "f.options.yaml")
    claims(inbox, 0.0)
    claims(inbox, 2.0)
    assert (folders.work / "f.options.yaml").read_text() == "f.jsonl.options.yaml"
    assert names_in(folders.inbox) == ["f.options.yaml"]


def test_a_file_waits_until_its_options_are_complete(folders, inbox):
    drop(folders, "f.jsonl", "g.jsonl")
    claims(inbox, 0.0)
    drop(folders, "f.options.yaml")
    assert claims(inbox, 2.0) == ["g.jsonl"]
    assert inbox.num_settling == 1
    assert claims(inbox, 4.0) == ["f.jsonl"]


def test_options_that_somebody_writes_keep_their_file_waiting(folders, inbox):
    drop(folders, "f.jsonl", "f.options.yaml")
    claims(inbox, 0.0)
    with (folders.inbox / "f.options.yaml").open("a"):
        assert claims(inbox, 2.0) == []
    assert claims(inbox, 9.0) == ["f.jsonl"]


def test_options_without_a_file_wait_and_say_for_what(folders, inbox):
    drop(folders, "f.options.yaml", "g.options.yaml", "g.jsonl", ".h.options.yaml")
    claims(inbox, 0.0)
    assert list(inbox.options.waiting) == ["f.options.yaml"]
    assert "waits for a file f" in inbox.options.waiting["f.options.yaml"]
    claims(inbox, 2.0)
    assert names_in(folders.inbox) == [".h.options.yaml", "f.options.yaml"]
    assert inbox.num_settling == 0, "nothing waits that will be taken"
    assert why_name_is_left("f.options.yaml") == "it is taken with the file that it is for"


def test_options_come_back_when_their_file_vanished_at_the_last_moment(folders, inbox, monkeypatch):
    drop(folders, "f.jsonl", "f.options.yaml")
    claims(inbox, 0.0)
    take = inbox.options.take

    def take_and_lose(*args):
        (folders.inbox / "f.jsonl").unlink()
        return take(*args)

    monkeypatch.setattr(inbox.options, "take", take_and_lose)
    assert claims(inbox, 2.0) == []
    assert names_in(folders.inbox) == ["f.options.yaml"]
    assert names_in(folders.work) == []


@pytest.mark.parametrize(
    ("work", "dropped", "expected"),
    [
        ("f", "f.jsonl", "f.options.yaml"),
        ("f~2", "f.jsonl", "f.options.yaml"),  # the claim had numbered it
        ("f~2", "f~2.jsonl", "f~2.options.yaml"),  # no, that is its name
    ],
)
def test_options_whose_file_was_not_claimed_any_more_go_back_to_it(folders, work, dropped, expected):
    """A crash between the two renames: the next claim takes both."""
    (folders.work / f"{work}.options.yaml").write_text("priority: 1")
    drop(folders, dropped)
    if work != dropped.removesuffix(".jsonl"):
        note_dropped_name(DiskStorage(), folders.work, work, dropped)
    put_orphans_back(folders, DiskStorage())
    forget_stray_names(DiskStorage(), folders.work)
    assert names_in(folders.inbox) == sorted([dropped, expected])
    assert names_in(folders.work) == []


def test_options_that_were_dropped_anew_meanwhile_win_and_the_old_ones_are_kept(folders):
    """Nobody's file is replaced: what was not used lies in failed/ and says why."""
    (folders.work / "f.options.yaml").write_text("priority: 1")
    drop(folders, "f.options.yaml", "f.jsonl")
    put_orphans_back(folders, DiskStorage())
    assert (folders.inbox / "f.options.yaml").read_text() == "f.options.yaml"
    assert (folders.failed / "f.options.yaml").read_text() == "priority: 1"
    assert json.loads((folders.failed / "f.reason.json").read_text())["code"] == "options_replaced"


@pytest.mark.parametrize("other", ["f.jsonl", "f.journal", "f.csv"])
def test_options_of_a_file_in_work_stay_with_it(folders, other):
    for name in ("f.options.yaml", other):
        (folders.work / name).touch()
    put_orphans_back(folders, DiskStorage())
    assert names_in(folders.work) == sorted(["f.options.yaml", other])
