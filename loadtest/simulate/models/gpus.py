"""GPUs that pools share. No clock: times are arguments."""

from __future__ import annotations

from collections.abc import Callable


class Gpus:
    """Count of the free GPUs, and the line of pools that want more. Who has waited longest gets what is free first;
    where that is too little for one of its replicas, the next in line does.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self.most_used = 0
        self.handed = 0
        """How often GPUs were held for a pool that waited."""
        self._line: list[Share] = []

    def share(self, per_replica: int, wake: Callable[[float], None]) -> Share:
        """Return the share of a pool.

        Args:
            per_replica: GPUs of one replica.
            wake: called with the time when GPUs are held for the pool, which then takes them or says that it lacks
                nothing.
        """
        return Share(self, per_replica, wake)

    def take(self, gpus: int) -> bool:
        """Take GPUs. Return False, and change nothing, if too few are free."""
        if gpus > self.free:
            return False
        self.free -= gpus
        self.most_used = max(self.most_used, self.total - self.free)
        return True

    def give(self, gpus: int, now: float) -> None:
        """Give GPUs back, and hold them for who waits."""
        self.free += gpus
        for share in list(self._line):
            share.hold(now)

    def wait(self, share: Share, waits: bool) -> None:
        """Put a pool at the end of the line, or take it out."""
        if waits and share not in self._line:
            self._line.append(share)
        elif not waits and share in self._line:
            self._line.remove(share)


class Share:
    """A pool's part of the GPUs."""

    def __init__(self, gpus: Gpus, per_replica: int, wake: Callable[[float], None]) -> None:
        self._gpus = gpus
        self.per_replica = per_replica
        self._wake = wake
        self._held = self._missing = 0
        """Replicas that GPUs are held for, and that could not start."""
        self._since = 0.0
        self.waited_s = 0.0
        """Seconds during which at least one replica could not start."""

    def take(self) -> bool:
        if self._held:
            self._held -= 1
            return True
        return self._gpus.take(self.per_replica)

    def give(self, now: float) -> None:
        self._gpus.give(self.per_replica, now)

    def lacks(self, replicas: int, now: float) -> None:
        if self._missing:
            self.waited_s += now - self._since
        self._missing, self._since = replicas, now
        unused, self._held = self._held, 0
        self._gpus.wait(self, replicas > 0)
        if unused:
            self._gpus.give(unused * self.per_replica, now)

    def hold(self, now: float) -> None:
        """Hold free GPUs for replicas that could not start."""
        before = self._held
        while self._held < self._missing and self._gpus.take(self.per_replica):
            self._held += 1
        if self._held > before:
            self._gpus.handed += 1
            self._wake(now)

    def close(self, now: float) -> None:
        """Count the wait until the end of the run."""
        if self._missing:
            self.waited_s += now - self._since
            self._since = now
