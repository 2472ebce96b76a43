"""Rails of the replica policy: limits that no decision passes. Each may return a step with another number."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cluster.control.snapshot import GroupSnapshot
from cluster.plural import counted
from penstock.values.steps import Step

_MOST_DOUBLINGS = 60
"""Largest exponent of the pause after failed starts. The pause is at its longest well before; a float overflows at
1,024."""


@dataclass(frozen=True, slots=True)
class Move:
    """Past change of the wanted number of replicas."""

    at: float
    replicas: int
    """After the change."""
    before: int | None = None
    """Before the change; None where it was not recorded."""


@dataclass(frozen=True, slots=True)
class RailRules:
    """Constants of the rails."""

    stale_s: float = 30.0
    """Age of values, in seconds, above which scale-down freezes."""
    up_window_s: float = 60.0
    up_factor: float = 2.0
    up_least: int = 4
    """Growth within a window is limited to `up_factor` times the replicas, or to `up_least` more if that is larger."""
    up_sure_window_s: float = 15.0
    """The window where the need for more is certain: each request asks for more work than earlier ones did."""
    down_window_s: float = 300.0
    down_part: float = 0.25
    """Largest part of the replicas that is removed within a window. One may always go."""
    backoff_s: float = 30.0
    """Pause after a failed start, in seconds. Each further failure in a row doubles it."""
    backoff_max_s: float = 960.0


def down_by_surplus(wanted: int, seen: GroupSnapshot) -> Step | None:
    """Tell why replicas go where the number stays."""
    if not seen.surplus or wanted != seen.coming:
        return None
    return Step("surplus", wanted, "what a roll-out had beyond the number goes with its end")


def not_down_when_stale(wanted: int, seen: GroupSnapshot, rules: RailRules) -> Step | None:
    """Keep the replicas while values are old or missing: a group that does not report is not idle."""
    if wanted >= seen.coming or not is_stale(seen, rules):
        return None
    if seen.cells_away:
        return Step("stale", seen.coming, f"{_away(seen)}: nothing is removed")
    return Step(
        "stale", seen.coming, f"values are {seen.age_s:.0f} s old, over {rules.stale_s:.0f} s: nothing is removed"
    )


def is_stale(seen: GroupSnapshot, rules: RailRules) -> bool:
    """Return whether values are too old to remove a replica, or some are missing."""
    return bool(seen.cells_away) or seen.age_s > rules.stale_s


def stale_alarms(seen: GroupSnapshot, rules: RailRules) -> list[str]:
    """Return what somebody should know of values that are old or missing."""
    away = [_away(seen)] if seen.cells_away else []
    return away + ([f"values are {seen.age_s:.0f} s old"] if seen.age_s > rules.stale_s else [])


def _away(seen: GroupSnapshot) -> str:
    return f"{counted(seen.cells_away, 'cell')} of the pool {'does' if seen.cells_away == 1 else 'do'} not answer"


def backoff_left_s(seen: GroupSnapshot, rules: RailRules) -> float:
    """Return the seconds until replicas may be added again after failed starts; 0 without a pause."""
    if not seen.failed_starts or seen.last_failure_at is None:
        return 0.0
    pause = min(rules.backoff_max_s, rules.backoff_s * 2.0 ** min(seen.failed_starts - 1, _MOST_DOUBLINGS))
    return max(0.0, seen.last_failure_at + pause - seen.at)


def not_up_after_failures(wanted: int, seen: GroupSnapshot, rules: RailRules) -> Step | None:
    """Add no replica during the pause after failed starts. A standby that wakes is none, nor one that is there."""
    left, most = backoff_left_s(seen, rules), seen.coming + seen.surplus + seen.standby
    if wanted <= most or left <= 0:
        return None
    return Step(
        "failed_starts",
        most,
        f"{counted(seen.failed_starts, 'start')} in a row failed: the next in {left:.0f} s",
    )


def not_up_too_fast(
    wanted: int, seen: GroupSnapshot, moves: tuple[Move, ...], rules: RailRules, *, sure: bool
) -> Step | None:
    """Bound the replicas that one window adds."""
    window_s = rules.up_sure_window_s if sure else rules.up_window_s
    base = _extreme(seen, moves, window_s, lowest=True)
    most = _most_after(base, rules)
    if wanted <= max(most, seen.coming):
        return None
    return Step("up_rate", max(most, seen.coming), f"at most {most} from {base} within {window_s:.0f} s")


def growth_time_s(wanted: int, seen: GroupSnapshot, moves: tuple[Move, ...], rules: RailRules) -> float:
    """Return the seconds after which `not_up_too_fast` lets the last of so many replicas be ordered, at most."""
    base, windows = _extreme(seen, moves, rules.up_window_s, lowest=True), 0
    while (base := _most_after(base, rules)) < wanted:
        windows += 1
    # A window may end just after a decision.
    return windows * (rules.up_window_s + seen.tick_s)


def _most_after(base: int, rules: RailRules) -> int:
    """Return the most replicas after a window."""
    return max(math.floor(base * rules.up_factor), base + rules.up_least)


def not_down_too_fast(wanted: int, seen: GroupSnapshot, moves: tuple[Move, ...], rules: RailRules) -> Step | None:
    """Bound the replicas that one window removes."""
    base = _extreme(seen, moves, rules.down_window_s, lowest=False)
    least = base - max(1, math.floor(base * rules.down_part))
    if wanted >= min(least, seen.coming):
        return None
    return Step(
        "down_rate", min(least, seen.coming), f"at least {least} from {base} within {rules.down_window_s:.0f} s"
    )


def _extreme(seen: GroupSnapshot, moves: tuple[Move, ...], window_s: float, *, lowest: bool) -> int:
    """Return the lowest or highest number of replicas that was wanted within the window."""
    held = [seen.coming]
    for move in moves:
        if move.at > seen.at - window_s:
            held.append(move.replicas)
            if move.before is not None:
                held.append(move.before)
    return min(held) if lowest else max(held)


def at_most(wanted: int, most: int | None, name: str, reason: str) -> Step | None:
    """Bound the number from above; None is no bound."""
    return Step(name, most, reason) if most is not None and wanted > most else None


def at_least(wanted: int, least: int, name: str, reason: str) -> Step | None:
    """Bound the number from below."""
    return Step(name, least, reason) if wanted < least else None
