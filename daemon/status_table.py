"""What the daemon says of itself as tables for a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from daemon.durable import printable
from daemon.report_table import duration
from daemon.status import why_stale

_GAP = "  "


def render_status(status: Mapping[str, Any]) -> str:
    """Return the tables of what `/status` gives; each line ends in a newline."""
    state = "stopping, up" if status["is_draining"] else "up"
    lines = [f"{state} for {duration(status['uptime_s'])}"]
    if stale := why_stale(status["age_s"]):
        lines.append(f"the daemon hangs: {stale}; what follows is how it was then")
    if checking := status["config"]["checking"]:
        lines.append(printable(f"the configuration was changed: {checking}"))
    if error := status["config"]["error"]:
        lines += [printable(f"the last change of the configuration was refused: {line}") for line in error.splitlines()]
    lines += [""]
    lines += table(("ENGINE", "STATE", "RUNNING", "WAITING", "RESTARTS", ""), map(_engine_row, status["engines"]))
    lines += ["", *table(("PIPELINE", "ENGINE", "IN INBOX", "BEING RUN", ""), map(_pipeline_row, status["pipelines"]))]
    files = [_file_row(pipeline["name"], file) for pipeline in status["pipelines"] for file in pipeline["files"]]
    if files:
        lines += ["", *table(("FILE", "STATE", "DONE", "OF", "", "IN ERRORS"), files)]
    left = [f"{pipeline['name']}: {text}" for pipeline in status["pipelines"] for text in pipeline["left_files"]]
    if left:
        lines += ["", *map(printable, left)]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def table(heads: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table; columns of numbers stand to the right."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    is_number = [bool(cells) and all(_is_number(cell) for cell in column) for column in zip(*cells, strict=True)]
    is_number = is_number or [False] * len(heads)
    return [
        _GAP.join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, is_number, strict=True)
        )
        for row in (heads, *cells)
    ]


def _is_number(cell: str) -> bool:
    return not cell.strip("0123456789,.%?")


def _engine_row(engine: Mapping[str, Any]) -> Sequence[str]:
    numbers = [f"{engine[key]:,}" for key in ("num_running", "num_waiting", "num_restarts")]
    return engine["name"], engine["state"], *numbers, engine["detail"]


def _pipeline_row(pipeline: Mapping[str, Any]) -> Sequence[str]:
    because = pipeline["paused_because"]
    paused = "" if because is None else f"paused: {because.removeprefix('paused ')}"
    waiting, running = f"{pipeline['num_waiting_files']:,}", f"{len(pipeline['files']):,}"
    return pipeline["name"], pipeline["engine"], waiting, running, paused


def _file_row(pipeline: str, file: Mapping[str, Any]) -> Sequence[str]:
    done, total = file["num_done"] + file["num_failed"], file["num_total"]
    share = f"{100 * done / total:.0f}%" if total else ""
    name = f"{pipeline}/{file['name']}"
    return name, file["state"], f"{done:,}", "?" if total is None else f"{total:,}", share, f"{file['num_failed']:,}"
