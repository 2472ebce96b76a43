"""A scenario as data: what is started, what is asked, what is broken and when, and what must hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.chaos.checker import Bounds
from tests.chaos.cluster import ClusterPlan
from tests.chaos.faults import Fault
from tests.chaos.load import Load


@dataclass(frozen=True, slots=True)
class Midway:
    """Holds when so many streams have output and are not through."""

    streams: int


@dataclass(frozen=True, slots=True)
class After:
    """Holds so many seconds after the step before."""

    seconds: float


When = Midway | After


@dataclass(frozen=True, slots=True)
class Step:
    """Does something as soon as a condition holds."""

    when: When
    fault: Fault


@dataclass(frozen=True, slots=True)
class Control:
    """The same scenario without what protects from its fault. It must break an invariant, or the scenario shows
    nothing.
    """

    without: str
    """What is switched off."""
    breaks: frozenset[str]
    """Invariants of which at least one must be broken."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the scenario."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One experiment."""

    name: str
    claim: str
    """What must be true, in a sentence."""
    faults: tuple[int, ...]
    """Rows of the table of faults that it covers; see `coverage`."""
    steps: tuple[Step, ...] = ()
    load: Load = field(default_factory=Load)
    plan: ClusterPlan = field(default_factory=ClusterPlan)
    bounds: Bounds = field(default_factory=Bounds)
    settle_s: float = 1.5
    """How long clients go on after the last step."""
    idle_s: float = 8.0
    """How long the cluster may take to have nothing left, after the last client."""
    short: bool = False
    """Runs in the ordinary test suite too."""
    control: Control | None = None
    expected_failure: str = ""
    """Why the product does not hold the claim yet; the scenario must then fail, so that it is noticed when it does."""

    @property
    def real(self) -> bool:
        """Whether it takes real engines."""
        return self.plan.real

    def uncontrolled(self) -> Scenario:
        """Return the control run of this scenario."""
        if self.control is None:
            raise ValueError(f"{self.name} has no control run")
        return replace(
            self, **self.control.changes, name=f"{self.name} without {self.control.without}", expected_failure=""
        )
