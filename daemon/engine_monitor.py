"""What the daemon knows of one engine over time: its device's time, its speed, whether it gets on."""

import time
from collections.abc import Callable

from daemon.device_account import DeviceAccount, DeviceTotals
from daemon.device_history import DeviceHistory
from daemon.heartbeat import Heartbeat, Phase
from daemon.metrics import Metrics
from daemon.rates import RateMeter
from pipelines.config import EngineConfig
from pipelines.core.request import CAPTURE_PHASE, EngineStats, IdleCause, Progress, Ready

_RATE_SPAN_S = 10.0


class EngineMonitor:
    """Watches one engine and tells the metrics. Used from the event loop's thread.

    `why_empty` says why the engine holds no request when it holds none: for want of work, of feed, of disk, or in a drain.
    """

    def __init__(
        self,
        config: EngineConfig,
        metrics: Metrics,
        why_empty: Callable[[], IdleCause],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.account = DeviceAccount(now(), self._account)
        self.history = DeviceHistory()
        self.heartbeat = Heartbeat(now())
        self.stats: EngineStats | None = None  # the newest; None while it is not up
        self.ready: Ready | None = None  # None while it is not up
        self.prompt_rate = RateMeter(_RATE_SPAN_S)  # tokens
        self.generation_rate = RateMeter(_RATE_SPAN_S)  # tokens
        self._name = config.name
        self._metrics = metrics
        self._why_empty = why_empty
        self._now = now
        self._prompt_tokens = self._generation_tokens = 0
        self._was_up = self._is_unloaded = False
        metrics.add_engine(config.name)
        metrics.set_schedule(config.name, config.schedule)

    def note_progress(self, progress: Progress) -> None:
        """The engine process is starting."""
        now_s = self._now()
        is_capture = progress.phase == CAPTURE_PHASE
        self.heartbeat.look(now_s, Phase.CAPTURE if is_capture else Phase.LOAD, (progress.phase, progress.done))
        if not self._was_up:
            self.account.note_outage(now_s, IdleCause.CAPTURE if is_capture else IdleCause.STARTUP)

    def note_loading(self) -> None:
        """The engine process is starting and gets on, without a word of how far it is."""
        self.heartbeat.beat(self._now(), self.heartbeat.phase)

    def note_ready(self, ready: Ready) -> None:
        """The engine process is up."""
        self.ready = ready
        self._was_up = True
        self.account.note_up()
        self.heartbeat.beat(self._now(), Phase.IDLE)
        self._metrics.note_engine_ready(self._name, ready)

    def note_unloaded(self) -> None:
        """The engine process is ended, since it had no work; time without it is time without work."""
        now_s = self._now()
        self.stats = self.ready = None
        self._was_up, self._is_unloaded = False, True
        self.account.note_down(now_s, IdleCause.NO_WORK)
        self.heartbeat.beat(now_s, Phase.IDLE)
        self._metrics.note_engine_down(self._name)

    def note_wanted(self) -> None:
        """There is work again: the engine process is started."""
        now_s = self._now()
        self._is_unloaded = False
        self.account.note_outage(now_s, IdleCause.STARTUP)
        self.heartbeat.beat(now_s, Phase.LOAD)

    def note_down(self) -> None:
        """The engine process is gone."""
        now_s = self._now()
        self.stats = self.ready = None
        self.account.note_down(now_s)
        self.heartbeat.beat(now_s, Phase.LOAD)
        self._metrics.note_engine_down(self._name)

    def note_stats(self, stats: EngineStats, num_outstanding: int) -> None:
        """The engine process reported, while so many requests were without their answer."""
        now_s = self._now()
        cause = self._why_empty()
        if num_outstanding and cause is IdleCause.NO_WORK:
            cause = IdleCause.FEED
        self.stats = stats
        self.account.add_report(stats.device_time, cause, stats.prompt_tokens + stats.generation_tokens)
        self._metrics.observe_engine_stats(self._name, stats)
        self._prompt_tokens += stats.prompt_tokens
        self._generation_tokens += stats.generation_tokens
        if stats.num_batched:
            self.heartbeat.beat(now_s, Phase.STEP)
        elif not (num_outstanding or stats.num_waiting or stats.num_running):
            self.heartbeat.beat(now_s, Phase.IDLE)

    def note_answer(self, seconds: float) -> None:
        """A request was answered, so long after it was handed over."""
        self.heartbeat.beat(self._now(), self.heartbeat.phase)
        self._metrics.observe_request(self._name, seconds)

    def look(self, *, is_ready: bool) -> None:
        """Bring account, history, rates and gauges up to now; called a few times a second."""
        now_s = self._now()
        if self._why_empty() is IdleCause.DRAIN:
            self.account.note_outage(now_s, IdleCause.DRAIN)
        self.account.advance(now_s)
        if self._is_unloaded:
            self.heartbeat.beat(now_s, Phase.IDLE)
        self.history.note(now_s, self.account.totals)
        self.prompt_rate.note(now_s, self._prompt_tokens)
        self.generation_rate.note(now_s, self._generation_tokens)
        self._metrics.set_engine_state(
            self._name,
            is_ready=is_ready,
            busy_ratio=self.history.busy_ratio,
            progress_age_s=self.heartbeat.age_s(now_s),
        )

    def _account(self, added: DeviceTotals) -> None:
        self._metrics.account_device(self._name, added)
