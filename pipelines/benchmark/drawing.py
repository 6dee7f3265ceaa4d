"""Draws timelines as a PNG: one panel a mode, a row for the host and one for each stream, the gaps of the device marked."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipelines.benchmark.settings import OptionError
from pipelines.benchmark.timeline import Lane, Span, Timeline, Work

_COLOURS = {
    Work.SCHEDULE: "#e9b44c",
    Work.STAGE: "#e07a3f",
    Work.LAUNCH: "#b5432e",
    Work.WAIT: "#eceff1",
    Work.COMMIT: "#7e57a0",
    Work.H2D: "#3a9d8f",
    Work.COMPUTE: "#2f6fb5",
    Work.D2H: "#4c9f50",
}
_OTHER_STEP = "#7fb0de"  # of compute: neighbouring steps are told apart
_GAP = "#d7263d"
_INK = "#26323a"
_LIGHT = frozenset({_OTHER_STEP, _COLOURS[Work.SCHEDULE]})  # dark text on them
_LANES = (Lane.D2H, Lane.COMPUTE, Lane.H2D, Lane.CPU)  # from below
_HEIGHT = 0.62  # of a bar, of a row's 1
_PANEL_INCHES = (10.4, 3.7)  # widths: the steps, the close-up
_ROW_INCHES = 3.0  # height of a mode
_EDGE_INCHES = 1.6  # title and legend
_CHARACTER_INCHES = 0.085  # of a label, with some air
_TICK_INCHES = 0.012  # what is shorter is drawn so wide, or it could not be seen
_SHOWN_SHARE = 5e-5  # of the time: what is less is 0.00 %
_CLOSE_UP = 1.7  # of the longest extent there is to see
_BEFORE = 0.35  # of a close-up lies before the end of its first step
_NOTE = (
    "A copy to the device is drawn from the return of `stage` (as a tick, where it had arrived by then) to its arrival, "
    "a copy back from the end of compute to the return of `read_tokens`."
)


@dataclass(frozen=True, slots=True)
class Panel:
    """One mode."""

    timeline: Timeline
    busy_share: float  # of the measured run, not of this window
    unproven_share: float  # likewise
    ms_per_step: float  # likewise


@dataclass(frozen=True, slots=True)
class _View:
    """A stretch of a timeline on one pair of axes; its milliseconds count from `start_s`."""

    axis: Any
    inches: float
    start_s: float
    length_s: float

    def ms(self, seconds: float) -> float:
        return 1e3 * (seconds - self.start_s)

    def inches_of(self, seconds: float) -> float:
        return self.inches * seconds / self.length_s

    def shows(self, start_s: float, end_s: float) -> bool:
        return end_s > self.start_s and start_s < self.start_s + self.length_s

    def middle_ms(self, start_s: float, end_s: float) -> float:
        """Of what of it can be seen."""
        return self.ms((max(start_s, self.start_s) + min(end_s, self.start_s + self.length_s)) / 2)

    def fits(self, text: str, start_s: float, end_s: float) -> bool:
        visible_s = min(end_s, self.start_s + self.length_s) - max(start_s, self.start_s)
        return len(text) * _CHARACTER_INCHES <= self.inches_of(visible_s)


def check_drawing() -> None:
    """Make sure that a picture can be drawn.

    Raises:
        OptionError: matplotlib is missing.
    """
    if find_spec("matplotlib") is None:
        raise OptionError("--timeline needs matplotlib, which is not installed: pip install 'gapless[bench]'")


def draw(panels: Sequence[Panel], subtitle: str, file: Path) -> None:
    """Write the picture: a row a mode, the steps to the left, the change from one to the next enlarged to the right."""
    from matplotlib.figure import Figure  # noqa: PLC0415  an optional extra

    size = (sum(_PANEL_INCHES) + 1.0, _ROW_INCHES * len(panels) + _EDGE_INCHES)
    figure = Figure(figsize=size, dpi=140, layout="constrained")
    figure.set_facecolor("white")
    axes = figure.subplots(len(panels), 2, sharex="col", squeeze=False, width_ratios=_PANEL_INCHES)
    close_up_s = _CLOSE_UP * max(panel.timeline.close_up().extent_s for panel in panels)
    for (steps, close_up), panel in zip(axes, panels, strict=True):
        _draw_steps(steps, panel)
        _draw_close_up(close_up, panel.timeline, min(close_up_s, panel.timeline.length_s))
    for axis in axes[-1]:
        axis.set_xlabel("milliseconds", color=_INK)
    figure.suptitle(
        "Steady decode steps: where host and device spend their time", color=_INK, fontsize=14, fontweight="bold"
    )
    _draw_legend(figure, subtitle)
    figure.savefig(file)


def _draw_steps(axis: Any, panel: Panel) -> None:
    view = _View(axis, _PANEL_INCHES[0], 0.0, panel.timeline.length_s)
    _draw_view(view, panel.timeline)
    unproven = f" and {100 * panel.unproven_share:.2f} % unproven" if panel.unproven_share >= _SHOWN_SHARE else ""
    busy = f"stream-busy {100 * panel.busy_share:.2f} %{unproven}"
    title = f"{panel.timeline.schedule}: {busy}, {panel.ms_per_step:.2f} ms a step"
    axis.set_title(title, loc="left", fontweight="bold", color=_INK)
    axis.set_yticks(range(len(_LANES)), [lane.value for lane in _LANES], fontweight="bold")


def _draw_close_up(axis: Any, timeline: Timeline, length_s: float) -> None:
    close_up = timeline.close_up()
    view = _View(axis, _PANEL_INCHES[1], close_up.end_s - _BEFORE * length_s, length_s)
    _draw_view(view, timeline)
    gap_ms = 1e3 * (close_up.start_s - close_up.end_s)
    axis.set_title(
        f"step {close_up.steps[0]} to {close_up.steps[1]}, typical: gap {gap_ms:.3f} ms", loc="left", color=_INK
    )
    axis.set_yticks([])


def _draw_view(view: _View, timeline: Timeline) -> None:
    axis = view.axis
    for start_s, end_s in timeline.gaps:
        if view.shows(start_s, end_s):
            axis.axvspan(view.ms(start_s), view.ms(end_s), color=_GAP, alpha=0.10, linewidth=0)
            _draw_label(view, ("idle", ""), (start_s, end_s), Lane.COMPUTE, _GAP)
    for span in timeline.spans:
        if view.shows(span.start_s, span.end_s):
            _draw_span(view, span)
    axis.set_xlim(0, 1e3 * view.length_s)
    axis.set_ylim(-0.55, len(_LANES) - 0.45)
    axis.grid(axis="x", color="#d5dbe0", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(length=0, colors=_INK)
    for side in axis.spines.values():
        side.set_visible(False)


def _draw_span(view: _View, span: Span) -> None:
    is_wait = span.work is Work.WAIT
    colour = _OTHER_STEP if span.work is Work.COMPUTE and span.step % 2 else _COLOURS[span.work]
    seconds = span.end_s - span.start_s
    is_tick = view.inches_of(seconds) < _TICK_INCHES
    view.axis.barh(
        _LANES.index(span.lane),
        1e3 * (view.length_s * _TICK_INCHES / view.inches if is_tick else seconds),
        left=view.ms(span.start_s),
        height=_HEIGHT,
        color=colour,
        edgecolor=colour if is_tick else "#b0bec5" if is_wait else "white",
        linewidth=0.0 if is_tick or span.work is Work.COMPUTE else 0.5,
        hatch="////" if is_wait else None,
    )
    if not is_wait:
        texts = (f"step {span.step}" if span.work is Work.COMPUTE else f"{span.work} {span.step}", f"{span.step}")
        _draw_label(view, texts, (span.start_s, span.end_s), span.lane, _INK if colour in _LIGHT else "white")


def _draw_label(view: _View, texts: Sequence[str], extent_s: tuple[float, float], lane: Lane, ink: str) -> None:
    """Write the first of the texts that fits."""
    text = next((text for text in texts if view.fits(text, *extent_s)), "")
    view.axis.text(
        view.middle_ms(*extent_s),
        _LANES.index(lane),
        text,
        ha="center",
        va="center",
        color=ink,
        fontsize=8.5,
        clip_on=True,
    )


def _draw_legend(figure: Any, subtitle: str) -> None:
    from matplotlib.patches import Patch  # noqa: PLC0415  as above

    patches = [
        Patch(facecolor=colour, edgecolor="#b0bec5", hatch="////" if work is Work.WAIT else None, label=work.value)
        for work, colour in _COLOURS.items()
    ]
    patches.append(Patch(facecolor=_GAP, alpha=0.2, label="the device idles"))
    legend = figure.legend(
        handles=patches,
        loc="outside lower center",
        ncols=len(patches),
        frameon=False,
        fontsize=9,
        title=f"{subtitle}\n{_NOTE}",
        title_fontsize=8,
    )
    legend.get_title().set(color=_INK, multialignment="center")
