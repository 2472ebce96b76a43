"""Short forms of numbers and times. Pure."""

from __future__ import annotations

from penstock.client import ClassSlo, OperatingPoint

NOTHING = "-"


def number(value: float | None) -> str:
    """Return a number in at most six characters or so; a dash for one that is not known."""
    if value is None:
        return NOTHING
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.2f}{unit}"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds, without the unit; a dash for 0, which stands for a time that is not known."""
    value = seconds * 1e3
    if value <= 0:
        return NOTHING
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def span_of(seconds: float | None) -> str:
    """Return a length of time in its two largest units; a dash for one that is not known."""
    if seconds is None:
        return NOTHING
    if seconds < 10:
        return f"{seconds:.1f}s"
    left = round(seconds)
    if left < 60:
        return f"{left}s"
    if left < 3600:
        return f"{left // 60}m{left % 60:02}s"
    if left < 86_400:
        return f"{left // 3600}h{left % 3600 // 60:02}m"
    return f"{left // 86_400}d{left % 86_400 // 3600:02}h"


def percent(part: float | None, digits: int = 0) -> str:
    """Return a part of 1 as per cent. Only the whole is 100 %."""
    if part is None:
        return NOTHING
    text = f"{100 * part:.{digits}f}"
    return "99.9 %" if part < 1 and float(text) == 100 else f"{text} %"


def slo_words(slo: ClassSlo) -> str:
    """Return the SLO of a class in a few words; empty for none."""
    words = []
    if slo.ttft_p99_s is not None:
        words.append(f"first token {slo.ttft_p99_s:g} s")
    if slo.itl_p95_s is not None:
        words.append(f"ITL {slo.itl_p95_s * 1e3:g} ms")
    return ", ".join(words)


def price_words(point: OperatingPoint) -> str:
    """Return price and budget in a few words; empty for none."""
    words = []
    if point.price_per_gpu_hour:
        words.append(f"{point.price_per_gpu_hour:g} per GPU hour")
    if point.budget_per_hour is not None:
        words.append(f"at most {point.budget_per_hour:g} per hour")
    return ", ".join(words)
