"""What lies in an inbox and waits is told to whoever asks."""

import asyncio
import logging

from daemon.durable import DiskStorage
from daemon.folders import Folders
from daemon.inbox import claim_time
from daemon.intake import Intake
from daemon.settings_daemon import DaemonSettings
from daemon.status import PipelineStatus, StatusSnapshot
from daemon.status_table import render_status


def test_status_says_which_orders_and_options_wait_and_for_what():
    left = ("f.cancel: it waits until its file is taken", "g.options.yaml: it waits for a file g")
    pipeline = PipelineStatus("p", "e", left_files=left)
    text = render_status(StatusSnapshot(2.0, 1.0, (), (pipeline,)).to_json())
    assert text.splitlines()[-2:] == [f"p: {left[0]}", f"p: {left[1]}"]


def test_what_will_never_be_taken_is_named_in_the_status_and_once_in_the_log(tmp_path, caplog):
    """Ten by name, as somebody may have copied a whole folder of pictures, and the rest by number."""
    folders = Folders(tmp_path)
    folders.make()
    for number in range(12):
        (folders.inbox / f"{number:02}.png").write_text("x")
    intake = Intake("p", folders, DaemonSettings(spool=tmp_path), DiskStorage(), claim_time)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            intake._next_look_s = 0.0
            asyncio.run(intake.look())
            intake.tell()
    assert [name for name in intake.left if name.endswith(".png")] == [f"{number:02}.png" for number in range(10)]
    assert "it stays where it is: its extension '.png' is none of" in intake.left["00.png"]
    assert "and 2 more" in intake.left
    assert caplog.text.count("00.png stays in the inbox") == 1
    assert intake.is_empty
