"""Calls of operators for asyncio."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.client.admin import calls
from penstock.client.aio_calls import AsyncCaller
from penstock.values.admin.announced import AnnouncedLoad
from penstock.values.admin.costs import CostReport
from penstock.values.admin.identity import Identity
from penstock.values.admin.outlook import PoolOutlook
from penstock.values.admin.records import Explanation, RequestRecord
from penstock.values.admin.registry import NewKey, RegistryChange, RegistryEdit, RegistryEntry, RegistryResult
from penstock.values.admin.rollout import Rollout, RolloutAction
from penstock.values.decisions import DecisionList
from penstock.values.results import UsageReport
from penstock.values.slo import OperatingPoint
from penstock.values.status.pool import ClusterStatus


class AsyncAdminCaller(AsyncCaller):
    """Calls of operators."""

    async def cluster_status(self, *, timeout: float | None = None) -> ClusterStatus:
        """Return the state of the cluster as one router sees it. For operators; `timeout` is in seconds."""
        return await self._run(calls.cluster_status(), timeout)

    async def usage(
        self,
        *,
        tenant: str = "",
        all_tenants: bool = False,
        pool: str = "",
        first_day: datetime.date | None = None,
        last_day: datetime.date | None = None,
        by_hour: bool = False,
        timeout: float | None = None,
    ) -> UsageReport:
        """Return the usage of the caller's tenant. Operators may ask for another tenant or all of them.

        Args:
            tenant: default: the caller's own.
            all_tenants: whether to return all tenants.
            pool: default: all.
            first_day: UTC; default: as far back as the ledger is kept.
            last_day: UTC, itself included; default: today.
            by_hour: whether lines are by hour; days older than a month have one line all the same.
            timeout: seconds; default: the client's.

        Raises:
            PermissionDeniedError: the caller may not see another tenant (PERMISSION_DENIED).
            ValueError: both a tenant and all tenants are asked for.
        """
        return await self._run(calls.usage(tenant, all_tenants, pool, (first_day, last_day), by_hour=by_hour), timeout)

    async def costs(
        self,
        *,
        pool: str = "",
        first_day: datetime.date | None = None,
        last_day: datetime.date | None = None,
        timeout: float | None = None,
    ) -> CostReport:
        """Return what the replicas' accelerators did, by hour and pool. For operators.

        Args:
            pool: default: all.
            first_day: UTC; default: as far back as the ledger is kept.
            last_day: UTC, itself included; default: today.
            timeout: seconds; default: the client's.
        """
        return await self._run(calls.costs(pool, first_day, last_day), timeout)

    async def decisions(
        self,
        pool: str = "",
        *,
        limit: int = 20,
        skip: int = 0,
        load_record: bool = False,
        timeout: float | None = None,
    ) -> DecisionList:
        """Return the autoscaler's last decisions and their reasons, newest first. For operators.

        Args:
            pool: default: the only one.
            limit: 1 to 1000.
            skip: newest decisions to leave out.
            load_record: whether to return the record of the pool's load too.
            timeout: seconds; default: the client's.
        """
        return await self._run(calls.list_decisions(pool, limit, skip, load_record), timeout)

    async def set_operating_point(
        self, pool: str, point: OperatingPoint | None, *, timeout: float | None = None
    ) -> OperatingPoint:
        """Change a pool's operating point and return the one in force. For admins.

        Args:
            pool: name of the pool; empty: the only one.
            point: the whole new operating point; None returns to the settings.
            timeout: seconds; default: the client's.
        """
        return await self._run(calls.set_operating_point(pool, point), timeout)

    async def explain(self, request_id: str, *, timeout: float | None = None) -> Explanation:
        """Explain where the time of a request that ended went. Operators may ask about every tenant's.

        Args:
            request_id: as the cluster named it, or as an HTTP API did.
            timeout: seconds; default: the client's.

        Raises:
            NotFoundError: no record of it is kept (REQUEST_NOT_FOUND).
        """
        return await self._run(calls.explain(request_id), timeout)

    async def requests(
        self,
        *,
        tenant: str = "",
        all_tenants: bool = False,
        pool: str = "",
        missed: bool = False,
        limit: int = 50,
        timeout: float | None = None,
    ) -> tuple[RequestRecord, ...]:
        """Return records of requests that ended, newest first. Operators may ask for another tenant or all of them.

        Args:
            tenant: default: the caller's own.
            all_tenants: whether to return all tenants'.
            pool: default: all.
            missed: whether to return only those that missed their SLO or failed.
            limit: 1 to 1000.
            timeout: seconds; default: the client's.

        Raises:
            PermissionDeniedError: the caller may not see another tenant (PERMISSION_DENIED).
            ValueError: both a tenant and all tenants are asked for.
        """
        return await self._run(calls.list_requests(tenant, all_tenants, pool, missed, limit), timeout)

    async def whoami(self, *, timeout: float | None = None) -> Identity:
        """Return who the caller is and what it may use. For any role; `timeout` is in seconds."""
        return await self._run(calls.whoami(), timeout)

    async def registry(
        self, kind: str = "", *, name: str = "", hashes: bool = False, timeout: float | None = None
    ) -> tuple[RegistryEntry, ...]:
        """Return tenants, keys, adapters and aliases, in order of kind and name. For operators; a tenant's see its own.

        Args:
            kind: "tenant", "key", "adapter" or "alias"; default: all.
            name: default: all.
            hashes: whether the hashes of keys and the secrets of pools are returned, for a backup. For admins.
            timeout: seconds for each page; default: the client's.
        """
        found: list[RegistryEntry] = []
        while True:
            after = f"{found[-1].kind}/{found[-1].name}" if found else ""
            entries, more = await self._run(calls.list_registry(kind, name, after, hashes), timeout)
            found += entries
            if not more:
                return tuple(found)

    async def edit_registry(
        self,
        edits: Iterable[RegistryEdit],
        *,
        dry_run: bool = False,
        wait: float = 5.0,
        force: bool = False,
        timeout: float | None = None,
    ) -> RegistryResult:
        """Change entries of the registry, all or none. For admins.

        Args:
            edits: 1 to 1,000, at most one for each entry.
            dry_run: check the edits and return the differences, and change nothing.
            wait: longest wait until every router and replica knows them and has loaded adapters, 0 to 60 seconds.
            force: delete adapters although requests use them. These keep them to their end.
            timeout: seconds; default: the client's.

        Raises:
            InvalidArgumentError: names every wrong field (INVALID_ARGUMENT).
            ConflictError: an entry does not have the version that was expected (REGISTRY_CONFLICT).
            PenstockClientError: requests use an adapter that is to be deleted (ADAPTER_IN_USE).
        """
        return await self._run(calls.edit_registry(edits, dry_run, wait, force), timeout)

    async def registry_changes(
        self, kind: str = "", *, name: str = "", limit: int = 50, before: int = 0, timeout: float | None = None
    ) -> tuple[RegistryChange, ...]:
        """Return who changed what in the registry, newest first. For operators.

        Args:
            kind: default: all.
            name: default: all.
            limit: 1 to 1000.
            before: number of a change; only older ones are returned. 0: from the newest on.
            timeout: seconds for each page; default: the client's.
        """
        found: list[RegistryChange] = []
        while True:
            changes, before = await self._run(calls.registry_changes(kind, name, limit - len(found), before), timeout)
            found += changes
            if not before or len(found) >= limit:
                return tuple(found)

    async def create_key(
        self,
        tenant: str,
        *,
        role: str = "user",
        models: Iterable[str] = (),
        classes: Iterable[str] = (),
        not_before: datetime.datetime | None = None,
        expires: datetime.datetime | None = None,
        timeout: float | None = None,
    ) -> NewKey:
        """Make an API key, and return it when every router knows it. For admins.

        Args:
            tenant: tenant that its calls belong to.
            role: "user", "tenant_operator", "operator" or "admin".
            models: models that it may use; default: all.
            classes: "interactive", "standard", "batch"; default: all.
            not_before: time from which it is valid, with a time zone; default: at once.
            expires: time at which it expires, with a time zone; default: never.
            timeout: seconds; default: the client's.
        """
        return await self._run(calls.create_key(tenant, role, models, classes, (not_before, expires)), timeout)

    async def replace_key(
        self,
        key_id: str,
        *,
        overlap: float = 3_600.0,
        expires: datetime.datetime | None = None,
        timeout: float | None = None,
    ) -> NewKey:
        """Make an API key with the rights of another one, which then expires. Return it when every router knows it.

        Args:
            key_id: public id of the key of the registry that it replaces.
            overlap: seconds for which both are valid.
            expires: time at which the new one expires, with a time zone; default: never.
            timeout: seconds; default: the client's.
        """
        return await self._run(calls.replace_key(key_id, overlap, expires), timeout)

    async def start_rollout(
        self,
        pool: str,
        changes: Mapping[str, Any],
        *,
        surge: int | None = None,
        judge_s: float | None = None,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> Rollout:
        """Begin to change a pool's model or engine settings, one replica at a time. Returns at once. For admins.

        Args:
            pool: default: the only one.
            changes: settings as in `pools.NAME`, of `model`, `revision`, `task`, `tensor_parallel_size`, `vllm` and
                `sim`; None takes an earlier change back.
            surge: replicas that the pool may have beyond its number meanwhile; default: that of the settings.
            judge_s: seconds for which a new replica must serve well before the next one changes; default: that of the
                settings.
            dry_run: only check it, and change nothing.
            timeout: seconds; default: the client's.

        Raises:
            InvalidArgumentError: names every wrong setting (INVALID_ARGUMENT).
            PenstockClientError: another roll-out of the pool goes on (ROLLOUT_STATE).
        """
        return await self._run(calls.start_rollout(pool, changes, surge, judge_s, dry_run=dry_run), timeout)

    async def rollout(self, pool: str = "", *, timeout: float | None = None) -> Rollout | None:
        """Return a pool's newest roll-out; None without one. For operators.

        Args:
            pool: default: the only one.
            timeout: seconds; default: the client's.
        """
        return await self._run(calls.get_rollout(pool), timeout)

    async def change_rollout(self, pool: str, action: RolloutAction, *, timeout: float | None = None) -> Rollout:
        """Stop a roll-out, let it go on, or let it go back. For admins.

        Args:
            pool: default: the only one.
            action: the order.
            timeout: seconds; default: the client's.

        Raises:
            PenstockClientError: its state does not allow it (ROLLOUT_STATE).
        """
        return await self._run(calls.change_rollout(pool, action), timeout)

    async def announce_load(
        self,
        pool: str = "",
        *,
        end: datetime.datetime,
        start: datetime.datetime | None = None,
        requests_per_second: float | None = None,
        tokens_per_second: float | None = None,
        prompt_tokens: int = 0,
        output_tokens: int = 0,
        load_id: str = "",
        timeout: float | None = None,
    ) -> AnnouncedLoad:
        """Announce load that the caller's tenant will send, so that replicas are there before it comes.

        Args:
            pool: a pool or an alias; default: the only pool.
            end: time at which it ends, with a time zone.
            start: time at which it begins, with a time zone; default: now.
            requests_per_second: rate in that time; give this one or the next.
            tokens_per_second: the same in tokens, of prompts and outputs together.
            prompt_tokens: mean prompt of a request; default: like the tenant's requests of late, or the pool's.
            output_tokens: mean output of a request, as above.
            load_id: id of the announcement; one that the tenant has already is replaced. Default: a new one.
            timeout: seconds; default: the client's.

        Raises:
            InvalidArgumentError: names every wrong field (INVALID_ARGUMENT).
            PenstockClientError: the tenant has as many as it may (ANNOUNCEMENT_LIMIT).
            ValueError: not exactly one rate is given, or a time has no time zone.
        """
        load = {
            "id": load_id,
            "pool": pool,
            "requests_per_second": requests_per_second,
            "tokens_per_second": tokens_per_second,
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
        }
        return await self._run(calls.announce_load(load, (start, end)), timeout)

    async def announced_load(
        self, pool: str = "", *, tenant: str = "", all_tenants: bool = False, timeout: float | None = None
    ) -> tuple[AnnouncedLoad, ...]:
        """Return announced load that is not over, in order of its beginning. Operators may ask for other tenants'.

        Args:
            pool: a pool or an alias; default: the only pool.
            tenant: default: the caller's own.
            all_tenants: whether to return all tenants'.
            timeout: seconds; default: the client's.
        """
        return await self._run(calls.announced_load(pool, tenant, all_tenants), timeout)

    async def withdraw_load(
        self, load_id: str, pool: str = "", *, tenant: str = "", timeout: float | None = None
    ) -> None:
        """Withdraw an announcement. Admins may withdraw other tenants'.

        Args:
            load_id: its id.
            pool: a pool or an alias; default: the only pool.
            tenant: default: the caller's own.
            timeout: seconds; default: the client's.

        Raises:
            NotFoundError: there is none of that id (ANNOUNCEMENT_NOT_FOUND).
        """
        await self._run(calls.withdraw_load(load_id, pool, tenant), timeout)

    async def outlook(self, pool: str = "", *, timeout: float | None = None) -> PoolOutlook:
        """Return what a pool expects of the next hours: announced load, schedule, and forecast. For operators.

        Args:
            pool: default: the only one.
            timeout: seconds; default: the client's.
        """
        return await self._run(calls.outlook(pool), timeout)
