"""Records of requests: Explain and ListRequests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence

from google.protobuf.message import DecodeError

from cluster.errors import InvalidRequestError, QueueUnavailableError, RequestNotFoundError
from cluster.responses.contract import ResponseName, ResponseStore
from penstock.v1 import admin_pb2 as api
from penstock.v1 import records_pb2
from penstock.wire import duration_to_wire
from router.admin.control import ControlApi
from router.dispatch.pool import Pool
from router.identity import Caller, Role, may_use, require_model, require_role, wrong_pool
from router.records.keeper import RecordKeeper
from router.records.verdict import explain
from router.routing import Aliases

DEFAULT_LIMIT = 50
MOST_REQUESTS = 1_000
BEFORE_S = 60.0
"""Seconds before a request's arrival from which the autoscaler's decisions are shown."""
_DECISIONS = 200
"""Most decisions that are looked through."""
_MADE_OF = ("chatcmpl-", "cmpl-", "msg_", "embd-", "classify-", "score-", "rerank-")
"""Prefixes of the ids that HTTP APIs make of the cluster's."""
_RESPONSE = re.compile("resp_[0-9a-f]{32}")
"""Ids of responses, which are not made of the cluster's."""


class RecordsApi:
    """Access to what the pools remember of their requests."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        keeper: RecordKeeper,
        control: ControlApi,
        aliases: Aliases,
        responses: ResponseStore | None = None,
    ) -> None:
        """`responses` knows which requests made the responses of the HTTP API; None where there are none."""
        self._pools = pools
        self._aliases = aliases
        self._keeper = keeper
        self._control = control
        self._responses = responses

    async def explain(self, request: api.ExplainRequest, caller: Caller) -> api.ExplainResponse:
        """Answer Explain.

        Raises:
            InvalidRequestError: no id.
            RequestNotFoundError: no record of it is kept, or it is another tenant's.
            QueueUnavailableError: the store does not answer.
        """
        if not request.request_id:
            raise InvalidRequestError.of("request_id", "is required")
        request_id = await self._own_id(request.request_id, caller)
        pools = self._aliases.reached(caller)
        found = await asyncio.gather(
            *(self._keeper.store(name).get(request_id) for name in pools), return_exceptions=True
        )
        blob = next((each for each in found if isinstance(each, bytes) and each), b"")
        failure = next((each for each in found if isinstance(each, BaseException)), None)
        if not blob and failure is not None:
            raise failure
        calls = _calls(blob)
        if not calls or not _may_see(caller, calls[0].tenant):
            raise RequestNotFoundError(request.request_id, ended=True)
        names = caller.role >= Role.OPERATOR
        explained = explain(calls, names=names)
        if not names:
            _hide_others(calls)
        return api.ExplainResponse(
            calls=calls,
            parts=[api.TimePart(name=name, time=duration_to_wire(seconds)) for name, seconds in explained.parts],
            cause=explained.cause,
            summary=explained.summary,
            decisions=await self._decisions(calls, caller),
        )

    async def list_requests(self, request: api.ListRequestsRequest, caller: Caller) -> api.ListRequestsResponse:
        """Answer ListRequests.

        Raises:
            InvalidRequestError: no such pool, or the limit is out of range.
            PermissionDeniedError: the caller may not see another tenant's requests, or the pool.
            QueueUnavailableError: a store does not answer.
        """
        tenant = "" if request.all_tenants else request.tenant or caller.tenant
        if tenant != caller.tenant:
            require_role(caller, Role.OPERATOR, "AdminService/ListRequests")
        if request.limit > MOST_REQUESTS:
            raise InvalidRequestError.of("limit", f"must be at most {MOST_REQUESTS}, got {request.limit}")
        limit, names = request.limit or DEFAULT_LIMIT, self._names(request.pool, caller)
        found = await asyncio.gather(
            *(self._keeper.store(name).newest(tenant, limit, missed=request.missed) for name in names)
        )
        last = [calls[-1] for part in found for blob in part if (calls := _calls(blob))]
        if caller.role < Role.OPERATOR:
            _hide_others(last)
        last.sort(key=lambda record: record.arrived_at_ms, reverse=True)
        return api.ListRequestsResponse(requests=last[:limit])

    async def _decisions(self, calls: Sequence[records_pb2.RequestRecord], caller: Caller) -> Sequence[api.Decision]:
        if caller.role < Role.OPERATOR:
            return ()
        first, last = calls[0], calls[-1]
        since = first.arrived_at_ms - BEFORE_S * 1000
        until = last.arrived_at_ms + last.total_time.ToMilliseconds()
        try:
            made = await self._control.list_decisions(
                api.ListDecisionsRequest(pool=first.pool, limit=_DECISIONS), caller
            )
        except QueueUnavailableError:
            # The records were read, and say most of it.
            return ()
        return [each for each in reversed(made.decisions) if since <= each.at_ms <= until]

    async def _own_id(self, given: str, caller: Caller) -> str:
        """Return the cluster's id of a request that an HTTP API may have named."""
        if self._responses is not None and _RESPONSE.fullmatch(given):
            response = await self._responses.get(ResponseName(caller.tenant, given))
            return response.run if response is not None and response.run else given
        return next((given.removeprefix(prefix) for prefix in _MADE_OF if given.startswith(prefix)), given)

    def _names(self, wanted: str, caller: Caller) -> list[str]:
        if not wanted:
            # A caller of an alias has requests in pools that it may not name.
            return self._aliases.reached(caller)
        require_model(caller, wanted)
        allowed = [name for name in self._pools if may_use(caller, name)]
        if wanted not in self._pools:
            raise wrong_pool(wanted, allowed)
        return [wanted]


def _may_see(caller: Caller, tenant: str) -> bool:
    return tenant == caller.tenant or caller.role >= Role.OPERATOR


def _hide_others(calls: Sequence[records_pb2.RequestRecord]) -> None:
    """Take other tenants' names out of records."""
    for call in calls:
        for choice in call.choices:
            for ahead in choice.ahead:
                ahead.tenant = ahead.tenant if ahead.tenant == call.tenant else ""
            for holder in choice.holders:
                holder.tenant = holder.tenant if holder.tenant == call.tenant else ""


def _calls(blob: bytes) -> list[records_pb2.RequestRecord]:
    try:
        found = records_pb2.RequestCalls.FromString(blob)
    except DecodeError:
        # A part of it was lost.
        return []
    return sorted(found.calls, key=lambda record: record.arrived_at_ms)
