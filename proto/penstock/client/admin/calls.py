"""Requests and results of operators' calls."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.client.calls import UnaryCall
from penstock.v1 import admin_pb2, announced_pb2, outlook_pb2, registry_pb2, rollout_pb2
from penstock.values.admin.announced import AnnouncedLoad
from penstock.values.admin.costs import CostReport
from penstock.values.admin.identity import Identity
from penstock.values.admin.outlook import PoolOutlook
from penstock.values.admin.records import Explanation, RequestRecord, requests_from_proto
from penstock.values.admin.registry import NewKey, RegistryChange, RegistryEdit, RegistryEntry, RegistryResult
from penstock.values.admin.rollout import Rollout, RolloutAction
from penstock.values.decisions import DecisionList, point_from_proto, point_to_proto
from penstock.values.fields import build, unfit
from penstock.values.results import UsageReport
from penstock.values.slo import OperatingPoint
from penstock.values.status.pool import ClusterStatus
from penstock.wire import duration_to_wire


def cluster_status() -> UnaryCall[ClusterStatus]:
    return UnaryCall(
        lambda stubs: stubs.admin.GetClusterStatus, admin_pb2.GetClusterStatusRequest(), ClusterStatus.from_proto
    )


def usage(
    tenant: str, all_tenants: bool, pool: str, days: tuple[datetime.date | None, datetime.date | None], *, by_hour: bool
) -> UnaryCall[UsageReport]:
    """Return the GetUsage call; days are in UTC.

    Raises:
        ValueError: both a tenant and all tenants are asked for.
    """
    fields = {"first_day": _day("first_day", days[0]), "last_day": _day("last_day", days[1])}
    whose = _whose(tenant, all_tenants)
    request = build(admin_pb2.GetUsageRequest, pool=pool, by_hour=by_hour, **fields, **whose)
    return UnaryCall(lambda stubs: stubs.admin.GetUsage, request, UsageReport.from_proto)


def costs(pool: str, first_day: datetime.date | None, last_day: datetime.date | None) -> UnaryCall[CostReport]:
    days = {"first_day": _day("first_day", first_day), "last_day": _day("last_day", last_day)}
    request = build(admin_pb2.GetCostsRequest, pool=pool, **days)
    return UnaryCall(lambda stubs: stubs.admin.GetCosts, request, CostReport.from_proto)


def _day(name: str, day: datetime.date | None) -> str | None:
    if day is None:
        return None
    if not isinstance(day, datetime.date):
        raise unfit(name, "a datetime.date", day)
    return day.isoformat()


def list_decisions(pool: str, limit: int, skip: int, load_record: bool) -> UnaryCall[DecisionList]:
    request = build(admin_pb2.ListDecisionsRequest, pool=pool, limit=limit, skip=skip, load_record=load_record)
    return UnaryCall(lambda stubs: stubs.admin.ListDecisions, request, DecisionList.from_proto)


def set_operating_point(pool: str, point: OperatingPoint | None) -> UnaryCall[OperatingPoint]:
    request = build(admin_pb2.SetOperatingPointRequest, pool=pool)
    if point is not None:
        request.operating_point.CopyFrom(point_to_proto(point))
    return UnaryCall(
        lambda stubs: stubs.admin.SetOperatingPoint, request, lambda reply: point_from_proto(reply.operating_point)
    )


def explain(request_id: str) -> UnaryCall[Explanation]:
    request = build(admin_pb2.ExplainRequest, request_id=request_id)
    return UnaryCall(lambda stubs: stubs.admin.Explain, request, Explanation.from_proto)


def list_requests(
    tenant: str, all_tenants: bool, pool: str, missed: bool, limit: int
) -> UnaryCall[tuple[RequestRecord, ...]]:
    request = build(admin_pb2.ListRequestsRequest, pool=pool, missed=missed, limit=limit, **_whose(tenant, all_tenants))
    return UnaryCall(lambda stubs: stubs.admin.ListRequests, request, requests_from_proto)


def whoami() -> UnaryCall[Identity]:
    return UnaryCall(lambda stubs: stubs.admin.WhoAmI, admin_pb2.WhoAmIRequest(), Identity.from_proto)


def list_registry(kind: str, name: str, after: str, hashes: bool) -> UnaryCall[tuple[tuple[RegistryEntry, ...], bool]]:
    request = build(registry_pb2.ListRegistryRequest, kind=kind, name=name, after=after, hashes=hashes)
    return UnaryCall(
        lambda stubs: stubs.admin.ListRegistry,
        request,
        lambda reply: (tuple(map(RegistryEntry.from_proto, reply.entries)), reply.more),
    )


def edit_registry(
    edits: Iterable[RegistryEdit], dry_run: bool, wait_s: float, force: bool
) -> UnaryCall[RegistryResult]:
    request = build(registry_pb2.EditRegistryRequest, dry_run=dry_run, wait=duration_to_wire(wait_s), force=force)
    request.edits.extend(edit.to_proto() for edit in edits)
    return UnaryCall(lambda stubs: stubs.admin.EditRegistry, request, RegistryResult.from_proto)


def registry_changes(
    kind: str, name: str, limit: int, before: int
) -> UnaryCall[tuple[tuple[RegistryChange, ...], int]]:
    request = build(registry_pb2.ListRegistryChangesRequest, kind=kind, name=name, limit=limit, before=before)
    return UnaryCall(
        lambda stubs: stubs.admin.ListRegistryChanges,
        request,
        lambda reply: (tuple(map(RegistryChange.from_proto, reply.changes)), reply.before),
    )


def create_key(
    tenant: str,
    role: str,
    models: Iterable[str],
    classes: Iterable[str],
    valid: tuple[datetime.datetime | None, datetime.datetime | None],
) -> UnaryCall[NewKey]:
    request = build(registry_pb2.CreateKeyRequest, tenant=tenant, role=role, models=list(models), classes=list(classes))
    return _made_key(request, valid)


def replace_key(key_id: str, overlap_s: float, expires: datetime.datetime | None) -> UnaryCall[NewKey]:
    overlap = duration_to_wire(overlap_s)
    return _made_key(build(registry_pb2.CreateKeyRequest, replaces=key_id, overlap=overlap), (None, expires))


def _made_key(
    request: registry_pb2.CreateKeyRequest, valid: tuple[datetime.datetime | None, datetime.datetime | None]
) -> UnaryCall[NewKey]:
    for name, moment in zip(("not_before", "expires"), valid, strict=True):
        if moment is not None:
            getattr(request, name).FromDatetime(_zoned(name, moment))
    return UnaryCall(lambda stubs: stubs.admin.CreateKey, request, NewKey.from_proto)


def _zoned(name: str, moment: Any) -> datetime.datetime:
    if not isinstance(moment, datetime.datetime) or moment.tzinfo is None:
        raise unfit(name, "a datetime with a time zone", moment)
    return moment


def _whose(tenant: str, all_tenants: bool) -> dict[str, Any]:
    if tenant and all_tenants:
        raise ValueError("give one of tenant and all_tenants")
    return {"all_tenants": True} if all_tenants else {"tenant": tenant or None}


def start_rollout(
    pool: str, changes: Mapping[str, Any], surge: int | None, judge_s: float | None, *, dry_run: bool
) -> UnaryCall[Rollout]:
    request = build(rollout_pb2.StartRolloutRequest, pool=pool, surge=surge, dry_run=dry_run)
    request.changes.SetInParent()
    request.changes.update(changes)
    if judge_s is not None:
        request.judge.CopyFrom(duration_to_wire(judge_s))
    return UnaryCall(lambda stubs: stubs.admin.StartRollout, request, lambda reply: Rollout.from_proto(reply.rollout))


def get_rollout(pool: str) -> UnaryCall[Rollout | None]:
    request = build(rollout_pb2.GetRolloutRequest, pool=pool)
    return UnaryCall(
        lambda stubs: stubs.admin.GetRollout,
        request,
        lambda reply: Rollout.from_proto(reply.rollout) if reply.HasField("rollout") else None,
    )


def change_rollout(pool: str, action: RolloutAction) -> UnaryCall[Rollout]:
    request = build(rollout_pb2.ChangeRolloutRequest, pool=pool, action=action.to_proto())
    return UnaryCall(lambda stubs: stubs.admin.ChangeRollout, request, lambda reply: Rollout.from_proto(reply.rollout))


def announce_load(
    load: Mapping[str, Any], times: tuple[datetime.datetime | None, datetime.datetime]
) -> UnaryCall[AnnouncedLoad]:
    """Return the AnnounceLoad call; `load` has the fields of the request without the times.

    Raises:
        ValueError: not exactly one rate is given, or a time has no time zone.
    """
    if (load["requests_per_second"] is None) == (load["tokens_per_second"] is None):
        raise ValueError("give exactly one of requests_per_second and tokens_per_second")
    # With an id of its own a repeated call replaces what the first one stored.
    named = {**load, "id": load["id"] or f"load-{secrets.token_hex(4)}"}
    request = build(announced_pb2.AnnounceLoadRequest, **named)
    for name, moment in zip(("start", "end"), times, strict=True):
        if moment is not None:
            getattr(request, name).FromDatetime(_zoned(name, moment))
    return UnaryCall(
        lambda stubs: stubs.admin.AnnounceLoad, request, lambda reply: AnnouncedLoad.from_proto(reply.load)
    )


def announced_load(pool: str, tenant: str, all_tenants: bool) -> UnaryCall[tuple[AnnouncedLoad, ...]]:
    request = build(announced_pb2.ListAnnouncedLoadRequest, pool=pool, **_whose(tenant, all_tenants))
    return UnaryCall(
        lambda stubs: stubs.admin.ListAnnouncedLoad,
        request,
        lambda reply: tuple(map(AnnouncedLoad.from_proto, reply.loads)),
    )


def withdraw_load(load_id: str, pool: str, tenant: str) -> UnaryCall[None]:
    request = build(announced_pb2.WithdrawAnnouncedLoadRequest, id=load_id, pool=pool, tenant=tenant)
    return UnaryCall(lambda stubs: stubs.admin.WithdrawAnnouncedLoad, request, lambda reply: None)


def outlook(pool: str) -> UnaryCall[PoolOutlook]:
    return UnaryCall(
        lambda stubs: stubs.admin.GetOutlook,
        outlook_pb2.GetOutlookRequest(pool=pool),
        lambda reply: PoolOutlook.from_proto(reply.outlook),
    )
