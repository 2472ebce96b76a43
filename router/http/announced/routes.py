"""Routes of announced load. Each is a call of AdminService."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from aiohttp import web

from cluster.errors import InvalidRequestError
from penstock.v1 import announced_pb2 as api
from penstock.values.admin.announced import AnnouncedLoad
from penstock.values.objects import Fields
from router.admin.servicer import AdminServicer
from router.announced.api import MOST_TOKENS
from router.http.calls import Calls
from router.http.registry.routes import read_flag, read_moment

_PATH = "/v1/announcements"
_RATES = ("requests_per_second", "tokens_per_second")


class AnnouncedRoutes:
    """Handlers of announced load."""

    def __init__(self, calls: Calls, admin: AdminServicer) -> None:
        self._calls, self._admin = calls, admin

    def add_to(self, app: web.Application) -> None:
        app.router.add_get(_PATH, self.loads)
        app.router.add_post(_PATH, self.announce)
        app.router.add_delete(f"{_PATH}/{{announcement}}", self.withdraw)

    async def loads(self, request: web.Request) -> web.StreamResponse:
        """List what is announced for a model."""
        query = request.query
        asked = api.ListAnnouncedLoadRequest(pool=query.get("model", ""))
        if read_flag(query, "all_tenants"):
            asked.all_tenants = True
        elif query.get("tenant"):
            asked.tenant = query["tenant"]
        with _named_as_model():
            found = await self._admin.ListAnnouncedLoad(asked, *self._calls.caller(request))
        return web.json_response({"object": "list", "data": [_object(each) for each in found.loads]})

    async def announce(self, request: web.Request) -> web.StreamResponse:
        """Announce load."""
        called = self._calls.caller(request)
        body = Fields("", await self._calls.json(request), ignore_unknown=False)
        asked = api.AnnounceLoadRequest(
            pool=body.text("model"),
            id=body.text("id"),
            prompt_tokens=body.count("prompt_tokens", most=MOST_TOKENS) or 0,
            output_tokens=body.count("output_tokens", most=MOST_TOKENS) or 0,
        )
        rates = {name: rate for name in _RATES if (rate := body.number(name)) is not None}
        if len(rates) > 1:
            raise body.wrong(_RATES[1], f"must not be given beside {_RATES[0]}")
        for name, rate in rates.items():
            setattr(asked, name, rate)
        for name in ("start", "end"):
            if text := body.text(name):
                getattr(asked, name).CopyFrom(read_moment(body, name, text))
        body.leftovers()
        with _named_as_model():
            return web.json_response(_object((await self._admin.AnnounceLoad(asked, *called)).load))

    async def withdraw(self, request: web.Request) -> web.StreamResponse:
        """Withdraw an announcement."""
        name, query = request.match_info["announcement"], request.query
        asked = api.WithdrawAnnouncedLoadRequest(pool=query.get("model", ""), id=name, tenant=query.get("tenant", ""))
        with _named_as_model():
            await self._admin.WithdrawAnnouncedLoad(asked, *self._calls.caller(request))
        return web.json_response({"object": "announcement", "id": name, "deleted": True})


@contextmanager
def _named_as_model() -> Iterator[None]:
    """Name the field of the pool as the caller wrote it."""
    try:
        yield
    except InvalidRequestError as error:
        named = [replace(each, field="model") if each.field == "pool" else each for each in error.violations]
        raise InvalidRequestError(named) from error


def _object(wire: api.AnnouncedLoad) -> dict[str, Any]:
    found = AnnouncedLoad.from_proto(wire)
    rest = asdict(found)
    model = rest.pop("pool")
    times = {"start": int(found.start.timestamp()), "end": int(found.end.timestamp())}
    return {"object": "announcement", "model": model, **rest, **times}
