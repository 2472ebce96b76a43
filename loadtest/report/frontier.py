"""Points with ranges as SVG, and the line of those that no other beats in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 900, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 34, 44


@dataclass(frozen=True, slots=True)
class Mark:
    """Is a point; less is better on both axes."""

    name: str
    x: float
    y: float
    low: float
    high: float


def frontier(marks: Sequence[Mark]) -> list[Mark]:
    """Return the Pareto frontier, from left to right."""
    best: list[Mark] = []
    for mark in sorted(marks, key=lambda each: (each.x, each.y)):
        if not best or mark.y < best[-1].y:
            best.append(mark)
    return best


def scatter(title: str, across: str, up: str, marks: Sequence[Mark]) -> str:
    """Draw marks; axes begin at 0."""
    right, top = 1.1 * max(mark.x for mark in marks) or 1.0, 1.1 * max(mark.high for mark in marks) or 1.0

    def x(value: float) -> float:
        return _LEFT + value / right * (WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return HEIGHT - _BOTTOM - value / top * (HEIGHT - _TOP - _BOTTOM)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    parts.append(f'<text x="{_LEFT}" y="18" class="title">{escape(title)}: {escape(up)} over {escape(across)}</text>')
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        height, place = y(share * top), x(share * right)
        parts.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{height:.1f}" y2="{height:.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{height + 4:.1f}" class="end">{share * top:.4g}</text>')
        parts.append(f'<text x="{place:.1f}" y="{HEIGHT - 22}" class="mid">{share * right:.4g}</text>')
    parts.append(f'<text x="{WIDTH / 2:.0f}" y="{HEIGHT - 4}" class="mid">{escape(across)}</text>')
    line = " ".join(f"{x(mark.x):.1f},{y(mark.y):.1f}" for mark in frontier(marks))
    parts.append(f'<polyline points="{line}" style="stroke:#16a34a"/>')
    for mark in marks:
        at = x(mark.x)
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y(mark.low):.1f}" y2="{y(mark.high):.1f}" stroke="#2563eb"/>'
        )
        parts.append(f'<circle cx="{at:.1f}" cy="{y(mark.y):.1f}" r="4" fill="#2563eb"/>')
        end = at > 0.7 * WIDTH
        shift, kind = (-8, ' class="end"') if end else (8, "")
        parts.append(f'<text x="{at + shift:.1f}" y="{y(mark.y) - 6:.1f}"{kind}>{escape(mark.name)}</text>')
    return "".join([*parts, "</svg>"])
