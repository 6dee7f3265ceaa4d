"""The log: its two forms, what is on each line, and that no fault can flood it."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator

import pytest

from daemon.logs import LimitedHandler, LogTail, json_formatter, log_context, set_up_logging, text_formatter
from daemon.settings_daemon import LogSettings


def record(message: str = "pipeline p: %s is done", *args: object, created: float = 1_700_000_000.25, line: int = 1):
    """A line of a module's."""
    made = logging.LogRecord("daemon.x", logging.WARNING, "x.py", line, message, args, None)
    made.created = created
    return made


def test_a_json_line_has_time_level_logger_message_in_this_order() -> None:
    """One object a line, whatever a name holds."""
    text = json_formatter().format(record("pipeline p: %s is done", "a\nb\u2028\u00fc"))
    assert "\n" not in text
    line = json.loads(text)
    assert list(line) == ["time", "level", "logger", "message"]
    assert (line["level"], line["logger"], line["message"]) == (
        "warning",
        "daemon.x",
        "pipeline p: a\nb\u2028\u00fc is done",
    )
    assert line["time"].endswith("Z")


def test_a_fault_brings_its_traceback_in_both_forms() -> None:
    """So that it can be mended."""
    made = record("it failed")
    try:
        json.loads("{")
    except ValueError as error:
        made.exc_info = (ValueError, error, error.__traceback__)
    assert "JSONDecodeError: Expecting" in json.loads(json_formatter().format(made))["traceback"]
    made.exc_text = None
    assert "JSONDecodeError: Expecting" in text_formatter(colors=False).format(made)


def test_a_text_line_is_for_people() -> None:
    """Time, level, message; no colours where nobody sees them."""
    text = text_formatter(colors=False).format(record("pipeline p: %s is done", "a"))
    assert text.split(maxsplit=1)[1].startswith("[warning")
    assert text.endswith("pipeline p: a is done")
    assert "\x1b" not in text
    assert "\x1b" in text_formatter(colors=True).format(record("x"))


def test_what_a_task_says_of_itself_is_on_its_lines_and_on_no_other() -> None:
    """Threads that it waits for included."""
    format_line = json_formatter().format

    async def work(file: str) -> list[dict[str, str]]:
        log_context(pipeline="p", file=file)
        await asyncio.sleep(0)
        return [json.loads(format_line(record("x"))), json.loads(await asyncio.to_thread(format_line, record("y")))]

    async def both() -> list[list[dict[str, str]]]:
        return await asyncio.gather(work("a.jsonl"), work("b.jsonl"))

    found = [[line["file"] for line in lines] for lines in asyncio.run(both())]
    assert found == [["a.jsonl"] * 2, ["b.jsonl"] * 2]
    assert "file" not in json.loads(format_line(record("z")))


def limited() -> tuple[LimitedHandler, Callable[[], list[str]]]:
    """A handler, and what came through."""
    tail = LogTail(10_000)
    return LimitedHandler([tail]), lambda: [line.message for line in tail.after(0)]


def test_a_fault_that_repeats_is_said_a_few_times_and_then_counted() -> None:
    """One place in the code; other places are not held up by it."""
    handler, seen = limited()
    for number in range(1000):
        handler.handle(record("fault %d", number, created=100.0 + number / 1000))
    handler.handle(record("another", created=101.0, line=2))
    assert seen() == [*(f"fault {number}" for number in range(20)), "another"]
    handler.handle(record("fault %d", 1000, created=115.0))
    assert seen()[-1] == "fault 1000 (980 lines like this left out)"
    handler.handle(record("fault %d", 1001, created=116.0))
    assert seen()[-1] == "fault 1001"


def test_lines_for_following_one_thing_are_all_let_through() -> None:
    """At debug each request has its lines; one that is left out breaks the thread."""
    handler, seen = limited()
    for number in range(1000):
        made = record("step %d", number, created=100.0)
        made.levelno = logging.DEBUG
        handler.handle(made)
    assert seen() == [f"step {number}" for number in range(1000)]


def test_what_a_line_brings_itself_is_on_it() -> None:
    """The request that it is about, behind what every line has; nothing else that lies in a record."""
    made = record("x")
    made.request_id, made.line, made.secret = "req_1", 3, "s"
    line = json.loads(json_formatter().format(made))
    assert list(line) == ["time", "level", "logger", "message", "line", "request_id"]
    assert (line["line"], line["request_id"]) == (3, "req_1")


def test_what_is_rare_is_never_left_out() -> None:
    """Two lines a second are no flood."""
    handler, seen = limited()
    for number in range(200):
        handler.handle(record("fine %d", number, created=100.0 + number / 1.9))
    assert seen() == [f"fine {number}" for number in range(200)]


@pytest.fixture
def as_before() -> Iterator[None]:
    """Put back what `set_up_logging` changes of the process."""
    loggers = [logging.getLogger(name) for name in ("", "daemon", "pipelines")]
    handlers, levels = loggers[0].handlers[:], [each.level for each in loggers]
    yield
    loggers[0].handlers[:] = handlers
    for each, level in zip(loggers, levels, strict=True):
        each.setLevel(level)


@pytest.mark.usefixtures("as_before")
def test_the_log_goes_to_standard_error_and_to_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """With one call, at the level of the settings; JSON where no terminal is."""
    tail = set_up_logging(LogSettings(level="info"))
    logging.getLogger("daemon.y").debug("too little")
    logging.getLogger("daemon.y").info("hello %s", "you")
    assert [line.message for line in tail.after(0)] == ["hello you"]
    assert json.loads(capsys.readouterr().err)["message"] == "hello you"


@pytest.mark.usefixtures("as_before")
def test_the_level_debug_is_of_our_own_lines() -> None:
    """Libraries tell each event of a folder, several for each look at an inbox; what is grave in theirs is told."""
    tail = set_up_logging(LogSettings(level="debug"))
    for name in ("daemon.y", "pipelines.z", "watchdog.observers", "asyncio"):
        logging.getLogger(name).debug("a detail of %s", name)
        logging.getLogger(name).warning("trouble of %s", name)
    ours = [f"{what} of {name}" for name in ("daemon.y", "pipelines.z") for what in ("a detail", "trouble")]
    theirs = ["trouble of watchdog.observers", "trouble of asyncio"]
    assert [line.message for line in tail.after(0)] == ours + theirs
    set_up_logging(LogSettings(level="error"), tail)
    logging.getLogger("daemon.y").warning("too little")
    logging.getLogger("asyncio").warning("too little")
    assert len(tail.after(0)) == len(ours + theirs)
