"""Charts as data. `draw` makes pictures of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["line", "steps", "points"]
Colour: TypeAlias = Literal["auto", "good", "bad"]
Axis: TypeAlias = Literal["plain", "clock", "log"]
"""Scale of an x axis: numbers, seconds shown as minutes and hours, or a logarithm."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one name."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    """Values. A nan is a gap in a line."""
    kind: Kind = "line"
    colour: Colour = "auto"

    @property
    def empty(self) -> bool:
        """Whether no value is known."""
        return not any(math.isfinite(value) for value in self.y)

    def lone(self) -> list[int]:
        """Return the places of the values that no line reaches, because both neighbours are gaps."""
        known = [math.isfinite(value) for value in self.y]
        last = len(known) - 1
        return [
            at
            for at, here in enumerate(known)
            if here and not (at > 0 and known[at - 1]) and not (at < last and known[at + 1])
        ]


@dataclass(frozen=True, slots=True)
class Rule:
    """Bound that is drawn across a chart."""

    name: str
    value: float
    across: bool = False
    """Whether the bound is one on x, so that its line is upright."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Series over a common x axis."""

    title: str
    unit: str
    """Unit of y."""
    series: Sequence[Series]
    rules: Sequence[Rule] = ()
    x_name: str = ""
    x_axis: Axis = "plain"
    from_zero: bool = True
    """Whether the y axis begins at 0."""
    most: float | None = None
    """Largest possible value of y, such as 100 for a percentage."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return all(each.empty for each in self.series)


@dataclass(frozen=True, slots=True)
class RangeRow:
    """Range of one value, with its middle."""

    name: str
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class RangeChart:
    """Ranges of several things below each other, each in a row of its own. The x axis begins where they do."""

    title: str
    unit: str
    """Unit of x."""
    rows: Sequence[RangeRow]
    rules: Sequence[Rule] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not self.rows


AnyChart: TypeAlias = Chart | RangeChart

Curve: TypeAlias = Sequence[tuple[float, float]]
"""Distribution: seconds, rising, and the part of all values up to each."""
_WIDE = 20.0


def distribution(title: str, curves: Sequence[tuple[str, Curve]], rules: Sequence[Rule] = ()) -> Chart:
    """Return the cumulative distribution of a time.

    Args:
        title: name of the time.
        curves: names and curves. An empty one is left out.
        rules: bounds on the time, in milliseconds.
    """
    series = [
        Series(name, [1e3 * value for value, _ in curve], [100 * part for _, part in curve], "steps")
        for name, curve in curves
        if curve
    ]
    known = [x for each in series for x in each.x]
    wide = bool(known) and min(known) > 0 and max(known) > _WIDE * min(known)
    return Chart(f"Distribution of {title}", "% of all up to", series, rules, "ms", "log" if wide else "plain")
