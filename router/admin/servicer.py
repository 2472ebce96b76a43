"""AdminService: the state of pools and replicas, usage, and the autoscaler."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import cluster
from penstock.v1 import admin_pb2 as api
from penstock.v1 import announced_pb2, outlook_pb2, registry_pb2, rollout_pb2
from router.admin.control import ControlApi
from router.admin.outlook import OutlookApi
from router.admin.records import RecordsApi
from router.admin.status import StatusReader, own_status
from router.admin.usage import read_costs, read_usage
from router.admin.whoami import who_is
from router.announced.api import AnnouncedApi
from router.call_context import CallContext
from router.dispatch.pool import Pool
from router.identity import Caller, Role, TenantPolicies, may_use
from router.registry.api import RegistryApi
from router.rollout.api import RolloutApi
from router.routing import Aliases


class AdminServicer:
    """The admin service: the cluster for operators, and usage for tenants."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        router_id: str,
        control_api: ControlApi,
        records: RecordsApi,
        policies: TenantPolicies,
        registry: RegistryApi,
        *,
        aliases: Aliases,
        rollouts: RolloutApi,
        announced: AnnouncedApi,
        outlook: OutlookApi,
    ) -> None:
        self._pools = pools
        self._aliases = aliases
        self._rollouts = rollouts
        self._announced = announced
        self._outlook = outlook
        self._control_api = control_api
        self._records = records
        self._router_id = router_id
        self._policies = policies
        self._registry = registry
        self._status = StatusReader(control_api, policies)

    async def GetClusterStatus(  # noqa: N802
        self, request: api.GetClusterStatusRequest, context: CallContext, caller: Caller
    ) -> api.GetClusterStatusResponse:
        """Return the state of the newest heartbeats, with what the autoscaler knows."""
        pools = [self._pools[name] for name in sorted(self._pools) if may_use(caller, name)]
        found = await asyncio.gather(*map(self._status.of, pools))
        return api.GetClusterStatusResponse(
            pools=found if caller.role >= Role.OPERATOR else [own_status(each, caller.tenant) for each in found],
            version=cluster.__version__,
            router_id=self._router_id,
        )

    async def GetUsage(  # noqa: N802
        self, request: api.GetUsageRequest, context: CallContext, caller: Caller
    ) -> api.GetUsageResponse:
        return await read_usage(self._pools, request, caller, self._policies, self._aliases)

    async def GetCosts(  # noqa: N802
        self, request: api.GetCostsRequest, context: CallContext, caller: Caller
    ) -> api.GetCostsResponse:
        return await read_costs(self._pools, request, caller)

    async def ListDecisions(  # noqa: N802
        self, request: api.ListDecisionsRequest, context: CallContext, caller: Caller
    ) -> api.ListDecisionsResponse:
        return await self._control_api.list_decisions(request, caller)

    async def SetOperatingPoint(  # noqa: N802
        self, request: api.SetOperatingPointRequest, context: CallContext, caller: Caller
    ) -> api.SetOperatingPointResponse:
        return await self._control_api.set_operating_point(request, caller)

    async def Explain(  # noqa: N802
        self, request: api.ExplainRequest, context: CallContext, caller: Caller
    ) -> api.ExplainResponse:
        return await self._records.explain(request, caller)

    async def ListRequests(  # noqa: N802
        self, request: api.ListRequestsRequest, context: CallContext, caller: Caller
    ) -> api.ListRequestsResponse:
        return await self._records.list_requests(request, caller)

    async def WhoAmI(  # noqa: N802
        self, request: api.WhoAmIRequest, context: CallContext, caller: Caller
    ) -> api.WhoAmIResponse:
        return who_is(caller, self._aliases.allowed(caller))

    async def ListRegistry(  # noqa: N802
        self, request: registry_pb2.ListRegistryRequest, context: CallContext, caller: Caller
    ) -> registry_pb2.ListRegistryResponse:
        return await self._registry.list_entries(request, caller)

    async def EditRegistry(  # noqa: N802
        self, request: registry_pb2.EditRegistryRequest, context: CallContext, caller: Caller
    ) -> registry_pb2.EditRegistryResponse:
        return await self._registry.edit(request, caller)

    async def ListRegistryChanges(  # noqa: N802
        self, request: registry_pb2.ListRegistryChangesRequest, context: CallContext, caller: Caller
    ) -> registry_pb2.ListRegistryChangesResponse:
        return await self._registry.changes(request, caller)

    async def CreateKey(  # noqa: N802
        self, request: registry_pb2.CreateKeyRequest, context: CallContext, caller: Caller
    ) -> registry_pb2.CreateKeyResponse:
        return await self._registry.create_key(request, caller)

    async def StartRollout(  # noqa: N802
        self, request: rollout_pb2.StartRolloutRequest, context: CallContext, caller: Caller
    ) -> rollout_pb2.StartRolloutResponse:
        return await self._rollouts.start(request, caller)

    async def GetRollout(  # noqa: N802
        self, request: rollout_pb2.GetRolloutRequest, context: CallContext, caller: Caller
    ) -> rollout_pb2.GetRolloutResponse:
        return await self._rollouts.get(request, caller)

    async def ChangeRollout(  # noqa: N802
        self, request: rollout_pb2.ChangeRolloutRequest, context: CallContext, caller: Caller
    ) -> rollout_pb2.ChangeRolloutResponse:
        return await self._rollouts.change(request, caller)

    async def AnnounceLoad(  # noqa: N802
        self, request: announced_pb2.AnnounceLoadRequest, context: CallContext, caller: Caller
    ) -> announced_pb2.AnnounceLoadResponse:
        return await self._announced.announce(request, caller)

    async def ListAnnouncedLoad(  # noqa: N802
        self, request: announced_pb2.ListAnnouncedLoadRequest, context: CallContext, caller: Caller
    ) -> announced_pb2.ListAnnouncedLoadResponse:
        return await self._announced.list_loads(request, caller)

    async def WithdrawAnnouncedLoad(  # noqa: N802
        self, request: announced_pb2.WithdrawAnnouncedLoadRequest, context: CallContext, caller: Caller
    ) -> announced_pb2.WithdrawAnnouncedLoadResponse:
        return await self._announced.withdraw(request, caller)

    async def GetOutlook(  # noqa: N802
        self, request: outlook_pb2.GetOutlookRequest, context: CallContext, caller: Caller
    ) -> outlook_pb2.GetOutlookResponse:
        return await self._outlook.get(request, caller)
