"""The cluster's side of a run, read from a router's AdminService once a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from loadtest.load.driver.target import Target
from penstock.client import Client, ClusterStatus, PenstockClientError
from penstock.models import ReplicaState

_PERIOD_S = 1.0
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Look:
    """State of all pools, or of the requested one, at one time."""

    at_s: float
    """Seconds since the watch began."""
    waiting: int
    running: int
    ready: int
    """Number of ready replicas."""
    starting: int
    draining: int
    batch_limit: int
    """Sum over ready replicas."""
    kv_usage: float
    """Mean over ready replicas, 0 to 1."""


class ClusterWatch:
    """Periodic status reads, in a thread of its own while the block runs.

    A cluster that does not answer leaves gaps.
    """

    def __init__(self, target: Target, model: str) -> None:
        self._target = target
        self._model = model
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="loadtest.watch", daemon=True)
        self.looks: list[Look] = []
        self.failure = ""
        """Cause of the failure of the last read; empty if it did not fail."""
        self.began_at = time.monotonic()

    def __enter__(self) -> ClusterWatch:
        if self._target.http:
            # Only Penstock has it, and only over gRPC.
            self.failure = "the state of the cluster is read over gRPC"
        else:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _look(self) -> None:
        connection = self._target.connection()
        key = self._target.api_key or None
        plaintext = self._target.allow_plaintext_key
        with Client(self._target.routers, tls=connection.tls, api_key=key, allow_plaintext_key=plaintext) as client:
            while not self._stop.wait(_PERIOD_S):
                try:
                    status = client.cluster_status(timeout=_TIMEOUT_S)
                except PenstockClientError as error:
                    self.failure = str(error)
                    continue
                self.failure = ""
                self.looks.append(look_at(status, self._model, time.monotonic() - self.began_at))

    def as_json(self, begins_s: float) -> list[dict[str, Any]]:
        """Return the reads, with times from a run that began this many seconds after the watch."""
        return [{**asdict(each), "at_s": each.at_s - begins_s} for each in self.looks if each.at_s >= begins_s]


def look_at(status: ClusterStatus, model: str, at_s: float) -> Look:
    """Sum up a status."""
    pools = [pool for pool in status.pools if pool.reachable and model in ("", pool.name)]
    replicas = [replica for pool in pools for replica in pool.replicas]
    ready = [replica for replica in replicas if replica.state is ReplicaState.READY]

    def in_state(states: Sequence[ReplicaState]) -> int:
        return sum(replica.state in states for replica in replicas)

    return Look(
        at_s,
        sum(pool.waiting for pool in pools),
        sum(pool.running for pool in pools),
        len(ready),
        in_state([ReplicaState.STARTING]),
        in_state([ReplicaState.DRAINING]),
        sum(replica.batch_limit for replica in ready),
        sum(replica.kv_usage for replica in ready) / len(ready) if ready else 0.0,
    )
