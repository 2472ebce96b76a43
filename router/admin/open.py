"""Composition of what a router answers to operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from cluster.responses.contract import ResponseStore
from cluster.settings import Settings
from router.admin.control import ControlApi
from router.admin.outlook import OutlookApi
from router.admin.records import RecordsApi
from router.admin.servicer import AdminServicer
from router.announced.api import AnnouncedApi
from router.announced.keeper import AnnouncedKeeper
from router.dispatch.pool import Pool
from router.identity import TenantPolicies
from router.metrics import RouterMetrics
from router.records.keeper import RecordKeeper
from router.registry.build import RegistryParts
from router.rollout.api import RolloutApi
from router.rollout.keeper import RolloutKeeper, open_rollouts
from router.rollout.metrics import RolloutMetrics
from router.routing import Aliases
from router.stores import QueueFactory


@dataclass(frozen=True, slots=True)
class AdminParts:
    """A router's part for operators."""

    servicer: AdminServicer
    control_api: ControlApi
    rollouts: RolloutKeeper
    announced: AnnouncedKeeper


def open_admin(
    settings: Settings,
    router_id: str,
    queues: QueueFactory,
    *,
    pools: Mapping[str, Pool],
    registry: RegistryParts,
    aliases: Aliases,
    policies: TenantPolicies,
    records: RecordKeeper,
    metrics: RouterMetrics,
    responses: ResponseStore | None,
) -> AdminParts:
    """Compose the parts; nothing connects before its first use. The owner of `responses` closes it."""
    control_api = ControlApi(settings.pools, queues.control, queues.pool)
    rollouts = open_rollouts(settings, queues.rollout, queues.pool)
    metrics.registry.register(RolloutMetrics(rollouts.pools))
    announced = AnnouncedKeeper(pools, queues.announced, aliases)
    records_api = RecordsApi(pools, records, control_api, aliases, responses)
    servicer = AdminServicer(
        *(pools, router_id, control_api, records_api, policies, registry.api),
        aliases=aliases,
        rollouts=RolloutApi(rollouts, control_api.target, registry.view.watchers, partial(_addresses, pools)),
        announced=AnnouncedApi(pools, announced, policies, aliases),
        outlook=OutlookApi(pools, control_api, announced),
    )
    return AdminParts(servicer, control_api, rollouts, announced)


def _addresses(pools: Mapping[str, Pool], pool: str) -> Sequence[str]:
    """Return where a pool's replicas are reached, as they have announced it."""
    return [each.address for each in pools[pool].replicas.announcements.values()] if pool in pools else ()
