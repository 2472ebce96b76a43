"""Bars of the planner's quality: a figure is held to its bounds, and a miss shows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from cluster.control.step_model import Shape
from loadtest.benchmarks.plan import table_of_bars
from loadtest.plan.engine.points import Config, Point, Scores, known, predict, score
from loadtest.plan.measured.bars import MOST_RATIO, SUBMISSIONS, PlannerBar, bars_of, beyond, ratio_of
from loadtest.plan.measured.held_out import Verdicts

CONFIG = Config("llama-3.1-70b", "h100", "fp8", 4)


def scores_of(*factors: float) -> Scores:
    """Return scores on points that took so many times as long as the prior says."""
    points = []
    for clients, factor in enumerate(factors, start=4):
        found, point = known(CONFIG), Point(CONFIG, Shape(1000, 500), clients, 1.0, 1.0)
        assert not isinstance(found, str)
        said = predict(point, found)
        assert said is not None
        points.append(replace(point, ttft_s=said.ttft_s * factor, tpot_s=said.itl_s * factor))
    return score(points)


@pytest.mark.parametrize(("value", "held"), [(0.84, False), (0.85, True), (0.95, True), (0.951, False)])
def test_a_bar_with_two_ends_is_missed_beyond_either(value: float, held: bool) -> None:
    assert held is PlannerBar("ranges", value, 0.95, 0.85).held


def test_an_exact_prior_holds_the_bars_on_errors_and_biases() -> None:
    whole = scores_of(1.0, 1.0, 1.0)
    missed = {each.name for each in bars_of(whole, whole, []) if not each.held}
    # Ranges that hold everything are too wide.
    assert {"TPOT in the 90 % range, points of the fit", "TTFT in the 90 % range, points of the fit"} == missed
    assert [] == beyond(whole)


def test_a_prior_that_is_too_fast_misses_them_with_its_group() -> None:
    whole = scores_of(1.5, 1.5, 1.5)
    bars = {each.name: each for each in bars_of(whole, whole, [])}
    assert pytest.approx(1 / 3) == bars["largest TPOT bias of a group of the fit"].value
    assert not bars["TPOT error, median of all points"].held
    assert not bars["TTFT error, median of all points"].held
    assert [CONFIG] == [each.config for each in beyond(whole)]


def test_wrong_yes_has_a_bar_by_its_slo_and_counts_points_that_contradict_others() -> None:
    whole = scores_of(1.0)
    said = [Verdicts(*slo, points=90, wrong_yes=1, wrong_no=0, odd=10, odd_yes=1) for slo in ((2.0, 0.1), (1.0, 0.05))]
    (bar,) = (each for each in bars_of(whole, whole, said) if each.name.startswith("wrong yes"))
    assert ("wrong yes at 2 s and 100 ms, all points", 0.02, False) == (bar.name, bar.value, bar.held)


def test_the_table_says_which_bars_are_missed() -> None:
    verdicts = table_of_bars([PlannerBar("a", 0.1, 0.2), PlannerBar("b", 2.0, 1.5, 1.0, percent=False)]).columns[3]
    assert ["held", "[red]missed[/]"] == list(verdicts.cells)


def test_what_a_figure_is_made_of_stands_beside_its_verdict() -> None:
    bar = PlannerBar("a", 2.0, 1.5, 1.0, percent=False, note="1.24 before it is rounded up to whole replicas")
    (said,) = table_of_bars([bar]).columns[3].cells
    assert "[red]missed[/]: 1.24 before it is rounded up to whole replicas" == said


@pytest.mark.slow
def test_beyond_the_bar_at_one_accelerator_are_whole_replicas_alone() -> None:
    (one,) = (each for each in SUBMISSIONS if (each.gpu, each.gpus) == ("h100", 1))
    bar = ratio_of(one)
    assert not bar.held
    assert 2.0 == bar.value
    assert 1.0 < float(bar.note.split()[0]) <= MOST_RATIO
    assert bar.note.endswith("so whole replicas are all of what is beyond the bar")


def test_a_ratio_without_a_plan_is_no_number_in_json() -> None:
    data = PlannerBar("ratio", math.inf, 1.5, 1.0, percent=False).as_json()
    assert {"name": "ratio", "value": None, "least": 1.0, "most": 1.5, "held": False, "note": ""} == data


@pytest.mark.slow
def test_eight_times_the_load_of_a_submission_is_planned_within_the_bar() -> None:
    (eight,) = (each for each in SUBMISSIONS if (each.gpu, each.gpus) == ("h100", 8))
    bar = ratio_of(eight)
    assert bar.held
    assert 1.25 == bar.value
