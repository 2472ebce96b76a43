"""Whether a request that waits is refused because, as it looks, it would start or end too late; and from when on it has
missed what its class is promised, so that it lets others pass.

Pure: routers ask when a request has been put in line, and the simulator asks the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from cluster.errors import NotInTimeError
from penstock.values.slo import ClassSlo
from penstock.values.steps import Relief

SHED = "ttft_p99_s"
"""The bound that the pool sets, not the client: who is refused by it is a miss of the SLO."""

WAIT_MARGIN = 1.5
"""Nearly all waits are at most so many times their estimate. Under a standing overload everybody who is let in waits
for about as long as the bound allows, so without a margin half of them would miss a promise that is made to 99 %. What
it costs is a shorter line: the replicas have as much to do."""


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """Are what an estimated wait is held against; None is no bound."""

    queue_timeout_s: float | None = None
    """The client lets it wait for so long, seconds."""
    shed_after_s: float | None = None
    """Its first token comes within so many seconds or never; see `shed_after_s`."""
    first_token_s: float = 0.0
    """From a start to the first token, seconds: that of all requests, not its own. Short prompts would fill the line up
    to where a long one is just too late, and no long one would ever get in."""
    left_s: float | None = None
    """Seconds until its deadline."""
    run_s: float = 0.0
    """How long it will run, seconds."""


def shed_after_s(slo: ClassSlo, relief: Relief) -> float | None:
    """Return the time to the first token, in seconds, beyond which a request is turned away so that others meet their
    SLO; None turns nobody away.

    Args:
        slo: what its class is promised; a class that is promised no time to first token waits for as long as it takes.
        relief: what the pool gives up. Only the last step refuses: latency and batch work are given up before.
    """
    return slo.ttft_p99_s if relief is Relief.SHED else None


def late_after_s(slo: ClassSlo, first_token_s: float | None) -> float | None:
    """Return how long a request may wait and still meet its time to first token, in seconds; None is for ever.

    Args:
        slo: what its class is promised.
        first_token_s: from a start to the first token, seconds: that of all requests, or long prompts would have to
            start before short ones. None where nothing is known. It counts for half of the promise at most.
    """
    if slo.ttft_p99_s is None:
        return None
    return slo.ttft_p99_s - min(first_token_s or 0.0, slo.ttft_p99_s / 2)


def refusal(wait_s: float | None, bounds: TimeBounds) -> NotInTimeError | None:
    """Say why a request is refused; None where it may wait.

    Args:
        wait_s: how long it is estimated to wait, in seconds; None where nothing is known, which refuses nobody.
        bounds: what it is held against.
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
