"""Two plans tried on the load of late: to follow it, and to hold one number."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.control.load_forecast import Need


@dataclass(frozen=True, slots=True)
class Work:
    """Work that came in the time before `at`."""

    at: float
    """End of that time, seconds."""
    seconds: float
    """Length of that time."""
    amount: float
    """Replica-seconds."""


@dataclass(frozen=True, slots=True)
class Served:
    """What became of the work under a plan."""

    missed: float
    """Part of the work that waited too long, 0 to 1."""
    replicas: float
    """Mean number of replicas, starting ones included."""
    turns: int = 0
    """Changes of direction within half an hour."""
    longest_s: float = 0.0
    """Longest time in a row in which work was missed, before the last one."""
    lasting_s: float = 0.0
    """Time in which work has been missed until now; 0 where the last work was in time."""


def works_of(needs: Sequence[Need], window_s: float) -> list[Work]:
    """Return the work between ticks. They hold an exponential average, which forgets at a known pace, so what was
    added to it is what came.
    """
    found = []
    for before, now in itertools.pairwise(needs):
        seconds = now.at - before.at
        if seconds > 0:
            kept = math.exp(-seconds / window_s)
            found.append(Work(now.at, seconds, max(0.0, now.work - kept * before.work) / (1.0 - kept) * seconds))
    return found


def held(works: Sequence[Work], replicas: float, wait_s: float) -> Served:
    """Serve work with a fixed number of replicas. Work that would wait for more than `wait_s` is missed and takes no
    time from the rest, as late requests let others pass.
    """
    waiting = missed = total = longest = lasting = 0.0
    most = replicas * wait_s
    for each in works:
        total += each.amount
        waiting = max(0.0, waiting + each.amount - replicas * each.seconds)
        if waiting > most:
            missed += waiting - most
            waiting = most
            lasting += each.seconds
        elif lasting and waiting <= 0.0:
            longest, lasting = max(longest, lasting), 0.0
        elif lasting:
            lasting += each.seconds
    return Served(missed / total if total else 0.0, replicas, 0, longest, lasting)


_BAND, _STEP, _TURN_S = 0.15, 4, 1800.0
"""Part that must be too many before replicas go, the quarter that goes at once, and the seconds within which a change
of direction counts: as in the replica policy."""


def followed(
    works: Sequence[Work],
    wanted: Sequence[int],
    *,
    cold_start_s: float,
    look_back_s: float,
    wait_s: float,
    capacity: float = 1.0,
) -> Served:
    """Serve work with the replicas that were wanted at each tick: more at once, fewer after a look-back.

    Args:
        works: the work between ticks.
        wanted: replicas wanted at the end of each.
        cold_start_s: seconds from an order to a ready replica.
        look_back_s: seconds for which fewer must have been enough.
        wait_s: the longest wait in time.
        capacity: part of a replica's time that works.
    """
    waiting = missed = total = used = seconds = 0.0
    ready, starting = wanted[0] if wanted else 0, deque[tuple[float, int]]()
    coming, recent = ready, deque[tuple[float, int]]()
    turns, direction, moved = 0, 0, -math.inf
    for each, want in zip(works, wanted, strict=True):
        while starting and starting[0][0] <= each.at:
            ready += starting.popleft()[1]
        total += each.amount
        waiting = max(0.0, waiting + each.amount - capacity * ready * each.seconds)
        over = max(0.0, waiting - capacity * ready * wait_s)
        missed, waiting = missed + over, waiting - over
        used, seconds = used + coming * each.seconds, seconds + each.seconds
        # The largest of the look-back comes first.
        while recent and recent[-1][1] <= want:
            recent.pop()
        recent.append((each.at, want))
        while recent[0][0] <= each.at - look_back_s:
            recent.popleft()
        now = 0
        if want > coming:
            starting.append((each.at + cold_start_s, want - coming))
            coming, now = want, 1
        elif not starting and recent[0][1] <= coming - max(1.0, _BAND * coming):
            coming = ready = max(recent[0][1], coming - max(1, coming // _STEP))
            now = -1
        if now:
            turns += direction == -now and each.at - moved <= _TURN_S
            direction, moved = now, each.at
    return Served(missed / total if total else 0.0, used / seconds if seconds else 0.0, turns)


@dataclass(frozen=True, slots=True)
class Scatter:
    """How work averaged over a cold start varies."""

    part: float = 0.0
    """Standard deviation over mean, without drifts."""
    dispersion: float = 0.0
    """Variance over mean, in requests: 1 where they come by chance and are alike."""
    bursts: int = 0
    """Times that the work rose well above its mean and came back."""


def scatter(needs: Sequence[Need], works: Sequence[Work], span_s: float) -> Scatter:
    """Return the scatter of the work of a span, by the differences of neighbouring ones (von Neumann's estimate). A
    load that drifts, or that is another one from some time on, differs little from one span to the next.
    """
    means = _means(works, span_s)
    if len(means) < 2:
        return Scatter()
    middle = statistics.fmean(value for _, value in means)
    spread = statistics.pvariance((value for _, value in means), middle)
    if middle <= 0 or spread <= 0:
        return Scatter()
    part = math.sqrt(_differences(means, span_s) / 2.0) / middle
    requests = statistics.fmean(need.requests for need in needs) * span_s
    return Scatter(part, part**2 * requests, _bursts([need.work for need in needs], middle, math.sqrt(spread)))


def _means(works: Sequence[Work], span_s: float) -> list[tuple[float, float]]:
    """Return time and mean work per second of each span of this length."""
    found, first, amount = [], 0, 0.0
    for place, each in enumerate(works):
        amount += each.amount
        while first < place and works[first].at <= each.at - span_s + 1e-6:
            amount -= works[first].amount
            first += 1
        began = works[first].at - works[first].seconds
        if each.at - works[0].at >= span_s:
            found.append((each.at, amount / (each.at - began)))
    return found


def _differences(means: Sequence[tuple[float, float]], span_s: float) -> float:
    """Return the mean square of the differences of neighbouring spans."""
    total, later, pairs = 0.0, 0, 0
    for at, value in means:
        while later < len(means) and means[later][0] < at + span_s - 1e-6:
            later += 1
        if later == len(means):
            break
        total, pairs = total + (means[later][1] - value) ** 2, pairs + 1
    return total / pairs if pairs else 0.0


def _bursts(values: Sequence[float], middle: float, deviation: float) -> int:
    """Return how often values rose a deviation above the middle and came back to it."""
    found, above = 0, False
    for value in values:
        if value > middle + deviation:
            above = True
        elif above and value <= middle:
            found, above = found + 1, False
    return found
