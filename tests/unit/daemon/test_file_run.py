"""The fate of one file, with an engine that does what the test says: every status, and restarts in between."""

import asyncio
import json
import os

import pytest
from file_world import Engine, World

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

    async def claim_kept():
        nonlocal num_waiting
        num_waiting += 1
        await may_go_on.wait()

    world.other_parts = {"claim_kept": claim_kept}

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
