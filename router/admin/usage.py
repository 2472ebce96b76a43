"""Usage of tenants and costs of replicas, from the ledgers of the pools."""

from __future__ import annotations

import asyncio
import datetime
import itertools
from collections.abc import Iterator, Mapping

from cluster.errors import InvalidRequestError
from cluster.queue.entries import CostLine, GpuTime, UsageLine
from penstock.v1 import admin_pb2 as api
from router.admin.budgets import read_budgets
from router.dispatch.pool import Pool
from router.identity import Caller, Role, TenantPolicies, may_use, require_model, require_role, wrong_pool
from router.routing import Aliases

MAX_LINES = 10_000
"""Most lines of one pool in one answer."""
_EPOCH = datetime.date(1970, 1, 1)
_LAST_DAY = (datetime.date.max - _EPOCH).days


async def read_usage(
    pools: Mapping[str, Pool],
    request: api.GetUsageRequest,
    caller: Caller,
    policies: TenantPolicies,
    aliases: Aliases,
) -> api.GetUsageResponse:
    """Answer GetUsage.

    Raises:
        InvalidRequestError: a day can't be read, the days are in the wrong order, or there is no such pool.
        PermissionDeniedError: the caller may not see another tenant's lines, or the pool.
        UnavailableError: a ledger can't be read.
    """
    tenant = "" if request.all_tenants else request.tenant or caller.tenant
    if tenant != caller.tenant:
        require_role(caller, Role.OPERATOR, "AdminService/GetUsage")
    first, last = _days(request)
    # A caller of an alias has its usage in pools that it may not name.
    names = _names(pools, request.pool, caller) if request.pool else aliases.reached(caller)
    most = MAX_LINES // 24 if request.by_hour else MAX_LINES
    found = await asyncio.gather(*(pools[name].ledger.usage(tenant, first, last, most + 1) for name in names))
    lines = [
        wire
        for name, part in zip(names, found, strict=True)
        for line in part[:most]
        for wire in (_hours(name, line) if request.by_hour and _has_hours(line) else (_line(name, line),))
    ]
    lines.sort(key=lambda line: (line.day, line.hour, line.pool, line.tenant))
    budgets = await asyncio.gather(
        *(
            read_budgets(pools[name], [tenant] if tenant else {line.tenant for line in part[:most]}, policies)
            for name, part in zip(names, found, strict=True)
        )
    )
    return api.GetUsageResponse(
        lines=lines,
        truncated=any(len(part) > most for part in found),
        budgets=sorted(itertools.chain(*budgets), key=lambda each: (each.pool, each.tenant, each.name)),
    )


async def read_costs(pools: Mapping[str, Pool], request: api.GetCostsRequest, caller: Caller) -> api.GetCostsResponse:
    """Answer GetCosts.

    Raises:
        InvalidRequestError, PermissionDeniedError, UnavailableError: as for GetUsage.
    """
    first, last = _days(request)
    names = _names(pools, request.pool, caller)
    found = await asyncio.gather(*(pools[name].ledger.costs(first * 24, last * 24 + 23) for name in names))
    lines = sorted((line.hour, name, line) for name, part in zip(names, found, strict=True) for line in part)
    return api.GetCostsResponse(lines=[_cost_line(name, line) for _, name, line in lines])


def _days(request: api.GetUsageRequest | api.GetCostsRequest) -> tuple[int, int]:
    first, last = _day(request.first_day, "first_day", 0), _day(request.last_day, "last_day", _LAST_DAY)
    if first > last:
        begins = f"first_day, {request.first_day}" if request.first_day else f"{_EPOCH}, the first day there is"
        raise InvalidRequestError.of("last_day", f"{request.last_day} must not be before {begins}")
    return first, last


def _names(pools: Mapping[str, Pool], wanted: str, caller: Caller) -> list[str]:
    allowed = [name for name in pools if may_use(caller, name)]
    if not wanted:
        return allowed
    require_model(caller, wanted)
    if wanted not in pools:
        raise wrong_pool(wanted, allowed)
    return [wanted]


def _day(text: str, field: str, default: int) -> int:
    """Return a day as days since 1970."""
    if not text:
        return default
    try:
        return (datetime.date.fromisoformat(text) - _EPOCH).days
    except ValueError:
        raise InvalidRequestError.of(field, f"{text[:40]!r} is no day such as 2026-01-31") from None


def _line(pool: str, line: UsageLine) -> api.UsageLine:
    return api.UsageLine(
        day=(_EPOCH + datetime.timedelta(days=line.day)).isoformat(),
        pool=pool,
        tenant=line.tenant,
        requests=line.requests,
        prompt_tokens=line.prompt_tokens,
        output_tokens=line.output_tokens,
        cached_tokens=line.cached_tokens,
        gpu_seconds=line.gpu_seconds,
        cost=line.cost,
    )


def _has_hours(line: UsageLine) -> bool:
    """Return whether a line has all its hours: a release without them may have begun its day."""
    return bool(line.hours) and sum(use.requests for use in line.hours) == line.requests


def _hours(pool: str, line: UsageLine) -> Iterator[api.UsageLine]:
    for use in line.hours:
        yield api.UsageLine(
            day=(_EPOCH + datetime.timedelta(days=line.day)).isoformat(),
            hour=_hour(line.day * 24 + use.hour),
            pool=pool,
            tenant=line.tenant,
            requests=use.requests,
            prompt_tokens=use.prompt_tokens,
            output_tokens=use.output_tokens,
            cached_tokens=use.cached_tokens,
            gpu_seconds=use.gpu_seconds,
            cost=use.cost,
        )


def _hour(hour: int) -> str:
    return f"{datetime.datetime.fromtimestamp(hour * 3600, datetime.UTC):%Y-%m-%dT%H:%MZ}"


def _cost_line(pool: str, line: CostLine) -> api.CostLine:
    return api.CostLine(
        hour=_hour(line.hour),
        pool=pool,
        total=_time(line.total),
        requests=_time(line.requests),
        starting=_time(line.starting),
        idle=_time(line.idle),
        draining=_time(line.draining),
        lost=_time(line.lost),
        running=_time(line.running),
        standby=_time(line.standby),
        charged=line.charged,
    )


def _time(time: GpuTime) -> api.GpuTime:
    return api.GpuTime(gpu_seconds=time.gpu_seconds, cost=time.cost)
