"""A router that reaches none of its pool's replicas, by a network policy or its certificate, while these take work.

Other routers may reach them. So it says at once that it can't serve, to those who come and to those who wait: a client
tries again elsewhere. What has output waits on, as long as its deadline: nobody else has that output.
"""

from __future__ import annotations

import time

from cluster.errors import NoReplicaError
from router.generation.choice_table import ChoiceTable
from router.links.replicas import ReplicaSet

LEASES = 2
"""Leases after which a router counts as cut off. A dead replica is in the registry for one."""


class CutOff:
    """What a pool does while its router is cut off."""

    def __init__(self, pool: str, choices: ChoiceTable, replicas: ReplicaSet, lease_s: float) -> None:
        self._pool = pool
        self._choices = choices
        self._replicas = replicas
        self._lease_s = lease_s

    def check(self) -> None:
        """Check that the router reaches a replica.

        Raises:
            NoReplicaError: it is cut off.
        """
        if (error := self._error(time.monotonic())) is not None:
            raise error

    def look(self, now: float) -> None:
        """Note who is reached, with each heartbeat. Give up what waits, once the router is cut off."""
        self._replicas.look(now)
        if (error := self._error(now)) is not None:
            for choice in self._choices.snapshot():
                if choice.state.waits and not choice.tokens:
                    choice.give_up(error)

    def _error(self, now: float) -> NoReplicaError | None:
        silent_s = self._replicas.cut_off_s(now)
        if silent_s <= LEASES * self._lease_s:
            return None
        none = f"none of the pool's replicas ({self._replicas.ready()})"
        return NoReplicaError(f"{self._pool!r}: this router has reached {none} for {silent_s:.0f} s")
