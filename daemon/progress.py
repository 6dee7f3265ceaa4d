"""Progress on a terminal: one line that is overwritten; elsewhere a line now and then; and how fast things go."""

import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

PLAIN_S = 10.0  # between two lines that differ in numbers alone, where there is no terminal
WINDOW_S = 15.0  # over which rates are taken


class StatusLine:
    """What is being waited for, said again and again.

    Where the stream is no terminal, `is_news` texts are always shown, the others every `PLAIN_S` at most: what is over before
    that says nothing.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._shown = ""
        self._shown_s = clock()

    def show(self, text: str, *, is_news: bool = False) -> None:
        """Show a text in place of the one before."""
        if text == self._shown:
            return
        now_s = self._clock()
        if self._stream.isatty():
            self._stream.write(f"\r{text:<{len(self._shown)}}")
        elif is_news or now_s - self._shown_s >= PLAIN_S:
            self._stream.write(f"{text}\n")
        else:
            return
        self._stream.flush()
        self._shown, self._shown_s = text, now_s

    def end(self) -> None:
        """Leave the line; what is written next begins a new one."""
        if self._shown and self._stream.isatty():
            self._stream.write("\n")
            self._stream.flush()
        self._shown = ""


class SpeedMeter:
    """Requests and tokens a second over the last `WINDOW_S`; times are of a monotonic clock."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int, int]] = deque()  # time, requests done, tokens

    def add(self, now_s: float, num_done: int, num_tokens: int) -> None:
        """Note the counts so far; a look that finds nothing new is noted too."""
        self._points.append((now_s, num_done, num_tokens))
        while len(self._points) > 2 and now_s - self._points[1][0] >= WINDOW_S:  # noqa: PLR2004  one behind the window stays
            self._points.popleft()

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second; None before there are two looks."""
        return self._rate(2)

    def seconds_left(self, num_left: int) -> float | None:
        """Return how long so many requests will take; None where nothing moves."""
        rate = self._rate(1)
        return num_left / rate if rate else None

    def _rate(self, column: int) -> float | None:
        if len(self._points) < 2:  # noqa: PLR2004  a rate is between two
            return None
        first, last = self._points[0], self._points[-1]
        seconds = last[0] - first[0]
        return (last[column] - first[column]) / seconds if seconds > 0 else None
