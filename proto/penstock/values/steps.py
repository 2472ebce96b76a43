"""What policies return: a number, and how they came to it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """Is one step towards a decision."""

    name: str
    """Stable, lower case with underscores: "demand", "max_replicas"."""
    value: float
    """The number after this step: replicas or sequences, where `reason` says nothing else."""
    reason: str
    """One plain sentence with the numbers that went in."""

    def __str__(self) -> str:
        return f"{self.name} {self.value:g}: {self.reason}"


class Relief(enum.StrEnum):
    """Names what a pool gives up while it cannot have the replicas it needs, in the order in which it is given up."""

    NONE = "none"
    LATENCY = "latency"
    """Batches go up to the edge of the SLO."""
    PREEMPT_BATCH = "preempt_batch"
    """Batch work gives way."""
    SHED = "shed"
    """Requests whose estimated wait is over their limit are refused."""

    @classmethod
    def of(cls, word: str) -> Relief:
        """Read a stored one; NONE for a word that this version does not know."""
        return cls(word) if word in tuple(cls) else cls.NONE


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """Says what would have been decided without one term."""

    without: str
    replicas: int

    def __str__(self) -> str:
        return f"{self.replicas} without the {self.without} term"


def explain(steps: tuple[Step, ...]) -> str:
    """Write steps as lines of text."""
    return "\n".join(str(step) for step in steps)
