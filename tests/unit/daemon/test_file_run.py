"""The fate of one file, with an engine that does what the test says: every status, and restarts in between."""

import asyncio
import json
import os
from pathlib import Path

import file_world
import pytest
from file_world import Engine, World

from daemon import patience
from daemon.pause import Troubles
from daemon.report_table import render_report


@pytest.fixture
def make(tmp_path):
    return lambda **kwargs: World(tmp_path, **kwargs)


def test_a_file_that_runs_to_its_end_is_completed(make):
    world = make()

    async def story():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) == 3)
        world.engine.answer(3)
        return await world.end()

    outcome = asyncio.run(story())
    assert (outcome.is_failed, outcome.num_failed) == (False, 0)
    assert world.stamps == ["in_progress", "finalizing", "completed"]
    assert world.seen[-1] == "completed"
    assert (world.folders.done / "f.jsonl").exists()


@pytest.mark.parametrize("options", [None, "priority: [1]"], ids=["surveyed", "not to be run at all"])
def test_nothing_is_to_be_seen_of_a_file_that_a_power_cut_could_put_back(make, options):
    """It would come again under a stem that is taken by then, or without its journal."""
    world = make()
    if options is not None:
        world.path.with_name("f.options.yaml").write_text(options)
    may_go_on, num_waiting = asyncio.Event(), 0

    async def claim_synced():
        nonlocal num_waiting
        num_waiting += 1
        await may_go_on.wait()

    world.other_parts = {"claim_synced": claim_synced}

    async def story():
        world.start(Engine())
        await world.until(lambda: num_waiting)
        assert os.listdir(world.folders.outbox) == []  # noqa: PTH208
        assert not world.path.with_name("f.journal").exists()
        assert not world.engine.submissions
        may_go_on.set()
        if options is None:
            await world.until(lambda: len(world.engine.submissions) == 3)
            world.engine.answer(3)
        return await world.end()

    assert asyncio.run(story()).is_failed is (options is not None)


def test_each_line_says_which_model_it_was_made_with(make):
    """The engine gets another one in the middle of the file, and once more while no daemon runs."""
    world = make(lines=9)

    async def first_run():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) == 9)
        world.engine.answer(2)
        world.engine.model = "n"
        world.engine.answer(3)
        await world.until(lambda: len(world.partial()) == 5)
        await world.kill()

    async def second_run():
        world.start(Engine())
        world.engine.model = "o"
        await world.until(lambda: len(world.engine.submissions) == 4)
        world.engine.answer(3)
        world.engine.model = "m"
        world.engine.answer(1)
        await world.end()

    asyncio.run(first_run())
    asyncio.run(second_run())
    bodies = [line["response"]["body"] for line in world.lines("output")]
    assert [body["model"] for body in bodies] == list("mmnnnooom")
    assert [body["system_fingerprint"] for body in bodies] == [f"fp_{ord(model):x}" for model in "mmnnnooom"]
    report = json.loads((world.folders.outbox / "f.report.json").read_text())
    made = [(each["model"], each["model_hash"], each["answers"]) for each in report["made_with"]]
    assert made == [("m", "6d", 3), ("n", "6e", 3), ("o", "6f", 3)]
    assert "made with         m (6d): 3 answers\n                  n (6e): 3 answers\n" in render_report(report)


def test_an_input_that_is_changed_while_it_runs_fails_with_what_is_finished(make):
    world = make(lines=3)

    async def story():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) == 3)
        world.engine.answer(2)
        with world.path.open("a") as file:
            file.write('{"prompt": "more"}\n')
        world.engine.answer(1)
        return await world.end()

    outcome = asyncio.run(story())
    assert outcome.is_failed
    assert world.batch["status"] == "failed"
    assert world.stamps == ["in_progress", "failed"]
    assert world.batch["errors"]["data"][0]["code"] == "input_modified"
    assert len(world.lines("output")) == 3
    assert (world.folders.failed / "f.reason.json").exists()


CHANGES = {
    "longer": lambda path: path.write_text(path.read_text() + '{"prompt": "more"}\n'),
    "empty": lambda path: path.write_text(""),
    "other bytes": lambda path: path.write_text(path.read_text().replace("1", "8")),
    "no requests": lambda path: path.write_bytes(b"\xff\xfe\0\0"),
    "another file": lambda path: (
        path.with_name("g").write_text('{"prompt": "g"}\n') and path.with_name("g").rename(path)
    ),
    "no file": Path.unlink,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("when", ["before the survey", "behind the survey", "while the engine starts"])
def test_an_input_that_is_changed_once_it_is_taken_is_not_run_as_another(make, change, when):
    """Whenever that was: what is published would not be of what was dropped, or not of what lies in done/."""
    world = make(lines=3)
    os.utime(world.path, (1, 1))  # as one that was dropped some time ago
    num_waiting = 0

    async def claim_synced():
        nonlocal num_waiting
        num_waiting += 1
        if num_waiting == 2 and when == "behind the survey":
            change(world.path)

    world.other_parts = {"claim_synced": claim_synced}

    async def story():
        status = world.path.stat()
        world.content = status.st_size, status.st_mtime_ns
        if when == "before the survey":
            change(world.path)
        engine = Engine(is_ready=False)
        world.start(engine)
        if when == "while the engine starts":
            await world.until(lambda: (world.folders.outbox / "f.batch.json").exists() and world.run._file is not None)
            change(world.path)
        engine.is_ready.set()
        await world.until(lambda: world.task.done() or engine.submissions)
        engine.answer(9)
        return await world.end()

    assert asyncio.run(story()).is_failed
    assert world.batch["status"] == "failed"
    assert [error["code"] for error in world.batch["errors"]["data"]] == ["input_modified"]
    assert not world.path.exists()
    is_there = change is not CHANGES["no file"]
    assert [path.name for path in world.folders.failed.iterdir() if path.suffix == ".jsonl"] == ["f.jsonl"] * is_there
    assert (world.folders.failed / "f.reason.json").exists() is is_there


def test_what_an_earlier_run_finished_of_a_changed_input_is_counted(make):
    """The Batch object says of how many requests how many have their result, as the files beside it do."""
    world = make(lines=3)
    world.path.write_text(world.path.read_text().replace('"prompt": "0"', '"prompt": 0'))

    async def first():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) == 2)
        world.engine.answer(1)
        await world.until(lambda: len(world.partial()) == 1)
        await world.kill()

    async def second():
        with world.path.open("a") as file:
            file.write('{"prompt": "more"}\n')
        world.start(Engine())
        return await world.end()

    asyncio.run(first())
    assert asyncio.run(second()).is_failed
    assert world.batch["errors"]["data"][0]["code"] == "input_modified"
    assert world.batch["request_counts"] == {"total": 3, "completed": 1, "failed": 1}
    assert (len(world.lines("output")), len(world.lines("errors"))) == (1, 1)
    assert world.batch["endpoint"] == "/v1/completions"


def test_an_input_whose_folder_is_away_at_the_end_is_not_taken_for_changed(make, monkeypatch):
    """A disk that is not mounted for a moment: the file lies there unchanged when it is back."""
    monkeypatch.setattr(patience, "RETRY_S", 0.01)
    world, troubles = make(lines=3), Troubles()
    monkeypatch.setattr(file_world, "Troubles", lambda: troubles)
    root = world.folders.work.parent
    away = root.with_name("away")

    async def story():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) == 3)
        root.rename(away)
        world.engine.answer(3)
        await world.until(lambda: troubles.current is not None)
        away.rename(root)
        return await world.end()

    assert not asyncio.run(story()).is_failed
    assert world.batch["status"] == "completed"
    assert len(world.lines("output")) == 3


def test_a_file_that_cannot_be_run_fails_with_line_and_field(make):
    world = make(on_bad_line="reject")
    world.path.write_text('{"prompt": "a"}\n{"prompt": "a", "temperature": 9}\n')

    async def story():
        world.start(Engine())
        return await world.end()

    assert asyncio.run(story()).is_failed
    assert world.stamps == ["failed"]
    first = world.batch["errors"]["data"][0]
    assert (first["line"], first["param"], first["code"]) == (2, "temperature", "invalid_value")
    assert world.batch["errors"]["data"][1]["code"] == "invalid_request_file"


def test_deaths_of_the_engine_are_kept_for_the_next_start(make):
    """A suspect of one run of the daemon is a suspect of the next."""
    world = make()

    async def first():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) == 3)
        world.engine.submissions[1].on_death(2)
        journal = world.run._file.journal
        await world.until(lambda: journal.state.attempts and not journal.num_unsynced_bytes)
        await world.kill()

    async def second():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) == 3)
        deaths = [submission.num_deaths for submission in world.engine.submissions]
        world.engine.answer(3)
        await world.end()
        return deaths

    asyncio.run(first())
    assert asyncio.run(second()) == [0, 2, 0]
    report = json.loads((world.folders.outbox / "f.report.json").read_text())
    assert report["requests"]["resent"] == 2


def test_a_file_that_leaves_in_the_middle_records_nothing_of_what_is_cut_by_that(make):
    """A drain ends requests in the engine; for the file they are still to be run."""
    world = make(lines=20)

    async def first():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) >= 5)
        await world.kill()
        assert world.engine.num_withdrawn > 0

    async def second():
        world.start(Engine())
        while not world.task.done():
            world.engine.answer(5)
            await asyncio.sleep(0.005)
        return await world.end()

    asyncio.run(first())
    assert asyncio.run(second()).num_failed == 0
    assert len(world.lines("output")) == 20
