"""Line charts as SVG: a page with them needs no library and no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 900, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 30, 26
_COLOURS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea")


@dataclass(frozen=True, slots=True)
class Line:
    """Is one line of a chart; where a value is nan it has a gap."""

    name: str
    values: Sequence[float]


def chart(title: str, unit: str, times_s: Sequence[float], lines: Sequence[Line]) -> str:
    """Draw lines over time (seconds, rising)."""
    top = _round_up(max((v for line in lines for v in line.values if math.isfinite(v)), default=1.0))
    span = max(times_s[-1] if times_s else 0.0, 1e-9)

    def x(at: float) -> float:
        return _LEFT + at / span * (WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return HEIGHT - _BOTTOM - value / top * (HEIGHT - _TOP - _BOTTOM)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    parts.append(f'<text x="{_LEFT}" y="18" class="title">{escape(title)}, {escape(unit)}</text>')
    for share in (0.0, 0.5, 1.0):
        height = y(share * top)
        parts.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{height:.1f}" y2="{height:.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{height + 4:.1f}" class="end">{share * top:.4g}</text>')
    parts += [
        f'<text x="{x(share * span):.1f}" y="{HEIGHT - 8}" class="mid">{_clock(share * span)}</text>'
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    legend = float(WIDTH - _RIGHT)
    for line, colour in reversed(list(zip(lines, _COLOURS, strict=False))):
        parts.append(f'<text x="{legend:.0f}" y="18" class="end" style="fill:{colour}">{escape(line.name)}</text>')
        legend -= 7.5 * len(line.name) + 14
        parts += [
            f'<polyline points="{points}" style="stroke:{colour}"/>'
            for points in _pieces([(x(at), y(value)) for at, value in zip(times_s, line.values, strict=True)])
        ]
    return "".join([*parts, "</svg>"])


def _pieces(points: Sequence[tuple[float, float]]) -> list[str]:
    pieces: list[list[str]] = [[]]
    for across, height in points:
        if math.isfinite(height):
            pieces[-1].append(f"{across:.1f},{height:.1f}")
        elif pieces[-1]:
            pieces.append([])
    # A line of one point would not be seen.
    return [" ".join(piece * 2 if len(piece) == 1 else piece) for piece in pieces if piece]


def _round_up(value: float) -> float:
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * (1 - 1e-9))


def _clock(seconds: float) -> str:
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
