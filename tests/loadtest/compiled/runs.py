"""Runs that differ in what they use of the simulator."""

from __future__ import annotations

from dataclasses import replace

from loadtest.benchmarks.cells.figures import figures_of, phases_of
from loadtest.benchmarks.cells.setup import PoolSize
from loadtest.benchmarks.cells.simulation import PoolSimulation
from loadtest.simulate.autoscalers.penstock import PenstockFast, model_of, penstock_slow, point_of
from loadtest.simulate.parts.settings import Parts, SharedPrefix, Speculation
from loadtest.simulate.pool.outcome import SimulatedRun
from loadtest.simulate.pool.simulation import Simulation
from loadtest.simulate.setup import Death, Setup, Slo
from tests.loadtest.simulate.pool.test_simulation import ENGINE, draw_trace

_SETUP = Setup(ENGINE, replicas=2, cold_start_s=5.0, slow_period_s=3.0, samples=50)
_SETUPS = {
    "static": _SETUP,
    "policies": _SETUP,
    "scripts": replace(_SETUP, scripts=True),
    "deaths": replace(_SETUP, deaths=(Death(8.0),), routers=2, queue_timeout_s=20.0),
    "parts": replace(_SETUP, parts=Parts(shared=SharedPrefix(200, 0.5, 3), speculation=Speculation(3, 0.7))),
}


def figures(name: str) -> list[object]:
    """Return every number of a run's outcomes and samples."""
    run = _run(_SETUPS[name], policies=name == "policies")
    logs = [list(member.replica.log.seconds) for member in run.fleet.members.values()]
    return [list(map(list, run.outcomes)), list(map(repr, run.samples)), logs, run.seconds, run.hours(run.seconds)]


def figures_of_cells() -> list[object]:
    """Return every figure of a day of a pool of cells, and what each tenant was served in each phase."""
    size = PoolSize(cells=4, replicas=24, routers=5, tenants=150, rate=100.0, seconds=120, sequences=4, output=30)
    run = PoolSimulation(replace(size, warm_up=5, day=True))
    run.run()
    every = [figures_of(run, 0.0, 0.0), *phases_of(run)]
    return [[each.fields() for each in every], [[part.served, sorted(part.waits.items())] for part in run.parts]]


def _run(setup: Setup, *, policies: bool) -> SimulatedRun:
    trace = draw_trace(requests=400, per_s=15.0)
    if not policies:
        return Simulation(trace, setup).run()
    point, model = point_of({setup.default_class: Slo()}), model_of(setup)
    return Simulation(trace, setup, fast=lambda: PenstockFast(point, model), slow=penstock_slow(setup, point)).run()
