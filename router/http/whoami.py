"""Who calls, for the caller itself."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from penstock.v1 import admin_pb2 as api
from penstock.values.admin.identity import Identity
from router.admin.servicer import AdminServicer
from router.http.calls import Calls


class CallerRoutes:
    """Handler of questions after the caller."""

    def __init__(self, calls: Calls, admin: AdminServicer) -> None:
        self._calls, self._admin = calls, admin

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/v1/whoami", self.whoami)

    async def whoami(self, request: web.Request) -> web.StreamResponse:
        """Tell the caller who it is and what it may use."""
        found = await self._admin.WhoAmI(api.WhoAmIRequest(), *self._calls.caller(request))
        return web.json_response(_caller(Identity.from_proto(found)))


def _caller(found: Identity) -> dict[str, Any]:
    return {
        "object": "caller",
        "tenant": found.tenant,
        "role": found.role.value,
        "models": list(found.models),
        "classes": [each.name.lower() for each in found.classes],
        "credential": {
            "kind": found.credential_kind.value,
            "name": found.credential_name or None,
            "expires_at": int(found.expires_at.timestamp()) if found.expires_at is not None else None,
        },
    }
