"""The rails of the slow loop: what no wish may pass. Each takes a number of replicas and returns one, with its step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cluster.control.snapshot import GroupSnapshot
from cluster.plural import counted
from penstock.values.steps import Step

_MOST_DOUBLINGS = 60
"""Of the pause after failed starts, which is at its longest well before; a float ends at 1,024."""


@dataclass(frozen=True, slots=True)
class Move:
    """Is a past change of the wanted number of replicas."""

    at: float
    replicas: int
    """After the change."""
    before: int | None = None
    """None where nobody wrote it down."""


@dataclass(frozen=True, slots=True)
class RailRules:
    """Are the rails' constants."""

    stale_s: float = 30.0
    """Older values freeze scale-down."""
    up_window_s: float = 60.0
    up_factor: float = 2.0
    up_least: int = 4
    """At most so many times the replicas, or so many more, within a window."""
    up_sure_window_s: float = 15.0
    """The window where it is no chance that more are needed: each request asks for more than those before did."""
    down_window_s: float = 300.0
    down_part: float = 0.25
    """At most this part of the replicas fewer within a window, but one always."""
    backoff_s: float = 30.0
    """After a failed start nothing is added for so long, doubled with each further one in a row."""
    backoff_max_s: float = 960.0


def not_down_when_stale(wanted: int, seen: GroupSnapshot, rules: RailRules) -> Step | None:
    """Keep what is there while values are old: a group that does not report is not idle."""
    if wanted >= seen.coming or seen.age_s <= rules.stale_s:
        return None
    return Step(
        "stale", seen.coming, f"values are {seen.age_s:.0f} s old, over {rules.stale_s:.0f} s: nothing is removed"
    )


def backoff_left_s(seen: GroupSnapshot, rules: RailRules) -> float:
    """Return for how long nothing is added after failed starts, in seconds."""
    if not seen.failed_starts or seen.last_failure_at is None:
        return 0.0
    pause = min(rules.backoff_max_s, rules.backoff_s * 2.0 ** min(seen.failed_starts - 1, _MOST_DOUBLINGS))
    return max(0.0, seen.last_failure_at + pause - seen.at)


def not_up_after_failures(wanted: int, seen: GroupSnapshot, rules: RailRules) -> Step | None:
    """Wait before another start is tried."""
    left = backoff_left_s(seen, rules)
    if wanted <= seen.coming or left <= 0:
        return None
    return Step(
        "failed_starts",
        seen.coming,
        f"{counted(seen.failed_starts, 'start')} in a row failed: the next in {left:.0f} s",
    )


def not_up_too_fast(
    wanted: int, seen: GroupSnapshot, moves: tuple[Move, ...], rules: RailRules, *, sure: bool
) -> Step | None:
    """Bound what one window adds."""
    window_s = rules.up_sure_window_s if sure else rules.up_window_s
    base = _extreme(seen, moves, window_s, lowest=True)
    most = max(math.floor(base * rules.up_factor), base + rules.up_least)
    if wanted <= max(most, seen.coming):
        return None
    return Step("up_rate", max(most, seen.coming), f"at most {most} from {base} within {window_s:.0f} s")


def not_down_too_fast(wanted: int, seen: GroupSnapshot, moves: tuple[Move, ...], rules: RailRules) -> Step | None:
    """Bound what one window removes."""
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
    """Bound from above; None is no bound."""
    return Step(name, most, reason) if most is not None and wanted > most else None


def at_least(wanted: int, least: int, name: str, reason: str) -> Step | None:
    """Bound from below."""
    return Step(name, least, reason) if wanted < least else None
