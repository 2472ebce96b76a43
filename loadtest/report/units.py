"""Values with their units, for people."""

from __future__ import annotations


def shown_time(seconds: float | None) -> str:
    """Return a time in milliseconds or seconds, with three digits."""
    if seconds is None:
        return "-"
    if seconds >= 10:
        return f"{seconds:,.1f} s"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.0f} ms" if seconds >= 0.1 else f"{1e3 * seconds:.3g} ms"


def shown_bound(seconds: float) -> str:
    """Return a bound on a time as it was given."""
    return f"{seconds:g} s" if seconds >= 1 else f"{1e3 * seconds:g} ms"


def shown_part(value: float | None, digits: int = 2) -> str:
    """Return a part as a percentage. What is not all is never shown as 100 %."""
    if value is None:
        return "-"
    shown = f"{value:.{digits}%}"
    if value < 1 and shown.startswith("100"):
        shown = f"{value:.4%}"
    number = shown[:-1]
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} %"
