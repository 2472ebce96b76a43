"""Wait before a process that keeps ending is started again. Pure."""

from __future__ import annotations


class BackOff:
    """Wait that doubles with each end of the process and starts anew after a calm time.

    Args:
        first_s: seconds of the wait after the first end.
        longest_s: longest wait in seconds.
        calm_s: seconds without an end after which the next one counts as the first.
    """

    def __init__(self, first_s: float = 1.0, longest_s: float = 60.0, calm_s: float = 300.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._calm_s = calm_s
        self._wait_s = first_s
        self._ended_at: float | None = None

    def wait_s(self, now: float) -> float:
        """Note an end at `now`, in monotonic seconds; return the seconds to wait."""
        if self._ended_at is None or now - self._ended_at > self._calm_s:
            self._wait_s = self._first_s
        else:
            self._wait_s = min(self._longest_s, self._wait_s * 2)
        self._ended_at = now
        return self._wait_s
