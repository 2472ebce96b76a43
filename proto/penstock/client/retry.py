"""Retries: whether and when a call is tried again. Pure: the caller supplies time and randomness."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.values.errors import PenstockClientError, QueueFullError, QuotaExceededError, UnavailableError
from penstock.values.fields import check_seconds, unfit

_LATER = UnavailableError | QueueFullError | QuotaExceededError
"""Errors after which the same call may succeed."""

_FOR_EVER_S = 1e9
"""30 years."""
Uniform = Callable[[float, float], float]
"""Function that draws a random number between two."""
OnWait = Callable[[float, PenstockClientError], None]
"""Callback that gets the seconds until a call is tried again, and the error that made it wait. Must not block."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds of retries. A call that delivered nothing is retried where that is safe; a broken stream is resumed."""

    max_attempts: int = 5
    """Most tries of a call; 1 switches retries off."""
    base_delay: float = 0.1
    """Seconds; the largest random wait before the second attempt, doubled for each further one."""
    max_delay: float = 5.0
    """Seconds; bounds the random part of a wait."""
    max_retry_after: float = 30.0
    """Seconds; a router that asks for a longer wait gets no further attempt."""
    resume_for: float = 15.0
    """Seconds for which the client tries to resume a broken stream; 0 leaves that to the caller."""
    on_wait: OnWait | None = field(default=None, compare=False)
    """Callback before each wait, such as for showing progress."""

    def __post_init__(self) -> None:
        if not isinstance(self.max_attempts, int):
            raise unfit("retry.max_attempts", "a whole number", self.max_attempts)
        for name in ("base_delay", "max_delay", "max_retry_after", "resume_for"):
            check_seconds(f"retry.{name}", getattr(self, name))

    def delay(self, failures: int, error: PenstockClientError, uniform: Uniform) -> float | None:
        """Return the seconds to wait after this number of failures, the router's own wait included; None to give up."""
        if failures >= self.max_attempts or not isinstance(error, _LATER):
            return None
        if isinstance(error, QuotaExceededError) and error.retry_after is None:
            # The request alone is larger than the quota.
            return None
        asked = error.retry_after or 0.0
        if asked > self.max_retry_after:
            return None
        return asked + self._random(failures, uniform)

    def resume_delay(
        self, failures: int, broken_for: float, error: PenstockClientError, uniform: Uniform
    ) -> float | None:
        """Return the seconds until a broken stream is opened again, or None to give up.

        The bound is a time and not a number of tries, because the cluster also keeps the output for a time.

        Args:
            failures: failures since the stream broke.
            broken_for: seconds since the stream broke.
            error: the newest failure.
            uniform: source of randomness.
        """
        if not isinstance(error, UnavailableError):
            return None
        wait = (error.retry_after or 0.0) + self._random(failures, uniform)
        if failures > 1:
            # Without this a policy with base_delay 0 would retry in a tight loop.
            wait = max(wait, 0.05)
        return wait if broken_for + wait <= self.resume_for else None

    def _random(self, failures: int, uniform: Uniform) -> float:
        # Full jitter: clients that failed together must not reconnect together.
        return uniform(0.0, doubled(self.base_delay, failures, self.max_delay))


def doubled(first: float, failures: int, most: float) -> float:
    """Return `first` doubled for each failure after the first one, at most `most`. A float overflows after a thousand
    doublings, so their number is bounded.
    """
    return min(most, first * 2.0 ** min(failures - 1, 60))


class Attempts:
    """Retry state of one call: how often it failed and how long it may still take.

    Raises:
        ValueError: the timeout is NaN.
        TypeError: the timeout is no number.
    """

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
        if timeout is not None:
            check_seconds("timeout", timeout)
        self.timeout = timeout
        """Seconds that the whole call has; None without a limit."""
        # With a longer timeout gRPC's clock overflows, which ends the call at once.
        self._deadline = None if timeout is None or timeout > _FOR_EVER_S else now() + timeout
        self.target: int | None = None
        """Number of the router of the last try; None before it."""
        self._failures = 0
        self._breaks = 0
        """Number of failures since the last event."""
        self._broken_at = 0.0
        self._waited_for: PenstockClientError | None = None
        """Error that caused the last wait; None once the stream has continued."""

    def time_left(self) -> float | None:
        """Return the seconds until the call's deadline; None without one."""
        return None if self._deadline is None else max(self._deadline - self._now(), 0.0)

    def wait_after(self, error: PenstockClientError) -> float | None:
        """Note a failure; return the seconds until the next attempt, or None when the error is final."""
        self._failures += 1
        return self._in_time(self._policy.delay(self._failures, error, self._uniform), error)

    def progressed(self) -> None:
        """Note that the stream delivered an event."""
        self._breaks = 0
        self._waited_for = None

    def wait_to_resume(self, error: PenstockClientError) -> float | None:
        """Note that a stream broke; return the seconds until it is opened again, or None when the error is final."""
        if not self._breaks:
            self._broken_at = self._now()
        self._breaks += 1
        broken_for = self._now() - self._broken_at
        return self._in_time(self._policy.resume_delay(self._breaks, broken_for, error, self._uniform), error)

    def _in_time(self, wait: float | None, error: PenstockClientError) -> float | None:
        left = self.time_left()
        if wait is None or (left is not None and wait >= left):
            error.waited_for = self._waited_for
            return None
        self._waited_for = error
        if self._policy.on_wait is not None:
            self._policy.on_wait(wait, error)
        return wait
