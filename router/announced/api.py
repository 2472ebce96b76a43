"""Calls that announce load."""

from __future__ import annotations

import logging
import math
import re
import secrets
from collections.abc import Callable, Mapping

from google.protobuf.timestamp_pb2 import Timestamp

from cluster.announced.contract import MOST_OF_POOL, Put
from cluster.announced.load import AnnouncedLoad
from cluster.clock import SystemClock
from cluster.errors import AnnouncementLimitError, AnnouncementNotFoundError, InvalidRequestError
from cluster.plural import counted
from cluster.settings import PoolSettings
from penstock.models import FieldViolation
from penstock.v1 import announced_pb2 as api
from router.announced.keeper import AnnouncedKeeper
from router.announced.wire import load_to_wire
from router.dispatch.pool import Pool
from router.identity import Caller, Role, TenantPolicies, may_use, require_model, require_role, wrong_pool
from router.routing import Aliases

_LOG = logging.getLogger(__name__)

_DAY_S = 86_400.0
LONGEST_S = 31 * _DAY_S
TOKENS_FACTOR = 1_000.0
"""Tokens of a request by which the largest rate of requests bounds that of tokens."""
MOST_TOKENS = 10_000_000
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LATE_S = 60.0
"""Seconds by which a beginning may have passed: clocks differ, and calls take a while."""


class AnnouncedApi:
    """The calls of AdminService that concern announced load."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        keeper: AnnouncedKeeper,
        policies: TenantPolicies,
        aliases: Aliases,
    ) -> None:
        self._pools = pools
        self._keeper = keeper
        self._policies = policies
        self._aliases = aliases
        self._clock = SystemClock()

    async def announce(self, request: api.AnnounceLoadRequest, caller: Caller) -> api.AnnounceLoadResponse:
        """Answer AnnounceLoad.

        Raises:
            InvalidRequestError: no such pool or alias, or a value is wrong.
            PermissionDeniedError: the caller may not use the model.
            AnnouncementLimitError: the tenant has as many as it may, or the pool.
            QueueUnavailableError: the store does not answer.
        """
        name = self._name(request.pool, caller)
        parts = self._parts(name, caller.tenant)
        settings = self._taking(name, parts)
        quota_requests, quota_tokens = self._quota(caller.tenant, name)
        load = AnnouncedLoad(
            request.id or f"load-{secrets.token_hex(4)}",
            caller.tenant,
            *_times(request, self._clock.wall_ms(), settings),
            requests=request.requests_per_second,
            tokens=request.tokens_per_second,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            quota_requests=quota_requests,
            quota_tokens=quota_tokens,
            # An alias may get other targets before the load comes.
            quotas={} if name in self._pools else {pool: self._quota(caller.tenant, pool) for pool in self._pools},
        )
        most, store = settings.autoscale.announced_per_tenant, self._keeper.store(name)
        # Whoever announces the same again and again would never be judged by what came.
        load = load.going_on_from(await store.read(), self._clock.wall_ms())
        match await store.put(load, most):
            case Put.TENANT_FULL:
                raise AnnouncementLimitError(name, "autoscale.announced_per_tenant", most)
            case Put.POOL_FULL:
                raise AnnouncementLimitError(name, "announcements of the pool", MOST_OF_POOL)
        _LOG.info("announced.load", extra={"pool": name, "tenant": caller.tenant, "id": load.id})
        return api.AnnounceLoadResponse(load=self._wire(name, load))

    async def list_loads(self, request: api.ListAnnouncedLoadRequest, caller: Caller) -> api.ListAnnouncedLoadResponse:
        """Answer ListAnnouncedLoad.

        Raises:
            InvalidRequestError: no such pool or alias.
            PermissionDeniedError: the caller may not use the model, or see another tenant's announcements.
            QueueUnavailableError: the store does not answer.
        """
        tenant = "" if request.all_tenants else request.tenant or caller.tenant
        if tenant != caller.tenant:
            require_role(caller, Role.OPERATOR, "AdminService/ListAnnouncedLoad")
        name = self._name(request.pool, caller)
        found = await self._keeper.store(name).read()
        return api.ListAnnouncedLoadResponse(
            loads=[self._wire(name, load) for load in found if tenant in ("", load.tenant)]
        )

    async def withdraw(
        self, request: api.WithdrawAnnouncedLoadRequest, caller: Caller
    ) -> api.WithdrawAnnouncedLoadResponse:
        """Answer WithdrawAnnouncedLoad.

        Raises:
            InvalidRequestError: no such pool or alias, or no id.
            PermissionDeniedError: the caller may not use the model, or it is another tenant's announcement.
            AnnouncementNotFoundError: there is none of that id.
            QueueUnavailableError: the store does not answer.
        """
        tenant = request.tenant or caller.tenant
        if tenant != caller.tenant:
            require_role(caller, Role.ADMIN, "AdminService/WithdrawAnnouncedLoad")
        name = self._name(request.pool, caller)
        if not request.id:
            raise InvalidRequestError.of("id", "is required")
        if not await self._keeper.store(name).withdraw(tenant, request.id):
            raise AnnouncementNotFoundError(request.id)
        _LOG.info("announced.withdrawn", extra={"pool": name, "tenant": tenant, "id": request.id})
        return api.WithdrawAnnouncedLoadResponse()

    def _name(self, wanted: str, caller: Caller) -> str:
        """Return the name of the pool or alias that is meant: a caller who may use one pool need not name it."""
        if wanted:
            require_model(caller, wanted)
        allowed = [name for name in self._pools if may_use(caller, name)]
        known = {*allowed, *self._aliases.allowed(caller)}
        open_now = sorted(name for name in known if any(map(self._open, self._parts(name, caller.tenant))))
        names = [wanted] if wanted else [name for name in allowed if name in open_now]
        if len(names) != 1 or names[0] not in open_now:
            raise wrong_pool(wanted, open_now)
        return names[0]

    def _open(self, pool: str) -> bool:
        return pool in self._pools and not self._pools[pool].closing

    def _parts(self, name: str, tenant: str) -> Mapping[str, float]:
        """Return the parts of a tenant's requests that pools get."""
        return {name: 1.0} if name in self._pools else self._aliases.parts(name, tenant)

    def _taking(self, name: str, parts: Mapping[str, float]) -> PoolSettings:
        """Return the settings of the pool that gets most of a load, of those that take announcements.

        Raises:
            InvalidRequestError: none does.
        """
        pools = sorted(filter(self._open, parts), key=lambda pool: parts[pool], reverse=True)
        for pool in pools:
            if _off(self._pools[pool].settings) is None:
                return self._pools[pool].settings
        why = " and ".join(f"autoscale.{_off(self._pools[pool].settings)} of {pool!r} is 'off'" for pool in pools)
        raise InvalidRequestError.of("pool", f"{name!r} takes no announcements: {why}")

    def _quota(self, tenant: str, pool: str) -> tuple[float, float]:
        """Return the requests and tokens per second that a tenant's quota lets through; 0 for no bound."""
        quota = self._policies.of(tenant, pool).quota
        return (quota.requests_per_minute or 0) / 60.0, (quota.tokens_per_minute or 0) / 60.0

    def _wire(self, name: str, load: AnnouncedLoad) -> api.AnnouncedLoad:
        return load_to_wire(name, load, self._counts_for(name, load))

    def _counts_for(self, name: str, load: AnnouncedLoad) -> float:
        """Return the part of a load that counts: what goes to pools that take announcements, within quotas."""
        if name in self._pools:
            return load.counts_for
        taking = {
            pool: part
            for pool, part in self._aliases.parts(name, load.tenant).items()
            if self._open(pool) and _off(self._pools[pool].settings) is None
        }
        return sum(part * load.part(pool, part).counts_for for pool, part in taking.items())


def _off(settings: PoolSettings) -> str | None:
    """Return the setting that keeps a pool from taking announcements; None where it takes them."""
    if settings.autoscale.mode == "off":
        return "mode"
    return "announced" if settings.autoscale.announced == "off" else None


def _times(request: api.AnnounceLoadRequest, now_ms: int, settings: PoolSettings) -> tuple[int, int]:
    """Check an announcement, and return beginning and end in milliseconds.

    Raises:
        InvalidRequestError: names every wrong field.
    """
    wrong: list[FieldViolation] = []

    def reject(field: str, limit: str, value: object) -> None:
        wrong.append(FieldViolation(field, f"must be {limit}, got {value}"))

    if request.id and not _ID.fullmatch(request.id):
        reject("id", "1 to 63 letters, digits, dots, underscores and hyphens", repr(request.id))
    _check_rate(request, settings.autoscale.announced_rate, reject)
    for name, value in (("prompt_tokens", request.prompt_tokens), ("output_tokens", request.output_tokens)):
        if value > MOST_TOKENS:
            reject(name, f"at most {MOST_TOKENS}", value)
    ahead_s = settings.autoscale.announced_ahead_s
    start_ms = max(now_ms, _ms(request.start)) if request.HasField("start") else now_ms
    if request.HasField("start") and not -_LATE_S <= _ms(request.start) / 1000 - now_ms / 1000 <= ahead_s:
        reject("start", f"from now to {_long(ahead_s)} ahead", request.start.ToJsonString())
    end_ms = _ms(request.end)
    if not request.HasField("end"):
        wrong.append(FieldViolation("end", "is required"))
    elif not start_ms < end_ms <= start_ms + LONGEST_S * 1000:
        start = Timestamp()
        start.FromMilliseconds(start_ms)
        after = f"after the start, {start.ToJsonString()}, and at most {_long(LONGEST_S)} after it"
        reject("end", after, request.end.ToJsonString())
    if wrong:
        raise InvalidRequestError(wrong)
    return start_ms, end_ms


def _long(seconds: float) -> str:
    return counted(int(seconds // _DAY_S), "day") if seconds % _DAY_S == 0 else f"{seconds:.15g} s"


def _check_rate(request: api.AnnounceLoadRequest, most: float, reject: Callable[[str, str, object], None]) -> None:
    name = request.WhichOneof("rate")
    if name is None:
        reject("requests_per_second", "given, or tokens_per_second", "neither")
        return
    value = getattr(request, name)
    largest = most if name == "requests_per_second" else TOKENS_FACTOR * most
    if not 0 < value <= largest or math.isnan(value):
        reject(name, f"above 0 and at most {largest:.15g}", f"{value:.15g}")


def _ms(moment: Timestamp) -> int:
    return moment.seconds * 1000 + moment.nanos // 1_000_000
