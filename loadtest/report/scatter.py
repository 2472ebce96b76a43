"""A chart of points: how latency grows with throughput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 900, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 30, 40
_COLOURS = ("#2563eb", "#ea580c", "#16a34a", "#dc2626")


@dataclass(frozen=True, slots=True)
class Points:
    """Is one series."""

    name: str
    points: Sequence[tuple[float, float]]
    joined: bool = False
    """Draw a line through them, in the order of x."""


def scatter(title: str, across: str, up: str, series: Sequence[Points]) -> str:
    """Draw points; both axes begin at 0."""
    everything = [point for each in series for point in each.points]
    widest = max((x for x, _ in everything), default=1.0) * 1.05 or 1.0
    highest = max((y for _, y in everything), default=1.0) * 1.05 or 1.0

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x = _LEFT + point[0] / widest * (_WIDTH - _LEFT - _RIGHT)
        return x, _HEIGHT - _BOTTOM - point[1] / highest * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text x="{_LEFT}" y="18" class="title">{escape(title)}: {escape(up)}</text>',
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 6}" class="end">{escape(across)}</text>',
    ]
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = place((part * widest, part * highest))
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="end">{part * highest:.3g}</text>')
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 24}" class="mid">{part * widest:.3g}</text>')
    legend = float(_WIDTH - _RIGHT)
    for each, colour in reversed(list(zip(series, _COLOURS, strict=False))):
        parts.append(f'<text x="{legend:.0f}" y="18" class="end" style="fill:{colour}">{escape(each.name)}</text>')
        legend -= 7.5 * len(each.name) + 14
        placed = [place(point) for point in sorted(each.points)]
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" style="fill:{colour}"/>' for x, y in placed]
        if each.joined:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
            parts.append(f'<polyline points="{line}" style="stroke:{colour}"/>')
    return "".join([*parts, "</svg>"])
