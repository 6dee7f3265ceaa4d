"""A file ends before its time: cancelled, or past its deadline, and restarts do not change that."""

import asyncio
import json

import pytest
from file_world import Engine, World

from daemon import file_work
from daemon.ending import EndCause
from daemon.file_work import FileWork


@pytest.fixture
def make(tmp_path):
    return lambda **kwargs: World(tmp_path, **kwargs)


def test_a_cancel_while_it_runs(make):
    world = make(lines=100)

    async def story():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) >= 10)
        world.engine.answer(10)
        order = world.folders.inbox / "f.cancel"
        order.touch()
        assert world.run.cancel(order)
        assert world.run.status().state == "cancelling", "at once"
        assert world.run.cancel(order), "asking twice is asking once"
        outcome = await world.end()
        assert not order.exists()
        assert not world.run.cancel(), "too late"
        return outcome

    outcome = asyncio.run(story())
    assert (outcome.is_failed, outcome.num_failed) == (True, 90)
    assert world.stamps == ["in_progress", "cancelling", "cancelled"]
    assert len(world.lines("output")) == 10
    assert world.codes() == ["batch_cancelled"] * 90
    assert world.engine.num_withdrawn > 0
    assert world.batch["request_counts"] == {"total": 100, "completed": 10, "failed": 90}
    assert (world.folders.done / "f.jsonl").exists()


def test_a_cancel_before_the_engine_is_up(make):
    """It was validated, and never in progress."""
    world = make()

    async def story():
        world.start(Engine(is_ready=False))
        await world.until(lambda: world.run.status().num_total == 3)
        world.run.cancel()
        await world.end()

    asyncio.run(story())
    assert world.stamps == ["cancelling", "cancelled"]
    assert world.codes() == ["batch_cancelled"] * 3


def test_a_cancel_before_the_first_line_is_read(make):
    world = make()

    async def story():
        world.start(Engine())
        world.run.cancel()
        await world.end()

    asyncio.run(story())
    assert world.stamps == ["cancelling", "cancelled"]
    assert world.batch["status"] == "cancelled"


def test_a_deadline_that_passes(make):
    world = make(lines=100, limits={"deadline_s": 1.0})

    async def story():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) >= 10)
        world.engine.answer(10)
        return await world.end()

    outcome = asyncio.run(story())
    assert outcome.is_failed
    assert world.stamps == ["in_progress", "finalizing", "expired"]
    assert world.batch["expires_at"] == world.claimed_s + 1
    assert world.batch["expired_at"] > world.batch["expires_at"], "the file had that second whole"
    assert len(world.lines("output")) == 10
    assert world.codes() == ["batch_expired"] * 90
    assert (world.folders.done / "f.jsonl").exists()


def test_a_deadline_that_was_past_at_the_start_runs_nothing(make):
    world = make(limits={"deadline_s": 60.0})

    async def story():
        world.claimed_s -= 61
        world.start(Engine())
        await world.end()

    asyncio.run(story())
    assert world.codes() == ["batch_expired"] * 3
    assert world.batch["status"] == "expired"


def test_a_file_that_is_complete_when_its_deadline_passes_is_completed(make):
    world = make(limits={"deadline_s": 60.0})

    async def story():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) == 3)
        world.engine.answer(3)
        world.run._ending.begin(EndCause.EXPIRED)
        world.run._nudge.set()
        return await world.end()

    assert not asyncio.run(story()).is_failed
    assert world.stamps == ["in_progress", "finalizing", "completed"]


def test_a_file_whose_last_answers_overtake_its_cancel_is_completed(make):
    """Nothing of it was cut, and the order is told to be too late."""
    world = make()

    async def story():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) == 3)
        order = world.folders.inbox / "f.cancel"
        order.touch()
        assert world.run.cancel(order)
        world.engine.answer(3)
        outcome = await world.end()
        assert order.exists(), "for the next look at the inbox to tell"
        assert not world.run.cancel(order)
        assert not world.run.is_cancelled
        return outcome

    assert not asyncio.run(story()).is_failed
    assert world.stamps == ["in_progress", "finalizing", "completed", "cancelling"]
    assert world.codes() == []


@pytest.mark.parametrize("ending", ["cancelled", "expired"])
def test_a_restart_goes_on_ending(make, monkeypatch, ending):
    """The time of the decision is that of the first run, whatever the clock says later."""
    world = make(lines=100, limits={"deadline_s": 2.0 if ending == "expired" else None})
    record_ending = FileWork._record_ending

    def record_and_die(work):
        record_ending(work)
        world.task.cancel()

    monkeypatch.setattr(FileWork, "_record_ending", record_and_die)
    monkeypatch.setattr(file_work, "_REST_CHUNK", 10)  # of what was not fed yet, so that it is not at its end at once

    async def first():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) >= 5)
        world.engine.answer(5)
        if ending == "cancelled":
            world.run.cancel()
        await world.until(world.task.done)
        await world.kill()
        state = world.run._file.journal.state
        assert state.tally.num_lines < 100
        return state.cancelled_at or state.expired_at

    async def second():
        world.start(Engine(is_ready=False))
        return await world.end()

    decided = asyncio.run(first())
    monkeypatch.undo()
    outcome = asyncio.run(second())
    assert outcome.is_failed
    assert world.batch["status"] == ending
    assert world.batch["cancelling_at" if ending == "cancelled" else "finalizing_at"] == decided
    assert world.batch["in_progress_at"] is not None
    assert len(world.lines("output")) == 5
    assert len(world.lines("errors")) == 95


def test_a_cancel_is_not_forgotten_when_a_deadline_passes_too(make):
    world = make(limits={"deadline_s": 60.0})

    async def story():
        world.start(Engine())
        await world.until(lambda: world.engine.submissions)
        world.run._ending.begin(EndCause.EXPIRED)
        assert not world.run.cancel(), "it is ending already"
        world.run._nudge.set()
        await world.end()

    asyncio.run(story())
    assert world.batch["status"] == "expired"


def test_a_cancelled_file_whose_input_was_changed_is_failed(make):
    """Its lines can no longer be told, so there is a reason to publish it without them."""
    world = make(lines=300)

    async def story():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) >= 10)
        world.path.write_text("[]\n" * 5000)
        world.run.cancel()
        return await world.end()

    assert asyncio.run(story()).is_failed
    assert world.batch["status"] == "failed"
    report = json.loads((world.folders.outbox / "f.report.json").read_text())
    reason = json.loads((world.folders.failed / "f.reason.json").read_text())
    assert report["failure"] == {"code": "input_modified", "message": reason["message"]}
    assert world.stamps == ["in_progress", "failed", "cancelling"]
