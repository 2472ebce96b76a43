"""The forecast of a pool at work: it is fed, stored, taken over, exported, and decides only where it is told to."""

from __future__ import annotations

import dataclasses
import math

import pytest
from prometheus_client import generate_latest

from cluster.autoscaler.ahead.foresight import REFERENCE, Foresight
from cluster.autoscaler.metrics import AutoscalerMetrics
from cluster.autoscaler.redis.keys import control_keys
from cluster.control.load_forecast import Need
from cluster.control.replica_rules import SlowState
from cluster.control.replica_seconds import demand_of
from cluster.control.settings import ControlMode
from cluster.forecast.blend import ExpertRecord
from cluster.forecast.experts import LEVEL, PRESENT
from cluster.forecast.load_record import DAY_S
from cluster.forecast.pool_forecast import Outlook, Pattern, PoolForecast
from tests.cluster.autoscaler.conftest import Backend
from tests.cluster.autoscaler.scaled_pool import TICK_S, Site, both
from tests.cluster.control.groups import BOUNDS, MODEL, POINT, decide, group, interactive, long_ago, names, reason


def outlook(change: float, later: float, *, trusted: bool = True, falling: bool = False) -> Outlook:
    pattern = Pattern("time of day", change, later, 0.25, trusted, falling)
    return Outlook(3.0, 240.0, 0.2, pattern, {PRESENT: 1.0}, {PRESENT: 3.0})


def needed(change: float, later: float, state: SlowState, have: int = 6, *, falling: bool = False) -> int:
    seen = dataclasses.replace(group(have, interactive(3.0)), outlook=outlook(change, later, falling=falling))
    return decide(POINT, BOUNDS, seen, state).replicas


def test_a_rise_that_earlier_days_foretell_is_ordered_now() -> None:
    seen = dataclasses.replace(group(4, interactive(3.0)), outlook=outlook(2.0, 3.0))
    decision = decide(POINT, BOUNDS, seen, long_ago(4, 3.0))
    usual = decide(POINT, BOUNDS, group(4, interactive(3.0)), long_ago(4, 3.0))

    assert 4 == usual.needed
    assert 8 == decision.needed
    assert "x2.00 within 240 s, by the time of day: its forecasts were 25% less wrong" in reason(decision, "ahead")
    assert ("ahead", usual.replicas) in {(each.without, each.replicas) for each in decision.counterfactuals}


def test_a_pattern_that_is_not_trusted_changes_nothing() -> None:
    seen = dataclasses.replace(group(4, interactive(3.0)), outlook=outlook(2.0, 3.0, trusted=False))
    decision = decide(POINT, BOUNDS, seen, long_ago(4, 3.0))

    assert "ahead" not in names(decision)
    assert decide(POINT, BOUNDS, group(4, interactive(3.0)), long_ago(4, 3.0)).replicas == decision.replicas


def test_replicas_stay_for_a_rise_that_comes_before_they_could_be_back() -> None:
    assert 6 == needed(1.0, 1.5, long_ago(4, 3.0))
    assert 5 >= needed(1.0, 1.0, long_ago(4, 3.0))


def test_replicas_go_sooner_where_the_load_falls_and_is_said_to_go_on() -> None:
    """Ten minutes ago six were needed, which the usual look-back still counts."""
    needs = tuple(Need(10_000.0 - TICK_S * n, 3.0, 6 if n * TICK_S > 200 else 4) for n in range(240, 0, -1))
    state = SlowState(needs=needs, active_at=10_000.0)

    assert 6 == needed(1.0, 1.0, state)
    assert 5 == needed(0.8, 0.8, state, falling=True)
    assert 6 == needed(0.8, 0.8, state)


def test_no_removal_leaves_too_little_for_the_present_load() -> None:
    """A fall that is foretold has not happened yet."""
    fullest = min(needed(0.7, 0.7, long_ago(2, 3.0), have, falling=True) for have in (4, 5, 6))

    assert math.ceil(3.0 / 0.95) <= fullest


def look(foresight: Foresight, at: float, load: float, slower: float = 1.0) -> Outlook | None:
    """Look at a load, on an engine whose steps take so many times as long."""
    seen = dataclasses.replace(group(4, interactive(load)), model=MODEL.times(slower), at=at)
    demand = demand_of(POINT, seen)
    assert demand is not None
    return foresight.look(POINT, seen, [Need(at, demand.work, 4)]).outlook


def test_a_record_outlives_the_engine() -> None:
    """Steps become twice as long. The same requests are more work, and the record sees no rise."""
    foresight = Foresight("demo", ControlMode.ADVISORY)
    for minute in range(20):
        look(foresight, 60.0 * minute, 2.0)
    before = foresight.forecast.outlook
    for minute in range(20, 24):
        look(foresight, 60.0 * minute, 2.0, slower=2.0)
    after = foresight.forecast.outlook

    assert before is not None
    assert after is not None
    assert pytest.approx(before.load, rel=0.05) == after.load
    assert 0 < REFERENCE.prompt_tokens


@pytest.mark.parametrize(("mode", "trusted"), [(ControlMode.ADVISORY, False), (ControlMode.ACTIVE, True)])
def test_only_an_active_forecast_is_trusted(mode: ControlMode, trusted: bool) -> None:
    foresight = Foresight("demo", mode)
    # A day with a rise at nine, five times; then the sixth morning.
    for minute in range(5 * 1440 + 9 * 60 - 3):
        hour = minute % 1440 / 60
        foresight.forecast.feed(60.0 * minute, 6.0 if 9 <= hour < 17 else 2.0, 180.0)
    seen = look(foresight, 5 * DAY_S + 9 * 3600 - 180, 2.0)

    assert seen is not None
    assert seen.pattern is not None
    assert trusted == seen.pattern.trusted
    assert 1.3 < seen.pattern.change


@pytest.mark.parametrize(("mode", "waits"), [(ControlMode.ADVISORY, False), (ControlMode.ACTIVE, True)])
def test_a_new_leader_waits_for_its_first_outlook_where_the_record_is_trusted(mode: ControlMode, waits: bool) -> None:
    foresight = Foresight("demo", mode)
    seen = dataclasses.replace(group(4, interactive(2.0)), at=60_000.0)
    needs = [Need(60_000.0, 2.0, 4)]
    assert not foresight.look(POINT, seen, needs).outlook_awaited

    foresight.forecast = PoolForecast()
    foresight.forecast.judged = {LEVEL: ExpertRecord(0.2, judged=2000), "time of day": ExpertRecord(0.1, judged=2000)}
    assert waits == foresight.look(POINT, seen, needs).outlook_awaited
    later = [Need(60_060.0, 2.0, 4)]
    assert not foresight.look(POINT, dataclasses.replace(seen, at=60_060.0), later).outlook_awaited


def test_a_forecast_that_is_off_records_nothing() -> None:
    foresight = Foresight("demo", ControlMode.OFF)
    for minute in range(20):
        assert look(foresight, 60.0 * minute, 2.0) is None

    assert [] == list(foresight.forecast.record.known())


def test_a_forecast_that_is_switched_off_shows_nothing_of_what_it_foresaw_last() -> None:
    """The page of the next hours and the metrics would show the pattern of that minute for ever."""
    foresight = Foresight("demo", ControlMode.ACTIVE)
    for minute in range(5 * 1440 + 9 * 60 - 3):
        foresight.forecast.feed(60.0 * minute, 6.0 if 9 <= minute % 1440 / 60 < 17 else 2.0, 180.0)
    now = 5 * DAY_S + 9 * 3600 - 180
    look(foresight, now, 2.0)
    assert 1.3 < max(foresight.forecast.course([5, 10]))

    foresight.follow(ControlMode.OFF, ())
    assert look(foresight, now + 15, 2.0) is None
    assert [1.0, 1.0] == foresight.forecast.course([5, 10])
    assert foresight.forecast.outlook is None
    # Switched on again it foresees anew with the next minute.
    foresight.follow(ControlMode.ACTIVE, ())
    for later in (30, 60):
        look(foresight, now + later, 2.0)
    assert foresight.forecast.outlook is not None


@both
async def test_the_next_leader_goes_on_with_the_record(backend: Backend) -> None:
    site = Site(backend)
    first, second = site.scaler("a"), site.scaler("b")
    await site.run(first, 45, rate=60.0)
    stored = await backend.store().forecast()
    known = list(first.foresight.forecast.record.known())
    assert stored is not None
    assert 2 == len(known)
    await first.resign()
    await site.run(second, 1, rate=60.0)

    assert known == list(second.foresight.forecast.record.known())
    assert first.foresight.forecast.judged.keys() >= second.foresight.forecast.judged.keys()


@both
async def test_a_record_that_was_lost_is_stored_again_within_five_minutes(backend: Backend) -> None:
    site = Site(backend)
    scaler = site.scaler("a")
    await site.run(scaler, 45, rate=60.0)
    backend.forget()
    await site.run(scaler, 30, rate=60.0)
    stored = await backend.store().forecast()

    assert stored is not None
    assert 3 <= len(list(PoolForecast.from_bytes(stored).record.known()))


@both
async def test_a_record_that_nobody_can_read_stays_until_there_is_one_of_a_day(backend: Backend) -> None:
    """A later release may have written it."""
    site = Site(backend)
    store = backend.store()
    await store.lead("z", 5.0)
    await store.store_forecast("z", 1, b"of another release")
    await store.resign("z")
    scaler = site.scaler("a")
    await site.run(scaler, 45, rate=60.0)
    assert b"of another release" == await store.forecast()

    record = scaler.foresight.forecast.record
    assert 2 == len(list(record.known()))
    newest = record.newest
    assert newest is not None
    for before in range(1, 290):
        record.put(newest - before, 1.0)
    await site.run(scaler, 20, rate=60.0)
    stored = await store.forecast()
    assert stored is not None
    assert 290 <= len(list(PoolForecast.from_bytes(stored).record.known()))


async def test_metrics_say_what_is_foreseen_and_how_wrong_each_expert_was(local: Backend) -> None:
    site = Site(local)
    scaler = site.scaler("a")
    await site.run(scaler, 80, rate=60.0)
    text = generate_latest(AutoscalerMetrics(lambda: {"demo": scaler}).registry).decode()

    for name in ("forecast_load", "forecast_weight", "forecast_error"):
        assert f'penstock_autoscaler_{name}{{expert="{PRESENT}",pool="demo"}}' in text
    assert 'penstock_autoscaler_forecast_skill{pool="demo"}' in text
    assert control_keys("demo")[2].endswith(":forecast")


@both
async def test_a_schedule_in_the_settings_orders_replicas_and_a_change_of_it_is_followed(backend: Backend) -> None:
    always = {"start": "00:00", "end": "00:00", "min_replicas": 3}
    site = Site(backend, schedule=[always])
    scaler = site.scaler("a")
    [record] = await site.run(scaler, 1)
    site.settings = Site(backend, schedule=[{**always, "min_replicas": 4}]).settings
    scaler.change(site.settings)
    [after] = await site.run(scaler, 1)

    assert (3, 4) == (record.replicas, after.replicas)
    assert "scheduled from 00:00 to 00:00 UTC" in {step.reason for step in after.steps}
