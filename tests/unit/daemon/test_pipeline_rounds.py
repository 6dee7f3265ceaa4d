"""Whether a pipeline gets on, which the watchdog asks, and how it begins where there is no room yet."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from daemon.durable import DiskStorage
from daemon.errors import DiskFullError
from daemon.folders import Folders
from daemon.metrics import Metrics
from daemon.pause import PauseCause
from daemon.pipeline import Pipeline, PipelineParts
from daemon.settings_daemon import DaemonSettings
from daemon.settings_pipeline import PipelineSettings
from daemon.status import EngineState


def bare_pipeline(folder: Path, rescan_s: float) -> Pipeline:
    # Nothing else is asked of it while there is no file.
    engine = cast("Any", SimpleNamespace(is_closed=False, state=EngineState.READY, reason="it died 6 times"))
    feeder = cast("Any", None)
    parts = PipelineParts(engine, feeder, Metrics(), DiskStorage(), lambda: 1, lambda _: None)
    daemon = DaemonSettings.read({"spool": str(folder), "watch": "poll", "rescan_s": rescan_s}, folder)
    return Pipeline("p", PipelineSettings.read({"engine": "e"}, folder), daemon, parts)


def make_pipeline(folder: Path, rescan_s: float) -> Pipeline:
    pipeline = bare_pipeline(folder, rescan_s)
    pipeline.make_folders()
    return pipeline


async def run_briefly(pipeline: Pipeline) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await pipeline.run()
    assert pipeline.is_idle


def test_a_pipeline_hangs_when_it_has_not_looked_into_its_inbox_for_long(tmp_path: Path) -> None:
    """Beyond the time between two looks, however long that is."""
    pipeline = make_pipeline(tmp_path, rescan_s=600)
    asyncio.run(run_briefly(pipeline))
    now_s = time.monotonic()
    assert not pipeline.is_hanging(now_s + 1200)
    assert pipeline.is_hanging(now_s + 1600)


def test_one_that_has_not_begun_does_not_hang(tmp_path: Path) -> None:
    """What a start takes is the engine's and the disk's business."""
    assert not make_pipeline(tmp_path, rescan_s=1).is_hanging(time.monotonic() + 1e6)


def test_one_that_is_paused_has_said_why(tmp_path: Path) -> None:
    """A restart mends no full disk."""
    pipeline = make_pipeline(tmp_path, rescan_s=1)
    asyncio.run(run_briefly(pipeline))
    (tmp_path / "p" / "paused").write_text("the GPU is needed")
    pipeline.look_at_switch()
    assert pipeline.paused_because is not None
    assert not pipeline.is_hanging(time.monotonic() + 1e6)


def test_a_pipeline_on_a_full_disk_is_paused_until_its_folders_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reload asks for the folders at once; the start of the daemon waits for room."""
    make, tries = Folders.make, []

    def make_late(folders: Folders) -> None:
        tries.append(folders)
        if len(tries) < 4:
            raise DiskFullError("no space is left on its file system", folders.root, None)
        make(folders)

    monkeypatch.setattr(Folders, "make", make_late)
    monkeypatch.setattr("daemon.intake._PAUSED_LOOK_S", 0.01)
    pipeline = bare_pipeline(tmp_path, rescan_s=0.01)
    with pytest.raises(DiskFullError):
        pipeline.make_folders()
    pipeline.make_folders(waits_for_room=True)
    assert pipeline.paused_because == "no space is left on its file system"
    assert pipeline.status().paused_because is not None
    asyncio.run(run_briefly(pipeline))
    assert pipeline.paused_because is None
    assert pipeline.inbox_folder.is_dir()


def test_one_whose_engine_is_given_up_is_paused_with_its_reason_and_takes_nothing(tmp_path: Path) -> None:
    """Until it is tried again; what lies in the inbox stays there."""
    pipeline = make_pipeline(tmp_path, rescan_s=0.05)
    engine = pipeline._parts.engine
    engine.state = EngineState.DOWN
    assert pipeline.paused_because == "engine e is paused: it died 6 times; `gapless resume` tries again"
    assert pipeline._hold.cause is PauseCause.ENGINE
    assert not pipeline._hold.lets_claim
    for state in set(EngineState) - {EngineState.DOWN}:  # one that ends with the daemon waits for nobody
        engine.state = state
        assert (pipeline.paused_because, pipeline._hold.cause, pipeline._hold.lets_claim) == (None, None, True)
