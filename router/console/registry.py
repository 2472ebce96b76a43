"""The registry: what is listed, what changed, and changes. Routers decide who may do what."""

from __future__ import annotations

import datetime

from aiohttp import web

from penstock.client import RegistryEdit
from router.console.answers import answer
from router.console.bodies import field, optional_number, read_body
from router.console.caller import CLIENT
from router.console.reads import TIMEOUT_S, number

CHANGE_S = 30.0
"""Longest time of a change in seconds: it waits for all routers and replicas."""
WAIT_S = 10.0
MOST_CHANGES = 500


class RegistryPageRoutes:
    """Handlers of the registry."""

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/api/registry", self.entries)
        app.router.add_get("/api/registry/history", self.history)
        app.router.add_post("/api/registry", self.edit)
        app.router.add_post("/api/registry/keys", self.create_key)

    async def entries(self, request: web.Request) -> web.StreamResponse:
        """List the entries of a kind, or of all."""
        kind = request.query.get("kind", "")
        return answer({"entries": await request.app[CLIENT].registry(kind, timeout=TIMEOUT_S)})

    async def history(self, request: web.Request) -> web.StreamResponse:
        """List changes, newest first."""
        kind, name = request.query.get("kind", ""), request.query.get("name", "")
        limit = number(request, "limit", 20, MOST_CHANGES)
        changes = await request.app[CLIENT].registry_changes(kind, name=name, limit=limit, timeout=TIMEOUT_S)
        return answer({"changes": changes})

    async def edit(self, request: web.Request) -> web.StreamResponse:
        """Make, change or delete an entry, if it still has the version that the page shows."""
        body = await read_body(request)
        edit = RegistryEdit(
            field(body, "kind", str, ""),
            field(body, "name", str, ""),
            None if body.get("value") is None else field(body, "value", dict, {}),
            field(body, "version", int, 0),
            end_streams=field(body, "end_streams", bool, False),
        )
        return answer(await request.app[CLIENT].edit_registry([edit], wait=WAIT_S, timeout=CHANGE_S))

    async def create_key(self, request: web.Request) -> web.StreamResponse:
        """Make a key. The answer alone has it."""
        body = await read_body(request)
        days = optional_number(body, "days")
        if days is not None and not 0 < days <= 36_500:
            raise ValueError(f"days: must be above 0 and at most 36500, got {days:g}")
        expires = None if days is None else datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
        made = await request.app[CLIENT].create_key(
            field(body, "tenant", str, ""),
            role=field(body, "role", str, "user"),
            expires=expires,
            timeout=CHANGE_S,
        )
        return answer({"key": made.key, "id": made.id, "behind": made.behind})
