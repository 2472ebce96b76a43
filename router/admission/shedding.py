"""Load shedding: when a waiting request is refused because it would start or end too late, and when a late request lets
others pass.

Pure: routers ask when a request has been put in line, and the simulator asks the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from cluster.errors import NotInTimeError
from penstock.values.slo import ClassSlo
from penstock.values.steps import Relief

SHED = "ttft_p99_s"
"""Name of the bound that the pool sets, not the client. A request that it refuses is a miss of the SLO."""

WAIT_MARGIN = 1.5
"""Factor that covers nearly all waits: they take at most this times their estimate. Under a lasting overload every
admitted request waits for about as long as the bound allows. Without a margin half of them would miss an SLO that 99 %
must meet. The price is a shorter line; the replicas have as much to do."""


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """Bounds on an estimated wait; None is no bound."""

    queue_timeout_s: float | None = None
    """Longest wait that the client accepts, seconds."""
    shed_after_s: float | None = None
    """Longest time to first token, seconds; from the function `shed_after_s`."""
    first_token_s: float = 0.0
    """Time from a start to the first token, seconds: the mean of all requests, not the request's own. With its own,
    short prompts would fill the line up to where a long one is just too late, and no long one would ever get in."""
    left_s: float | None = None
    """Seconds until its deadline."""
    run_s: float = 0.0
    """Estimated run time, seconds."""


def shed_after_s(slo: ClassSlo, relief: Relief) -> float | None:
    """Return the time to first token, in seconds, beyond which a request is refused so that others meet their SLO; None
    refuses no request.

    Args:
        slo: that of its class. A class without a promised time to first token waits for as long as it takes.
        relief: what the pool gives up. Only the last step refuses requests; latency and batch work are given up before.
    """
    return slo.ttft_p99_s if relief is Relief.SHED else None


def late_after_s(slo: ClassSlo, first_token_s: float | None) -> float | None:
    """Return how long a request may wait and still meet its time to first token, in seconds; None for ever.

    Args:
        slo: that of its class.
        first_token_s: time from a start to the first token, seconds: the mean of all requests; otherwise long prompts
            would have to start before short ones. None where it is unknown. It takes at most half of the promised time.
    """
    if slo.ttft_p99_s is None:
        return None
    return slo.ttft_p99_s - min(first_token_s or 0.0, slo.ttft_p99_s / 2)


def refusal(wait_s: float | None, bounds: TimeBounds) -> NotInTimeError | None:
    """Return why a request is refused; None where it may wait.

    Args:
        wait_s: its estimated wait, in seconds; None where it is unknown, which refuses no request.
        bounds: the bounds on its wait.
    """
    if wait_s is None:
        return None
    if bounds.queue_timeout_s is not None and wait_s > bounds.queue_timeout_s:
        return _late("queue_timeout", wait_s, bounds.queue_timeout_s)
    ttft_s = WAIT_MARGIN * wait_s + bounds.first_token_s
    if bounds.shed_after_s is not None and ttft_s > bounds.shed_after_s:
        return _late(SHED, ttft_s, bounds.shed_after_s)
    if bounds.left_s is not None and wait_s + bounds.run_s > bounds.left_s:
        return _late("deadline", wait_s + bounds.run_s, bounds.left_s)
    return None


def _late(bound: str, takes_s: float, bound_s: float) -> NotInTimeError:
    return NotInTimeError(bound, takes_s, bound_s, takes_s - bound_s)
