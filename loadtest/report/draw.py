"""Pictures of charts: SVG whose colours are those of the page around it, and PNG. matplotlib draws them."""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, MultipleLocator, NullFormatter

from loadtest.report.charts import AnyChart, Chart, RangeChart, Rule, Series

_WIDTH, _PLOT, _ROW = 420.0, 160.0, 42.0
"""Width of a chart in points, on a page about as many pixels; heights of its plot, and of a range's row."""
_POINTS = 72.0
_DPI = 120
_FEW = 40
"""Number of values up to which each gets a dot."""
_FAR = 4.0
"""A bound that is so many times the largest value is named, not drawn: it would flatten the lines."""
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)
_DASHES: Sequence[tuple[str, Any]] = (("", "-"), ("", "-"), ("4 2", (0, (3, 1.5))), ("2 2", (0, (1, 1.5))))
_RULE = ("6 3", (0, (6, 3)))
_NAMES = ("ink", "soft", "line", "s1", "s2", "s3", "s4", "good", "bad")
_ON_PAGE: Mapping[str, str] = {name: f"#0{at}0{at}0{at}" for at, name in enumerate(_NAMES, start=1)}
"""Stand-ins for the page's colours. No real colour is one of them, so each can be replaced by its variable."""
_ON_PAPER: Mapping[str, str] = {
    "ink": "#1f2328", "soft": "#57606a", "line": "#d1d9e0", "s1": "#0969da", "s2": "#bc4c00", "s3": "#6639ba",
    "s4": "#0f7a6c", "good": "#1a7f37", "bad": "#cf222e",
}  # fmt: skip


def svg_of(chart: AnyChart) -> Any:
    """Return a chart as SVG, for a place within a page. Its colours are the page's variables."""
    from markupsafe import Markup

    named = isinstance(chart, Chart) and bool(chart.x_name)
    under, over = 42.0 if named else 26.0, 8.0
    height = under + over + (_PLOT if isinstance(chart, Chart) else _ROW * len(chart.rows))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "penstock", "font.size": 11.5, "path.simplify": True}):
        figure = Figure(figsize=(_WIDTH / _POINTS, height / _POINTS))
        FigureCanvasSVG(figure)
        left = 50.0 if isinstance(chart, Chart) else 10.0
        box = (left / _WIDTH, under / height, (_WIDTH - left - 14) / _WIDTH, (height - under - over) / height)
        axes = figure.add_axes(box)
        _plot(axes, chart, _ON_PAGE)
        out = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    return Markup(_for_page(out.getvalue(), f"{chart.title}, {chart.unit}"))  # noqa: S704  # matplotlib escapes text


def keys_of(chart: AnyChart) -> list[tuple[str, str, str | None]]:
    """Return the legend of a chart: name, CSS colour and dashes of each line, None for dots. A single series needs
    none.
    """
    keys: list[tuple[str, str, str | None]] = []
    if isinstance(chart, Chart):
        shown = [each for each in chart.series if not each.empty]
        if len(shown) > 1:
            for each, colour, (dash, _) in _styled(shown):
                keys.append((each.name, f"var(--{colour})", None if each.kind == "points" else dash))
    largest = _largest(chart)
    for rule in chart.rules:
        above = "" if _drawn(rule, largest, chart) else ", beyond the chart"
        keys.append((f"{rule.name}{above}", "var(--ink)", _RULE[0]))
    return keys


def write_png(path: Path, charts: Sequence[Chart], title: str) -> None:
    """Draw charts with a common x axis below each other.

    Raises:
        OSError: the file cannot be written.
    """
    # Not pyplot, which keeps every figure and needs a display.
    figure = Figure(figsize=(10.0, 1.8 * len(charts)), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    # A title with dollars is no formula.
    figure.suptitle(title, parse_math=False)
    all_axes = figure.subplots(len(charts), 1, sharex=True, squeeze=False)[:, 0]
    for axes, chart in zip(all_axes, charts, strict=True):
        _plot(axes, chart, _ON_PAPER)
        axes.set_title(f"{chart.title}, {chart.unit}", loc="left", fontsize="small", parse_math=False)
        if len(chart.series) + len(chart.rules) > 1:
            axes.legend(loc="upper right", fontsize="x-small", ncols=len(chart.series) + 1)
    figure.savefig(path, format="png")


def _plot(axes: Axes, chart: AnyChart, colours: Mapping[str, str]) -> None:
    _frame(axes, colours)
    if isinstance(chart, Chart):
        _plot_series(axes, chart, colours)
    else:
        _plot_ranges(axes, chart, colours)
    largest = _largest(chart)
    for rule in chart.rules:
        if _drawn(rule, largest, chart):
            line = axes.axvline if rule.across or isinstance(chart, RangeChart) else axes.axhline
            line(rule.value, color=colours["ink"], linewidth=1.4, linestyle=_RULE[1], label=rule.name)


def _frame(axes: Axes, colours: Mapping[str, str]) -> None:
    axes.grid(color=colours["line"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=colours["soft"], length=0, pad=6)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(colours["soft"])


def _plot_series(axes: Axes, chart: Chart, colours: Mapping[str, str]) -> None:
    shown = [each for each in chart.series if not each.empty]
    for each, colour, (_, dashes) in _styled(shown):
        paint, few = colours[colour], len(each.x) <= _FEW
        if each.kind == "points":
            axes.plot(each.x, each.y, "o", color=paint, markersize=5.5, label=each.name, clip_on=False)
            continue
        style = "steps-post" if each.kind == "steps" else "default"
        marker = "o" if few and each.kind == "line" else ""
        axes.plot(each.x, each.y, color=paint, linewidth=1.8, linestyle=dashes, drawstyle=style, marker=marker,
                  markersize=3, label=each.name)  # fmt: skip
        if not few and (lone := each.lone()):
            axes.plot([each.x[at] for at in lone], [each.y[at] for at in lone], "o", color=paint, markersize=3)
    _scale_x(axes, chart)
    low, high = _span(chart)
    axes.set_ylim(low, high)
    whole = all(value == round(value) for each in shown for value in each.y if math.isfinite(value))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10], integer=whole))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    if chart.x_name:
        axes.text(1.0, -25 / _PLOT, chart.x_name, transform=axes.transAxes, ha="right", va="top", color=colours["soft"],
                  parse_math=False)  # fmt: skip


def _scale_x(axes: Axes, chart: Chart) -> None:
    known = [x for each in chart.series for x in each.x]
    if chart.x_axis == "clock":
        first, last = min(known), max(known)
        step = next((each for each in _STEPS_S if (last - first) / each <= 6), _STEPS_S[-1])
        axes.set_xlim(min(0.0, first), max(last, first + 1))
        axes.xaxis.set_major_locator(MultipleLocator(step))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: clock(value)))
    elif chart.x_axis == "log":
        axes.set_xscale("log")
        decades = math.log10(max(known) / min(known))
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2.2 else (1.0,), numticks=9))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        if min(known) >= 0:
            axes.set_xlim(left=0 if min(known) < 0.5 * max(known) else None)


_WIDE_RANGE = 50.0
"""Largest over smallest value from which ranges are drawn on a logarithmic axis."""


def _plot_ranges(axes: Axes, chart: RangeChart, colours: Mapping[str, str]) -> None:
    for at, row in enumerate(chart.rows):
        axes.plot([row.low, row.high], [at, at], color=colours["s1"], linewidth=5, solid_capstyle="round", alpha=0.45)
        axes.plot([row.middle], [at], "o", color=colours["s1"], markersize=7)
        axes.text(0.0, at - 0.28, row.name, transform=axes.get_yaxis_transform(), color=colours["ink"], ha="left",
                  va="bottom", parse_math=False)  # fmt: skip
    low, high = min(row.low for row in chart.rows), _largest(chart)
    high = max([high, *(rule.value for rule in chart.rules if _drawn(rule, high, chart))])
    if 0 < low < high / _WIDE_RANGE:
        # On a line one long range would leave the others no room.
        axes.set_xscale("log")
        axes.set_xlim(low / 1.3, high * 1.3)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,), numticks=9))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        room = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
        axes.set_xlim(max(0.0, low - room) if low >= 0 else low - room, high + room)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.set_ylim(len(chart.rows) - 0.5, -0.75)
    axes.yaxis.set_visible(False)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _styled(shown: Sequence[Series]) -> Iterable[tuple[Series, str, tuple[str, Any]]]:
    """Give each series a colour. Later ones are dashed, so that one that they cover shows through."""
    for at, each in enumerate(shown):
        colour = f"s{at % 4 + 1}" if each.colour == "auto" else each.colour
        yield each, colour, _DASHES[at % 4]


def _span(chart: Chart) -> tuple[float, float]:
    """Return the ends of the y axis."""
    known = [value for each in chart.series for value in each.y if math.isfinite(value)]
    high = _largest(chart)
    high = max([high, *(rule.value for rule in chart.rules if not rule.across and _drawn(rule, high, chart))])
    low = min(0.0, min(known)) if chart.from_zero else min(known)
    room = 0.07 * (high - low) or 0.05 * abs(high) or 1.0
    top = high + room if chart.most is None else min(high + room, 1.01 * chart.most)
    return (low if chart.from_zero else low - room), top


def _largest(chart: AnyChart) -> float:
    if isinstance(chart, RangeChart):
        return max((row.high for row in chart.rows), default=0.0)
    return max((value for each in chart.series for value in each.y if math.isfinite(value)), default=0.0)


def _drawn(rule: Rule, largest: float, chart: AnyChart) -> bool:
    if isinstance(chart, Chart) and rule.across:
        reached = max((x for each in chart.series for x in each.x), default=0.0)
        return rule.value <= _FAR * reached
    return rule.value <= _FAR * largest


def clock(seconds: float) -> str:
    """Return a time as minutes and seconds, or with hours."""
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def _for_page(svg: str, name: str) -> str:
    """Fit an SVG file into a page: its colours, ids that no other chart has, and a name for screen readers."""
    text = svg[svg.index("<svg") :]
    head, rest = text.split(">", 1)
    box = re.search(r'viewBox="[^"]+"', head)
    assert box is not None  # noqa: S101  # matplotlib always writes one
    for colour, stand_in in _ON_PAGE.items():
        rest = rest.replace(stand_in, f"var(--{colour})")
    own = hashlib.sha256(f"{name}{rest}".encode()).hexdigest()[:8]
    rest = re.sub(r' id="(?!p|m|h|D)[^"]*"', "", rest)
    rest = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{own}", rest)
    rest = re.sub(
        r"<!--.*?-->\s*|<metadata>.*?</metadata>\s*|\n\s*", lambda m: "\n" if m[0].isspace() else "", rest, flags=re.S
    )
    return f'<svg {box[0]} role="img" aria-label="{escape(name)}">{rest.strip()}'
