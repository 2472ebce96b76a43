"""Decides whether and when a call is tried again. Pure: time and chance come from outside."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from router.client.errors import PenstockClientError, QueueFullError, UnavailableError

Uniform = Callable[[float, float], float]
"""Draws a number between two."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds retries. Only calls that delivered nothing are tried again, and only where that is safe."""

    max_attempts: int = 5
    """1 switches retries off."""
    base_delay: float = 0.1
    """Seconds; the largest random wait before the second attempt, doubled for each further one."""
    max_delay: float = 5.0
    """Seconds; bounds the random part of a wait."""
    max_retry_after: float = 30.0
    """Seconds; a router that asks for a longer wait gets no further attempt."""

    def delay(
        self, failures: int, error: PenstockClientError, uniform: Callable[[float, float], float]
    ) -> float | None:
        """Return the seconds to wait after so many failures, the router's own wait included; None to give up."""
        if failures >= self.max_attempts or not isinstance(error, UnavailableError | QueueFullError):
            return None
        asked = error.retry_after or 0.0
        if asked > self.max_retry_after:
            return None
        # Full jitter: clients that failed together must not come back together.
        return asked + uniform(0.0, min(self.max_delay, self.base_delay * 2.0 ** (failures - 1)))


class Attempts:
    """Is the retry state of one call: how often it failed and how long it may still take."""

    def __init__(
        self,
        policy: RetryPolicy,
        timeout: float | None,
        *,
        now: Callable[[], float] = time.monotonic,
        uniform: Uniform = random.uniform,
    ) -> None:
        self._policy = policy
        self._now = now
        self._uniform = uniform
        self._deadline = None if timeout is None else now() + timeout
        self._failures = 0

    def time_left(self) -> float | None:
        """Return the seconds until the call's deadline; None without one."""
        return None if self._deadline is None else max(self._deadline - self._now(), 0.0)

    def wait_after(self, error: PenstockClientError) -> float | None:
        """Note a failure; return the seconds until the next attempt, or None when the error is final."""
        self._failures += 1
        wait = self._policy.delay(self._failures, error, self._uniform)
        left = self.time_left()
        if wait is None or (left is not None and wait >= left):
            return None
        return wait
