"""Forecasts of a pool's load: who is believed, and when a pattern counts."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable

import pytest

from cluster.forecast.blend import BlendRules, ExpertRecord, blended, weights_of
from cluster.forecast.experts import LEVEL, PRESENT
from cluster.forecast.load_record import DAY_S
from cluster.forecast.plan import AheadPlan, AheadRules, plan_ahead
from cluster.forecast.pool_forecast import BLEND, ForecastRules, Outlook, Pattern, PoolForecast

COLD_S = 180.0
RULES = BlendRules()
DAILY = "time of day"
DAYS = 3
"""Days before the morning that is foretold: the first to know, and more than one to judge the forecasts on."""


def office(at: float) -> float:
    """Return a load that is three times as high from nine to five, with five minutes of rise and fall."""
    hour = at % DAY_S / 3600
    return 1.0 + 2.0 * max(0.0, min(1.0, (hour - 9) * 12, (17 + 1 / 12 - hour) * 12))


def even(_: float) -> float:
    return 2.0


def fed(load: Callable[[float], float], days: float, scatter: float = 0.1, since: float = 0.0) -> PoolForecast:
    """Feed a load that scatters, once a minute."""
    forecast, draw = PoolForecast(), random.Random(5)
    for minute in range(int(days * 1440)):
        at = since + 60.0 * minute
        forecast.feed(at, load(at) * math.exp(draw.gauss(0.0, scatter)), COLD_S)
    return forecast


@pytest.fixture(scope="module")
def at_nine() -> PoolForecast:
    """Three days, and the fourth until three minutes before nine."""
    return fed(office, DAYS + (9 * 60 - 3) / 1440)


def test_a_rise_at_the_same_time_of_each_day_is_foretold(at_nine: PoolForecast) -> None:
    outlook = at_nine.outlook

    assert outlook is not None
    assert outlook.pattern is not None
    assert (DAILY, True) == (outlook.pattern.name, outlook.pattern.trusted)
    assert 1.2 < outlook.pattern.change < 2.0
    assert 2.0 < outlook.pattern.later < 4.0, "the load of 9:10 is three times as high"
    assert 0.05 < outlook.pattern.skill


def test_the_course_of_a_pattern_goes_on_beyond_one_start(at_nine: PoolForecast) -> None:
    assert at_nine.outlook is not None
    assert at_nine.outlook.pattern is not None
    ahead = round(at_nine.outlook.ahead_s / 60)
    near, far = at_nine.course([ahead, ahead + 60])
    assert 1.0 < near <= at_nine.outlook.pattern.change
    assert near < far
    assert [1.0, 1.0] == PoolForecast().course([5, 10])


def test_a_rise_that_has_begun_is_not_counted_twice(at_nine: PoolForecast) -> None:
    """At 9:04 half of the rise shows in the present load. What is still to come is measured from there."""
    forecast = copy.deepcopy(at_nine)
    for minute in range(-3, 5):
        at = DAYS * DAY_S + 9 * 3600 + 60.0 * minute
        forecast.feed(at, office(at), COLD_S)

    assert forecast.outlook is not None
    assert forecast.outlook.pattern is not None
    lately = sum(office(DAYS * DAY_S + 9 * 3600 + 60.0 * minute) for minute in (1, 2, 3)) / 3
    assert 2.6 < lately * forecast.outlook.pattern.change < 3.8


def test_the_shape_is_less_wrong_than_the_level_where_there_is_one(at_nine: PoolForecast) -> None:
    judged = at_nine.judged

    assert judged[DAILY].loss < judged[LEVEL].loss
    assert judged[BLEND].loss < judged[PRESENT].loss


def test_no_pattern_is_trusted_where_there_is_none() -> None:
    forecast = fed(even, 2.5, scatter=0.3)

    assert forecast.outlook is not None
    assert forecast.outlook.pattern is not None
    assert not forecast.outlook.pattern.trusted
    assert 0.95 < forecast.outlook.pattern.change < 1.05, "days that do not agree foretell nothing"


def test_a_day_is_not_enough_to_trust_a_pattern() -> None:
    forecast = fed(office, 1.9, scatter=0.0)

    assert forecast.outlook is not None
    assert forecast.outlook.pattern is not None
    assert not forecast.outlook.pattern.trusted


def test_a_successor_knows_record_and_errors_and_gathers_the_present_anew(at_nine: PoolForecast) -> None:
    read = PoolForecast.from_bytes(at_nine.to_bytes())

    assert list(at_nine.record.known()) == list(read.record.known())
    assert at_nine.judged == read.judged
    fresh = read.outlook
    assert fresh is None
    start = DAYS * DAY_S + 9 * 3600 - 180
    for minute in range(2):
        read.feed(start + 60.0 * minute, 1.0, COLD_S)
    assert read.outlook is not None
    assert read.outlook.pattern is not None
    assert read.outlook.pattern.trusted
    assert 1.2 < read.outlook.pattern.change


@pytest.mark.parametrize("text", [b"", b"\x93\x01", b"\xc1", b"\x93\x01\xc4\x01a\x80"])
def test_bytes_of_anything_else_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="no record of a pool's load"):
        PoolForecast.from_bytes(text)


def test_a_gap_in_the_ticks_makes_the_present_begin_anew() -> None:
    forecast = fed(even, 0.1, scatter=0.0)
    judged = forecast.judged[PRESENT].judged
    for minute in range(5):
        forecast.feed(0.1 * DAY_S + 3600 + 60.0 * minute, 50.0, COLD_S)

    assert judged == forecast.judged[PRESENT].judged, "nothing from before the gap is judged by what came after it"
    assert forecast.outlook is not None
    assert pytest.approx(50.0) == forecast.outlook.load


def test_a_clock_that_is_set_back_does_not_stop_the_forecast() -> None:
    forecast = fed(even, 0.1, scatter=0.0)
    for minute in range(10):
        forecast.feed(60.0 * minute, 3.0, COLD_S)

    assert forecast.outlook is not None
    assert pytest.approx(3.0) == forecast.outlook.load


def test_nothing_is_foreseen_of_a_pool_without_load() -> None:
    assert fed(lambda _: 0.0, 0.1, scatter=0.0).outlook is None


def test_the_expert_that_was_right_gets_the_weight() -> None:
    records = {
        PRESENT: ExpertRecord(0.2, judged=2000),
        "a": ExpertRecord(0.1, judged=2000),
        "b": ExpertRecord(0.3, judged=2000),
    }
    weights = weights_of(records, RULES)

    assert 0.99 < weights["a"]
    assert pytest.approx(1.0) == sum(weights.values())


def test_who_was_never_judged_has_no_weight() -> None:
    assert {PRESENT: 1.0} == weights_of({PRESENT: ExpertRecord(0.2, judged=2000), "new": ExpertRecord()}, RULES)
    assert {PRESENT: 1.0} == weights_of({}, RULES)


def test_too_little_is_the_worse_mistake() -> None:
    assert pytest.approx(1.5 * math.log(2)) == ExpertRecord().next(1.0, 2.0, RULES).loss
    assert pytest.approx(math.log(2)) == ExpertRecord().next(2.0, 1.0, RULES).loss


def test_a_blend_is_the_weighted_mean_of_logarithms() -> None:
    assert pytest.approx(2.0) == blended({"a": 1.0, "b": 4.0, "c": 9.0}, {"a": 0.4, "b": 0.4})
    assert blended({"c": 9.0}, {"a": 1.0}) is None


def seen(change: float, later: float, *, trusted: bool = True, falling: bool = True) -> Outlook:
    pattern = Pattern(DAILY, change, later, 0.2, trusted, falling)
    return Outlook(1.0, 240.0, 0.1, pattern, {}, {})


@pytest.mark.parametrize(
    ("change", "later", "trusted", "plan"),
    [
        (1.5, 2.0, True, AheadPlan(1.5, 2.0)),
        (1.5, 2.0, False, None),
        (1.02, 1.04, True, None),
        (1.0, 2.0, True, AheadPlan(1.0, 2.0)),
        (0.3, 0.2, True, AheadPlan(0.7, 0.7)),
    ],
)
def test_a_plan_needs_a_trusted_pattern_that_foretells_a_change(
    change: float, later: float, trusted: bool, plan: AheadPlan | None
) -> None:
    assert plan == plan_ahead(seen(change, later, trusted=trusted), AheadRules())


@pytest.mark.parametrize(
    ("change", "later", "plan"), [(0.3, 0.2, None), (0.8, 1.5, AheadPlan(1.0, 1.5)), (1.5, 2.0, AheadPlan(1.5, 2.0))]
)
def test_a_fall_that_the_last_minutes_do_not_show_is_not_planned_for(
    change: float, later: float, plan: AheadPlan | None
) -> None:
    """After a change of the clocks the day ends an hour later than the record says."""
    assert plan == plan_ahead(seen(change, later, falling=False), AheadRules())


def test_a_load_falls_when_its_last_minutes_are_lower_than_those_before() -> None:
    """At 16:58 the record foretells the end of the day. On this day it comes an hour later."""
    forecast = fed(office, 2 + (17 * 60 - 2) / 1440, scatter=0.0)
    assert forecast.outlook is not None
    assert forecast.outlook.pattern is not None
    assert forecast.outlook.pattern.change < 0.95
    assert not forecast.outlook.pattern.falling
    assert plan_ahead(forecast.outlook, AheadRules()) is None

    for minute in range(-2, 6):
        at = 2 * DAY_S + 17 * 3600 + 60.0 * minute
        forecast.feed(at, office(at), COLD_S)
    assert forecast.outlook.pattern is not None
    assert forecast.outlook.pattern.falling


def test_a_trusted_pattern_stays_so_until_its_skill_is_clearly_gone() -> None:
    forecast, trusted = PoolForecast(), []
    for slot in range(4 * 288):
        forecast.record.put(slot, 2.0)
    for minute, skill in enumerate([0.02, 0.04, 0.02, 0.01, 0.02]):
        at = 4 * DAY_S + 60.0 * minute
        forecast.judged = {
            name: ExpertRecord(0.2 * (1.0 - better), judged=2000.0)
            for name, better in {LEVEL: 0.0, PRESENT: 0.0, DAILY: skill}.items()
        }
        forecast.feed(at, 2.0, COLD_S)
        forecast.feed(at + 60.0, 2.0, COLD_S)
        assert forecast.outlook is not None
        assert forecast.outlook.pattern is not None
        trusted.append(forecast.outlook.pattern.trusted)

    assert [False, True, True, False, False] == trusted


def test_without_an_outlook_there_is_no_plan() -> None:
    assert plan_ahead(None, AheadRules()) is None


def test_the_rules_say_how_long_a_forecast_is_watched_first() -> None:
    """A pattern of days needs more than one of them."""
    assert DAY_S / 60 <= ForecastRules().trusted_minutes
