"""The rule of standbys: how many replicas stay loaded beside those that serve. Pure.

A replica that is no longer needed may be needed again soon. To keep it costs its price as a standby for so long. To
miss it costs the work of a cold start, less that of a wake-up. The rule remembers after which time replicas that had
been given up were needed again, and keeps each for the time that would have cost least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cluster.plural import counted
from penstock.values.steps import Step

STEP = "standby"
"""Name of the step that the rule leaves in a decision. Its value is the number of standbys."""


@dataclass(frozen=True, slots=True)
class StandbyRules:
    """Constants of the rule."""

    miss: float = 10.0
    """Cost of a second in which a replica is missing, in seconds of a replica. The work of that time waits, so more
    requests are late than those of the missing replica."""
    horizon_s: float = 21_600.0
    """Seconds after which a replica that was given up counts as never needed again."""
    remembered: int = 32
    """Most returns that are remembered."""
    least_returns: int = 3
    """Fewest returns that say something."""
    slack: float = 1.1
    """Factor on the time that was best so far: the next return may come a little later."""


@dataclass(frozen=True, slots=True)
class StandbyLimits:
    """What a pool's settings say of standbys."""

    least: int = 0
    most: int = 0
    price: float = 1.0
    """Cost of a standby, as part of that of a replica that serves."""
    wake_s: float = 20.0
    """Assumed seconds of a wake-up until one was measured."""


@dataclass(frozen=True, slots=True)
class StandbyState:
    """What the rule remembers. A leader hands it to the next one."""

    serving: int | None = None
    """Replicas that were last wanted to serve; None before the first decision."""
    released: tuple[float, ...] = ()
    """When the numbers above `serving` were given up, the highest number first."""
    returns: tuple[float, ...] = ()
    """Seconds after which numbers that had been given up were needed again, oldest first; those that were never needed
    count with the rule's horizon."""
    standby: int = 0
    """Standbys of the last decision."""
    wake_s: float | None = None
    """Seconds of a wake-up as last measured, the 90th percentile; None before the first."""
    names: tuple[str, ...] = ()
    """Replicas that were told to stand by."""


@dataclass(frozen=True, slots=True)
class StandbyInput:
    """Facts of one decision."""

    at: float
    """Seconds."""
    serving: int
    """Replicas that are wanted to serve."""
    cold_start_s: float
    room: int
    """Most standbys that there may be beside them: by the largest number of replicas, the budget, and failed starts."""
    stale: bool = False
    """Whether the values are too old to give up a replica."""


@dataclass(frozen=True, slots=True)
class StandbyDecision:
    """Result of one decision."""

    standby: int
    state: StandbyState
    steps: tuple[Step, ...] = ()


def decide_standby(limits: StandbyLimits, seen: StandbyInput, state: StandbyState) -> StandbyDecision:
    """Choose how many replicas stand by."""
    rules = StandbyRules()
    fewer = 0 if state.serving is None else state.serving - seen.serving
    there = max(0, state.standby + fewer)
    state = follow(state, seen.serving, seen.at, rules)
    wake_s = limits.wake_s if state.wake_s is None else state.wake_s
    saved_s = max(0.0, seen.cold_start_s - wake_s)
    kept_s = keep_s(state.returns, limits.price, rules.miss * saved_s, rules)
    worth = sum(seen.at - at < kept_s for at in state.released)
    # None is started in order to stand by, beyond the fewest.
    kept = min(worth, there)
    wanted = max(limits.least, kept, state.standby if seen.stale else 0)
    found = max(0, min(wanted, limits.most, seen.room))
    if found < wanted:
        why = f"room for {counted(found, 'standby', 'standbys')} of {wanted}"
    elif found <= kept:
        why = _kept_why(kept_s, saved_s)
    else:
        why = "the fewest that stand by" if found == limits.least else "values are old: no standby ends"
    steps = (Step(STEP, found, why),) if found or wanted else ()
    return StandbyDecision(found, replace(state, standby=found), steps)


def follow(state: StandbyState, serving: int, at: float, rules: StandbyRules) -> StandbyState:
    """Return the state after another number of replicas that serve."""
    # Pool time can be earlier than before if the store was replaced.
    released = [min(since, at) for since in state.released]
    returns = list(state.returns)
    before = serving if state.serving is None else state.serving
    released += [at] * (before - serving)
    back = released[len(released) - max(0, min(serving - before, len(released))) :]
    returns += [min(rules.horizon_s, at - since) for since in reversed(back)]
    del released[len(released) - len(back) :]
    while released and at - released[0] >= rules.horizon_s:
        returns.append(rules.horizon_s)
        del released[0]
    return replace(state, serving=serving, released=tuple(released), returns=tuple(returns[-rules.remembered :]))


def keep_s(returns: Sequence[float], price: float, miss_s: float, rules: StandbyRules) -> float:
    """Return for how long a replica that is no longer needed stands by, in seconds: for the time that would have cost
    least with these returns.

    With too few returns it is the time whose price is that of the miss. Whatever comes, this costs at most twice what
    it would with the return known.

    Args:
        returns: seconds until replicas that had been given up were needed again.
        price: of a standby, as part of that of a replica that serves.
        miss_s: cost of a replica that is needed and gone, in seconds of a replica.
        rules: the constants.
    """
    if miss_s <= 0:
        return 0.0
    if price <= 0:
        return math.inf
    if len(returns) < rules.least_returns:
        return miss_s / price
    came = [each for each in returns if each < rules.horizon_s]

    def cost(kept: float) -> float:
        return price * sum(min(each, kept) for each in returns) + miss_s * sum(each > kept for each in came)

    # Of times that cost the same the longest: with it fewer requests wait.
    best = min({0.0, *came}, key=lambda each: (round(cost(each), 6), -each))
    return best * rules.slack


def _kept_why(kept_s: float, saved_s: float) -> str:
    kept = "always" if math.isinf(kept_s) else f"for {kept_s:.0f} s"
    return f"a replica that is not needed stands by {kept}: to wake it is {saved_s:.0f} s faster than a start"
