"""A simulated run with all that its report needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.simulate.pool.outcome import SimulatedRun
from loadtest.simulate.results.figures import Figures
from loadtest.simulate.setup import Setup


@dataclass(frozen=True, slots=True)
class Simulated:
    """A run with all that its report needs."""

    title: str
    load: Sequence[str]
    run: SimulatedRun
    figures: Figures
    setup: Setup
    origin: Mapping[str, str]
    others: Mapping[str, Mapping[str, Any]]
    """JSON of the runs to compare with, by file."""
