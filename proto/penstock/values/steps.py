"""Results of policies: a number, and the steps that led to it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One step towards a decision."""

    name: str
    """Stable name, lower case with underscores: "demand", "max_replicas"."""
    value: float
    """Number after this step: replicas or sequences, where `reason` names nothing else."""
    reason: str
    """One plain sentence with the numbers that went in."""

    def __str__(self) -> str:
        return f"{self.name} {self.value:g}: {self.reason}"


class Relief(enum.StrEnum):
    """Measure that a pool takes while it cannot have the replicas it needs; measures are taken in this order."""

    NONE = "none"
    LATENCY = "latency"
    """Batches grow to the edge of the SLO."""
    PREEMPT_BATCH = "preempt_batch"
    """Batch work is preempted."""
    SHED = "shed"
    """Requests whose estimated wait is over their limit are refused."""

    @classmethod
    def of(cls, word: str) -> Relief:
        """Return the value of a stored word; NONE for a word that this version does not know."""
        try:
            return cls(word)
        except ValueError:
            return cls.NONE


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """Decision that would have been made without one term."""

    without: str
    replicas: int

    def __str__(self) -> str:
        return f"{self.replicas} without the {self.without} term"
