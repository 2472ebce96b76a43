"""Replays with what a pool has on: its schedule, its forecast, its standbys. What no replay follows is named."""

from __future__ import annotations

import dataclasses
from datetime import time

import pytest

from cluster.autoscaler.own_settings import ScalerSettings
from cluster.control.replica_rules import GroupBounds
from cluster.forecast.load_record import DAY_S, SLOT_S, LoadRecord
from cluster.forecast.schedule import ScheduledTime
from cluster.hindsight.fluid import FluidRules, FluidRun, LoadTick, Wanted, replay
from cluster.hindsight.foreseen import ForeseenLoad, foreseen
from cluster.hindsight.history import History, history_of
from cluster.hindsight.policy import PolicyScaler, ReplayedPool
from cluster.hindsight.review import compare, expected
from cluster.settings import PoolSettings
from cluster.standby.rule import StandbyLimits
from penstock.client import RecordedLoad
from penstock.values.steps import Step
from router.commands.decisions.review import replayed_pool
from tests.cluster.hindsight.loads import WORK_S, changing
from tests.cluster.hindsight.test_history import BOUNDS, POINT, RULES, WINDOW_S, history, recorded, swing
from tests.support.stack import sim_pool

POOL = ReplayedPool(BOUNDS, RULES)
UNIT = 0.25
"""Replica-seconds of one unit of the record."""
MORNING_S = 6 * DAY_S + 8.5 * 3600.0


def run(load: History, pool: ReplayedPool) -> FluidRun:
    scaler = PolicyScaler(POINT, pool, load.cold_start_s, load.lives_s)
    fluid = load.fluid(POINT, WINDOW_S, pool.standby)
    return replay(load.ticks, scaler, Wanted(load.ran[0].replicas), fluid)


def shifted(load: History, by_s: float) -> History:
    """Return a load that came later."""
    return dataclasses.replace(
        load, ticks=tuple(dataclasses.replace(each, clock=each.clock + by_s) for each in load.ticks)
    )


def test_scheduled_replicas_are_there_at_their_time_and_ordered_a_cold_start_sooner() -> None:
    due = ScheduledTime(time(1), time(2), frozenset(range(7)), "UTC", 30)
    load = history(changing(lambda _: 1.5, 3 * 3600.0, seed=5))
    found = run(load, dataclasses.replace(POOL, schedule=(due,)))
    counts = {tick.clock: each.replicas for tick, each in zip(load.ticks, found.ticks, strict=True)}

    # Additions at most double the number within a minute.
    assert 30 <= min(number for at, number in counts.items() if 3600.0 <= at < 7200.0)
    before = [number for at, number in counts.items() if 1800.0 <= at <= 3600.0 - load.cold_start_s - 15.0]
    assert 30 > max(before)
    assert 30 > max(each.replicas for each in run(load, POOL).ticks)


def test_a_pool_that_may_have_none_gives_up_its_last_replica_and_has_one_again() -> None:
    """What averages leave of a load never ends, and keeps none."""
    calm = changing(lambda _: 0.3, 3600.0, seed=5)
    quiet = [LoadTick(each.at + 3600.0, each.seconds, 0.0, 0.0) for each in calm]
    again = [dataclasses.replace(each, at=each.at + 7200.0) for each in calm]
    load = history([*calm, *quiet, *again], replicas=2)
    found = run(load, dataclasses.replace(POOL, bounds=GroupBounds(0, 20)))
    none = [tick.at for tick, each in zip(load.ticks, found.ticks, strict=True) if not each.replicas]
    last, had = max(
        (tick.at, each.replicas)
        for tick, each in zip(load.ticks, found.ticks, strict=True)
        if tick.at < 4000.0 and tick.requests > 0.5
    )
    # One goes at a time.
    assert last + RULES.idle_s <= none[0] <= last + RULES.idle_s + had * RULES.rails.down_window_s
    assert 7200.0 <= none[-1] <= 7260.0


def test_a_schedule_keeps_to_the_time_of_day_where_hours_are_missing() -> None:
    due = ScheduledTime(time(2), time(3), frozenset(range(7)), "UTC", 30)
    made = recorded(changing(lambda _: 1.5, 4 * 3600.0, seed=5), [14] * 960)
    # From 0:45 to 1:45 nobody led the pool.
    load = history_of(made[:180] + made[420:], POINT, WINDOW_S)
    found = run(load, dataclasses.replace(POOL, schedule=(due,)))

    at_two = [each.replicas for tick, each in zip(load.ticks, found.ticks, strict=True) if 7200 <= tick.clock < 10_800]
    assert 230 < len(at_two)
    assert 30 <= min(at_two)


def rate(at: float) -> float:
    """Requests per second: four times as many from nine to five."""
    return 6.0 if 9 * 3600.0 <= at % DAY_S < 17 * 3600.0 else 1.5


def week(last_s: float) -> LoadRecord:
    record = LoadRecord()
    for slot in range(round(last_s / SLOT_S)):
        record.put(slot, WORK_S * rate(SLOT_S * slot) / UNIT)
    return record


@pytest.fixture(scope="module")
def morning() -> History:
    """The load around nine, after six days like it."""
    return shifted(history(changing(lambda at: rate(MORNING_S + at), 3 * 3600.0, seed=5)), MORNING_S)


@pytest.fixture(scope="module")
def known(morning: History) -> ForeseenLoad:
    """What was foreseen when it began. The record goes on for three hours."""
    found = foreseen(week(MORNING_S + 3 * 3600.0), morning.ticks, morning.cold_start_s)
    assert found is not None
    return found


def test_a_rise_that_the_record_foretold_then_is_foretold_in_the_replay(morning: History, known: ForeseenLoad) -> None:
    with_it = dataclasses.replace(POOL, foreseen=known)
    found, without = run(morning, with_it), run(morning, POOL)

    def at_nine(of: FluidRun) -> int:
        nine = 6 * DAY_S + 9 * 3600.0
        return [each.replicas for tick, each in zip(morning.ticks, of.ticks, strict=True) if tick.clock <= nine][-1]

    assert at_nine(found) > 1.5 * at_nine(without)
    assert expected(morning, POINT, with_it).attainment > expected(morning, POINT, POOL).attainment
    # Replays do not learn from each other.
    assert found == run(morning, with_it)


def test_a_forecast_knows_nothing_of_what_came_later(known: ForeseenLoad) -> None:
    newest = known.forecast.record.newest
    assert newest is not None
    assert SLOT_S * (newest + 1) <= MORNING_S + SLOT_S
    # In replica-seconds, by the hours that both know.
    assert pytest.approx(WORK_S * 1.5, rel=0.1) == known.forecast.record.value(newest)


def test_a_record_of_other_hours_foresees_nothing(morning: History) -> None:
    assert foreseen(week(MORNING_S - DAY_S), morning.ticks, morning.cold_start_s) is None
    late = LoadRecord()
    for slot in range(round(MORNING_S / SLOT_S), round(MORNING_S / SLOT_S) + 30):
        late.put(slot, 1.0)
    assert foreseen(late, morning.ticks, morning.cold_start_s) is None


class Orders:
    """A rule that asks for given numbers, and notes what is ready."""

    def __init__(self, *wanted: Wanted) -> None:
        self.orders = list(wanted)
        self.seen: list[tuple[int, int]] = []

    def wanted(self, view: object) -> Wanted:
        self.seen.append((view.ready, view.starting))  # type: ignore[attr-defined]
        return self.orders.pop(0)


def served(first: Wanted, *wanted: Wanted, price: float = 0.5) -> tuple[Orders, FluidRun]:
    rules = FluidRules(cold_start_s=60.0, lies_s=10.0, wake_s=15.0, standby_price=price)
    orders = Orders(*wanted)
    return orders, replay(
        [LoadTick(15.0 * n, 15.0, WORK_S, 1.0) for n in range(1, len(wanted) + 1)], orders, first, rules
    )


def test_a_standby_wakes_sooner_than_a_replica_starts_and_costs_less() -> None:
    orders, found = served(Wanted(3), Wanted(1, 1), Wanted(1, 1), Wanted(3), Wanted(3), Wanted(3), Wanted(3), Wanted(3))

    # Of the two that were given up one stands by, and wakes within a tick; the other has to start.
    assert [(3, 0), (1, 0), (1, 0), (2, 1), (2, 1), (2, 1), (3, 0)] == orders.seen[:7]
    assert [3, 1, 1, 3, 3, 3, 3] == [each.replicas for each in found.ticks]
    assert [0.0, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0] == [each.standbys for each in found.ticks]
    assert pytest.approx((17 + 2 * 0.5) * 15 / 3600) == found.hours


def test_fewest_standbys_are_started_and_give_way_to_removals() -> None:
    orders, found = served(Wanted(2), *[Wanted(2, 2)] * 6, Wanted(2), Wanted(2))

    assert [(2, 0)] * 8 == orders.seen
    assert [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0] == [each.standbys for each in found.ticks]


def test_a_cold_start_under_way_ends_as_a_standby_where_it_is_not_needed_any_more() -> None:
    orders, _ = served(
        Wanted(1), Wanted(3), Wanted(1, 2), Wanted(1, 2), Wanted(1, 2), Wanted(1, 2), Wanted(3), Wanted(3)
    )

    assert [(1, 0), (1, 2), (1, 0), (1, 0), (1, 0), (1, 0), (3, 0)] == orders.seen


def test_standbys_of_a_pool_save_time_and_those_that_ran_are_counted() -> None:
    # Load that goes and comes back each half hour.
    load = history(changing(lambda at: 0.5 if at // 1800 % 2 else 2.5, 6 * 3600.0, seed=5))
    limits = StandbyLimits(0, 20, price=0.1, wake_s=15.0)
    without, with_them = expected(load, POINT, POOL), expected(load, POINT, dataclasses.replace(POOL, standby=limits))

    assert with_them.attainment > without.attainment

    ran = dataclasses.replace(load, ran=tuple(dataclasses.replace(each, standing_by=5) for each in load.ran))
    found = compare(ran, POINT, dataclasses.replace(POOL, standby=limits)).ran
    assert pytest.approx(24.0 * (14 + 0.1 * 5)) == found.hours_a_day


def test_bounds_and_budget_hold_for_standbys() -> None:
    load = history(changing(lambda at: 0.5 if at // 1800 % 2 else 2.5, 3 * 3600.0, seed=5))
    limits = StandbyLimits(5, 20, price=1.0, wake_s=15.0)
    few = ReplayedPool(GroupBounds(1, 14), RULES, standby=limits)
    assert 14 >= max(each.replicas + each.standbys for each in run(load, few).ticks)
    poor = dataclasses.replace(POINT, price_per_gpu_hour=1.0, budget_per_hour=12.0)
    scaler = PolicyScaler(poor, dataclasses.replace(POOL, standby=limits), load.cold_start_s, load.lives_s)
    found = replay(load.ticks, scaler, Wanted(12), load.fluid(poor, WINDOW_S, limits))
    assert 12 >= max(each.replicas + each.standbys for each in found.ticks)


def test_what_no_replay_follows_is_named() -> None:
    made = recorded(swing(2.0), [14] * 480)
    assert () == expected(history_of(made, POINT, WINDOW_S), POINT, POOL).left_out

    demand = dataclasses.replace(made[50].demands[0], deadline=600.0)
    made[50] = dataclasses.replace(made[50], demands=(*made[50].demands, demand))
    made[60] = dataclasses.replace(made[60], failed_starts=1)
    made[70] = dataclasses.replace(made[70], steps=(Step("announced", 3.0, ""),))
    named = expected(history_of(made, POINT, WINDOW_S), POINT, dataclasses.replace(POOL, left_out=("this",))).left_out
    assert ["this", "jobs with a deadline", "starts that failed", "announced load"] == [
        each.split(":")[0] for each in named
    ]


def settings(**own: object) -> ScalerSettings:
    scale = {"mode": "active", "max_replicas": 40, **own}
    return ScalerSettings.of(PoolSettings.model_validate({**sim_pool(), "autoscale": scale}))


def test_a_pool_is_replayed_with_its_settings(morning: History) -> None:
    record = week(MORNING_S + 3 * 3600.0)
    load = RecordedLoad(0, SLOT_S, (None, *(value for _, value in list(record.known())[1:])))
    due = {"days": ["mon"], "start": "09:00", "end": "10:00", "min_replicas": 20}
    found = replayed_pool(settings(schedule=[due], standby=3, standby_price=0.2), morning, load)

    assert [20] == [each.replicas for each in found.schedule]
    assert (3, 0.2) == (found.standby.most, found.standby.price)
    assert found.foreseen is not None
    assert () == found.left_out

    # A forecast that decides nothing is none.
    for mode in ("off", "advisory"):
        other = replayed_pool(settings(forecast=mode), morning, load)
        assert (None, ()) == (other.foreseen, other.left_out)
    for missing in (None, RecordedLoad(0, SLOT_S, (1.0,))):
        other = replayed_pool(settings(), morning, missing)
        assert other.foreseen is None
        assert ["the forecast"] == [each.split(":")[0] for each in other.left_out]
