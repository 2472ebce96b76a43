"""A long run is counted in bins and columns, and its figures stay what they are."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from loadtest.simulate.autoscalers.penstock import PenstockFast, model_of, point_of
from loadtest.simulate.pool import gaps
from loadtest.simulate.pool.outcome import Outcome, Outcomes, RequestEnd, SimulatedRun
from loadtest.simulate.pool.simulation import Simulation
from loadtest.simulate.results.figures import figures_of
from loadtest.simulate.setup import Setup, Slo
from loadtest.traces import TraceRequest
from penstock.models import RequestClass
from tests.loadtest.simulate.pool.test_simulation import ENGINE, SLOS, Planned, draw_trace


def simulated(policy: str) -> SimulatedRun:
    setup = Setup(ENGINE, replicas=2, cold_start_s=5.0, slow_period_s=3.0, samples=100)
    trace = draw_trace(requests=500, per_s=15.0)
    if policy == "static":
        return Simulation(trace, setup).run()
    point, model = point_of({setup.default_class: Slo()}), model_of(setup)
    slow = Planned((6.0, 3), (12.0, 1), (18.0, 2))
    return Simulation(trace, setup, fast=lambda: PenstockFast(point, model), slow=slow).run()


@pytest.mark.parametrize("policy", ["static", "moving"])
def test_bins_of_gaps_change_percentiles_by_a_thousandth_at_most(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else: a run decides by none of the steps that it has dropped."""
    whole = figures_of(simulated(policy), SLOS)
    monkeypatch.setattr(gaps, "KEPT_STEPS", 300)
    short = simulated(policy)
    binned = figures_of(short, SLOS)
    logs = [member.replica.log for member in (*short.fleet.gone, *short.fleet.members.values())]
    assert sum(log.dropped for log in logs) > 0.8 * sum(len(log) for log in logs)
    for name in ("mean", "p50", "p95", "p99"):
        assert getattr(whole.itl_s, name) == pytest.approx(getattr(binned.itl_s, name), rel=0.0011)
    assert whole.itl_s.mean == pytest.approx(binned.itl_s.mean, rel=1e-9)

    def rest(figures: object) -> object:
        return replace(figures, itl_s=None, distributions={}, wall_s=0.0, cpu_s=0.0)  # type: ignore[type-var]

    assert rest(whole) == rest(binned)


def test_columns_give_back_every_outcome() -> None:
    rnd = random.Random(3)
    outcomes = [
        Outcome(
            number,
            rnd.choice(list(RequestEnd)),
            rnd.choice(list(RequestClass)),
            *(rnd.random(), rnd.randint(1, 900), rnd.randint(1, 90), rnd.randint(0, 9)),
            *(rnd.random() for _ in range(5)),
            preemptions=rnd.randint(0, 3),
        )
        for number in range(50)
    ]
    columns = Outcomes(outcomes)
    assert outcomes == list(columns)
    assert outcomes[3:9:2] == columns[3:9:2]
    assert outcomes[-1] == columns[-1]
    slo = Slo(0.5, 0.5)
    assert [each.attains(slo) for each in outcomes] == columns.attain(slo).tolist()
    with pytest.raises(IndexError):
        columns[50]


def test_a_run_without_a_replica_policy_keeps_nothing_for_one() -> None:
    """It kept every arrival and every end to its own end."""
    simulation = Simulation([TraceRequest(n, 0.1 * n, 50, 5) for n in range(40)], Setup(ENGINE))
    simulation.run()
    seen = simulation._watch.of_pool(10.0)
    assert ([], []) == (list(seen.arrived), list(seen.ended))
