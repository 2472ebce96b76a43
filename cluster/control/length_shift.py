"""Detection of longer requests: whether each request asks for more work than earlier ones did.

The number of requests scatters far more than the work of one request, because requests come in groups. So the work per
request shows a change of lengths minutes before the total work does: a few dozen requests are enough.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.control.load_forecast import LoadRules, Need
from cluster.control.step_model import Shape

Price = Callable[[Shape], float]
"""Replica-seconds of a request, at the batch and with the step model of this tick. With those of earlier ticks,
requests would seem longer whenever a replica takes smaller batches."""

_VARIANCE_TICKS = 12
"""Pairs of neighbouring ticks below which the variance of requests is not known."""


@dataclass(frozen=True, slots=True)
class _Came:
    """Totals of what came between two ticks, not per second."""

    since: float
    until: float
    work: float
    requests: float


def longer_work(now: Need, usual: float, needs: Sequence[Need], price: Price, rules: LoadRules) -> float | None:
    """Return the replica-seconds per second of the recent requests, where each asks for clearly more work than before.
    Return None where none does.

    The last minutes are split in two at every tick. The split that is the least likely to be chance counts, as in a
    likelihood-ratio test for one change.

    Args:
        now: this tick, with its averages.
        usual: requests per second, averaged over a longer time.
        needs: earlier ticks.
        price: the work of a request at this tick.
        rules: the constants.
    """
    if not rules.lengths_s or now.shape is None or now.requests <= 0:
        return None
    came = _history([*needs, now], price, rules)
    variance = _variance([each for each in came if each.until <= now.at - rules.lengths_s], rules)
    came = [each for each in came if each.since >= now.at - 2.0 * rules.lengths_s]
    whole_work, whole = sum(each.work for each in came), sum(each.requests for each in came)
    late_work = late = 0.0
    most, found = rules.lengths_deviations, None
    for part in reversed(came):
        if part.since < now.at - rules.lengths_s:
            break
        late_work, late = late_work + part.work, late + part.requests
        early_work, early = whole_work - late_work, whole - late
        if min(late, early) < rules.lengths_least or early_work <= 0:
            continue
        more = late_work / late * early / early_work - 1.0
        errors = more / math.sqrt(variance * (1.0 / late + 1.0 / early))
        if errors > most and more > rules.lengths_jump:
            most, found = errors, late_work / late * _rate(late, now.at - part.since, usual, rules)
    if found is None:
        return None
    # With several classes, the work differs from that of the same number of mean requests.
    return found * now.work / (now.requests * price(now.shape))


def enough_came(now: Need, needs: Sequence[Need], rules: LoadRules) -> bool:
    """Return whether so many requests came lately that `longer_work` could find a split of them. Where few come this
    takes a small part of its time.
    """
    since = now.at - 2.0 * rules.lengths_s
    came = _history([*(need for need in needs if need.at >= since), now], lambda _: 0.0, rules)
    # Sums in another order may differ in their last bits.
    least = (1.0 - 1e-9) * 2.0 * rules.lengths_least
    return sum(each.requests for each in came) >= least


def _rate(late: float, seconds: float, usual: float, rules: LoadRules) -> float:
    """Return the requests per second to expect: the usual rate, unless clearly fewer came lately. Where only the short
    requests have stopped, the rest is longer on average but is no more work.
    """
    fewest = 1.0 - rules.lengths_fewer * math.sqrt(rules.burst_variance / max(1.0, usual * seconds))
    return usual if late >= fewest * usual * seconds else late / seconds


def _variance(came: Sequence[_Came], rules: LoadRules) -> float:
    """Return how much the work of single requests scatters: its variance over the square of its mean. The estimate
    comes from the differences of neighbouring ticks (von Neumann), which drifts and single changes do not affect.
    """
    pairs = [(one, other) for one, other in itertools.pairwise(came) if min(one.requests, other.requests) >= 1.0]
    mean = sum(each.work for each in came) / max(1e-9, sum(each.requests for each in came))
    if len(pairs) < _VARIANCE_TICKS or mean <= 0:
        return rules.lengths_variance
    squares = sum(
        (one.work / one.requests - other.work / other.requests) ** 2 / (1.0 / one.requests + 1.0 / other.requests)
        for one, other in pairs
    )
    return max(rules.lengths_variance_least, squares / len(pairs) / mean**2)


def _history(ticks: Sequence[Need], price: Price, rules: LoadRules) -> list[_Came]:
    """Return what came between ticks. The averages forget at a known pace, so the totals can be recovered."""
    found = []
    since = ticks[-1].at - rules.lengths_known_s
    known = [(tick, tick.requests * price(tick.shape)) for tick in ticks if tick.shape is not None and tick.at > since]
    for (before, work_before), (after, work_after) in itertools.pairwise(known):
        if after.at <= before.at:
            continue
        kept = math.exp(-(after.at - before.at) / rules.rate_window_s)
        seconds = (after.at - before.at) / (1.0 - kept)
        work = seconds * (work_after - kept * work_before)
        requests = seconds * (after.requests - kept * before.requests)
        found.append(_Came(before.at, after.at, max(0.0, work), max(0.0, requests)))
    return found
