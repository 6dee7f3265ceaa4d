"""What an engine says loudly reaches the log and whoever asks how it is."""

import logging

import pytest

from daemon.engine_client import EngineClient
from daemon.metrics import Metrics
from pipelines.channel import Peer
from pipelines.config import EngineConfig, ModelConfig
from pipelines.core.request import DeviceTime, EngineStats, IdleCause, Ready


def client() -> EngineClient:
    return EngineClient(EngineConfig("main", ModelConfig("fake:")), Metrics(), 5, lambda: IdleCause.NO_WORK)


def test_a_warning_at_the_start_is_logged_and_stays_to_be_seen(caplog: pytest.LogCaptureFixture) -> None:
    """One line in the log, and a part of the line that status page and `gapless status` show."""
    engine = client()
    with caplog.at_level(logging.WARNING):
        engine._take(Peer.ENGINE, Ready("m", 64, 100, detail="a model on cuda", warnings=("no graphs: it is odd",)))
    assert [record.getMessage() for record in caplog.records] == ["engine main: no graphs: it is odd"]
    assert engine.describe() == "a model on cuda; WARNING: no graphs: it is odd"


def test_a_notice_in_mid_run_is_logged_as_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Each once, with the engine's name."""
    stats = EngineStats(DeviceTime(0, 1, 0, 0, 1, 0, 0), 0, 0, 0, 0, 0, 0, (), (), 1, ("a step did not fit",))
    with caplog.at_level(logging.WARNING):
        client()._take(Peer.ENGINE, stats)
    assert [record.getMessage() for record in caplog.records] == ["engine main: a step did not fit"]
