"""Keeps what a single look at a file cannot tell: how fast it goes, when it will be done, and how the last ones ended."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from daemon.rates import RateMeter
from daemon.status import EndedFile, FileStatus

MAX_ENDED = 50
_SPAN_S = 30.0


@dataclass(slots=True)
class _Pace:
    """The speed of one file."""

    requests: RateMeter = field(default_factory=lambda: RateMeter(_SPAN_S))
    tokens: RateMeter = field(default_factory=lambda: RateMeter(_SPAN_S))


class FileBoard:
    """The files of one pipeline. Times are CLOCK_MONOTONIC seconds."""

    def __init__(self) -> None:
        self._paces: dict[str, _Pace] = {}
        self._ended: deque[EndedFile] = deque(maxlen=MAX_ENDED)
        self._num_ended = 0

    @property
    def ended(self) -> tuple[EndedFile, ...]:
        """The last files that ended, the newest first."""
        return tuple(self._ended)

    def look(self, now_s: float, files: Sequence[FileStatus]) -> tuple[FileStatus, ...]:
        """Return the files with their speed and the time that they have left."""
        self._paces = {file.stem: self._paces.get(file.stem) or _Pace() for file in files}
        return tuple(self._with_pace(now_s, file) for file in files)

    def note_end(self, file: EndedFile) -> None:
        """Keep a file that has ended, and number it."""
        self._num_ended += 1
        self._ended.appendleft(replace(file, number=self._num_ended))

    def _with_pace(self, now_s: float, file: FileStatus) -> FileStatus:
        pace = self._paces[file.stem]
        pace.requests.note(now_s, file.num_done + file.num_failed)
        pace.tokens.note(now_s, file.num_tokens)
        speed = pace.requests.per_s
        left_s = round(file.num_pending / speed, 1) if speed > 0 and file.num_total is not None else None
        return replace(file, tokens_per_s=round(pace.tokens.per_s, 2), left_s=left_s)
