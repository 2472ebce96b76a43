"""Simulations of several models side by side, in the order of their events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loadtest.simulate.command import notes_of
from loadtest.simulate.models.gpus import Gpus, Share
from loadtest.simulate.parts.words import lines
from loadtest.simulate.pool.outcome import SimulatedRun
from loadtest.simulate.pool.simulation import Simulation
from loadtest.simulate.results.figures import Figures, figures_of
from loadtest.simulate.setup import Setup, Slo
from penstock.models import RequestClass


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """One model with its load."""

    name: str
    setup: Setup
    gpus: int
    """Of one replica."""
    simulation: Simulation
    """Not begun yet."""
    requests: int

    def notes(self, run: SimulatedRun) -> list[str]:
        """Return the figures of its parts, and what of it is not held to measurements."""
        return [*lines(run.parts), *notes_of(self.setup, run.fleet)]


@dataclass(frozen=True, slots=True)
class ModelResult:
    """What came of one model."""

    load: ModelLoad
    run: SimulatedRun
    figures: Figures
    """As of the end of its own last request."""
    gpu_hours: float
    """Until the end of the last request of all models."""
    waited_s: float
    """Seconds during which a replica could not start for want of GPUs."""


@dataclass(frozen=True, slots=True)
class SharedRun:
    """What came of all models."""

    gpus: int
    most_used: int
    seconds: float
    models: Sequence[ModelResult]

    @property
    def attainment(self) -> float:
        """Part of the requests of all models within the SLO of their model."""
        requests = sum(each.figures.requests for each in self.models)
        met = sum(each.figures.attainment * each.figures.requests for each in self.models)
        return met / requests if requests else 1.0


@dataclass(slots=True)
class _Pool:
    load: ModelLoad
    share: Share
    slos: Mapping[RequestClass, Slo]
    found: tuple[SimulatedRun, Figures] | None = None

    @property
    def simulation(self) -> Simulation:
        return self.load.simulation

    def note_end(self) -> bool:
        """Take the figures when all requests have ended. Return whether that is so now. The pool goes on, because its
        GPUs are others' too.
        """
        if self.found is not None or not self.simulation.over:
            return False
        run = self.simulation.result()
        self.found = run, figures_of(run, self.slos)
        return True


def run_models(loads: Sequence[ModelLoad], total: int, tell: Callable[[int], None] | None = None) -> SharedRun:
    """Simulate models on a number of GPUs. Those that replicas have from the first moment must fit."""
    gpus, pools = Gpus(total), []
    for load in loads:
        share = gpus.share(load.gpus, load.simulation.grow_at)
        load.simulation.share_gpus(share)
        gpus.take(load.gpus * load.setup.parts.beside)
        pools.append(_Pool(load, share, dict.fromkeys(RequestClass, load.setup.slo)))
    for pool in pools:
        pool.simulation.begin()
        pool.note_end()
    while any(pool.found is None for pool in pools):
        _go_on(pools, gpus)
        if tell is not None:
            tell(sum(pool.simulation.ended for pool in pools))
    seconds = max(pool.simulation.now for pool in pools)
    results = []
    for pool in pools:
        if pool.found is None:
            raise RuntimeError(f"the simulation of {pool.load.name} has not ended")
        run, figures = pool.found
        pool.share.close(seconds)
        hours = pool.load.gpus * run.hours(seconds)
        results.append(ModelResult(pool.load, run, figures, hours, pool.share.waited_s))
    return SharedRun(total, gpus.most_used, seconds, results)


def _go_on(pools: Sequence[_Pool], gpus: Gpus) -> None:
    """Let the pool whose event is next go on until it is another's turn."""
    first, *others = sorted(pools, key=lambda pool: pool.simulation.next_at)
    until = min((pool.simulation.next_at for pool in others), default=float("inf"))
    handed = gpus.handed
    while first.simulation.next_at <= until and gpus.handed == handed:
        first.simulation.step()
        if first.note_end():
            return
