"""Admission of generations by the name that their callers use: a model's own, or an alias."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import replace

from cluster.trust.resume_token import ResumeToken
from cluster.trust.secret import ClusterSecret
from penstock.models import RequestClass
from router.dispatch.pool import Pool
from router.generation.generation import Generation
from router.identity import Caller, require_model
from router.inference.admit import Admission
from router.inference.forward import Forwarding, adapter_of
from router.inference.shadows import SHADOW_WAIT_S
from router.routing import Route, Way
from router.validation import CheckedRequest, ResumePoint


class RoutedAdmission:
    """`Admission` that knows aliases."""

    def __init__(
        self, admission: Admission, forwarding: Forwarding, pools: Mapping[str, Pool], secret: ClusterSecret
    ) -> None:
        self._admission = admission
        self._forwarding = forwarding
        self._aliases = forwarding.aliases
        self._pools = pools
        self._secret = secret

    async def open(
        self,
        checked: CheckedRequest,
        *,
        caller: Caller,
        time_left_s: float | None,
        resume: ResumePoint | None = None,
        counted: bool = True,
    ) -> Generation | bytes:
        """Start a generation, continue one, or return the stored result of its idempotency key.

        Raises:
            PenstockError: as `Admission.open`.
        """
        alias = checked.model
        if not self._forwarding.is_alias(alias):
            return await self._admission.open(
                checked, caller=caller, time_left_s=time_left_s, resume=resume, counted=counted
            )
        require_model(caller, alias)
        token = _token(resume, self._secret)
        request_id = token.request_id if token is not None else secrets.token_hex(12)
        route = self._aliases.target(alias, caller.tenant, checked.session_id, checked.idempotency_key or request_id)
        begun_in = token.pool if token is not None else await self._begun_in(checked, caller)
        if begun_in:
            route = self._through(alias, begun_in, route)

        async def attempt(route: Route, caller: Caller, way: Way) -> Generation | bytes:
            return await self._admission.open(
                _in_pool(checked, route),
                caller=caller,
                time_left_s=time_left_s,
                resume=resume,
                counted=counted,
                way=way,
            )

        async def copy(route: Route, caller: Caller, way: Way) -> Generation:
            opened = await self._admission.open(
                _copy(_in_pool(checked, route)), caller=caller, time_left_s=None, way=way
            )
            if isinstance(opened, bytes):
                raise TypeError("a copy has no idempotency key, so there is no stored result for it")
            return opened

        found = await self._forwarding.forward(alias, route, caller, request_id, attempt, begun=bool(begun_in))
        if isinstance(found.opened, Generation):
            found.told(found.opened)
            if not begun_in:
                self._forwarding.served(alias, found.route)
                self._forwarding.copy(alias, request_id, copy)
        return found.opened

    async def close(self) -> None:
        """End all copies of requests."""
        await self._forwarding.close()

    async def knows(self, checked: CheckedRequest, tenant: str) -> bool:
        """Return whether a request under this key waits or runs, or has a result that is kept.

        Raises:
            QueueUnavailableError: Redis does not answer.
        """
        for name in self._aliases.pools(checked.model):
            known = await self._pools[name].keys.find(tenant, checked.idempotency_key, "", checked.digest)
            if known is not None and (known.live or known.result is not None):
                return True
        return False

    async def _begun_in(self, checked: CheckedRequest, caller: Caller) -> str:
        """Return the pool in which a request has begun under its key; empty for none. It may be another one than that
        of the target: the fallback serves it, or the weights have changed.
        """
        pools = self._aliases.pools(checked.model) if checked.idempotency_key else []
        found = await asyncio.gather(
            *(self._pools[name].keys.find(caller.tenant, checked.idempotency_key, "", checked.digest) for name in pools)
        )
        return next((name for name, known in zip(pools, found, strict=True) if known is not None), "")

    def _through(self, alias: str, pool: str, route: Route | None) -> Route | None:
        """Return the way to a pool in which a request has begun."""
        if route is None or route.pool == pool or pool not in self._pools:
            return route
        spare = self._aliases.fallback(alias, route)
        if spare is not None and spare.pool == pool:
            return spare
        found = self._aliases.get(alias)
        adapters = [each.adapter for each in found.targets if each.model == pool] if found is not None else []
        return Route(pool, adapters[0] if adapters else "")


def _token(resume: ResumePoint | None, secret: ClusterSecret) -> ResumeToken | None:
    """Return what a resume token says.

    Raises:
        InvalidRequestError: it is none of this cluster.
    """
    return ResumeToken.open(resume.token, secret) if resume is not None and resume.token else None


def _in_pool(checked: CheckedRequest, route: Route) -> CheckedRequest:
    adapter = adapter_of(checked.model, checked.lora_adapter, route)
    return replace(checked, model=route.pool, lora_adapter=adapter)


def _copy(checked: CheckedRequest) -> CheckedRequest:
    return replace(
        checked,
        request_class=RequestClass.BATCH,
        queue_timeout_s=SHADOW_WAIT_S,
        idempotency_key="",
        digest="",
    )
