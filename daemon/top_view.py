"""What `gapless top` draws of one status: engines with their band, files with their progress, what ended last."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from daemon.durable import printable
from daemon.report_table import duration
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
_BAND_WIDTH = 60
_MAX_ENDED = 5


def render_top(status: Mapping[str, Any]) -> RenderableType:
    """Return a picture of what `/status` gives. Names are set as text only: no markup is made of them."""
    parts: list[RenderableType] = [_head(status)]
    parts += [_engine(engine, status["slice_s"]) for engine in status["engines"]]
    parts += [Text(text, style="yellow") for text in _notes(status)]
    files = [(pipeline["name"], file) for pipeline in status["pipelines"] for file in pipeline["files"]]
    if files:
        parts.append(_files(files))
    ended = [(pipeline["name"], file) for pipeline in status["pipelines"] for file in pipeline["ended"]]
    if ended:
        parts.append(_ended(sorted(ended, key=lambda entry: -entry[1]["ended_s"])[:_MAX_ENDED]))
    return Group(*parts)


def _head(status: Mapping[str, Any]) -> Text:
    waiting = sum(pipeline["num_waiting_files"] for pipeline in status["pipelines"])
    running = sum(len(pipeline["files"]) for pipeline in status["pipelines"])
    state = "stopping, up for" if status["is_draining"] else "up for"
    return Text(f"gapless {state} {duration(status['uptime_s'])}; files: {waiting:,} in inboxes, {running:,} being run")


def _notes(status: Mapping[str, Any]) -> Iterator[str]:
    for pipeline in status["pipelines"]:
        if pipeline["paused_because"] is not None:
            yield printable(f"pipeline {pipeline['name']} takes no files: {pipeline['paused_because']}")
    if status["config"]["checking"]:
        yield printable(f"the configuration was changed: {status['config']['checking']}")
    if status["config"]["error"] is not None:
        yield printable(f"the last change of the configuration was refused: {status['config']['error']}")


def _engine(engine: Mapping[str, Any], slice_s: float) -> Panel:
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
    lines: list[RenderableType] = [_band(engine["band"]), _legend(engine["band"], slice_s), figures]
    if engine["state"] != "ready" or engine["progress_age_s"] > engine["stall_s"]:
        lines.append(Text(printable(engine["detail"]), style="yellow"))
    return Panel(Group(*lines), title=title, title_align="left", expand=True)


def _band(band: Sequence[Mapping[str, Any]]) -> Text:
    """Draw the last minutes, now at the right: the height is busy, the ground is what idled most."""
    step = _BAND_SLICES // _BAND_WIDTH
    parts = [band[max(0, end - step) : end] for end in range(len(band), 0, -step)][::-1]
    text = Text(" " * (_BAND_WIDTH - len(parts)))
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
            text.append(f"\u25a0 {name} {share / len(band):.1%}  ", style=color)
    return text


def _files(files: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    table = _table("file", "state", "", ">done", ">of", ">errors", ">tokens/s", ">left")
    for pipeline, file in files:
        done, total = file["num_done"] + file["num_failed"], file["num_total"]
        table.add_row(
            Text(printable(f"{pipeline}/{file['name']}")), file["state"],
            ProgressBar(total=total or 1, completed=done, width=20), f"{done:,}", "?" if total is None else f"{total:,}",
            f"{file['num_failed']:,}", f"{file['tokens_per_s']:,.1f}",
            "-" if file["left_s"] is None else duration(file["left_s"]),
        )  # fmt: skip
    return table


def _ended(files: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    table = _table("ended", "outcome", ">requests", ">errors", ">took")
    for pipeline, file in files:
        is_good = file["status"] == "completed" and not file["num_failed"]
        table.add_row(
            Text(printable(f"{pipeline}/{file['name']}")), Text(file["status"], style="green" if is_good else "yellow"),
            f"{file['num_done'] + file['num_failed']:,}", f"{file['num_failed']:,}", duration(file["taken_s"]),
        )  # fmt: skip
    return table


def _table(*heads: str) -> Table:
    """Make an empty table; a head that begins with `>` stands over numbers."""
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    for place, head in enumerate(heads):
        is_number = head.startswith(">")
        table.add_column(
            head.removeprefix(">"), justify="right" if is_number else "left", no_wrap=place > 0, overflow="fold",
            ratio=1 if place == 0 else None,
        )  # fmt: skip
    return table
