"""Bursts that end before a replica is ready: a number is held for them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest

from cluster.control.bursts.hold import Hold, HoldRules, HoldTimes, best_level, next_hold
from cluster.control.bursts.plans import Work, followed, held, scatter, works_of
from cluster.control.load_forecast import LoadRules, Need
from cluster.control.replica_rules import GroupBounds, SlowRules, SlowState
from cluster.hindsight.fluid import FluidRules, FluidRun, Given, LoadTick, Wanted, replay
from cluster.hindsight.policy import PolicyScaler, ReplayedPool
from penstock.values.slo import ClassSlo, OperatingPoint
from tests.cluster.hindsight.loads import TICK_S, bursty, changing

HOUR = int(3600 / TICK_S)
POINT = OperatingPoint(interactive=ClassSlo(10.0))
COLD_START_S, LIVES_S = 180.0, 30.0
FLUID = FluidRules(COLD_START_S, lies_s=5.0 + LIVES_S / 2)
RULES = SlowRules(load=LoadRules(check_s=0.0))
FOLLOWS = dataclasses.replace(RULES, hold=HoldRules(check_s=0.0))
TIMES = HoldTimes(COLD_START_S, 300.0, 20.0, 60.0)


def served(ticks: Sequence[LoadTick], rules: SlowRules = RULES) -> tuple[FluidRun, PolicyScaler]:
    scaler = PolicyScaler(POINT, ReplayedPool(GroupBounds(1, 100), rules), COLD_START_S, LIVES_S)
    return replay(ticks, scaler, Wanted(10), FLUID), scaler


def needs(ticks: Sequence[LoadTick], at: float) -> list[Need]:
    work, found = 0.0, []
    for each in ticks:
        work += (1 - math.exp(-0.25)) * (each.work / TICK_S - work)
        # What a following policy wants.
        found.append(Need(at + each.at, work, math.ceil(1.5 * work), each.requests / TICK_S))
    return found


def fixed_attainment(ticks: Sequence[LoadTick], run: FluidRun) -> float:
    """Return the attainment of a fixed number with the hours of a run's end; between two numbers that of a mixture."""
    count = run.hours * 3600 / run.seconds
    skipped = len(ticks) - len(run.ticks)
    few, more = (
        replay(ticks, Given([Wanted(replicas)]), Wanted(replicas), FLUID).since(skipped).attainment
        for replicas in (math.floor(count), math.floor(count) + 1)
    )
    return few + (count - math.floor(count)) * (more - few)


@pytest.mark.parametrize("variation", [5.0, 10.0, 15.0])
def test_bursts_are_served_as_well_as_by_a_fixed_number_of_the_same_cost(variation: float) -> None:
    ticks = bursty(variation, 3 * 3600.0, seed=1)
    run = served(ticks)[0].since(HOUR)

    assert run.attainment > fixed_attainment(ticks, run) - 0.002
    assert run.reversals <= 2 * 2

    control = served(ticks, FOLLOWS)[0].since(HOUR)
    assert control.reversals > run.reversals


def test_load_that_can_be_followed_is_followed_as_before() -> None:
    for rate in (
        lambda _: 2.0,
        lambda at: 0.8 if at < 4000.0 else 2.4,
        lambda at: 1.5 + math.sin(2 * math.pi * at / 7200.0),
    ):
        ticks = changing(rate, 2 * 3600.0, seed=3)
        assert served(ticks)[0] == served(ticks, FOLLOWS)[0]


def test_a_burst_that_outlasts_the_others_is_followed() -> None:
    ticks = bursty(10.0, 2 * 3600.0, seed=1)
    more = [dataclasses.replace(each, at=each.at + 7200.0) for each in changing(lambda _: 20.0, 900.0, seed=2)]
    _, scaler = served(ticks)
    usual = scaler.state.hold.replicas
    run, _ = served([*ticks, *more])

    assert usual > 0
    assert usual == run.ticks[len(ticks)].replicas
    # The load of the end keeps eighty busy.
    assert 80 <= run.ticks[-1].replicas


def test_arrivals_follow_from_averages() -> None:
    work, needs = 0.0, []
    for tick, came in enumerate([0.0, 5.0, 0.0, 2.0]):
        work += (1 - math.exp(-0.25)) * (came - work)
        needs.append(Need(TICK_S * tick, work, 0))

    assert pytest.approx([5.0, 0.0, 2.0]) == [each.amount / each.seconds for each in works_of(needs, 60.0)]


def test_a_held_number_misses_what_lies_too_long() -> None:
    # 100 replica-seconds at once: two replicas do 30 in the tick, and 20 may lie there.
    works = [Work(15.0, 15.0, 100.0), Work(30.0, 15.0, 0.0), Work(45.0, 15.0, 0.0), Work(60.0, 15.0, 100.0)]
    found = held(works, 2.0, 10.0)

    assert pytest.approx(0.5) == found.missed
    assert 15.0 == found.longest_s
    assert 15.0 == found.lasting_s
    assert 0.0 == held(works, 6.0, 10.0).missed


def test_following_comes_too_late_for_short_bursts_and_turns_each_time() -> None:
    works, wanted = [], []
    for tick in range(4 * HOUR // 4):
        burst = tick % 80 < 4
        works.append(Work(15.0 * (tick + 1), 15.0, 150.0 if burst else 15.0))
        wanted.append(10 if burst else 2)
    follow = followed(works, wanted, cold_start_s=180.0, look_back_s=300.0, wait_s=10.0)
    same = held(works, follow.replicas, 10.0)

    assert follow.turns >= 4
    assert same.missed < follow.missed


def test_scatter_is_beyond_chance_and_without_drifts() -> None:
    def found(ticks: Sequence[LoadTick]) -> tuple[float, float, int]:
        needs = [Need(each.at, each.work / TICK_S, 0, each.requests / TICK_S) for each in ticks]
        result = scatter(needs, [Work(each.at, TICK_S, each.work) for each in ticks], COLD_START_S)
        return result.part, result.dispersion, result.bursts

    chance = found(changing(lambda _: 2.0, 7200.0, seed=1))
    swing = found(changing(lambda at: 1.5 + math.sin(2 * math.pi * at / 7200.0), 7200.0, seed=1))
    wild = found(bursty(10.0, 7200.0, seed=1))

    # Exponential work of chance arrivals has a variance of twice its mean.
    assert 0.5 < chance[1] < 5.0
    assert swing[0] < 0.35 < wild[0]
    assert wild[1] > 40.0
    assert wild[2] >= 3


def test_another_replica_must_be_worth_its_cost() -> None:
    works = [Work(each.at, TICK_S, each.work) for each in bursty(15.0, 7200.0, seed=1)]
    dear, _ = best_level(works, 0.99, 20.0, HoldRules(worth=0.4))
    usual, _ = best_level(works, 0.99, 20.0, HoldRules())
    cheap, _ = best_level(works, 0.99, 20.0, HoldRules(worth=0.0))
    modest, _ = best_level(works, 0.9, 20.0, HoldRules(worth=0.0))

    assert dear < usual <= cheap
    assert modest < cheap
    assert held(works, 0.95 * cheap, 20.0).missed <= 0.01


def test_the_number_stays_until_looks_ask_for_another_for_long() -> None:
    rules = HoldRules()

    first = next_hold(Hold(), needs(bursty(10.0, 7200.0, seed=1), 0.0), 0.99, 1, TIMES, rules)
    soon = next_hold(first, needs(bursty(10.0, 7200.0, seed=1), 60.0), 0.99, 1, TIMES, rules)
    other = next_hold(first, needs(bursty(10.0, 7200.0, seed=2), 600.0), 0.99, 1, TIMES, rules)
    grown = next_hold(first, needs(bursty(15.0, 7200.0, seed=1, rate=4.0), 600.0), 0.99, 1, TIMES, rules)

    assert first.replicas > 0
    assert first == soon
    assert first.replicas == other.replicas
    assert first.asked != other.asked
    assert grown.replicas > 1.5 * first.replicas
    assert Hold(checked_at=7800.0) == next_hold(
        first, needs(changing(lambda _: 2.0, 7200.0, 1), 600.0), 0.99, 1, TIMES, rules
    )


def test_one_look_raises_the_number_and_the_average_of_looks_lowers_it() -> None:
    """An average would miss the larger bursts for as long as it had seen smaller ones."""
    rules = HoldRules()

    def asks(rate: float) -> float:
        return next_hold(Hold(), load(rate), 0.99, 1, TIMES, rules).replicas

    def load(rate: float) -> list[Need]:
        return needs(bursty(10.0, 7200.0, seed=3, rate=rate), 600.0)

    usual, more, less = asks(2.0), asks(2.8), asks(1.4)
    assert usual * (1 + rules.change) <= more < usual * (1 + rules.change_now)
    assert usual * (1 - rules.change_now) < less <= usual * (1 - rules.change)
    known = Hold(round(usual), usual, 6, 0.0, 0.0)
    assert more == next_hold(known, load(2.8), 0.99, 1, TIMES, rules).replicas
    assert usual == next_hold(known, load(1.4), 0.99, 1, TIMES, rules).replicas


def test_a_turned_dial_chooses_the_number_anew_at_the_next_look() -> None:
    """The mean of the looks of hours rests on what another replica was worth before."""
    ticks = needs(bursty(10.0, 7200.0, seed=3), 600.0)
    dear, cheap = HoldRules(worth=0.3), HoldRules(worth=0.0)
    more, less = (next_hold(Hold(), ticks, 0.99, 1, TIMES, rules).replicas for rules in (cheap, dear))
    assert more * (1 - dear.change_now) < less <= more * (1 - dear.change)
    known = SlowState(hold=Hold(more, more, 40, ticks[-1].at - TICK_S, 0.0), fill_from=0.55)

    def chosen(fill: float) -> int:
        state = known.under(SlowRules(fill=fill))
        return next_hold(state.hold, ticks, 0.99, 1, TIMES, dear).replicas

    assert (more, less) == (chosen(0.55), chosen(0.75))
