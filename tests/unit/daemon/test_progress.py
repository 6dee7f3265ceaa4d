"""Progress: one line on a terminal, few lines elsewhere, rates over the last seconds."""

import io

import pytest

from daemon.progress import PLAIN_S, WINDOW_S, SpeedMeter, StatusLine


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_a_text_takes_the_place_of_the_one_before():
    """With what a longer one left behind wiped out."""
    stream = Terminal()
    line = StatusLine(stream, lambda: 0.0)
    line.show("long text")
    line.show("short")
    line.show("short")
    line.end()
    line.end()
    assert stream.getvalue() == "\rlong text\rshort    \n"


def test_elsewhere_news_come_at_once_and_numbers_now_and_then():
    """A log does not fill with percentages."""
    stream, now_s = io.StringIO(), [0.0]
    line = StatusLine(stream, lambda: now_s[0])
    line.show("1")
    line.show("2")
    line.show("paused", is_news=True)
    line.show("3")
    now_s[0] = PLAIN_S
    line.show("4")
    line.end()
    assert stream.getvalue() == "paused\n4\n"


def test_rates_are_those_of_the_last_seconds():
    """What was long ago has no part in what is left."""
    meter = SpeedMeter()
    assert meter.tokens_per_s is None
    assert meter.seconds_left(5) is None
    meter.add(0.0, 0, 0)
    meter.add(1000.0, 10, 100)  # slow for a long time
    for second in range(1, int(2 * WINDOW_S)):
        meter.add(1000.0 + second, 10 + 2 * second, 100 + 30 * second)
    assert meter.tokens_per_s == pytest.approx(30)
    assert meter.seconds_left(100) == pytest.approx(50)


def test_nothing_moves_means_no_guess():
    """Neither a division by nothing nor an endless time."""
    meter = SpeedMeter()
    meter.add(0.0, 5, 5)
    meter.add(0.0, 5, 5)
    assert meter.tokens_per_s is None
    meter.add(60.0, 5, 5)
    assert meter.seconds_left(10) is None
