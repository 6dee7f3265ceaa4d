"""The fate of one file, with an engine that does what the test says: every status, every end, and restarts in between."""

import asyncio
import json
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from line_schema import line_validator
from openai.types import Batch

from daemon import file_opening, file_run
from daemon.credits import Credits
from daemon.device_account import DeviceTotals
from daemon.durable import DiskStorage
from daemon.ending import EndCause
from daemon.errors import FileFormatError
from daemon.feeder import Feeder
from daemon.file_journal import create_journal
from daemon.file_run import FileRun
from daemon.folders import Folders
from daemon.inbox import ClaimedFile
from daemon.made_with import MadeWith
from daemon.metrics import Metrics
from daemon.open_file import RunParts
from daemon.pause import Troubles
from daemon.report_table import render_report
from daemon.settings_pipeline import PipelineSettings
from pipelines.config import EngineConfig, ModelConfig
from pipelines.core.request import Choice, FinishReason, RequestOutput

STAMPS = ("in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at")


class Engine:
    """Keeps what it is given until the test answers it."""

    def __init__(self, *, is_ready=True):
        self.model, self.context = "m", 100
        self.config = EngineConfig("e", ModelConfig("fake:"))
        self.account = SimpleNamespace(totals=DeviceTotals())
        self.is_ready = asyncio.Event()
        self.credits = Credits(64, 1 << 30)
        self.submissions = []
        self.num_withdrawn = 0
        if is_ready:
            self.is_ready.set()

    def submit_all(self, submissions):
        for submission in submissions:
            self.credits.take(submission.num_bytes)
            self.submissions.append(submission)

    def wake(self):
        """It is always there."""

    def made_with(self):
        return MadeWith(self.model, self.model.encode().hex())

    def withdraw(self, file, answer):
        assert {submission.request.file for submission in self.submissions} <= {file}
        taken, self.submissions = self.submissions, []
        self.num_withdrawn += len(taken)
        for submission in taken:
            self._finish(submission, answer)

    def answer(self, count):
        """Answer the oldest."""
        taken, self.submissions = self.submissions[:count], self.submissions[count:]
        for submission in taken:
            self._finish(submission, RequestOutput(1, (Choice("yes", FinishReason.STOP, 1),), 5, 0))

    def _finish(self, submission, answer):
        self.credits.give_back(submission.num_bytes)
        submission.on_done(answer)


class World:
    """One claimed file and what it needs; the run of a daemon is a `with` block of `running`."""

    def __init__(self, folder, lines=3, **settings):
        self.folders = Folders(folder / "p")
        self.folders.make()
        self.path = self.folders.work / "f.jsonl"
        self.path.write_text("".join(f'{{"prompt": "{number}", "max_tokens": 5}}\n' for number in range(lines)))
        self.settings = PipelineSettings.read({"engine": "e"} | settings, folder)
        self.claimed_s = int(time.time())
        self.seen = []  # every status that people could see, in order

    def start(self, engine):
        self.engine = engine
        self.feeder = Feeder(engine)
        parts = RunParts("p", engine, self.feeder, Metrics(), self.folders, DiskStorage(), Troubles())
        parts.metrics.add_pipeline("p")
        self.run = FileRun(ClaimedFile("f.jsonl", "f", self.path, self.claimed_s), 1, self.settings, parts)
        self.feeding = asyncio.create_task(self.feeder.run())
        self.task = asyncio.create_task(self.run.run())

    async def until(self, condition):
        async with asyncio.timeout(20):
            while not condition():
                self.look()
                await asyncio.sleep(0.005)
        self.look()

    async def end(self):
        await self.until(self.task.done)
        self.feeding.cancel()
        return self.task.result()

    async def kill(self):
        """Stop in the middle, as a daemon that goes."""
        self.task.cancel()
        self.feeding.cancel()
        await asyncio.gather(self.task, self.feeding, return_exceptions=True)

    def look(self):
        try:
            status = Batch.model_validate_json((self.folders.outbox / "f.batch.json").read_text(), strict=True).status
        except FileNotFoundError:
            return
        if self.seen[-1:] != [status]:
            self.seen.append(status)

    def partial(self):
        path = self.folders.outbox / "f.output.jsonl.partial"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def batch(self):
        return json.loads((self.folders.outbox / "f.batch.json").read_text())

    @property
    def stamps(self):
        return [name.removesuffix("_at") for name in STAMPS if self.batch[name] is not None]

    def lines(self, kind):
        path = self.folders.outbox / f"f.{kind}.jsonl"
        found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        validator = line_validator()
        for line in found:
            validator.validate(line)
        return found

    def codes(self):
        return sorted(line["error"]["code"] for line in self.lines("errors"))


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
        world.claimed_s += 1  # the full second is still to come
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) >= 10)
        world.engine.answer(10)
        return await world.end()

    outcome = asyncio.run(story())
    assert outcome.is_failed
    assert world.stamps == ["in_progress", "finalizing", "expired"]
    assert world.batch["expires_at"] == world.claimed_s + 1
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
        world.run._is_dirty.set()
        return await world.end()

    assert not asyncio.run(story()).is_failed
    assert world.stamps == ["in_progress", "finalizing", "completed"]


@pytest.mark.parametrize("ending", ["cancelled", "expired"])
def test_a_restart_goes_on_ending(make, ending):
    """The time of the decision is that of the first run, whatever the clock says later."""
    world = make(lines=50, limits={"deadline_s": 2.0 if ending == "expired" else None})

    async def first():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) >= 5)
        world.engine.answer(5)
        if ending == "cancelled":
            world.run.cancel()
        journal = world.run._file.journal
        await world.until(lambda: journal.state.cancelled_at is not None or journal.state.expired_at is not None)
        decided = journal.state.cancelled_at or journal.state.expired_at
        await world.kill()
        return decided

    async def second():
        world.start(Engine(is_ready=False))
        return await world.end()

    decided = asyncio.run(first())
    outcome = asyncio.run(second())
    assert outcome.is_failed
    assert world.batch["status"] == ending
    assert world.batch["cancelling_at" if ending == "cancelled" else "finalizing_at"] == decided
    assert world.batch["in_progress_at"] is not None
    assert len(world.lines("output")) == 5
    assert len(world.lines("errors")) == 45


def test_a_cancel_is_not_forgotten_when_a_deadline_passes_too(make):
    world = make(limits={"deadline_s": 60.0})

    async def story():
        world.start(Engine())
        await world.until(lambda: world.engine.submissions)
        world.run._ending.begin(EndCause.EXPIRED)
        assert not world.run.cancel(), "it is ending already"
        world.run._is_dirty.set()
        await world.end()

    asyncio.run(story())
    assert world.batch["status"] == "expired"


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
    assert world.stamps == ["in_progress", "failed", "cancelling"]


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


def open_journals(folder):
    """The descriptors of this process that lead into a folder's journals."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(link.readlink()))
    return [path for path in found if path.startswith(str(folder)) and path.endswith(".journal")]


def test_a_file_that_is_left_while_it_is_read_again_leaves_nothing_open(make, monkeypatch):
    """A disk that is not mounted any more could not be unmounted for it, and each time takes a descriptor more."""
    world = make()
    is_reading, may_end = threading.Event(), threading.Event()

    def slow_survey(*_args, **_options):
        is_reading.set()
        may_end.wait(20)
        raise FileFormatError("it is of no use any more")

    async def first():
        world.start(Engine(is_ready=False))
        await world.until(lambda: world.run._file is not None)
        await world.kill()

    async def second():
        world.start(Engine())
        await world.until(is_reading.is_set)
        await world.kill()
        may_end.set()

    asyncio.run(first())
    monkeypatch.setattr(file_opening, "survey", slow_survey)
    asyncio.run(second())
    assert open_journals(world.folders.work) == []


def test_a_file_that_is_left_while_its_journal_is_made_leaves_nothing_open(make, monkeypatch):
    """The thread that makes it is waited for, and what it made is closed."""
    world = make()
    is_making, may_end = threading.Event(), threading.Event()

    def slow_create(*args, **options):
        is_making.set()
        may_end.wait(20)
        return create_journal(*args, **options)

    async def story():
        world.start(Engine())
        await world.until(is_making.is_set)
        world.task.cancel()
        may_end.set()
        await world.kill()

    monkeypatch.setattr(file_opening, "create_journal", slow_create)
    asyncio.run(story())
    assert (world.folders.work / "f.journal").exists()
    assert open_journals(world.folders.work) == []


def test_a_file_that_is_stopped_by_a_fault_leaves_nothing_open(make, monkeypatch):
    """It stays in work/ for as long as the daemon runs."""
    world = make()

    async def fail(_):
        raise RuntimeError("a fault of ours")

    async def story():
        world.start(Engine())
        await world.until(world.task.done)
        await world.kill()

    monkeypatch.setattr(file_run.FileWork, "run", fail)
    asyncio.run(story())
    assert str(world.task.exception()) == "a fault of ours"
    assert open_journals(world.folders.work) == []


def used_device(seconds):
    """A device that was busy for others, for so long, and computed a thousand tokens for them."""
    return SimpleNamespace(totals=DeviceTotals(busy_s=seconds, num_tokens=1000))


def test_a_file_that_is_not_run_has_no_share_of_what_the_device_did_before(make):
    """Its report tells of the time while it ran, which is none."""
    world = make(on_bad_line="reject")
    world.path.write_text('{"prompt": "a", "temperature": 9}\n')

    async def story():
        engine = Engine()
        engine.account = used_device(500.0)
        world.start(engine)
        await world.end()

    asyncio.run(story())
    report = json.loads((world.folders.outbox / "f.report.json").read_text())
    assert report["device_seconds"]["busy"] == 0
    assert (report["cost"]["share_of_tokens"], report["cost"]["gpu_seconds"]) == (0, 0)


def test_tokens_of_earlier_runs_are_not_paid_for_again_where_a_file_is_only_ended(make):
    """Its input is gone at the restart: what was computed for it was paid for by the time before."""
    world = make(lines=3)

    async def first():
        world.start(Engine())
        await world.until(lambda: len(world.engine.submissions) == 3)
        world.engine.answer(2)
        await world.until(lambda: len(world.partial()) == 2)
        await world.kill()

    async def second():
        engine = Engine()
        engine.account = used_device(500.0)
        world.start(engine)
        await world.end()

    asyncio.run(first())
    world.path.write_text('{"prompt": "other"}\n')
    asyncio.run(second())
    report = json.loads((world.folders.outbox / "f.report.json").read_text())
    assert (report["status"], report["is_resumed"], report["requests"]["completed"]) == ("failed", True, 2)
    assert (report["cost"]["share_of_tokens"], report["cost"]["gpu_seconds"]) == (0, 0)
