"""AdminService: the state of pools and replicas, usage, and the autoscaler."""

from __future__ import annotations

from collections.abc import Mapping

import cluster
from penstock.v1 import admin_pb2 as api
from penstock.wire import duration_to_wire, replica_state_to_wire
from router.admin.control import ControlApi
from router.admin.usage import read_usage
from router.call_context import CallContext
from router.dispatch.pool import Pool
from router.identity import Caller, may_use


class AdminServicer:
    """The admin service: the cluster for operators, and usage for tenants."""

    def __init__(self, pools: Mapping[str, Pool], router_id: str, control_api: ControlApi) -> None:
        self._pools = pools
        self._control_api = control_api
        self._router_id = router_id

    async def GetClusterStatus(  # noqa: N802
        self, request: api.GetClusterStatusRequest, context: CallContext, caller: Caller
    ) -> api.GetClusterStatusResponse:
        """Return the state of the newest heartbeats."""
        return api.GetClusterStatusResponse(
            pools=[self._pool(self._pools[name]) for name in sorted(self._pools) if may_use(caller, name)],
            version=cluster.__version__,
            router_id=self._router_id,
        )

    async def GetUsage(  # noqa: N802
        self, request: api.GetUsageRequest, context: CallContext, caller: Caller
    ) -> api.GetUsageResponse:
        return await read_usage(self._pools, request, caller, "AdminService/GetUsage")

    async def ListDecisions(  # noqa: N802
        self, request: api.ListDecisionsRequest, context: CallContext, caller: Caller
    ) -> api.ListDecisionsResponse:
        return await self._control_api.list_decisions(request, caller)

    async def SetOperatingPoint(  # noqa: N802
        self, request: api.SetOperatingPointRequest, context: CallContext, caller: Caller
    ) -> api.SetOperatingPointResponse:
        return await self._control_api.set_operating_point(request, caller)

    def _pool(self, pool: Pool) -> api.PoolStatus:
        beat = pool.beat
        if beat is None:
            return api.PoolStatus(name=pool.name, reachable=False)
        return api.PoolStatus(
            name=pool.name,
            waiting=sum(beat.waiting),
            running=beat.running,
            replicas=[self._replica(pool, replica_id) for replica_id in sorted(pool.replicas.records)],
            router_ids=beat.routers,
            reachable=pool.available,
        )

    def _replica(self, pool: Pool, replica_id: str) -> api.ReplicaStatus:
        record = pool.replicas.records[replica_id]
        announcement = pool.replicas.announcements[replica_id]
        return api.ReplicaStatus(
            replica_id=replica_id,
            group_id=announcement.group_id,
            state=replica_state_to_wire(record.state),
            address=announcement.address,
            running=record.sequences,
            batch_limit=record.windows.sequences,
            kv_usage=record.stats.get("kv_usage", 0.0),
            heartbeat_age=duration_to_wire(record.heartbeat_age_ms / 1000),
            linked=pool.replicas.link(replica_id) is not None,
            metrics_port=announcement.metrics_port,
            output_tokens=int(record.stats.get("output_tokens", 0)),
            accepted_draft_tokens=int(record.stats.get("accepted_draft_tokens", 0)),
            kv_tokens=record.windows.kv_tokens,
            prefill_window_tokens=record.windows.prefill_tokens,
        )
