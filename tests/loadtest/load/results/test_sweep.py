"""The search for the highest rate that holds, and how sure it is."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cluster.errors import SettingsError
from loadtest.load.results.attainment import Course, attainment, course_of, majority, student, wilson
from loadtest.load.results.sweep import END_TRIALS, SPARE_TRIALS, Search, SearchPlan, Trial


def trial_at(knee: float, noise: float = 0.0, trusted: bool = True) -> Any:
    rnd = random.Random(1)

    def run(rate: float, repeat: int) -> Trial:
        held = rate <= knee * (1 + rnd.uniform(-noise, noise))
        return Trial(rate, repeat, held, trusted, 990 if held else 500, 1000, {})

    return run


@pytest.mark.parametrize("knee", [1.0, 1.3, 17.0, 63.9, 100.0])
def test_the_knee_is_found_within_the_precision(knee: float) -> None:
    found = Search(SearchPlan(1.0, 128.0, repeats=1, precision=0.05), trial_at(knee)).run()
    assert found.holds is not None
    assert found.holds.rate <= knee
    assert found.fails is not None
    assert found.fails.rate > knee
    assert found.fails.rate / found.holds.rate <= 1.05
    assert pytest.approx(0.9375**2) == found.confidence
    assert "confidence 88%" in found.sentence()


def test_noise_is_met_with_more_trials_at_the_ends() -> None:
    plan = SearchPlan(1.0, 128.0, repeats=3, precision=0.05)
    knees = []
    for seed in range(20):
        rnd = random.Random(seed)

        def trial(rate: float, repeat: int, rnd: random.Random = rnd) -> Trial:
            return Trial(rate, repeat, rate <= 20.0 * (1 + rnd.gauss(0, 0.1)), True, 99, 100, {})

        found = Search(plan, trial).run()
        assert found.holds is not None
        assert found.fails is not None
        knees.append(found.holds.rate)
        for end in (found.holds, found.fails):
            assert end.confidence >= plan.confidence or end.tried >= END_TRIALS * plan.repeats
    assert pytest.approx(20.0, rel=0.05) == sorted(knees)[10]
    assert 16.0 < min(knees) <= max(knees) < 24.0


def test_a_rate_that_broke_by_chance_is_no_end_of_the_search() -> None:
    """Its further trials hold, and the search goes on above it."""

    def trial(rate: float, repeat: int) -> Trial:
        unlucky = rate == 4.0 and repeat < 2
        return Trial(rate, repeat, rate <= 10.0 and not unlucky, True, 99, 100, {})

    found = Search(SearchPlan(1.0, 64.0, repeats=3), trial).run()
    assert found.holds is not None
    assert found.fails is not None
    assert found.holds.rate <= 10.0 < found.fails.rate


def test_a_rate_that_held_by_chance_is_no_answer() -> None:
    def trial(rate: float, repeat: int) -> Trial:
        lucky = rate == 8.0 and repeat < 2
        return Trial(rate, repeat, rate <= 3.0 or lucky, True, 99, 100, {})

    found = Search(SearchPlan(1.0, 64.0, repeats=3), trial).run()
    assert found.holds is not None
    assert found.fails is not None
    assert found.holds.rate <= 3.0 < found.fails.rate


def test_where_all_rates_hold_the_highest_is_sure() -> None:
    found = Search(SearchPlan(1.0, 4.0, repeats=3), trial_at(100.0)).run()
    ran = [(trial.rate, trial.repeat) for trial in found.trials]
    assert [(1.0, 0), (1.0, 1), (2.0, 0), (2.0, 1), (4.0, 0), (4.0, 1), (4.0, 2)] == ran
    assert found.holds is not None
    assert (4.0, None) == (found.holds.rate, found.fails)
    assert "no higher rate was tried; confidence 94%" in found.sentence()
    assert [4.0, None] == found.as_json()["interval_rps"]


def test_trials_that_a_late_generator_broke_are_run_again() -> None:
    ran: list[tuple[float, int]] = []

    def trial(rate: float, repeat: int) -> Trial:
        ran.append((rate, repeat))
        late = repeat == 0
        return Trial(rate, repeat, rate <= 2 and not late, not late, 99, 100, {})

    found = Search(SearchPlan(1.0, 4.0, repeats=1, precision=0.9, confidence=0.5), trial).run()
    assert found.holds is not None
    assert found.fails is not None
    assert (2.0, pytest.approx(8**0.5)) == (found.holds.rate, found.fails.rate)
    assert [(1.0, 0), (1.0, 1), (2.0, 0), (2.0, 1), (4.0, 0), (4.0, 1)] == ran[:6]
    assert found.trusted
    assert (1, 1) == (found.holds.held, found.holds.tried)


def test_a_cluster_that_holds_nothing_is_said_to() -> None:
    found = Search(SearchPlan(1.0, 4.0, repeats=1, confidence=0.5), trial_at(0.5, trusted=False)).run()
    assert found.fails is not None
    assert (None, 1.0) == (found.holds, found.fails.rate)
    assert 1 + SPARE_TRIALS == len(found.trials)
    assert not found.trusted
    assert "not even 1 requests/s" in found.sentence()
    assert found.as_json()["knee_rps"] is None


@pytest.mark.parametrize(("knee", "holds"), [(0.3, True), (0.01, False)])
def test_below_the_first_rate_it_looks_down_to_the_floor(knee: float, holds: bool) -> None:
    found = Search(SearchPlan(1.0, 4.0, repeats=1, floor=1 / 8), trial_at(knee)).run()
    assert found.fails is not None
    if holds:
        assert found.holds is not None
        assert found.holds.rate <= knee < found.fails.rate <= 1.1 * found.holds.rate
    else:
        assert (None, 1 / 8) == (found.holds, found.fails.rate)


@pytest.mark.parametrize(
    "plan",
    [(2.0, 1.0, 3, 0.1, 0.9), (1.0, 2.0, 2, 0.1, 0.9), (1.0, 2.0, 3, 0.001, 0.9), (1.0, 2.0, 3, 0.1, 1.0)],
)
def test_a_search_that_makes_no_sense_is_refused(plan: tuple[float, float, int, float, float]) -> None:
    with pytest.raises(SettingsError, match="sweep"):
        SearchPlan(*plan)


# --- how sure an attainment is ----------------------------------------------------------------------------------------


def bursts(rnd: random.Random, seconds: int) -> Course:
    """Calm seconds of five requests that are served well, and spells of ten seconds of fifteen that are not."""
    course, calm = [], rnd.random() < 0.9
    for _ in range(seconds):
        calm = rnd.random() >= 1 / 90 if calm else rnd.random() < 1 / 10
        count = sum(rnd.random() < 0.5 for _ in range(10 if calm else 30))
        course.append((count, count if calm else 0))
    return course


@pytest.mark.slow
def test_requests_of_one_burst_count_as_few() -> None:
    """The interval that takes requests to be independent almost never has the true value."""
    true = 0.9 * 5 / (0.9 * 5 + 0.1 * 15)
    rnd, covered, naive = random.Random(1), 0, 0
    for _ in range(100):
        found = attainment([bursts(rnd, 200) for _ in range(3)])
        assert found is not None
        covered += found.low <= true <= found.high
        low, high = wilson(found.part * found.requests, found.requests)
        naive += low <= true <= high
    assert covered >= 85
    assert naive < 25


def test_independent_requests_count_in_full() -> None:
    rnd, covered, effects = random.Random(3), 0, []
    for _ in range(200):
        course = [(5, sum(rnd.random() < 0.97 for _ in range(5))) for _ in range(100)]
        found = attainment([course])
        assert found is not None
        covered += found.low <= 0.97 <= found.high
        effects.append(found.design_effect)
    assert 185 <= covered
    assert sorted(effects)[100] < 1.6


def test_bursts_that_were_served_well_prove_less_than_as_many_single_requests() -> None:
    even = attainment([[(10, 10)] * 60])
    uneven = attainment([[(100, 100) if second % 10 == 0 else (0, 0) for second in range(60)]])
    assert even is not None
    assert uneven is not None
    assert (even.requests, even.part, even.design_effect) == (uneven.requests, uneven.part, 1.0)
    assert uneven.design_effect > 50
    assert uneven.low < 0.8 < 0.99 < even.low


def test_an_interval_has_its_own_part() -> None:
    for ended in range(1, 100):
        for good in (0, ended // 3, ended):
            found = attainment([[(7 * ended, 7 * good), (0, 0)] * 20])
            assert found is not None
            assert 0.0 <= found.low <= found.part <= found.high <= 1.0


def test_nothing_says_nothing() -> None:
    assert attainment([[(0, 0)] * 10]) is None


def test_a_warm_up_in_which_nothing_is_counted_makes_no_run_less_sure() -> None:
    def figures(warmup_s: float) -> dict[str, Any]:
        seconds = [{"second": at, "ended": 10 * (at >= 60), "good": 9 * (at >= 60)} for at in range(180)]
        return {"scenario": {"warmup_s": warmup_s, "duration_s": 180.0}, "timeline": seconds}

    found, idle = attainment([course_of(figures(60.0))]), attainment([course_of(figures(0.0))])
    assert found is not None
    assert idle is not None
    assert pytest.approx(1.0) == found.design_effect
    assert idle.design_effect > 50


def test_one_request_that_takes_longer_than_the_load_makes_no_run_less_sure() -> None:
    """The seconds in which it alone still runs say nothing of those that ended before."""
    seconds = [{"second": at, "ended": 10, "good": 9} for at in range(60)]
    seconds += [{"second": at, "ended": int(at == 89), "good": 0} for at in range(60, 90)]

    found = attainment([course_of({"scenario": {"warmup_s": 0.0, "duration_s": 60.0}, "timeline": seconds})])

    assert found is not None
    assert found.requests == 601
    assert found.design_effect < 1.1


def test_what_fills_no_block_is_not_held_against_the_others() -> None:
    """Twenty seconds share their fate, 400 requests, also where runs are half a block longer than that."""
    courses = [[(20, 20 * (run % 2))] * 20 + [(20, 20 * (1 - run % 2))] * 19 for run in range(8)]

    found = attainment(courses)

    assert found is not None
    assert pytest.approx(400 * 8 / 7) == found.design_effect


def test_the_interval_covers_the_true_part_about_as_often_as_it_says() -> None:
    rnd = random.Random(3)
    covered = 0
    for _ in range(400):
        low, high = wilson(sum(rnd.random() < 0.97 for _ in range(200)), 200)
        covered += low <= 0.97 <= high
    assert 0.92 <= covered / 400 <= 0.99


def test_quantiles_of_student_are_those_of_the_tables() -> None:
    assert [2.776, 2.228, 2.042, 1.960] == [
        pytest.approx(student(0.95, degrees), rel=0.02) for degrees in (4, 10, 30, float("inf"))
    ]


def test_votes_are_as_sure_as_a_coin_allows() -> None:
    assert [0.75, 0.875, 0.9375, 0.5] == [majority(1, 1), majority(2, 2), majority(3, 3), majority(1, 2)]
    assert pytest.approx(1.0) == majority(2, 5) + majority(3, 5)
