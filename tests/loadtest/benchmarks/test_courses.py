"""Loads that policies know the past of: the past is that of the load, and only of it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cluster.forecast.load_record import DAY_S, SLOT_S, WEEK_S
from loadtest.benchmarks.autoscaler.contest import POLICIES, PRESENT
from loadtest.benchmarks.autoscaler.courses import SERIES, SERIES_ROW_S, Course, office_hours, record_of, second_week
from loadtest.benchmarks.autoscaler.scenarios import SCENARIOS, Case, Span, case, work_of
from loadtest.simulate.autoscalers.penstock import PenstockSlow

SPAN = Span(1200.0, lead_s=300.0)
ROWS = 2016


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A series that grows by one request per second in each row, and requests of one length."""
    folder = tmp_path_factory.mktemp("data")
    rows = [f"{SERIES_ROW_S * number:.0f},{100 + number}" for number in range(ROWS)]
    (folder / SERIES).write_text("\n".join(["t_s,req_per_s", *rows]))
    lines = [f"2023-11-16 18:00:{number:02}.0000000,1000,200" for number in range(60)]
    (folder / "azure_llm_2023_conv.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    return folder


def drawn(name: str, data: Path, seed: int = 1) -> tuple[Case, Course]:
    found = case(next(each for each in SCENARIOS if each.name == name), seed, SPAN, data)
    assert found.course is not None
    return found, found.course


def test_a_window_of_the_second_week_has_the_first_one_as_its_past(data: Path) -> None:
    for seed in range(20):
        course = second_week(random.Random(seed), 2400.0, data)
        assert WEEK_S <= course.at <= SERIES_ROW_S * ROWS - 2400.0
        assert WEEK_S <= course.past_s <= course.at
        assert pytest.approx(100 + course.at / SERIES_ROW_S) == course.rate(0.0)
        assert pytest.approx(100.0, abs=1.0) == course.rate(-course.at)


def test_a_window_of_the_second_week_is_served_by_a_pool_that_is_an_hour_old(data: Path) -> None:
    """What a pool orders in its first minutes would count for a large part of the window otherwise."""
    scenario = next(each for each in SCENARIOS if each.name == "second week")
    span = Span(1200.0, scenario.lead_s)
    one = case(scenario, 1, span, data)
    counted = sum(span.counts(each.arrival_s) for each in one.trace)
    before = sum(each.arrival_s < span.lead_s for each in one.trace)

    assert pytest.approx(3600 / 1200, rel=0.2) == before / counted


def test_office_hours_triple_at_nine_and_fall_at_five(data: Path) -> None:
    course = office_hours(random.Random(1), 2400.0, data)
    nine = 9 * 3600.0 - course.at % DAY_S

    assert 450 < nine < 750, "the rise is in the counted time"
    assert (1.0, 2.0, 3.0) == pytest.approx([course.rate(nine + late_s) for late_s in (0.0, 150.0, 300.0)])
    assert (3.0, 1.0) == pytest.approx([course.rate(nine + 8 * 3600 + late_s - DAY_S) for late_s in (-1.0, 300.0)])


def test_a_load_and_its_course_are_of_the_same_draw(data: Path) -> None:
    """Requests of the second half of a rise are as many as the course says."""
    one, course = drawn("office hours", data)
    nine = SPAN.lead_s + 9 * 3600.0 - course.at % DAY_S
    before = sum(nine - 300 <= each.arrival_s < nine for each in one.trace) / 300
    after = sum(nine + 300 <= each.arrival_s < nine + 600 for each in one.trace) / 300

    assert 2.0 < after / before < 4.0


def test_the_record_has_the_scale_of_the_load(data: Path) -> None:
    one, course = drawn("second week", data)
    short = Course(course.rate, course.at, DAY_S / 4)
    record = record_of(short, 2.0, 0.01, 180.0, seed=3).record
    known = dict(record.known())
    middle = int((course.at - DAY_S / 8) // SLOT_S)
    expected = [2.0 * course.rate(SLOT_S * (slot + 0.5) - course.at) for slot in range(middle - 20, middle + 20)]

    assert (
        pytest.approx(sum(expected) / 40, rel=0.1) == sum(known[slot] for slot in range(middle - 20, middle + 20)) / 40
    )
    assert work_of(one.trace[0], one.setup.engine) > 0


def test_only_the_policy_with_a_record_looks_ahead(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.benchmarks.autoscaler.courses._MOST_PAST_S", DAY_S / 8)
    one, course = drawn("second week", data)
    ours, present = (POLICIES[name].slow(one, 0.0) for name in ("penstock", PRESENT))

    assert isinstance(ours, PenstockSlow)
    assert isinstance(present, PenstockSlow)
    assert ours.foresight is not None
    assert present.foresight is None
    assert pytest.approx(course.at - SPAN.lead_s) == ours.began_at
    assert POLICIES[PRESENT].on_request
