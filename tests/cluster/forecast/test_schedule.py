"""Schedules: which replicas operators want when, and that they are there in time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, time
from typing import Any

import pytest
from pydantic import ValidationError

from cluster.control.replica_rules import GroupBounds, SlowState
from cluster.control.snapshot import GroupSnapshot
from cluster.forecast.schedule import ScheduledTime, scheduled
from cluster.settings import AutoscaleSettings
from cluster.settings.load import list_errors
from tests.cluster.control.groups import POINT, decide, group, interactive, long_ago, names, reason

WEEK = frozenset(range(7))
OFFICE = ScheduledTime(time(9), time(17), frozenset(range(5)), "UTC", 8)


def at(when: str) -> float:
    return datetime.fromisoformat(when).replace(tzinfo=UTC).timestamp()


def settings(**change: object) -> AutoscaleSettings:
    """Make settings with one scheduled time."""
    entry = {"start": "09:00", "end": "17:00", "min_replicas": 8, **change}
    return AutoscaleSettings.model_validate({"mode": "active", "max_replicas": 20, "schedule": [entry]})


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ("2026-11-27 08:59", False),
        ("2026-11-27 09:00", True),
        ("2026-11-27 16:59", True),
        ("2026-11-27 17:00", False),
        ("2026-11-28 12:00", False),
    ],
)
def test_office_hours_are_those_of_working_days(when: str, holds: bool) -> None:
    """27 November 2026 is a Friday."""
    assert holds == OFFICE.holds(at(when))


@pytest.mark.parametrize(
    ("when", "holds"),
    [("2026-11-27 21:59", False), ("2026-11-27 22:00", True), ("2026-11-28 05:59", True), ("2026-11-28 06:00", False)],
)
def test_a_time_beyond_midnight_belongs_to_the_day_on_which_it_starts(when: str, holds: bool) -> None:
    night = ScheduledTime(time(22), time(6), frozenset({4}), "UTC", 3)

    assert holds == night.holds(at(when))
    assert not night.holds(at("2026-11-26 23:00"))


def test_equal_ends_are_a_day() -> None:
    day = ScheduledTime(time(6), time(6), frozenset({4}), "UTC", 3)

    assert [False, True, True, False] == [
        day.holds(at(when)) for when in ("2026-11-27 05:59", "2026-11-27 06:00", "2026-11-28 05:59", "2026-11-28 06:00")
    ]


def test_a_date_is_in_place_of_the_days() -> None:
    """Friday 27 November, and the night that follows it."""
    launch = ScheduledTime(time(20), time(4), WEEK, "UTC", 3, frozenset({date(2026, 11, 27)}))

    assert [False, True, True, False, False] == [
        launch.holds(at(when))
        for when in (
            "2026-11-26 21:00",
            "2026-11-27 21:00",
            "2026-11-28 03:59",
            "2026-11-28 04:00",
            "2026-11-28 21:00",
        )
    ]


def test_a_zone_changes_its_clock() -> None:
    """Nine o'clock in Berlin is eight in winter and seven in summer."""
    berlin = ScheduledTime(time(9), time(10), WEEK, "Europe/Berlin", 3)

    assert berlin.holds(at("2026-01-15 08:30"))
    assert not berlin.holds(at("2026-01-15 07:30"))
    assert berlin.holds(at("2026-07-15 07:30"))
    assert not berlin.holds(at("2026-07-15 08:30"))


@pytest.mark.parametrize(
    ("start", "end", "first", "last"),
    [
        pytest.param("02:30", "06:00", "2026-10-25 00:30", "2026-10-25 04:59", id="begins in an hour that comes twice"),
        pytest.param("20:00", "02:30", "2026-10-24 18:00", "2026-10-25 01:29", id="ends in an hour that comes twice"),
        pytest.param("02:15", "02:45", "2026-10-25 00:15", "2026-10-25 01:44", id="lies in it"),
        pytest.param("02:30", "06:00", "2026-03-29 00:30", "2026-03-29 03:59", id="begins in an hour left out"),
        pytest.param("02:15", "02:45", "2026-03-29 00:15", "2026-03-29 01:44", id="lies in an hour left out"),
    ],
)
def test_a_time_has_no_gap_where_the_clock_changes(start: str, end: str, first: str, last: str) -> None:
    """It is there once, and at least as long as on other days. Clocks in Berlin change at 01:00 UTC."""
    days = frozenset({date.fromisoformat("2026-10-24" if start == "20:00" else first[:10])})
    berlin = ScheduledTime(time.fromisoformat(start), time.fromisoformat(end), WEEK, "Europe/Berlin", 3, days)
    holds = [each for each in range(int(at(first)) - 86_400, int(at(last)) + 86_400, 60) if berlin.holds(each)]
    assert list(range(int(at(first)), int(at(last)) + 60, 60)) == holds


def test_replicas_are_ordered_a_cold_start_sooner() -> None:
    assert scheduled([OFFICE], at("2026-11-27 08:56"), 180.0) is None
    due = scheduled([OFFICE], at("2026-11-27 08:57"), 180.0)

    assert due is not None
    assert (8, "scheduled from 09:00 to 17:00 UTC") == (due.replicas, due.reason)


def test_a_time_shorter_than_a_cold_start_is_not_missed() -> None:
    short = ScheduledTime(time(9), time(9, 1), WEEK, "UTC", 3)

    assert scheduled([short], at("2026-11-27 08:45"), 1800.0) is not None


def test_the_largest_number_counts() -> None:
    more = ScheduledTime(time(12), time(13), WEEK, "UTC", 12)
    due = scheduled([OFFICE, more], at("2026-11-27 12:30"), 60.0)

    assert due is not None
    assert 12 == due.replicas
    assert scheduled([], at("2026-11-27 12:30"), 60.0) is None


def scheduled_group(replicas: int, ready: int = 4) -> GroupSnapshot:
    seen = replace(group(ready, interactive(3.0)), at=at("2026-11-27 08:58"))
    return replace(seen, scheduled=scheduled([ScheduledTime(time(9), time(17), WEEK, "UTC", replicas)], seen.at, 180.0))


def test_a_schedule_adds_replicas_and_says_so() -> None:
    decision = decide(POINT, GroupBounds(1, 20), scheduled_group(7), SlowState())

    assert 7 == decision.replicas
    assert "scheduled from 09:00 to 17:00 UTC" == reason(decision, "schedule")


def test_bounds_hold_for_a_schedule_and_the_rate_of_growth_does_not() -> None:
    bounded = decide(POINT, GroupBounds(1, 6), scheduled_group(15), SlowState())
    fast = decide(POINT, GroupBounds(1, 50), scheduled_group(40), SlowState())

    assert (6, 40) == (bounded.replicas, fast.replicas)
    assert "up_rate" not in names(fast)


def test_no_replica_of_a_schedule_is_removed() -> None:
    kept = decide(POINT, GroupBounds(1, 20), scheduled_group(9, ready=9), long_ago(2, 1.0))

    assert 9 == kept.replicas


DAYS = "must be 'mon', 'tue', 'wed', 'thu', 'fri', 'sat' or 'sun'"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"start": "9:00"}, "schedule.0.start: must be a time of day as HH:MM, from 00:00 to 23:59, got '9:00'"),
        ({"start": "24:00"}, "schedule.0.start: must be a time of day as HH:MM, from 00:00 to 23:59, got '24:00'"),
        ({"end": "24:01"}, "schedule.0.end: must be a time of day as HH:MM, from 00:00 to 24:00, got '24:01'"),
        ({"end": 17}, "schedule.0.end: must be a time of day as HH:MM, from 00:00 to 24:00, got 17"),
        (
            {"end": "1\u0663:00"},
            "schedule.0.end: must be a time of day as HH:MM, from 00:00 to 24:00, got '1\u0663:00'",
        ),
        ({"days": ["monday"]}, f"schedule.0.days.0: {DAYS}, got 'monday'"),
        ({"days": ["mon", "tues"]}, f"schedule.0.days.1: {DAYS}, got 'tues'"),
        ({"days": "mon"}, "schedule.0.days: must be a list, got 'mon'"),
        ({"days": []}, "schedule.0.days: must have at least 1 item, not 0, got []"),
        ({"min_replicas": 0}, "schedule.0.min_replicas: must be at least 1, got 0"),
        (
            {"dates": ["27.11.2026"]},
            "schedule.0.dates.0: must be a date of the calendar as YYYY-MM-DD, got '27.11.2026'",
        ),
        (
            {"dates": ["2026-02-30"]},
            "schedule.0.dates.0: must be a date of the calendar as YYYY-MM-DD, got '2026-02-30'",
        ),
        (
            {"time_zone": "Europe/Nowhere"},
            "schedule.0.time_zone: must be a time zone that is known here, such as Europe/Berlin, got 'Europe/Nowhere'",
        ),
        ({"min_replicas": 21}, "schedule.0.min_replicas must be at most max_replicas = 20, got 21"),
    ],
)
def test_a_wrong_schedule_is_told_once_with_field_limit_and_value(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError) as refused:
        settings(**change)

    assert [told] == [line.removeprefix("settings: ") for line in list_errors(refused.value)]


def test_a_day_ends_at_24() -> None:
    evening, whole = settings(start="18:00", end="24:00"), settings(start="00:00", end="24:00")

    assert [True, False] == [evening.schedule[0].value.holds(at(f"2026-11-2{when}")) for when in ("7 23:59", "8 00:00")]
    assert {True} == {whole.schedule[0].value.holds(at(f"2026-11-27 {hour:02}:30")) for hour in range(24)}
    # Stored like this, so that a release that knows no 24:00 reads it.
    assert "00:00" == evening.schedule[0].end


def test_settings_become_the_times_of_the_policy() -> None:
    made = settings(days=["mon", "fri"], time_zone="Europe/Berlin", dates=["2026-12-24"])
    dates = frozenset({date(2026, 12, 24)})

    assert ScheduledTime(time(9), time(17), frozenset({0, 4}), "Europe/Berlin", 8, dates) == made.schedule[0].value
    assert AutoscaleSettings.model_validate_json(made.model_dump_json()) == made
    assert datetime(2026, 11, 27, 9, tzinfo=UTC).timestamp() == at("2026-11-27 09:00")
