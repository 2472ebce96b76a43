"""Modules that a simulation spends its time in, and the digest by which a compiled set is known to be theirs.

A compiled class has no subclasses in Python. So modules that have subclasses of these classes are in the set too. Sums
of fractions are over lists: mypyc adds up a generator by itself, without the compensation of Python 3.12.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Folder of the packages."""
SIMULATOR = (
    "deployments.engines.sim.limits",
    "deployments.engines.sim.turn",
    "deployments.engines.sim.kv",
    "deployments.engines.sim.core",
    "loadtest.simulate.engine.steps",
    "loadtest.simulate.engine.replica",
    "loadtest.simulate.parts.core",
    "loadtest.simulate.parts.replica",
    "loadtest.simulate.parts.speculation",
    "loadtest.simulate.parts.speculative_replica",
    "loadtest.simulate.pool.loop",
    "loadtest.simulate.pool.fleet",
    "loadtest.simulate.pool.outcome",
    "loadtest.simulate.pool.watch",
    "loadtest.simulate.pool.plain_entries",
    "loadtest.simulate.pool.plain_queue",
    "loadtest.simulate.pool.traffic",
    "loadtest.simulate.pool.simulation",
    "loadtest.plan.trial",
    "loadtest.traces.request",
    "loadtest.simulate.autoscalers.penstock",
    "cluster.control.replay",
    "cluster.control.batch_policy",
)
CELLS = (
    "cluster.queue.cells.choice",
    "cluster.queue.cells.weights",
    "cluster.queue.cells.seen",
    "loadtest.benchmarks.cells.model_line",
    "loadtest.benchmarks.cells.model_cell",
    "loadtest.benchmarks.cells.tally",
    "loadtest.benchmarks.cells.traffic",
    "loadtest.benchmarks.cells.routers",
    "loadtest.benchmarks.cells.fleet",
    "loadtest.benchmarks.cells.simulation",
)
SETS = {"simulator": SIMULATOR, "cells": CELLS}
"""Modules by the name of what is simulated with them: `penstock simulate` and the planner, or pools of cells. A folder
has one set."""


def source_of(module: str) -> Path:
    """Return the source file of a module."""
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def digest(modules: Iterable[str]) -> str:
    """Return a digest of the sources of modules, and of what the interpreter asks of an extension."""
    found = hashlib.sha256(str(sysconfig.get_config_var("SOABI")).encode())
    for module in modules:
        found.update(f"\0{module}\0".encode())
        found.update(source_of(module).read_bytes())
    return found.hexdigest()
