"""A pipeline from drop to publication in one process: real folders, watch and runs on a disk that dies, and an instant engine."""

import asyncio
import hashlib
import logging
import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count

import pytest
from crash_storage import CrashStorage, KilledError

from daemon import file_work, intake, live_batch, patience
from daemon.credits import Credits
from daemon.device_account import DeviceAccount
from daemon.feeder import Feeder
from daemon.folders import Folders
from daemon.made_with import MadeWith
from daemon.metrics import Metrics
from daemon.pause import PauseCause
from daemon.pipeline import Pipeline, PipelineParts
from daemon.settings_daemon import DaemonSettings
from daemon.settings_pipeline import PipelineSettings
from daemon.status import EngineState
from pipelines.config import EngineConfig, ModelConfig
from pipelines.core.request import Choice, FinishReason, RequestOutput

CLAIMED_S = 1_700_000_000
MODIFIED_NS = 1_600_000_000 * 10**9
METRICS = Metrics()
MAX_TURNS = 20_000


class LifeStorage(CrashStorage):
    """A disk that dies, in memory, but for the request files: those are real, and lie where the one in memory has them."""

    def __init__(self, folders):
        super().__init__(folders.inbox, folders.work, folders.outbox, folders.done, folders.failed)
        self._inputs = []
        for folder in self.folders:
            folder.mkdir(parents=True, exist_ok=True)

    def drop(self, path, content):
        """Put a request file into the inbox."""
        self.put(path, content)
        self._inputs.append(self.folders[path.parent].entries[path.name])
        _write(path, content)

    def rename(self, source, target):
        super().rename(source, target)
        if source.exists():
            source.rename(target)

    def unlink(self, path):
        super().unlink(path)
        path.unlink(missing_ok=True)  # options are real too

    def lose_power(self, choose):
        there = {inode: path for path, inode in self._input_paths()}
        super().lose_power(choose)
        new = self._input_paths()
        for path, inode in new:
            if not path.exists() and inode in there:
                path.hardlink_to(there[inode])  # one file under two names, if both outlived the cut
            elif not path.exists():
                _write(path, bytes(inode.data))
            there[inode] = path
        for folder in self.folders:
            for path in folder.iterdir():
                if path not in dict(new):
                    path.unlink()

    def _input_paths(self):
        return [
            (folder / name, inode)
            for folder, held in self.folders.items()
            for name, inode in held.entries.items()
            if inode in self._inputs
        ]


def _write(path, content):
    path.write_bytes(content)
    os.utime(path, ns=(MODIFIED_NS, MODIFIED_NS))


class InlineExecutor(ThreadPoolExecutor):
    """Does at once what it is given, so that the order of file operations is the same each time."""

    def submit(self, action, /, *args, **kwargs):
        future = Future()
        try:
            future.set_result(action(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001  as a thread would
            future.set_exception(error)
        return future


class InstantEngine:
    """Answers two requests a turn of the loop, by seed and prompt alone, the later ones of each taking first."""

    def __init__(self):
        self.is_ready = asyncio.Event()
        self.is_ready.set()
        self.credits = Credits(64, 1 << 30)
        self.account = DeviceAccount(0.0, lambda *_: None)
        self.model = "instant"
        self.is_closed = False
        self.state = EngineState.READY
        self.context = 1000
        self.config = EngineConfig("e", ModelConfig("instant"))
        self.num_answers = 0
        self._tasks = set()

    def submit_all(self, submissions):
        for submission in submissions:
            self.credits.take(submission.num_bytes)
        task = asyncio.create_task(self._answer(submissions[::-1]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def wake(self):
        """It is always there."""

    def made_with(self):
        return MadeWith(self.model, "1")

    def withdraw(self, file, answer):
        """Nothing is withdrawn of a file whose requests have all been answered."""

    async def _answer(self, submissions):
        for number, submission in enumerate(submissions):
            if number % 2 == 0:
                await asyncio.sleep(0)
            self.credits.give_back(submission.num_bytes)
            self.num_answers += 1
            submission.on_done(answer_to(submission.request))


def answer_to(request):
    """The answer that depends on the request alone."""
    words = repr((request.sampling.seed, request.messages, request.text, request.token_ids))
    text = hashlib.sha256(words.encode()).hexdigest()
    choice = Choice(text, FinishReason.STOP, num_tokens=7)
    return RequestOutput(request.key, (choice,), num_prompt_tokens=5, num_cached_tokens=0, seed=request.sampling.seed)


@contextmanager
def without_waiting():
    """Let nothing wait for its own sake, and nothing be logged."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (file_work, "GROUP_S"), (live_batch, "SHOW_S"), (patience, "RETRY_S"),
            (intake, "_MIN_WAIT_S"), (intake, "_LOOK_SHARE"), (intake, "_PAUSED_LOOK_S"),
        ):  # fmt: skip
            patch.setattr(module, name, 0)
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


@dataclass
class Life:
    """One spool through as many runs of the daemon as it takes."""

    root: object
    files: dict  # name -> content
    settings: dict = field(default_factory=dict)  # of the pipeline
    num_runs: int = 0
    pauses: set = field(default_factory=set)  # causes of pauses that were seen

    def __post_init__(self):
        self.folders = Folders(self.root)
        self.storage = LifeStorage(self.folders)
        for name, content in self.files.items():
            self.storage.drop(self.folders.inbox / name, content)

    def run(self):
        """Run until nothing is left to do.

        Raises:
            KilledError: the disk had it that the process dies.
        """
        self.num_runs += 1
        # Without the threads of `asyncio.run`: there are thousands of lives.
        with closing(asyncio.new_event_loop()) as loop:
            loop.run_until_complete(self._run())

    def kill_at(self, operation):
        """Run with a death at an operation; return False where it came to its end before."""
        return self.storage.kill_at(operation, self.run)

    def listing(self):
        """All files by folder and name."""
        return {folder.name: self.storage.listing(folder) for folder in self.storage.folders}

    async def _run(self):
        asyncio.get_running_loop().set_default_executor(InlineExecutor())
        engine = InstantEngine()
        feeder = Feeder(engine)
        parts = PipelineParts(
            engine, feeder, METRICS, self.storage, count(1).__next__, lambda _: None, lambda _: CLAIMED_S
        )
        daemon = DaemonSettings(spool=self.root.parent, settle_s=0.0, rescan_s=1e-6, watch="poll", min_free_bytes=0)
        running = Pipeline(self.root.name, PipelineSettings(engine="e", **self.settings), daemon, parts)
        tasks = [asyncio.create_task(feeder.run()), asyncio.create_task(running.run())]
        try:
            for _ in range(MAX_TURNS):
                if self.storage.is_dead:
                    raise KilledError
                if any(task.done() for task in tasks):
                    await asyncio.gather(*tasks)
                if running.is_idle:
                    return
                if (error := running._hold.trouble) is not None:
                    self.pauses.add(PauseCause.of(error))
                    running.status()
                await asyncio.sleep(0)
            raise AssertionError(f"no end: {self.listing()}, {running.status()}")
        finally:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
