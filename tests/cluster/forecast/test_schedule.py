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


def test_bounds_and_rates_hold_for_a_schedule_too() -> None:
    bounded = decide(POINT, GroupBounds(1, 6), scheduled_group(15), SlowState())
    fast = decide(POINT, GroupBounds(1, 50), scheduled_group(40), SlowState())

    assert (6, 8) == (bounded.replicas, fast.replicas)
    assert "up_rate" in names(fast)


def test_no_replica_of_a_schedule_is_removed() -> None:
    kept = decide(POINT, GroupBounds(1, 20), scheduled_group(9, ready=9), long_ago(2, 1.0))

    assert 9 == kept.replicas


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"start": "9:00"}, "start"),
        ({"end": "24:00"}, "end"),
        ({"days": ["monday"]}, "days"),
        ({"days": []}, "days"),
        ({"min_replicas": 0}, "min_replicas"),
        ({"dates": ["27.11.2026"]}, "dates"),
        ({"dates": ["2026-02-30"]}, "dates"),
        ({"time_zone": "Europe/Nowhere"}, "must be a time zone that is known here, .*, got 'Europe/Nowhere'"),
        ({"min_replicas": 21}, r"schedule.0.min_replicas must be at most max_replicas = 20, got 21"),
    ],
)
def test_a_wrong_schedule_is_refused_with_its_field(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        settings(**change)


def test_settings_become_the_times_of_the_policy() -> None:
    made = settings(days=["mon", "fri"], time_zone="Europe/Berlin", dates=["2026-12-24"])
    dates = frozenset({date(2026, 12, 24)})

    assert ScheduledTime(time(9), time(17), frozenset({0, 4}), "Europe/Berlin", 8, dates) == made.schedule[0].value
    assert AutoscaleSettings.model_validate_json(made.model_dump_json()) == made
    assert datetime(2026, 11, 27, 9, tzinfo=UTC).timestamp() == at("2026-11-27 09:00")
