"""The course of a run as a picture, for places where a page can't go."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cluster.errors import SettingsError
from loadtest.simulate.pool.outcome import SimulatedRun
from loadtest.simulate.results.timeline import timeline_of
from loadtest.simulate.setup import Setup

_WIDTH_IN, _PANEL_IN, _DPI = 10.0, 1.8, 120


def write_png(path: Path, run: SimulatedRun, setup: Setup, title: str) -> None:
    """Draw the panels of the timeline below each other.

    Raises:
        OSError: the file cannot be written.
        SettingsError: the run took no time.
    """
    timeline = timeline_of(run, setup)
    if timeline is None:
        raise SettingsError(f"png must be of a run that lasts longer than 0 s, got {run.seconds:g} s")
    # Not pyplot, which keeps every figure and needs a display.
    figure = Figure(figsize=(_WIDTH_IN, _PANEL_IN * len(timeline.panels)), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    # A title with dollars is no formula.
    figure.suptitle(title, parse_math=False)
    all_axes = figure.subplots(len(timeline.panels), 1, sharex=True, squeeze=False)[:, 0]
    minutes = [each / 60 for each in timeline.times_s]
    for axes, panel in zip(all_axes, timeline.panels, strict=True):
        for line in panel.lines:
            axes.plot(minutes, line.values, label=line.name, linewidth=1)
        axes.set_ylim(bottom=0)
        axes.set_title(f"{panel.title}, {panel.unit}", loc="left", fontsize="small")
        axes.grid(alpha=0.3)
        if len(panel.lines) > 1:
            axes.legend(loc="upper right", fontsize="x-small", ncols=len(panel.lines))
    all_axes[-1].set_xlabel("minutes")
    figure.savefig(path, format="png")
