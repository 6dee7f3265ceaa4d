"""What `gapless top` draws of one status: engines with their band, files with their progress, what ended last."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from daemon.durable import printable
from daemon.report_table import duration
from daemon.status import why_stale
from pipelines.core.request import IdleCause

_COLORS = {
    IdleCause.NO_WORK: "bright_black",
    IdleCause.FEED: "yellow",
    IdleCause.HOST: "red",
    IdleCause.H2D: "magenta",
    IdleCause.OUTPUT: "dark_red",
    IdleCause.CAPTURE: "blue",
    IdleCause.STARTUP: "bright_blue",
    IdleCause.DRAIN: "white",
    IdleCause.DOWN: "bright_white",
}
_STATES = {"ready": "green", "down": "red"}
_LEVELS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"  # block elements, from nothing to all
_BAND_SLICES = 120
_BAND_WIDTH = 60  # at most
_FRAME = 4  # around an engine
_MAX_ENDED = 5
_BAR_WIDTH = 20
_GAP = 2  # between columns
_MIN_NAME_WIDTH = 20


def render_top(status: Mapping[str, Any], width: int) -> RenderableType:
    """Return a picture, `width` characters wide, of what `/status` gives. Names are set as text: no markup is made of them."""
    parts: list[RenderableType] = [_head(status)]
    parts += [Text(text, style="yellow") for text in _notes(status)]
    parts += [_engine(engine, status["slice_s"], width) for engine in status["engines"]]
    files = [(pipeline["name"], file) for pipeline in status["pipelines"] for file in pipeline["files"]]
    if files:
        parts.append(_files(files, width))
    ended = [(pipeline["name"], file) for pipeline in status["pipelines"] for file in pipeline["ended"]]
    if ended:
        parts.append(_ended(sorted(ended, key=lambda entry: -entry[1]["ended_s"])[:_MAX_ENDED], width))
    return Group(*parts)


def _head(status: Mapping[str, Any]) -> Text:
    waiting = sum(pipeline["num_waiting_files"] for pipeline in status["pipelines"])
    running = sum(len(pipeline["files"]) for pipeline in status["pipelines"])
    state = "stopping, up for" if status["is_draining"] else "up for"
    return Text(f"gapless {state} {duration(status['uptime_s'])}; files: {waiting:,} in inboxes, {running:,} being run")


def _notes(status: Mapping[str, Any]) -> Iterator[str]:
    if stale := why_stale(status["age_s"]):
        yield f"the daemon hangs: {stale}; what follows is how it was then"
    for pipeline in status["pipelines"]:
        if pipeline["paused_because"] is not None:
            yield printable(f"pipeline {pipeline['name']} takes no files: {pipeline['paused_because']}")
    if status["config"]["checking"]:
        yield printable(f"the configuration was changed: {status['config']['checking']}")
    if status["config"]["error"] is not None:
        yield printable(f"the last change of the configuration was refused: {status['config']['error']}")


def _engine(engine: Mapping[str, Any], slice_s: float, width: int) -> Panel:
    blocks, used = engine["num_blocks"], engine["num_used_blocks"]
    figures = Text.assemble(
        f"busy {engine['busy_ratio']:.1%} of the last minute   ",
        (f"{engine['generation_tokens_per_s']:,.0f}", "bold"), " generated and ",
        (f"{engine['prompt_tokens_per_s']:,.0f}", "bold"), " prompt tokens/s   ",
        f"{engine['num_running']:,} of {engine['num_seats']:,} seats, {engine['num_waiting']:,} waiting   ",
        f"KV cache {used / blocks:.0%}" if blocks else "KV cache -",
    )  # fmt: skip
    title = Text.assemble(
        (printable(engine["name"]), "bold"), " ", (engine["state"], _STATES.get(engine["state"], "yellow")), " ",
        (printable(f"{engine['model']} {engine['schedule']}".strip()), "dim"),
    )  # fmt: skip
    lines: list[RenderableType] = [_band(engine["band"], width - _FRAME), _legend(engine["band"], slice_s), figures]
    if engine["state"] != "ready" or engine["progress_age_s"] > engine["stall_s"]:
        lines.append(Text(printable(engine["detail"]), style="yellow"))
    return Panel(Group(*lines), title=title, title_align="left", expand=True)


def _band(band: Sequence[Mapping[str, Any]], width: int) -> Text:
    """Draw the last minutes, now at the right: the height is busy, the ground is what idled most."""
    width = max(1, min(_BAND_WIDTH, width))
    step = ceil(_BAND_SLICES / width)
    parts = [band[max(0, end - step) : end] for end in range(len(band), 0, -step)][::-1]
    text = Text(" " * (width - len(parts)))
    for part in parts:
        busy = sum(found["busy"] + found["unproven"] for found in part) / len(part)
        idle = {cause: sum(found["idle"].get(cause, 0.0) for found in part) for cause in IdleCause}
        cause = max(idle, key=lambda each: idle[each])
        ground = _COLORS[cause] if idle[cause] else "default"
        text.append(_LEVELS[round(8 * min(1.0, busy))], style=f"green on {ground}")
    return text


def _legend(band: Sequence[Mapping[str, Any]], slice_s: float) -> Text:
    text = Text(f"last {duration(len(band) * slice_s)}: ")
    if not band:
        return text
    shares = [("busy", "green", sum(found["busy"] for found in band))]
    shares += [("unproven", "green", sum(found["unproven"] for found in band))]
    shares += [
        (cause.value, _COLORS[cause], sum(found["idle"].get(cause, 0.0) for found in band)) for cause in IdleCause
    ]
    for name, color, share in shares:
        if share / len(band) >= 0.0005:  # noqa: PLR2004  what rounds to nothing
            text.append(f"\u25a0\u00a0{name}\u00a0{share / len(band):.1%}  ", style=color)
    return text


def _files(files: Sequence[tuple[str, Mapping[str, Any]]], width: int) -> Table:
    heads = {"state": 11, "": _BAR_WIDTH, ">done": 7, ">of": 7, ">errors": 6, ">tokens/s": 8, ">left": 11}
    table, shown = _table("file", heads, ("", ">tokens/s", ">errors", "state", ">left"), width)
    for pipeline, file in files:
        done, total = file["num_done"] + file["num_failed"], file["num_total"]
        cells: dict[str, RenderableType] = {
            "state": file["state"],
            "": ProgressBar(total=total or 1, completed=done, width=_BAR_WIDTH),
            ">done": f"{done:,}",
            ">of": "?" if total is None else f"{total:,}",
            ">errors": f"{file['num_failed']:,}",
            ">tokens/s": f"{file['tokens_per_s']:,.1f}",
            ">left": "-" if file["left_s"] is None else duration(file["left_s"]),
        }
        table.add_row(_Name(f"{pipeline}/{file['name']}"), *(cells[head] for head in shown))
    return table


def _ended(files: Sequence[tuple[str, Mapping[str, Any]]], width: int) -> Table:
    heads = {"outcome": 9, ">requests": 8, ">errors": 6, ">took": 11}
    table, shown = _table("ended", heads, (">took", ">requests"), width)
    for pipeline, file in files:
        is_good = file["status"] == "completed" and not file["num_failed"]
        num_ended = file["num_done"] + file["num_failed"]
        is_known = num_ended or file["status"] != "failed"  # of one that could not be run there are none to count
        cells: dict[str, RenderableType] = {
            "outcome": Text(file["status"], style="green" if is_good else "yellow"),
            ">requests": f"{num_ended:,}" if is_known else "-",
            ">errors": f"{file['num_failed']:,}" if is_known else "-",
            ">took": duration(file["taken_s"]),
        }
        table.add_row(_Name(f"{pipeline}/{file['name']}"), *(cells[head] for head in shown))
    return table


def _table(first: str, heads: Mapping[str, int], in_need: Sequence[str], width: int) -> tuple[Table, list[str]]:
    """Make an empty table of names and further columns, and say which of these are shown.

    `heads` gives the columns' widths in characters; one that begins with `>` stands over numbers. Where the names would be too
    narrow, the columns `in_need` are left out, from the first on.
    """
    shown = [*heads]
    for head in in_need:
        if width - sum(heads[each] + _GAP for each in shown) < _MIN_NAME_WIDTH:
            shown.remove(head)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim", expand=True)
    table.add_column(first, ratio=1, no_wrap=True)
    for head in shown:
        is_number = head.startswith(">")
        table.add_column(
            head.removeprefix(">"), justify="right" if is_number else "left", no_wrap=True, min_width=heads[head]
        )
    return table, shown


class _Name:
    """A name in one line; where it is too long its middle is left out, since names differ at their ends."""

    def __init__(self, name: str) -> None:
        self._text = Text(printable(name), no_wrap=True, overflow="ellipsis")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """See `rich`."""
        text, room = self._text, options.max_width
        if text.cell_len <= room:
            yield text
            return
        tail = set_cell_size(text.plain[::-1], (room - 1) // 2)[::-1]
        head = set_cell_size(text.plain, room - 1 - cell_len(tail))
        yield Text(f"{head}\u2026{tail}", no_wrap=True, overflow="crop")
