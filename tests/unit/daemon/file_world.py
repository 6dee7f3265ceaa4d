"""One claimed file and what it needs, with an engine that does what the test says."""

import asyncio
import json
import time
from types import SimpleNamespace

from line_schema import line_validator
from openai.types import Batch

from daemon.credits import Credits
from daemon.device_account import DeviceTotals
from daemon.durable import DiskStorage
from daemon.feeder import Feeder
from daemon.file_run import FileRun
from daemon.folders import Folders
from daemon.inbox import ClaimedFile
from daemon.made_with import MadeWith
from daemon.metrics import Metrics
from daemon.open_file import RunParts
from daemon.pause import Troubles
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
        self.content = None  # as it was claimed; None: by an earlier run
        self.other_parts = {}  # of its run

    def start(self, engine):
        self.engine = engine
        self.feeder = Feeder(engine)
        parts = RunParts(
            "p", engine, self.feeder, Metrics(), self.folders, DiskStorage(), Troubles(), **self.other_parts
        )
        parts.metrics.add_pipeline("p")
        claimed = ClaimedFile("f.jsonl", "f", self.path, self.claimed_s, self.content)
        self.run = FileRun(claimed, 1, self.settings, parts)
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

    def read(self, kind):
        path = self.folders.outbox / f"f.{kind}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def lines(self, kind):
        found = self.read(kind)
        validator = line_validator()
        for line in found:
            validator.validate(line)
        return found

    def codes(self):
        return sorted(line["error"]["code"] for line in self.lines("errors"))
