"""What `gapless top` draws: the figures of the status page, in any width, with hostile names as text."""

import io
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console
from site_views import HOSTILE, READY

from daemon import command_top
from daemon.batch_object import BatchStatus
from daemon.device_history import BandSlice
from daemon.errors import ExitCode
from daemon.status import ConfigStatus, EngineState, StatusSnapshot
from daemon.top_view import render_top
from pipelines.core.request import IdleCause


def drawn(status: StatusSnapshot = READY, width: int = 110, *, color: bool = False) -> str:
    """What is seen of a status after its way through JSON."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=color, color_system="truecolor" if color else None)
    console.print(render_top(json.loads(json.dumps(status.to_json())), width))
    return out.getvalue().replace("\u00a0", " ")


def test_engines_files_and_ends_are_shown_with_their_figures() -> None:
    """The same numbers as on the page."""
    text = drawn(width=140)
    for words in (
        "up for 1 min 40 s", "files: 2 in inboxes, 1 being run", "main ready", "busy 87.5% of the last minute",
        "1,234 generated", "3 of 16 seats", "KV cache 10%", "no_work 12.5%", "chat/a<b>.jsonl", "12.5", "1 min 30 s",
        "chat/old.jsonl", "completed", "1 min 01 s",
    ):  # fmt: skip
        assert words in text, words


def test_what_is_wrong_is_shown() -> None:
    """A paused pipeline, a refused change, an engine that starts."""
    status = replace(
        READY,
        engines=(replace(READY.engines[0], state=EngineState.STARTING, detail="load 40 %", band=()),),
        pipelines=(replace(READY.pipelines[0], paused_because="the disk is full", files=(), ended=()),),
        config=ConfigStatus(0.0, error="gapless.yaml:3: found this"),
    )
    text = drawn(status)
    for words in (
        "main starting",
        "load 40 %",
        "takes no files: the disk is full",
        "refused: gapless.yaml:3: found this",
    ):
        assert words in text
    assert text.index("takes no files") < text.index("main starting"), "what is wrong stands at the top"


def test_a_file_that_could_not_be_run_has_no_number_of_requests() -> None:
    """None is not nothing; one that failed behind its first answers has them."""
    (ended,) = READY.pipelines[0].ended
    failed = replace(ended, status=BatchStatus.FAILED, num_done=0, num_failed=0)
    found = [
        next(line for line in drawn(replace(READY, pipelines=(replace(READY.pipelines[0], ended=(file,)),))).splitlines()
             if "old.jsonl" in line).split()
        for file in (failed, replace(failed, num_done=7), replace(failed, status=BatchStatus.COMPLETED))
    ]  # fmt: skip
    assert [line[2:4] for line in found] == [["-", "-"], ["7", "0"], ["0", "0"]]


def test_a_status_that_is_old_is_said_to_be() -> None:
    """What is drawn below is how things were."""
    console = Console(file=io.StringIO(), width=200)
    console.print(render_top(READY.to_json(age_s=42.0), 200))
    text = console.file.getvalue()
    assert "the daemon hangs: the main loop has not come round for 42.0 s; what follows is how it was then" in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """Also with a name that has no blank to break at."""
    files = (replace(READY.pipelines[0].files[0], name="x" * 150),)
    status = replace(READY, pipelines=(replace(READY.pipelines[0], files=files),))
    assert max(map(len, drawn(status, width).splitlines())) <= width


@pytest.mark.parametrize("width", [40, 60, 80, 101, 200])
def test_a_file_is_one_line_whose_name_can_be_told_from_others(width: int) -> None:
    """Beginning and end stay; where there is little room the columns that say least go."""
    names = [f"reviews-of-{'all-' * 20}regions-{number}.jsonl" for number in range(3)] + ["\u4e2d\u6587" * 40]
    files = tuple(replace(READY.pipelines[0].files[0], name=name) for name in names)
    ended = tuple(replace(READY.pipelines[0].ended[0], name=name) for name in names)
    text = drawn(replace(READY, pipelines=(replace(READY.pipelines[0], files=files, ended=ended),)), width)
    lines = [line for line in text.splitlines() if line.startswith("chat/")]
    assert len(lines) == 2 * len(names)
    for number in range(3):
        assert len([line for line in lines if f"{number}.jsonl " in line]) == 2
    assert len([line for line in lines if re.search(r" 6 +9\b", line)]) == len(names), "done, of"
    assert ("1 min 30 s" in text) is (width >= 60)
    assert ("in_progress" in text) is (width >= 80)
    assert ("tokens/s" in text.split("file ")[-1]) is (width >= 101)


def test_a_hostile_name_is_text() -> None:
    """Neither markup nor control characters come through."""
    name = f"[red]{HOSTILE}\x1b[31m"
    files = (replace(READY.pipelines[0].files[0], name=name),)
    status = replace(READY, pipelines=(replace(READY.pipelines[0], files=files, name="[blink]"),), engines=())
    text = drawn(status, 600)
    assert "[blink]/[red]<img src=x" in text
    assert "\\u202e" in text
    assert "\x1b[31m" not in text


def test_the_band_says_busy_by_height_and_the_cause_by_ground() -> None:
    """A slice that is half busy and else waits for the host; the newest stands at the right."""
    band = (BandSlice(1.0, 0.0, {}), BandSlice(1.0, 0.0, {}), *[BandSlice(0.5, 0.0, {IdleCause.HOST: 0.5})] * 2)
    status = replace(READY, engines=(replace(READY.engines[0], band=band),), pipelines=())
    line = drawn(status).splitlines()[2]
    assert line.strip("\u2502 ").endswith("\u2588\u2584")
    assert "41m\u2584" in drawn(status, color=True), "red ground: host"


def test_without_a_terminal_it_is_drawn_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that it can be sent to a file."""
    monkeypatch.setattr(command_top, "settings_that_run", lambda _: None)
    monkeypatch.setattr(command_top, "fetch_status", lambda _: json.loads(json.dumps(READY.to_json())))
    options = SimpleNamespace(config=None, once=False, every=1.0)
    assert command_top.top(options) == ExitCode.OK
    assert "main ready" in capsys.readouterr().out


def test_the_band_is_one_line_in_a_narrow_terminal() -> None:
    """Fewer, longer slices; now stays at the right."""
    band = (*[BandSlice(0.0, 0.0, {})] * 119, BandSlice(1.0, 0.0, {}))
    status = replace(READY, engines=(replace(READY.engines[0], band=band),), pipelines=())
    lines = drawn(status, 40).splitlines()
    top = next(number for number, line in enumerate(lines) if "main ready" in line)
    assert lines[top + 1].endswith(("\u2582 \u2502", "\u2583 \u2502"))
    assert lines[top + 2].startswith("\u2502 last 10 min")
