"""The search for the least number of replicas, and trials that are long enough to tell."""

from __future__ import annotations

import pytest

from cluster.control.step_model import Shape, StepModel
from loadtest.plan import least
from loadtest.plan.engine.prior import StepPrior
from loadtest.plan.least import Least, find_least
from loadtest.plan.option import Engine, Operation, Promise, operate
from loadtest.plan.traffic import Load, steady_load
from loadtest.plan.trial import TrialFigures, try_out
from loadtest.traces import TraceRequest

PROMISE = Promise(ttft_p99_s=1.0, itl_p95_s=0.1)
ENGINE = Engine(
    model="toy",
    gpu="card",
    tensor_parallel=1,
    precision="bf16",
    steps=StepPrior(StepModel(0.02, 2e-5, 1e-8), 0.0),
    error=0.0,
    source="profile",
    kv_tokens=2_000_000,
    step_limits=(2048, 600),
    context=4096,
)


class Trials:
    """Stand in for the simulator."""

    def __init__(self, enough: int, far: bool = True) -> None:
        self.enough, self.far, self.made = enough, far, list[int]()

    def __call__(self, replicas: int) -> TrialFigures:
        self.made.append(replicas)
        held = replicas >= self.enough
        return TrialFigures(0.1, 0.5 if held else 3.0, 0.02, 0.03, 1.0, 1.0 if held else 0.5 if self.far else 0.98)


@pytest.mark.parametrize("far", [True, False])
@pytest.mark.parametrize("enough", [1, 15, 16, 18, 19, 24, 29, 33])
def test_the_least_number_that_is_enough_is_found(enough: int, far: bool) -> None:
    trials = Trials(enough, far)
    found = find_least(trials, PROMISE, floor=15, guess=18)
    assert max(15, enough) == found.replicas
    assert found.holds
    assert min(trials.made) >= 15
    assert len(trials.made) <= 8


def test_one_replica_is_one_trial() -> None:
    trials = Trials(1)
    assert Least(1, True, "") == find_least(trials, PROMISE, floor=1, guess=1)
    assert [1] == trials.made


def test_what_is_missed_is_told() -> None:
    assert "TTFT SLO" == find_least(Trials(20), PROMISE, floor=15, guess=18).missed
    assert Least(118, False, "TTFT SLO") == find_least(Trials(10_000), PROMISE, floor=15, guess=18)


def test_a_promise_that_no_number_keeps_takes_three_trials() -> None:
    trials = Trials(10_000)
    assert Least(118, False, "TTFT SLO") == find_least(trials, PROMISE, floor=15, guess=18)
    assert [18, 29, 118] == trials.made


@pytest.mark.parametrize("far", [True, False])
def test_a_look_at_the_largest_number_changes_no_answer(far: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> list[Least]:
        return [find_least(Trials(enough, far), PROMISE, floor=15, guess=18) for enough in range(1, 130)]

    looked = found()
    monkeypatch.setattr(least, "LOST", 100)
    assert looked == found()
    assert {True, False} == {each.holds for each in looked}


def test_large_numbers_are_not_told_apart_one_by_one() -> None:
    trials = Trials(960)
    found = find_least(trials, PROMISE, floor=850, guess=1000)
    assert 960 <= found.replicas < 960 * 1.03
    assert len(trials.made) <= 4


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 4])
def test_a_trial_is_long_enough_to_fill_a_large_batch(replicas: int) -> None:
    """A tenth too much takes several lifetimes of a request to show; 600 requests did not even fill this batch."""
    load = steady_load(1.0, 100, 400, 0.2)
    operation = operate(ENGINE, load, PROMISE)
    assert isinstance(operation, Operation)
    assert 600 == operation.batch
    much = steady_load(1.1 * replicas * operation.rate, 100, 400, 0.2)
    assert try_out(ENGINE, operation, much, PROMISE, replicas).attainment < 0.9
    enough = steady_load(0.85 * replicas * operation.rate, 100, 400, 0.2)
    assert 0.99 <= try_out(ENGINE, operation, enough, PROMISE, replicas).attainment


def test_calm_times_do_not_hide_the_busiest_of_a_recorded_load() -> None:
    """Two requests a second never fill the batch; 300 of 2,000 come ten times as fast, more than is promised for."""
    busy = [TraceRequest(n, 0.05 * n, 1500, 50) for n in range(300)]
    calm = [TraceRequest(300 + n, 100 + 0.55 * n, 1500, 50) for n in range(1700)]
    load = Load("mixed", 2.0, Shape(1500, 50), 1550, tuple(busy + calm))
    tight = Promise(ttft_p99_s=1.0, itl_p95_s=0.06)
    assert try_out(ENGINE, Operation(600, 2048, 0.03, 300.0, ""), load, tight, 1).attainment < 0.5
