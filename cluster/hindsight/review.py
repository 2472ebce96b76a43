"""What rules would have cost and attained with a recorded load, and how sure that is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cluster.hindsight.fluid import FluidRun, FluidTick, Given, Wanted, replay
from cluster.hindsight.history import History
from cluster.hindsight.policy import PolicyScaler, ReplayedPool
from penstock.values.slo import OperatingPoint

DAY_H = 24.0
SETTLE_S, SETTLE_PART = 1800.0, 0.25
"""Time at the beginning that does not count, at most this part: a policy that has seen nothing yet does as it can."""
LEAST_S = 3600.0
"""Load that a review needs at least."""
_BLOCK_S, _BLOCKS_LEAST, _DRAWS = 1800.0, 8, 400
"""Length of the pieces that are drawn again and again for a range, the fewest of them, and the draws. Requests of one
burst share their fate, so single ones say too little about chance."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a rule would cost and attain with such a load."""

    hours_a_day: float
    """Replica-hours in 24 hours; one of a standby counts with its price."""
    attainment: float
    low: float | None
    """Lower end of the attainment's 90 % range by chance; None where the load is too short to tell."""
    high: float | None
    reversals_a_day: float
    left_out: tuple[str, ...] = ()
    """What the pool has on, or what happened, and the replay does not follow; in words."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What ran, and what the policy would have done. All but `measured` come from the same fluid pool."""

    hours: float
    """Hours of load that are compared."""
    ran: Expected
    measured: float | None
    """Attainment of what ran, as routers counted it over the whole record."""
    ours: Expected
    gpus_per_replica: int

    @property
    def hours_saved_a_day(self) -> float:
        """Replica-hours that the policy would have saved in 24 hours; below 0 where it would have used more."""
        return self.ran.hours_a_day - self.ours.hours_a_day

    def money_saved_a_day(self, price_per_gpu_hour: float) -> float:
        """Return the money for them."""
        return self.hours_saved_a_day * self.gpus_per_replica * price_per_gpu_hour


def expected(history: History, point: OperatingPoint, pool: ReplayedPool) -> Expected:
    """Replay a load under the policy with the settings of a pool."""
    scaler = PolicyScaler(
        point, pool, history.cold_start_s, history.lives_s, history.request_class, history.gpus_per_replica
    )
    fluid = history.fluid(point, pool.rules.load.rate_window_s, pool.standby)
    run = replay(history.ticks, scaler, Wanted(history.ran[0].replicas), fluid)
    return replace(_expected(run, history), left_out=(*pool.left_out, *history.beside))


def compare(history: History, point: OperatingPoint, pool: ReplayedPool) -> Comparison:
    """Compare what ran with the policy."""
    fluid = history.fluid(point, pool.rules.load.rate_window_s, pool.standby)
    counts = [Wanted(each.replicas, each.standing_by) for each in history.ran]
    # A replica counts at a tick's end, so the number of the next tick is what is wanted at its end.
    run = replay(history.ticks, Given([*counts[1:], counts[-1]]), counts[0], fluid)
    ran = _expected(run, history)
    counted_s = sum(each.seconds for each in run.since(_settled(history)).ticks)
    ours = expected(history, point, pool)
    return Comparison(counted_s / 3600, ran, history.measured, ours, history.gpus_per_replica)


def _settled(history: History) -> int:
    """Return the number of ticks that do not count."""
    left = min(SETTLE_S, SETTLE_PART * history.seconds)
    for place, tick in enumerate(history.ticks):
        left -= tick.seconds
        if left <= 0:
            return place + 1
    return len(history.ticks)


def _expected(whole: FluidRun, history: History) -> Expected:
    run = whole.since(_settled(history))
    days = run.seconds / 3600 / DAY_H
    low, high = _range(run.ticks, random.Random(1))  # noqa: S311 - draws of a range
    return Expected(run.hours / days, run.attainment, low, high, run.reversals / days)


def _range(ticks: Sequence[FluidTick], rnd: random.Random) -> tuple[float | None, float | None]:
    """Return a 90 % range of the attainment, by pieces drawn with replacement."""
    sums, missed, work, seconds = list[tuple[float, float]](), 0.0, 0.0, 0.0
    for tick in ticks:
        missed, work, seconds = missed + tick.missed, work + tick.work, seconds + tick.seconds
        if seconds >= _BLOCK_S:
            sums.append((missed, work))
            missed = work = seconds = 0.0
    if len(sums) < _BLOCKS_LEAST:
        return None, None
    found = []
    for _ in range(_DRAWS):
        drawn = rnd.choices(sums, k=len(sums))
        work = sum(each for _, each in drawn)
        found.append(1.0 - sum(each for each, _ in drawn) / work if work else 1.0)
    found.sort()
    return found[round(0.05 * _DRAWS)], found[round(0.95 * _DRAWS) - 1]
