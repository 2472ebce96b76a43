"""Charts as SVG: lines over time, points, and points with ranges and their Pareto frontier."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

_WIDTH, _LEFT, _RIGHT, _TOP = 900, 64, 12, 30
_QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
_BLUE, _GREEN = "#2563eb", "#16a34a"
_COLOURS = (_BLUE, "#ea580c", _GREEN, "#9333ea")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart over time. It has a gap where a value is nan."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Points:
    """One series of a scatter chart."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Mark:
    """A named point with a range in y. Less is better on both axes."""

    name: str
    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class _Chart:
    """A chart in the making. Both axes begin at 0."""

    height: int
    bottom: int
    """Height of the room below the x axis."""
    across: float
    """Value at the right end."""
    top: float
    """Value at the upper end."""
    parts: list[str] = field(default_factory=list)

    def x(self, value: float) -> float:
        return _LEFT + value / self.across * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return self.height - self.bottom - value / self.top * (self.height - _TOP - self.bottom)

    def begin(self, name: str, title: str) -> None:
        self.parts.append(f'<svg viewBox="0 0 {_WIDTH} {self.height}" role="img" aria-label="{escape(name)}">')
        self.text(_LEFT, 18, title, "title")

    def text(self, x: float, y: float, text: str, kind: str = "", colour: str = "") -> None:
        named = f' class="{kind}"' if kind else ""
        style = f' style="fill:{colour}"' if colour else ""
        self.parts.append(f'<text x="{x:.4g}" y="{y:.4g}"{named}{style}>{escape(text)}</text>')

    def grid(self, shares: Iterable[float]) -> None:
        """Draw horizontal lines at these parts of the height, with their values."""
        for share in shares:
            at = self.y(share * self.top)
            self.parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>')
            self.text(_LEFT - 6, at + 4, _label(share * self.top), "end")

    def legend(self, names: Sequence[str]) -> None:
        """Name the series at the upper right, the first one leftmost."""
        at = float(_WIDTH - _RIGHT)
        for name, colour in reversed(list(zip(names, _COLOURS, strict=False))):
            self.text(at, 18, name, "end", colour)
            at -= 7.5 * len(name) + 14

    def line(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        placed = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{placed}" style="stroke:{colour}"/>')

    def dot(self, x: float, y: float, radius: int, colour: str) -> None:
        self.parts.append(f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{radius}" style="fill:{colour}"/>')

    def end(self) -> str:
        return "".join([*self.parts, "</svg>"])


def line_chart(title: str, unit: str, times_s: Sequence[float], lines: Sequence[Line]) -> str:
    """Draw lines over time (seconds, rising)."""
    highest = max((v for line in lines for v in line.values if math.isfinite(v)), default=1.0)
    chart = _Chart(190, 26, max(times_s[-1] if times_s else 0.0, 1e-9), _round_up(highest))
    chart.begin(title, f"{title}, {unit}")
    chart.grid((0.0, 0.5, 1.0))
    for share in _QUARTERS:
        chart.text(chart.x(share * chart.across), chart.height - 8, _clock(share * chart.across), "mid")
    chart.legend([line.name for line in lines])
    # The first one is drawn last, so that it lies on top.
    for line, colour in reversed(list(zip(lines, _COLOURS, strict=False))):
        for piece in _pieces(times_s, line.values):
            chart.line(piece, colour)
    return chart.end()


def scatter(title: str, across: str, up: str, series: Sequence[Points]) -> str:
    """Draw points. `across` and `up` name the axes."""
    everything = [point for each in series for point in each.points]
    chart = _plane(260, title, across, up, [x for x, _ in everything], [y for _, y in everything])
    chart.legend([each.name for each in series])
    for each, colour in reversed(list(zip(series, _COLOURS, strict=False))):
        for x, y in each.points:
            chart.dot(x, y, 3, colour)
    return chart.end()


def frontier_chart(title: str, across: str, up: str, marks: Sequence[Mark]) -> str:
    """Draw marks with their ranges, and the Pareto frontier through them. `across` and `up` name the axes."""
    chart = _plane(340, title, across, up, [mark.x for mark in marks], [mark.high for mark in marks])
    chart.line([(mark.x, mark.y) for mark in frontier(marks)], _GREEN)
    for mark in marks:
        chart.line([(mark.x, mark.low), (mark.x, mark.high)], _BLUE)
        chart.dot(mark.x, mark.y, 4, _BLUE)
        at, left = chart.x(mark.x), chart.x(mark.x) > 0.7 * _WIDTH
        chart.text(at - 8 if left else at + 8, chart.y(mark.y) - 6, mark.name, "end" if left else "")
    return chart.end()


def frontier(marks: Sequence[Mark]) -> list[Mark]:
    """Return the marks that no other beats in both directions, from left to right."""
    best: list[Mark] = []
    for mark in sorted(marks, key=lambda each: (each.x, each.y)):
        if not best or mark.y < best[-1].y:
            best.append(mark)
    return best


def _plane(height: int, title: str, across: str, up: str, xs: Sequence[float], ys: Sequence[float]) -> _Chart:
    """Begin a chart of points, with a little room beyond the largest."""
    chart = _Chart(height, 40, 1.05 * max(xs, default=1.0) or 1.0, 1.05 * max(ys, default=1.0) or 1.0)
    chart.begin(title, f"{title}: {up}")
    chart.text(_WIDTH - _RIGHT, height - 6, across, "end")
    chart.grid(_QUARTERS)
    for share in _QUARTERS:
        chart.text(chart.x(share * chart.across), height - 24, _label(share * chart.across), "mid")
    return chart


def _pieces(times_s: Sequence[float], values: Sequence[float]) -> list[list[tuple[float, float]]]:
    """Split a line at its gaps."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for at, value in zip(times_s, values, strict=True):
        if math.isfinite(value):
            pieces[-1].append((at, value))
        elif pieces[-1]:
            pieces.append([])
    # A line of one point would not be visible.
    return [piece * 2 if len(piece) == 1 else piece for piece in pieces if piece]


def _round_up(value: float) -> float:
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * (1 - 1e-9))


def _label(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _clock(seconds: float) -> str:
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
