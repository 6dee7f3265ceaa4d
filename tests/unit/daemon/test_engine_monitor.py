"""What is known of an engine over time: whether it gets on, how busy it was, how fast it is."""

from typing import Any

import pytest

from daemon.engine_monitor import EngineMonitor
from daemon.heartbeat import Phase
from daemon.metrics import Metrics
from pipelines.config import EngineConfig, ModelConfig
from pipelines.core.request import CAPTURE_PHASE, DeviceTime, EngineStats, IdleCause, Progress, Ready

READY = Ready(model="m", context=100, vocab_size=10, max_num_seqs=16, num_blocks=50, block_size=16)


class Watched:
    """A monitor with a clock of its own and a daemon that says why the engine is empty."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.why = IdleCause.NO_WORK
        self.metrics = Metrics()
        config = EngineConfig("main", ModelConfig("fake:"))
        self.monitor = EngineMonitor(config, self.metrics, lambda: self.why, lambda: self.now_s)

    def report(self, seconds: float = 1.0, busy_s: float = 0.0, outstanding: int = 0, **fields: Any) -> None:
        """Let so much time pass, of which the device was busy for a part, and have the engine say so."""
        start_s, self.now_s = self.now_s, self.now_s + seconds
        time = DeviceTime(start_s, self.now_s, busy_s, 0.0, seconds - busy_s, 0.0, 0.0)
        counts: dict[str, Any] = {
            "num_waiting": 0, "num_running": 0, "num_used_blocks": 0, "prompt_tokens": 0, "generation_tokens": 0,
            "preemptions": 0, "step_s": (), "num_batched": (),
        }  # fmt: skip
        self.monitor.note_stats(EngineStats(time, **(counts | fields)), outstanding)

    def idle(self) -> dict[IdleCause, float]:
        """Idle seconds by cause, those that are there."""
        return {cause: seconds for cause, seconds in self.monitor.account.totals.idle_s.items() if seconds}

    def value(self, name: str) -> float | None:
        """A metric of the engine."""
        return self.metrics.registry.get_sample_value(name, {"engine": "main"})

    @property
    def age_s(self) -> float:
        """Seconds without progress."""
        return self.monitor.heartbeat.age_s(self.now_s)


def test_loading_and_capturing_get_on_only_while_something_changes() -> None:
    """The same words twice are no progress, be they said ever so often."""
    watched = Watched()
    for step in (Progress("load", 0.1), Progress("load", 0.1), Progress("load", 0.1)):
        watched.monitor.note_progress(step)
        watched.now_s += 10
    assert (watched.monitor.heartbeat.phase, watched.age_s) == (Phase.LOAD, 30)
    watched.monitor.note_progress(Progress("load", 0.2))
    assert watched.age_s == 0
    watched.now_s += 10
    watched.monitor.note_progress(Progress(CAPTURE_PHASE, 0.0))
    assert (watched.monitor.heartbeat.phase, watched.age_s) == (Phase.CAPTURE, 0)


def test_start_and_capture_are_causes_of_their_own() -> None:
    """Until the engine is up for the first time; later its time is lost to its death."""
    watched = Watched()
    watched.now_s = 103.0
    watched.monitor.note_progress(Progress("load", 0.5))
    watched.now_s = 105.0
    watched.monitor.note_progress(Progress(CAPTURE_PHASE, 0.0))
    watched.now_s = 112.0
    watched.monitor.note_ready(READY)
    watched.report(1.0)
    watched.monitor.note_down()
    watched.now_s = 120.0
    watched.monitor.note_progress(Progress("load", 0.5))
    watched.monitor.look(is_ready=False)
    assert watched.idle() == {
        IdleCause.STARTUP: 5, IdleCause.CAPTURE: 7, IdleCause.NO_WORK: 1, IdleCause.DOWN: 7,
    }  # fmt: skip
    assert watched.value("gapless_engine_ready") == 0


@pytest.mark.parametrize(
    ("why", "outstanding", "cause"),
    [
        (IdleCause.NO_WORK, 0, IdleCause.NO_WORK),
        (IdleCause.NO_WORK, 3, IdleCause.FEED),
        (IdleCause.FEED, 0, IdleCause.FEED),
        (IdleCause.OUTPUT, 3, IdleCause.OUTPUT),
        (IdleCause.DRAIN, 0, IdleCause.DRAIN),
    ],
)
def test_an_empty_engine_idles_for_what_the_daemon_says(why: IdleCause, outstanding: int, cause: IdleCause) -> None:
    """And for want of feed where requests are still on their way to it."""
    watched = Watched()
    watched.monitor.note_ready(READY)
    watched.why = why
    watched.report(2.0, busy_s=0.5, outstanding=outstanding)
    assert watched.idle() == {cause: 1.5}
    assert watched.metrics.registry.get_sample_value(
        "gapless_gpu_idle_seconds_total", {"engine": "main", "cause": cause}
    ) == pytest.approx(1.5)


def test_steps_answers_and_rest_are_progress_and_silence_is_none() -> None:
    """An engine that holds requests and launches nothing hangs, however often it says so."""
    watched = Watched()
    watched.monitor.note_ready(READY)
    watched.report(50, num_batched=(3,))
    assert (watched.monitor.heartbeat.phase, watched.age_s) == (Phase.STEP, 0)
    for _ in range(3):
        watched.report(50, num_running=3, outstanding=3)
    assert watched.age_s == 150
    watched.monitor.note_answer(1.0)
    assert watched.age_s == 0
    watched.report(50, outstanding=2)
    assert watched.age_s == 50, "requests are with the text process, and nothing comes of it"
    watched.report(50)
    assert (watched.monitor.heartbeat.phase, watched.age_s) == (Phase.IDLE, 0)
    assert watched.value("gapless_request_seconds_count") == 1


def test_the_busy_ratio_is_that_of_the_last_minute() -> None:
    """What was before has no part in it."""
    watched = Watched()
    watched.monitor.note_ready(READY)
    for busy_s in [0.0] * 100 + [1.0] * 15 + [0.5] * 45:
        watched.report(1.0, busy_s)
        watched.monitor.look(is_ready=True)
    assert watched.value("gapless_gpu_busy_ratio") == pytest.approx((15 + 22.5) / 60)
    assert watched.value("gapless_engine_ready") == 1


def test_the_band_is_cut_into_slices_whose_shares_are_whole() -> None:
    """Ten minutes are kept, older ones drop off."""
    watched = Watched()
    watched.monitor.note_ready(READY)
    watched.monitor.look(is_ready=True)
    for second in range(800):
        watched.why = IdleCause.FEED if second < 700 else IdleCause.NO_WORK
        watched.report(1.0, busy_s=0.25)
        watched.monitor.look(is_ready=True)
    band = watched.monitor.history.band
    assert len(band) == 120
    assert all(found.busy + found.unproven + sum(found.idle.values()) == pytest.approx(1) for found in band)
    assert (band[0].idle, band[-1].idle) == ({IdleCause.FEED: 0.75}, {IdleCause.NO_WORK: 0.75})


def test_rates_are_of_the_last_seconds() -> None:
    """Tokens a second, prompt and generation apart."""
    watched = Watched()
    watched.monitor.note_ready(READY)
    for _ in range(30):
        watched.report(1.0, prompt_tokens=5, generation_tokens=7)
        watched.monitor.look(is_ready=True)
    assert (watched.monitor.prompt_rate.per_s, watched.monitor.generation_rate.per_s) == (5, 7)
    for _ in range(11):
        watched.report(1.0)
        watched.monitor.look(is_ready=True)
    assert watched.monitor.generation_rate.per_s == 0


def test_an_unloaded_engine_wants_for_work_and_hangs_not() -> None:
    """What it did not report any more, and all the time until it is wanted, is time without work; then it starts."""
    watched = Watched()
    watched.monitor.note_ready(READY)
    watched.report(1.0)
    watched.now_s += 0.25
    watched.monitor.note_unloaded()
    watched.now_s += 500
    watched.monitor.look(is_ready=False)
    assert watched.monitor.heartbeat.age_s(watched.now_s) == 0
    idle = watched.idle()
    assert idle.pop(IdleCause.NO_WORK) == 501.25
    watched.monitor.note_wanted()
    watched.now_s += 3
    watched.monitor.look(is_ready=False)
    watched.monitor.note_ready(READY)
    assert {cause: seconds for cause, seconds in watched.idle().items() if cause is not IdleCause.NO_WORK} == {
        cause: idle.get(cause, 0.0) + (3.0 if cause is IdleCause.STARTUP else 0.0)
        for cause in {*idle, IdleCause.STARTUP}
    }
