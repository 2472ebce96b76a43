"""Load of replicas as one router knows it: the newest registry, and its own grants since then."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.queue.heartbeats import ReplicaRecord
from penstock.models import ReplicaState
from router.affinity.rendezvous import Rendezvous

LOAD_FACTOR = 1.25
LOAD_SLACK = 0.1
"""A replica is preferred while its load is at most LOAD_FACTOR x the mean + LOAD_SLACK, as parts of its windows."""


class LoadView:
    """Load of each replica, kept up to date between two heartbeats."""

    def __init__(self) -> None:
        self._records: Mapping[str, ReplicaRecord] = {}
        self._loads: dict[str, float] = {}
        self._bound = 0.0
        self.homes = Rendezvous(())
        """Rendezvous hashing over the replicas that take work."""

    def update(self, records: Mapping[str, ReplicaRecord]) -> None:
        """Take the current registry, which is a new mapping whenever it has changed."""
        if records is self._records:
            return
        self._records = records
        self._loads = {name: _load(record) for name, record in records.items() if record.state is ReplicaState.READY}
        self.homes = Rendezvous(self._loads)
        self._rebound()

    def granted(self, replica: str, kv_tokens: int) -> None:
        """Add a grant that the registry does not show yet."""
        record = self._records.get(replica)
        if record is not None and replica in self._loads:
            self._loads[replica] += max(
                1 / max(1, record.windows.sequences), kv_tokens / max(1, record.windows.kv_tokens)
            )
            self._rebound()

    @property
    def live(self) -> Mapping[str, float]:
        """Loads of the replicas that take work."""
        return self._loads

    def bears(self, replica: str) -> bool:
        """Return whether a replica takes work and is not far fuller than the others."""
        load = self._loads.get(replica)
        return load is not None and load <= self._bound

    def _rebound(self) -> None:
        mean = sum(self._loads.values()) / len(self._loads) if self._loads else 0.0
        self._bound = LOAD_FACTOR * mean + LOAD_SLACK


def _load(record: ReplicaRecord) -> float:
    windows = record.windows
    return max(record.sequences / max(1, windows.sequences), record.kv_tokens / max(1, windows.kv_tokens))
