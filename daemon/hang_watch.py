"""Finds the process of an engine that has work and does not get on."""

from daemon.engine_monitor import EngineMonitor
from daemon.process_pair import ProcessPair
from daemon.stall import StallWatch
from pipelines.channel import Peer
from pipelines.core.request import EngineStats


class HangWatch:
    """Watches both processes. Used from the event loop's thread; times are CLOCK_MONOTONIC seconds."""

    def __init__(self, pair: ProcessPair, monitor: EngineMonitor, now_s: float) -> None:
        self._pair = pair
        self._monitor = monitor
        self._stall = StallWatch(now_s)
        self._stats_s = 0.0  # of the newest report

    def note_progress(self) -> None:
        """One of them got on: an answer, a further piece loaded. Or one is gone, and the next one has all its time again."""
        self._stall.note_progress()

    def note_stats(self, stats: EngineStats, now_s: float) -> None:
        """The engine process reported; that is progress if it has launched steps."""
        self._stats_s = now_s
        if stats.num_batched:
            self._stall.note_progress()

    def find(self, now_s: float, stall_s: float, *, has_requests: bool) -> Peer | None:
        """Return a process to kill, because it has had work and has not got on for `stall_s`; then its time begins again.

        A process that is loading has work; one that is up has some while requests are in flight.
        """
        loading = self._pair.loading
        self._note_loading(loading)
        has_work = bool(loading or (self._pair.is_ready.is_set() and has_requests))
        if self._stall.look(now_s, has_work=has_work) <= stall_s:
            return None
        self._stall.note_progress()
        if loading:
            return loading[0]
        return Peer.TEXT if self._is_engine_idle(now_s, stall_s) else Peer.ENGINE

    def _note_loading(self, roles: list[Peer]) -> None:
        """Note processes that get on with loading although they report no progress, as while transformers loads a model."""
        for role in roles:
            if self._pair.has_moved_on(role):
                self._stall.note_progress()
                if role is Peer.ENGINE:
                    self._monitor.note_loading()

    def _is_engine_idle(self, now_s: float, stall_s: float) -> bool:
        """Whether the engine process says, and has just said, that it has nothing to do."""
        stats, is_recent = self._monitor.stats, now_s - self._stats_s < stall_s / 2
        return is_recent and stats is not None and not (stats.num_waiting or stats.num_running)
