"""Orders of the pool's autoscaler and its operators, as heartbeats bring them to a replica."""

from __future__ import annotations

import logging
import time

from cluster.autoscaler.operating_point import point_in_force
from cluster.autoscaler.store import ControlStore
from cluster.control.settings import operating_point
from cluster.errors import QueueUnavailableError
from cluster.queue.heartbeats import ReplicaBeatReply
from cluster.settings import PoolSettings
from deployments.replica.governor import Governor
from deployments.replica.standby import Standby
from deployments.replica.time_account import TimeAccount
from penstock.values.steps import Relief

_LOG = logging.getLogger(__name__)


class PoolOrders:
    """What a replica was told last: relief, operating point, and whether to stand by."""

    def __init__(self, pool: PoolSettings, account: TimeAccount, governor: Governor, standby: Standby) -> None:
        self._pool = pool
        self._account = account
        self._governor = governor
        self._standby = standby
        self._point: bytes | None = None

    def take(self, reply: ReplicaBeatReply) -> None:
        """Take over what a heartbeat's answer says.

        A store that has lost the operating point gets it back later. Until then the last one stays in force.
        """
        self._governor.relief = Relief.of(reply.relief)
        self._promise(reply.point)
        self._standby.hear(reply.standby, time.monotonic())

    async def read(self, store: ControlStore) -> None:
        """Read the operating point before the first heartbeat. The batch limit begins low where it has an SLO, which
        may be in no settings. If the store does not answer, the first heartbeat brings it.
        """
        try:
            self._promise(await store.point())
        except QueueUnavailableError as error:
            _LOG.warning("replica.no_operating_point", extra={"error": str(error)})

    def _promise(self, stored: bytes | None) -> None:
        if stored is None or stored == self._point:
            return
        self._point = stored
        point = point_in_force(stored, operating_point(self._pool))
        self._account.price_per_gpu_s = point.price_per_gpu_hour / 3600
        self._governor.set_operating_point(point)
        _LOG.info("replica.operating_point", extra={"itl_p95_s": point.itl_p95_s})
