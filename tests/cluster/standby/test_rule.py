"""How many replicas stand by, for all histories of a pool."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.standby.rule import (
    StandbyInput,
    StandbyLimits,
    StandbyRules,
    StandbyState,
    decide_standby,
    follow,
    keep_s,
)

RULES = StandbyRules()
COLD_S, TICK_S = 180.0, 15.0
LIMITS = StandbyLimits(most=4, price=0.3)
RETURNS = st.lists(st.floats(15.0, RULES.horizon_s), max_size=8)
PRICES = st.floats(0.01, 1.0)
NUMBERS = st.lists(st.integers(0, 8), min_size=1, max_size=60)


def seen(at: float, serving: int, room: int = 99, *, cold_start_s: float = COLD_S, stale: bool = False) -> StandbyInput:
    return StandbyInput(at, serving, cold_start_s, room, stale)


def through(numbers: list[int], limits: StandbyLimits, room: int = 99) -> tuple[list[int], StandbyState]:
    """Decide at each of these numbers of serving replicas, a tick apart."""
    state, made = StandbyState(), []
    for tick, serving in enumerate(numbers):
        decision = decide_standby(limits, seen(tick * TICK_S, serving, room), state)
        state = decision.state
        made.append(decision.standby)
    return made, state


@given(RETURNS, PRICES, PRICES)
def test_a_cheaper_standby_is_kept_at_least_as_long(returns: list[float], one: float, other: float) -> None:
    cheap, dear = sorted((one, other))
    assert keep_s(returns, cheap, 1600.0, RULES) >= keep_s(returns, dear, 1600.0, RULES)


@given(RETURNS, PRICES)
def test_no_other_time_would_have_cost_less(returns: list[float], price: float) -> None:
    miss_s = 1600.0
    known = [(each, each < RULES.horizon_s) for each in returns]

    def cost(kept: float) -> float:
        """Return what all of them would have cost. One that is never needed is not missed."""
        return sum(price * min(each, kept) + (miss_s if came and each > kept else 0.0) for each, came in known)

    kept = keep_s(returns, price, miss_s, StandbyRules(slack=1.0, least_returns=1))
    others = [0.0, *(each for each, _ in known), *(factor * 1000.0 for factor in range(30))]
    assert min(map(cost, others)) >= cost(kept) - 1e-3 or not returns


@given(PRICES, st.floats(15.0, 1e6))
def test_with_too_few_returns_no_standby_costs_more_than_twice_what_it_would_with_the_return_known(
    price: float, comes_s: float
) -> None:
    kept = keep_s((), price, 1600.0, RULES)
    cost = price * min(kept, comes_s) + (1600.0 if comes_s > kept else 0.0)
    assert cost <= 2.0 * min(price * comes_s, 1600.0) + 1e-6


def test_a_standby_that_costs_nothing_is_kept_and_one_that_saves_nothing_is_not() -> None:
    assert math.inf == keep_s((), 0.0, 1600.0, RULES)
    assert 0.0 == keep_s((), 0.0, 0.0, RULES)


def test_returns_within_minutes_shorten_the_time_to_these_minutes() -> None:
    """Others were never needed again, so that to keep them longer would have cost more."""
    returns = [300.0, 240.0, 280.0, 250.0, RULES.horizon_s]
    assert pytest.approx(300.0 * RULES.slack) == keep_s(returns, 0.3, 1600.0, RULES)


def test_replicas_that_never_come_back_are_not_kept() -> None:
    assert 0.0 == keep_s([RULES.horizon_s] * 4, 0.3, 1600.0, RULES)


@given(NUMBERS, st.integers(0, 4), st.integers(0, 4), PRICES, st.integers(0, 8))
def test_bounds_hold_for_every_history(numbers: list[int], least: int, more: int, price: float, room: int) -> None:
    limits = StandbyLimits(least, least + more, price)
    made, state = through(numbers, limits, room)
    assert all(0 <= each <= min(limits.most, room) for each in made)
    assert all(each >= min(least, room) for each in made)
    assert list(state.released) == sorted(state.released)
    assert len(state.returns) <= RULES.remembered


@given(NUMBERS, st.integers(0, 8), st.integers(0, 8))
def test_no_replica_is_started_in_order_to_stand_by(numbers: list[int], most: int, room: int) -> None:
    made, _ = through(numbers, StandbyLimits(most=most, price=0.3), room)
    totals = [serving + standby for serving, standby in zip(numbers, made, strict=True)]
    before = zip(numbers[1:], totals[1:], totals, strict=False)
    assert all(total <= max(serving, earlier) for serving, total, earlier in before)


@given(NUMBERS)
def test_a_pool_without_standbys_in_its_settings_has_none(numbers: list[int]) -> None:
    made, _ = through(numbers, StandbyLimits())
    assert {0} == set(made)


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 20))
def test_what_falls_and_rises_soon_again_starts_and_ends_no_replica(serving: int, fall: int, ticks: int) -> None:
    fall = min(fall, serving)
    made, state = through([serving, *[serving - fall] * ticks, serving], LIMITS)
    assert [0, *[fall] * ticks, 0] == made
    assert [pytest.approx(ticks * TICK_S)] * fall == list(state.returns)


def test_the_last_one_that_was_given_up_comes_back_first() -> None:
    state = StandbyState(serving=7)
    for at, serving in ((0.0, 6), (100.0, 5), (150.0, 6), (400.0, 7)):
        state = follow(state, serving, at, RULES)
    assert ((50.0, 400.0), ()) == (state.returns, state.released)


def test_what_is_not_needed_again_for_hours_is_forgotten_as_never_needed() -> None:
    state = follow(StandbyState(serving=7), 5, 0.0, RULES)
    state = follow(state, 5, RULES.horizon_s, RULES)
    assert ((RULES.horizon_s, RULES.horizon_s), ()) == (state.returns, state.released)


def test_standbys_end_one_after_the_other_once_they_have_cost_a_miss() -> None:
    made, _ = through([6, 5, 5, 4, *[4] * 600], LIMITS)
    steps = [(one, other) for one, other in itertools.pairwise(made) if one != other]
    assert [(0, 1), (1, 2), (2, 1), (1, 0)] == steps


def test_old_values_end_no_standby() -> None:
    state = StandbyState(serving=4, released=(0.0,), returns=(100.0,) * 8, standby=1)
    assert 0 == decide_standby(LIMITS, seen(10_000.0, 4), state).standby
    assert 1 == decide_standby(LIMITS, seen(10_000.0, 4, stale=True), state).standby


def test_a_measured_wake_up_counts_in_place_of_the_assumed_one() -> None:
    """A wake-up as long as a start saves nothing."""
    state = StandbyState(serving=5, wake_s=COLD_S)
    assert 0 == decide_standby(LIMITS, seen(0.0, 4), state).standby
    assert 1 == decide_standby(LIMITS, seen(0.0, 4), StandbyState(serving=5)).standby


def test_a_decision_says_why() -> None:
    [step] = decide_standby(LIMITS, seen(0.0, 4), StandbyState(serving=5)).steps
    assert ("standby", 1) == (step.name, step.value)
    assert "a replica that is not needed stands by for 5333 s: to wake it is 160 s faster than a start" == step.reason
    [step] = decide_standby(LIMITS, seen(0.0, 4, room=0), StandbyState(serving=5)).steps
    assert "room for 0 standbys of 1" == step.reason


def test_a_standby_that_is_not_worth_its_price_has_another_reason() -> None:
    state = StandbyState(serving=4, released=(0.0,), returns=(100.0,) * 8, standby=1)
    [step] = decide_standby(LIMITS, seen(10_000.0, 4, stale=True), state).steps
    assert (1, "values are old: no standby ends") == (step.value, step.reason)
    [step] = decide_standby(StandbyLimits(least=2, most=4), seen(10_000.0, 4), state).steps
    assert (2, "the fewest that stand by") == (step.value, step.reason)


def test_a_pool_clock_that_goes_back_breaks_nothing() -> None:
    state = follow(StandbyState(serving=5), 3, 1000.0, RULES)
    state = follow(state, 5, 10.0, RULES)
    assert ((0.0, 0.0), ()) == (state.returns, state.released)
