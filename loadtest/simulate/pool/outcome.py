"""Outcome of each request, and of the pool over time."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from enum import StrEnum

from loadtest.simulate.engine.replica import SimRequest
from loadtest.simulate.pool.fleet import Fleet
from loadtest.simulate.setup import Setup, Slo
from penstock.models import RequestClass


class RequestEnd(StrEnum):
    """How a request ended. Each has exactly one."""

    COMPLETED = "completed"
    REJECTED = "rejected"
    """Refused at arrival (no room in line, or too long a wait by estimate), or not started within its queue timeout."""
    UNFINISHED = "unfinished"
    """Not ended when the run was given up."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one request. `arrival_s` counts from the first arrival, other times from the request's own."""

    number: int
    end: RequestEnd
    request_class: RequestClass
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    queue_s: float = 0.0
    """From arrival to the last grant."""
    ttft_s: float = math.nan
    e2e_s: float = math.nan
    itl_mean_s: float = 0.0
    itl_p95_s: float = 0.0
    """0 for one token."""
    preemptions: int = 0

    def attains(self, slo: Slo) -> bool:
        """Return whether it was completed within its SLO."""
        return self.end is RequestEnd.COMPLETED and self.ttft_s <= slo.ttft_s and self.itl_p95_s <= slo.itl_s


@dataclass(frozen=True, slots=True)
class Sample:
    """The pool at one moment."""

    at_s: float
    ready: int
    starting: int
    draining: int
    desired: int
    limit: int
    """Batch limits of all ready replicas together."""
    running: int
    """Requests that hold a slot."""
    waiting: int
    kv_usage: float
    """Mean of the ready replicas, 0 to 1."""


@dataclass(slots=True)
class SimulatedRun:
    """Results of a simulation."""

    fleet: Fleet
    replicas_at_first: int
    outcomes: list[Outcome] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    seconds: float = 0.0
    """Virtual time from the first arrival to the last end."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    queue: str = ""
    """What ran the queue, in words."""


def completed(item: SimRequest, request_class: RequestClass, now: float, setup: Setup) -> Outcome:
    """Return the outcome of a request whose last token came now. All its tokens are later by what a first token takes
    beside queue and steps.
    """
    request, gaps = item.request, item.gaps
    first = item.first_token_at if item.first_token_at is not None else now
    itl_s = (now - first) / len(gaps) if gaps else 0.0
    around_s = setup.overhead_s + setup.overhead_steps * itl_s
    return Outcome(
        request.number,
        RequestEnd.COMPLETED,
        request_class,
        item.arrived_at,
        request.prompt_tokens,
        request.output_tokens,
        item.cached_tokens,
        item.started_at - item.arrived_at,
        first - item.arrived_at + around_s,
        now - item.arrived_at + around_s,
        itl_s,
        percentile(gaps, 0.95),
        item.preemptions,
    )


def percentile(values: array[float], part: float) -> float:
    """Return the smallest value that at least this part of the values does not exceed; 0 for none."""
    return sorted(values)[math.ceil(part * len(values)) - 1] if values else 0.0
