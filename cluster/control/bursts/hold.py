"""Whether to hold a number of replicas, and which.

Bursts that end before a replica is ready make an order on their arrival money for nothing: the replica comes too late,
goes some minutes later, and misses the next burst too. A fixed number of the same cost serves more of them. Both plans
are tried on the work of the last two hours. Where the load is bursty and the fixed number would have missed less, the
group holds a number. It does so until following is better again, and follows as well while a burst outlasts all those
before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cluster.control.bursts.plans import Scatter, Served, Work, followed, held, scatter, works_of
from cluster.control.load_forecast import Need


@dataclass(frozen=True, slots=True)
class HoldRules:
    """Constants of holding."""

    check_s: float = 300.0
    """Seconds between two looks at the plans; 0 never holds."""
    known_s: float = 1800.0
    """Seconds of load that must have been seen."""
    bursts: int = 3
    """Bursts that must have come and gone."""
    scatter: float = 0.2
    """Scatter of the work of a cold start from which a load counts as bursty, as a part of the mean."""
    dispersion: float = 10.0
    """The same as variance over mean of the requests."""
    stays: float = 0.5
    """Part of these bounds from which a load that was bursty still is."""
    better: float = 0.9
    """Part of the following plan's misses that a fixed number may have at the same cost, to begin."""
    worse: float = 1.25
    """The same, to go on."""
    worth: float = 0.1
    """Part of its relative cost that another replica must take off the misses: with 0.1, a hundredth of the work for a
    tenth more replicas."""
    capacity: float = 0.95
    """Part of a replica's time that works."""
    change: float = 0.15
    """The number rises when one look asks for more by this part, and falls when the average of looks does so."""
    change_now: float = 0.5
    """The number falls at once if one look is off by this part."""
    memory_s: float = 14_400.0
    """Longest time that looks are averaged over, seconds."""
    turn_s: float = 1800.0
    """Seconds after which the number may change in the other direction."""
    longer: float = 1.5
    """A burst is beyond the others when work is missed for this many times the longest time before, and for longer than
    a cold start."""


@dataclass(frozen=True, slots=True)
class HoldTimes:
    """Times of a group, in seconds."""

    cold_start_s: float
    look_back_s: float
    """For which fewer replicas must have been enough before any goes."""
    wait_s: float
    """For which work may lie there before requests come too late."""
    window_s: float
    """Over which ticks average their rates."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Number that is held."""

    replicas: int = 0
    """0 for none."""
    asked: float = 0.0
    """Mean of the numbers that looks asked for."""
    looks: int = 0
    """Looks that it rests on."""
    checked_at: float | None = None
    changed_at: float | None = None
    direction: int = 0
    """1 where the last change was up, -1 down."""
    longest_s: float = 0.0
    """Longest time in a row in which the number missed work."""
    late_since: float | None = None
    """Time since which requests really wait for longer than the SLO allows; None while none does."""
    suspended_at: float | None = None
    """Time since which nothing can be held; None while something can."""

    def next(self, at: float, *, waits: bool) -> Hold:
        """Return what is known of the number after a tick in which requests waited for too long, or did not."""
        if not self.replicas or not waits:
            return replace(self, late_since=None)
        return self if self.late_since is not None else replace(self, late_since=at)


def suspended(hold: Hold, at: float, rules: HoldRules) -> Hold:
    """Return what is held after a tick in which nothing can be: a pattern is foreseen, or something is not known. The
    number is forgotten only if that lasts, or it would come and go with the reason.
    """
    if not hold.replicas:
        return Hold()
    since = at if hold.suspended_at is None else min(at, hold.suspended_at)
    return Hold() if at - since >= rules.turn_s else replace(hold, suspended_at=since)


def next_hold(hold: Hold, needs: Sequence[Need], aim: float, least: int, times: HoldTimes, rules: HoldRules) -> Hold:
    """Return what is held from now on.

    Args:
        hold: what was held.
        needs: the ticks of late.
        aim: part of the work that should be in time.
        least: fewest replicas to hold, however good the plan looks.
        times: the group's times.
        rules: the constants.
    """
    if not rules.check_s or not needs or needs[-1].at - needs[0].at < rules.known_s:
        return hold
    at = needs[-1].at
    if hold.checked_at is not None and 0 <= at - hold.checked_at < rules.check_s:
        return hold
    works = works_of(needs, times.window_s)
    if not works or not _holds(hold, needs, works, times, rules):
        return Hold(checked_at=at)
    level, served = best_level(works, aim, times.wait_s, rules)
    level = max(level, least)
    if not hold.replicas:
        return Hold(level, level, 1, at, at, 0, served.longest_s)
    if level - hold.replicas >= max(1.0, rules.change * hold.replicas):
        # Bursts that were not seen before are no chance, and an average would wait for more of them to be missed.
        longest_s = held(works, level * rules.capacity, times.wait_s).longest_s
        return Hold(level, level, 1, at, at, 1, longest_s, hold.late_since)
    looks = min(hold.looks + 1, round(rules.memory_s / rules.check_s))
    asked = hold.asked + (level - hold.asked) / looks
    number = level if abs(level - hold.replicas) > rules.change_now * hold.replicas else round(asked)
    direction = 1 if number > hold.replicas else -1
    little = abs(number - hold.replicas) < max(1.0, rules.change * hold.replicas)
    turns = direction == -hold.direction and hold.changed_at is not None and at - hold.changed_at < rules.turn_s
    if little or turns:
        longest_s = held(works, hold.replicas * rules.capacity, times.wait_s).longest_s
        return replace(hold, asked=asked, looks=looks, checked_at=at, longest_s=longest_s)
    longest_s = held(works, number * rules.capacity, times.wait_s).longest_s
    return Hold(number, asked, looks, at, at, direction, longest_s, hold.late_since)


def _holds(hold: Hold, needs: Sequence[Need], works: Sequence[Work], times: HoldTimes, rules: HoldRules) -> bool:
    """Return whether a fixed number is better than one that follows this load."""
    found = scatter(needs, works, times.cold_start_s)
    part = rules.stays if hold.replicas else 1.0
    if not _bursty(found, part, rules):
        return False
    by_time = {need.at: need.replicas for need in needs}
    wanted = [by_time[each.at] for each in works]
    follow = followed(
        works,
        wanted,
        cold_start_s=times.cold_start_s,
        look_back_s=times.look_back_s,
        wait_s=times.wait_s,
        capacity=rules.capacity,
    )
    same = held(works, follow.replicas * rules.capacity, times.wait_s)
    return same.missed <= (rules.worse if hold.replicas else rules.better) * follow.missed


def _bursty(found: Scatter, part: float, rules: HoldRules) -> bool:
    return (
        found.bursts >= part * rules.bursts
        and found.part >= part * rules.scatter
        and found.dispersion >= part * rules.dispersion
    )


def best_level(works: Sequence[Work], aim: float, wait_s: float, rules: HoldRules) -> tuple[int, Served]:
    """Return the fewest replicas that serve the aim, or those beyond which one more is not worth its cost."""
    seconds = sum(each.seconds for each in works)
    level = max(1, math.ceil(sum(each.amount for each in works) / seconds / rules.capacity))
    served = held(works, level * rules.capacity, wait_s)
    while served.missed > 1.0 - aim:
        # The curve of a few bursts is uneven, so a tenth more is tried at once.
        more = max(level + 1, math.ceil(1.1 * level))
        there = held(works, more * rules.capacity, wait_s)
        if served.missed - there.missed < rules.worth * math.log(more / level):
            break
        level, served = more, there
    return level, served


def outlasts(hold: Hold, needs: Sequence[Need], times: HoldTimes, rules: HoldRules) -> bool:
    """Return whether the held number has now missed work for longer than bursts took before. Requests that really wait
    count too: replicas may do less than the step model says.
    """
    lasting_s = held(works_of(needs, times.window_s), hold.replicas * rules.capacity, times.wait_s).lasting_s
    if needs and hold.late_since is not None:
        lasting_s = max(lasting_s, needs[-1].at - hold.late_since)
    return lasting_s > max(times.cold_start_s, rules.longer * hold.longest_s)
