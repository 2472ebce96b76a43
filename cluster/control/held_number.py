"""The held number of a group, as the replica policy asks for it at each tick."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cluster.control.bursts.hold import Hold, HoldRules, HoldTimes, next_hold, outlasts, suspended
from cluster.control.replica_rules import SlowRules, SlowState
from cluster.control.replica_seconds import SLO_WAIT_PART, best_batch, mean_shape
from cluster.control.sizing import base_fill, planned_fill
from cluster.control.snapshot import GroupSnapshot
from penstock.values.slo import OperatingPoint

IN_BATCHES = 1 / 12
"""Part of a request's time in a full batch for which work may lie there beyond the wait that the SLO allows. A request
has its first token long before its work is done, so batches take in some of a burst. With this part fixed numbers miss
about as much as in the simulator, which has a queue, prompts and batches."""


@dataclass(frozen=True, slots=True)
class HeldNumber:
    """Number of replicas to hold."""

    replicas: int
    outlasted: bool
    """Whether a burst outlasts those before, so that the number is a floor only."""


def hold_times(point: OperatingPoint, seen: GroupSnapshot, rules: SlowRules) -> HoldTimes | None:
    """Return the times by which plans are tried; None where nothing can be held: no arriving class is promised a time,
    there is no step model, work with a deadline fills free room, or the load follows a pattern that is foreseen.
    """
    arriving = tuple(each for each in seen.demands if each.rate > 0)
    promised = [point.of(each.request_class).ttft_p99_s for each in arriving]
    wait_s = min((SLO_WAIT_PART * each for each in promised if each is not None), default=None)
    shape = mean_shape(arriving)
    if wait_s is None or shape is None or seen.model is None or seen.filled:
        return None
    if seen.outlook_awaited or (
        seen.outlook is not None and seen.outlook.pattern is not None and seen.outlook.pattern.trusted
    ):
        return None
    batch = best_batch(point, seen, shape)
    lives_s = batch * seen.model.gpu_seconds(shape, batch, seen.step_tokens)
    look_back_s = max(rules.look_back_least_s, rules.look_back_starts * seen.cold_start_s)
    return HoldTimes(
        seen.cold_start_s, min(rules.look_back_s, look_back_s), wait_s + IN_BATCHES * lives_s, rules.load.rate_window_s
    )


def after_look(point: OperatingPoint, seen: GroupSnapshot, state: SlowState, rules: SlowRules) -> Hold:
    """Return what is held after a look at the plans."""
    times = hold_times(point, seen, rules)
    if times is None:
        return suspended(state.hold, seen.at, rules.hold)
    works = [need.work for need in state.needs]
    mean = sum(works) / len(works) if works else 0.0
    least = math.ceil(mean / planned_fill(mean, state, rules))
    aim = 1.0 - rules.slack * (1.0 - point.attainment)
    hold = replace(state.hold, suspended_at=None)
    return next_hold(hold, state.needs, aim, least, times, measured_rules(state, rules))


def measured_rules(state: SlowState, rules: SlowRules) -> HoldRules:
    """Return the rules with the capacity that replicas show. Where the attainment says that they do less than planned,
    the planned fill has fallen.
    """
    capacity = min(1.0, rules.hold.capacity * base_fill(state, rules) / rules.fill)
    return replace(rules.hold, capacity=capacity)


def held_number(point: OperatingPoint, seen: GroupSnapshot, state: SlowState, rules: SlowRules) -> HeldNumber | None:
    """Return the number that the group holds; None where it follows its load."""
    times = hold_times(point, seen, rules)
    if times is None or not state.hold.replicas:
        return None
    return HeldNumber(state.hold.replicas, outlasts(state.hold, state.needs, times, measured_rules(state, rules)))
