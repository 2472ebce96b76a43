"""A held number at work: what it lets pass, and what ends it."""

from __future__ import annotations

import dataclasses

import pytest

from cluster.control.bursts.hold import Hold, HoldRules, HoldTimes, outlasts, suspended
from cluster.control.held_number import after_look, held_number
from cluster.control.replica_policy import SlowDecision
from cluster.control.replica_rules import GroupBounds, SlowRules, SlowState
from cluster.control.snapshot import GroupSnapshot
from cluster.forecast.pool_forecast import Outlook, Pattern
from penstock.values.steps import Relief
from tests.cluster.control.groups import (
    BOUNDS,
    POINT,
    RULES,
    TICK_S,
    decide,
    group,
    interactive,
    long_ago,
    names,
    reason,
    seconds_per_request,
)

NOW = 10_000.0
HELD = Hold(5, 5.0, 10, NOW - TICK_S, NOW - 3600.0)
PATTERN = Pattern("time of day", 1.5, 1.5, 0.2, trusted=True)
OUTLOOK = Outlook(3.0, 240.0, 0.2, PATTERN, {}, {})


def held(hold: Hold = HELD, work: float = 3.0) -> SlowState:
    return dataclasses.replace(long_ago(5, work), hold=hold)


def at(seen: GroupSnapshot, state: SlowState, bounds: GroupBounds = BOUNDS) -> SlowDecision:
    return decide(POINT, bounds, seen, state)


def late(replicas: float, seconds: float = 30.0) -> GroupSnapshot:
    """Make a group of five whose model sees less work than it has room for, and whose requests wait."""
    queued = round(seconds / seconds_per_request())
    return group(5, interactive(replicas, queued=queued, oldest_wait_s=60.0), waiting=float(queued))


@pytest.mark.parametrize(("most", "relief"), [(100, Relief.PREEMPT_BATCH), (5, Relief.SHED)])
def test_nobody_is_refused_for_a_held_number_while_more_can_be_ordered(most: int, relief: Relief) -> None:
    decision = at(group(5, interactive(9.0)), held(), GroupBounds(1, most))

    assert 5 == decision.replicas
    assert relief is decision.relief
    assert (most > 5) == ("nobody is refused" in reason(decision, f"relief_{relief.value}"))


def test_requests_that_really_wait_end_a_held_number_though_the_model_sees_room() -> None:
    """Replicas hang or are throttled: the work that came is less than they should do."""
    before = at(late(3.0), held())
    assert 5 == before.replicas
    assert NOW == before.state.hold.late_since

    waits = dataclasses.replace(HELD, late_since=NOW - 600.0)
    assert 5 < at(late(3.0, 600.0), held(waits)).replicas
    assert at(group(5, interactive(3.0)), held(waits)).state.hold.late_since is None


def test_a_wait_is_too_long_after_the_longest_burst_and_a_cold_start() -> None:
    needs, times = long_ago(5, 1.0).needs, HoldTimes(180.0, 300.0, 20.0, 60.0)
    last = needs[-1].at

    def ends(seconds: float, longest_s: float) -> bool:
        return outlasts(Hold(5, longest_s=longest_s, late_since=last - seconds), needs, times, HoldRules())

    assert (False, True) == (ends(180.0, 0.0), ends(181.0, 0.0))
    assert (False, True) == (ends(300.0, 200.0), ends(301.0, 200.0))


def test_a_burst_is_outlasted_by_the_capacity_that_the_number_was_chosen_for() -> None:
    """Replicas do four fifths of the plan, by the attainment. Work of 4.2 is then more than five of them do."""
    state = dataclasses.replace(held(work=4.2), fill=0.8 * RULES.fill)
    seen = group(5, interactive(4.2))
    usual, slower = held_number(POINT, seen, held(work=4.2), RULES), held_number(POINT, seen, state, RULES)

    assert usual is not None
    assert slower is not None
    assert (False, True) == (usual.outlasted, slower.outlasted)


def test_bad_attainment_lowers_the_fill_below_its_first_value_at_each_headroom() -> None:
    for fill in (0.55, 0.66):
        rules = SlowRules(fill=fill)
        state = dataclasses.replace(long_ago(6, 3.0), fill_at=NOW - 1000.0)
        seen = dataclasses.replace(group(6, interactive(3.0)), attainment=0.5)
        after = decide(POINT, BOUNDS, seen, state, rules).state.fill

        assert after is not None
        assert after < fill


def test_removal_to_a_held_number_takes_a_quarter_and_is_tried_out_first() -> None:
    seen, state = group(12, interactive(3.0)), held()

    assert 9 == at(seen, state).replicas
    assert 9 < at(dataclasses.replace(seen, kv_usage=0.75), state).replicas
    assert "removal" in names(at(dataclasses.replace(seen, kv_usage=0.75), state))
    waiting = dataclasses.replace(late(3.0), ready=12)
    assert "requests wait for longer" in reason(at(waiting, state), "keep")
    assert 12 == at(waiting, state).replicas


def test_a_pool_without_requests_does_not_keep_its_held_number() -> None:
    state = dataclasses.replace(held(work=0.0), active_at=NOW - 2000.0)
    seen = dataclasses.replace(group(5, interactive(1e-9)), kv_usage=0.0)
    decision = decide(POINT, GroupBounds(0, 10), seen, state)

    assert 0 == decision.needed
    assert 5 > decision.replicas


@pytest.mark.parametrize("change", [{"model": None}, {"outlook": OUTLOOK}, {"outlook_awaited": True}, {"demands": ()}])
def test_what_suspends_a_held_number_does_not_forget_it(change: dict[str, object]) -> None:
    seen, away = group(5, interactive(3.0)), dataclasses.replace(group(5, interactive(3.0)), **change)  # type: ignore[arg-type]
    between = dataclasses.replace(held(), hold=after_look(POINT, away, held(), RULES))

    assert held_number(POINT, away, between, RULES) is None
    assert HELD == after_look(POINT, seen, between, RULES)


def test_a_held_number_is_forgotten_after_a_long_suspension() -> None:
    rules = HoldRules(turn_s=1800.0)
    since = suspended(HELD, NOW, rules)

    assert since == suspended(since, NOW + 1799.0, rules)
    assert Hold() == suspended(since, NOW + 1800.0, rules)


def test_nothing_is_removed_before_a_new_leader_knows_what_the_record_foresees() -> None:
    seen = group(6, interactive(2.0))

    assert 6 > at(seen, long_ago(2, 2.0)).replicas
    waits = at(dataclasses.replace(seen, outlook_awaited=True), long_ago(2, 2.0))
    assert 6 == waits.replicas
    assert "a pattern of earlier days is known" in reason(waits, "keep")
