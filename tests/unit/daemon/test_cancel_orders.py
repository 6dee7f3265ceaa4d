"""Files that ask for a cancel: carried out, waiting with their file, or refused with a reason; none is ever ignored."""

import json

import pytest

from daemon.cancel_orders import CancelOrders, named_in
from daemon.errors import StorageError


class Run:
    def __init__(self, stem, *, is_late=False, is_cancelled=False):
        self.stem, self.is_late, self.is_cancelled, self.orders = stem, is_late, is_cancelled, []

    def cancel(self, order=None):
        self.orders.append(order)
        return not self.is_late


def carry_out(folders, *runs):
    orders = CancelOrders("p", folders)
    asked = []

    def find(target):
        asked.append(target)
        return next((run for run in runs if run.stem == target), None)

    orders.carry_out(find)
    return orders, asked


def test_an_order_reaches_its_run_and_is_left_to_it(folders):
    """The run removes it once a crash cannot undo the cancel; until then each look finds it again."""
    order = folders.inbox / "f.cancel"
    order.touch()
    run = Run("f")
    orders, asked = carry_out(folders, run)
    assert (run.orders, asked, orders.waiting) == ([order], ["f"], {})
    assert order.exists()


@pytest.mark.parametrize("name", ["f.jsonl.cancel", "f~2.cancel", "a b.cancel", "new\nline.cancel", "\u00fc.cancel"])
def test_what_stands_before_the_suffix_is_who_is_meant(folders, name):
    (folders.inbox / name).touch()
    assert carry_out(folders)[1] == [name.removesuffix(".cancel")]


def test_an_order_that_comes_too_late_is_removed(folders, caplog):
    caplog.set_level("INFO")
    (folders.inbox / "f.cancel").touch()
    carry_out(folders, Run("f", is_late=True))
    assert not list(folders.inbox.iterdir())
    assert "f.cancel comes too late" in caplog.text


def test_an_order_that_was_carried_out_is_not_called_late(folders, caplog):
    """A look may find it between the end of its file and its removal; the file did end by it."""
    caplog.set_level("INFO")
    (folders.inbox / "f.cancel").touch()
    carry_out(folders, Run("f", is_late=True, is_cancelled=True))
    assert not list(folders.inbox.iterdir())
    assert caplog.text == ""


@pytest.mark.parametrize("order", ["f.cancel", "f.jsonl.cancel"])
def test_an_order_waits_for_a_file_that_waits(folders, order):
    (folders.inbox / "f.jsonl").write_text("{}")
    (folders.inbox / order).touch()
    orders, _ = carry_out(folders)
    assert list(orders.waiting) == [order]
    assert (folders.inbox / order).exists()


def test_an_order_for_nobody_goes_to_failed_with_its_reason(folders, caplog):
    for _ in range(2):
        (folders.inbox / "f.cancel").touch()
        carry_out(folders)
    assert sorted(path.name for path in folders.failed.iterdir()) == [
        "f.cancel", "f.cancel.reason.json", "f.cancel~2", "f.cancel~2.reason.json",
    ]  # fmt: skip
    reason = json.loads((folders.failed / "f.cancel.reason.json").read_text())
    assert reason["message"] == "f.cancel: no file f is being run or waits in the inbox"
    assert caplog.text.count("no file f is being run") == 2


@pytest.mark.parametrize(("content", "is_refused"), [(b"", False), (b"\n", False), (b" \r\n", False), (b"f", True)])
def test_an_order_is_an_empty_file(folders, content, is_refused):
    (folders.inbox / "f.cancel").write_bytes(content)
    run = Run("f")
    carry_out(folders, run)
    assert bool(run.orders) != is_refused
    assert (folders.failed / "f.cancel").exists() == is_refused


def test_hidden_files_folders_and_links_are_no_orders(folders):
    (folders.inbox / ".f.cancel").touch()
    (folders.inbox / "folder.cancel").mkdir()
    (folders.inbox / "link.cancel").symlink_to(folders.inbox / ".f.cancel")
    assert carry_out(folders)[1] == []
    assert len(list(folders.inbox.iterdir())) == 3


def test_an_order_that_cannot_be_moved_is_said_once_and_explained(folders, caplog, monkeypatch):
    (folders.inbox / "f.cancel").touch()

    def fail(*_args):
        raise StorageError("cannot move it: no space is left", folders.failed, None)

    monkeypatch.setattr("daemon.cancel_orders.move_input", fail)
    orders = CancelOrders("p", folders)
    for _ in range(3):
        orders.carry_out(lambda _target: None)
    assert caplog.text.count("no space is left") == 1
    assert orders.waiting == {"f.cancel": "cannot move it: no space is left"}


def test_an_order_that_goes_while_it_is_looked_at_is_no_matter(folders, caplog, monkeypatch):
    """Its run removes it in a thread of its own."""
    monkeypatch.setattr("daemon.cancel_orders.orders_in", lambda inbox: [inbox / "f.cancel"])
    orders, _ = carry_out(folders, Run("f"))
    assert (caplog.text, orders.waiting) == ("", {})


def test_an_inbox_that_is_gone_is_an_error_and_no_silence(folders):
    folders.inbox.rmdir()
    with pytest.raises(StorageError, match="cannot list"):
        carry_out(folders)


def test_files_are_named_by_stem_or_whole(folders):
    for name in ("f.jsonl", "f.txt", "f.png", "g.jsonl"):
        (folders.inbox / name).touch()
    assert [path.name for path in named_in(folders.inbox, "f")] == ["f.jsonl", "f.txt"]
    assert [path.name for path in named_in(folders.inbox, "f.txt")] == ["f.txt"]
    assert named_in(folders.inbox, "f.png") == []
