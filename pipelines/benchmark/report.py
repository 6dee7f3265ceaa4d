"""The tables as text."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from pipelines.benchmark.results import MAX_RESIDUE, ModeResult, Saving
from pipelines.benchmark.traffic import Bandwidth, Traffic
from pipelines.config import Schedule

_NOT_MEASURED = "-"
_Cell = Callable[[ModeResult], str]


def mode_table(results: Mapping[Schedule, ModeResult]) -> list[str]:
    """Return a line a figure, a column a mode."""
    rows: list[tuple[str, _Cell]] = [
        ("seconds", lambda result: f"{result.run.seconds:,.2f}"),
        ("generated tokens/s", lambda result: f"{result.tokens_per_s:,.1f}"),
        ("steps", lambda result: f"{len(result.run.steps):,}"),
        ("ms a step", lambda result: f"{result.ms_per_step:,.3f}"),
        ("stream-busy", lambda result: percent(result.busy_share)),
        ("unproven", lambda result: percent(result.share(result.run.device.unproven_s))),
        ("idle: host", lambda result: percent(result.share(result.run.device.host_s))),
        ("idle: h2d", lambda result: percent(result.share(result.run.device.h2d_s))),
        ("idle: empty", lambda result: percent(result.share(result.run.device.empty_s))),
        ("residue", lambda result: f"{100 * result.share(result.run.residue_s):z.4f} %"),
        ("decode steps", _of_roofline(lambda line: f"{line.num_steps:,}")),
        ("device ms a decode step", _of_roofline(lambda line: f"{1e3 * line.device_s / line.num_steps:,.3f}")),
        ("its bytes alone, ms", _of_roofline(lambda line: f"{1e3 * line.floor_s / line.num_steps:,.3f}")),
        ("roofline ratio", _of_roofline(lambda line: f"{line.ratio:.3f}")),
    ]
    if any(result.run.num_preemptions for result in results.values()):
        rows.append(("preemptions", lambda result: f"{result.run.num_preemptions:,}"))
    cells = [[name, *(cell(result) for result in results.values())] for name, cell in rows]
    repeats = [
        f"seconds of all runs, {schedule}: {', '.join(f'{seconds:,.2f}' for seconds in result.all_seconds)}"
        for schedule, result in results.items()
        if len(result.all_seconds) > 1
    ]
    return [*aligned([["", *results], *cells]), *repeats]


def saving_lines(saving: Saving) -> list[str]:
    """Return what the asynchronous mode brings, in sentences."""
    host = saving.saved_host_share
    of_host = "" if host is None else f"; {percent(host)} of the time that sync's device waited for the host"
    return [
        f"async over sync: {saving.speedup:.3f}x, saves {saving.saved_s:,.2f} s ({percent(saving.saved_share)}){of_host}",
        f"same tokens: {'yes' if saving.has_same_tokens else 'no'}",
    ]


def roofline_lines(traffic: Traffic, bandwidth: Bandwidth) -> list[str]:
    """Say what the roofline ratio is against."""
    kv = f"{traffic.kv_bytes:,} bytes of KV a token of context"
    if traffic.window is not None:
        kv += f" and {traffic.windowed_kv_bytes:,} a token within its window of {traffic.window:,}"
    return [
        f"roofline: {traffic.weight_bytes / 1e6:,.1f} MB of weights a step and {kv}, over",
        f"  {bandwidth.bytes_per_s / 1e9:,.1f} GB/s, the fastest way of reading this machine's memory ({bandwidth.how}),",
        "  over the time of the decode steps on the device",
    ]


def unexplained_lines(results: Mapping[str, ModeResult]) -> list[str]:
    """Return a complaint for each mode whose account does not add up."""
    return [
        f"{name}: busy, unproven and idle miss the time by {100 * result.share(result.run.residue_s):.3f} %, expected at "
        f"most {100 * MAX_RESIDUE:g} %"
        for name, result in results.items()
        if not result.is_explained
    ]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of columns, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_line(row, widths) for row in rows]


def percent(share: float) -> str:
    """Return a share for people."""
    return f"{100 * share:.2f} %"


def _line(row: Iterable[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell.rjust(width) if index else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "   ".join((first, *others)).rstrip()


def _of_roofline(cell: Callable[..., str]) -> _Cell:
    return lambda result: _NOT_MEASURED if result.roofline is None else cell(result.roofline)
