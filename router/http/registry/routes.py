"""Routes of the registry: what changes while the cluster runs. Each is a call of AdminService."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from aiohttp import web
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict
from google.protobuf.timestamp_pb2 import Timestamp

from cluster.errors import InvalidRequestError
from penstock.models import FieldViolation
from penstock.v1 import registry_pb2 as api
from penstock.values.admin.registry import RegistryChange, RegistryDifference, RegistryEntry, RegistryResult
from penstock.values.objects import UINT64, BodyError, Fields, shown
from penstock.wire import duration_to_wire
from router.admin.servicer import AdminServicer
from router.call_context import CallContext
from router.http.calls import Calls
from router.identity import Caller, minimum_role, require_role
from router.identity.rights import ADMIN_SERVICE
from router.registry.api import MOST_CHANGES, MOST_ENTRIES
from router.registry.keys import MOST_OVERLAP_S

_PATH = "/v1/registry"
_ONE = f"{_PATH}/{{kind}}/{{name}}"
_PLURALS = {"tenants": "tenant", "keys": "key", "adapters": "adapter", "aliases": "alias", "pools": "pool"}
_VERSION = re.compile(r'(?:W/)?"([0-9]{1,19})"')
_PLACE = re.compile(r"^edits\[0\]\.(?:value\.)?")
_MOMENTS = ("not_before", "expires")


class RegistryRoutes:
    """Handlers of the registry's entries, its history, and new keys."""

    def __init__(self, calls: Calls, admin: AdminServicer) -> None:
        self._calls, self._admin = calls, admin

    def add_to(self, app: web.Application) -> None:
        app.router.add_get(_PATH, self.entries)
        app.router.add_post(_PATH, self.edit)
        app.router.add_get(f"{_PATH}/history", self.history)
        app.router.add_post(f"{_PATH}/keys", self.create_key)
        app.router.add_get(f"{_PATH}/{{kind}}", self.entries)
        app.router.add_get(_ONE, self.entry)
        app.router.add_put(_ONE, self.put)
        app.router.add_delete(_ONE, self.delete)

    # --- read ---------------------------------------------------------------------------------------------------------

    async def entries(self, request: web.Request) -> web.StreamResponse:
        """List entries."""
        found = await self._listed(request, "")
        data = [_entry(each) for each in found.entries]
        last = found.entries[-1] if found.entries else None
        last_id = f"{last.kind}/{last.name}" if last is not None else None
        return web.json_response(
            {"object": "list", "data": data, "last_id": last_id, "has_more": found.more, "version": found.version}
        )

    async def entry(self, request: web.Request) -> web.StreamResponse:
        """Return an entry. Its version is the ETag."""
        found = await self._listed(request, request.match_info["name"])
        if not found.entries:
            raise web.HTTPNotFound
        one = found.entries[0]
        return web.json_response(_entry(one), headers={"ETag": f'"{one.version}"'})

    async def _listed(self, request: web.Request, name: str) -> api.ListRegistryResponse:
        context, caller = self._caller(request, "ListRegistry")
        query = request.query
        asked = api.ListRegistryRequest(
            kind=_kind(request),
            name=name,
            limit=_count(query, "limit", MOST_ENTRIES),
            after=query.get("after", ""),
            hashes=read_flag(query, "hashes"),
        )
        return await self._admin.ListRegistry(asked, context, caller)

    async def history(self, request: web.Request) -> web.StreamResponse:
        """List changes, newest first."""
        context, caller = self._caller(request, "ListRegistryChanges")
        query = request.query
        kind = query.get("kind", "")
        asked = api.ListRegistryChangesRequest(
            kind=_PLURALS.get(kind, kind),
            name=query.get("name", ""),
            limit=_count(query, "limit", MOST_CHANGES),
            before=_count(query, "before", UINT64[1]),
        )
        found = await self._admin.ListRegistryChanges(asked, context, caller)
        page = {"object": "list", "data": [_change(each) for each in found.changes], "has_more": bool(found.before)}
        # What the next call gives as `before`.
        return web.json_response(page | ({"before": found.before} if found.before else {}))

    # --- change -------------------------------------------------------------------------------------------------------

    async def put(self, request: web.Request) -> web.StreamResponse:
        """Make an entry, or give it new content: that of the body."""
        context, caller = self._caller(request, "EditRegistry")
        edit = _edit(request, expected_version=_expected(request))
        _fill(edit, await self._calls.json(request), "")
        asked = _asked([edit], request.query)
        found = await self._apply(context, caller, asked)
        # The registry's own version is another one where the edit changed nothing, or also ended streams.
        entries = [] if asked.dry_run else (await self._listed(request, edit.name)).entries
        headers = {"ETag": f'"{entries[0].version}"'} if entries else None
        return web.json_response(_result(found), headers=headers)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """Delete an entry. One of the settings comes back then."""
        context, caller = self._caller(request, "EditRegistry")
        edit = _edit(request, expected_version=_expected(request))
        before = (await self._listed(request, edit.name)).entries
        found = await self._apply(context, caller, _asked([edit], request.query))
        # One that equals that of the settings makes no difference.
        there = found.differences or edit.end_streams or any(one.version for one in before)
        if not there:
            raise web.HTTPNotFound
        return web.json_response(_result(found))

    async def edit(self, request: web.Request) -> web.StreamResponse:
        """Make several changes, all or none."""
        context, caller = self._caller(request, "EditRegistry")
        body = Fields("", await self._calls.json(request), ignore_unknown=False)
        edits = [_read_edit(body.child(f"edits[{at}]", each)) for at, each in enumerate(body.list("edits"))]
        body.leftovers()
        found = await self._admin.EditRegistry(_asked(edits, request.query), context, caller)
        return web.json_response(_result(found))

    async def _apply(self, context: CallContext, caller: Caller, asked: api.EditRegistryRequest) -> Any:
        try:
            return await self._admin.EditRegistry(asked, context, caller)
        except InvalidRequestError as error:
            named = [FieldViolation(_PLACE.sub("", each.field), each.description) for each in error.violations]
            raise InvalidRequestError(named) from error

    async def create_key(self, request: web.Request) -> web.StreamResponse:
        """Make an API key. It is shown only here."""
        context, caller = self._caller(request, "CreateKey")
        body = Fields("", await self._calls.json(request), ignore_unknown=False)
        asked = api.CreateKeyRequest(
            tenant=body.text("tenant"),
            role=body.text("role"),
            models=_texts(body, "models"),
            classes=_texts(body, "classes"),
        )
        asked.replaces = body.text("replaces")
        if (overlap_s := body.number("overlap_s")) is not None:
            if not 0 <= overlap_s <= MOST_OVERLAP_S:
                raise body.wrong("overlap_s", f"must be 0 to {MOST_OVERLAP_S:.0f}, got {overlap_s:g}")
            asked.overlap.CopyFrom(duration_to_wire(overlap_s))
        for name in _MOMENTS:
            if text := body.text(name):
                getattr(asked, name).CopyFrom(read_moment(body, name, text))
        body.leftovers()
        made = await self._admin.CreateKey(asked, context, caller)
        found = {"object": "registry.key", "id": made.id, "key": made.key, "behind": list(made.behind)}
        return web.json_response(found, headers={"Cache-Control": "no-store"})

    def _caller(self, request: web.Request, method: str) -> tuple[CallContext, Caller]:
        context, caller = self._calls.caller(request)
        require_role(caller, minimum_role(ADMIN_SERVICE, method), f"{ADMIN_SERVICE}/{method}")
        return context, caller


# --- requests ---------------------------------------------------------------------------------------------------------


def _kind(request: web.Request) -> str:
    kind = request.match_info.get("kind", "")
    return _PLURALS.get(kind, kind)


def _edit(request: web.Request, expected_version: int | None) -> api.RegistryEdit:
    return api.RegistryEdit(
        kind=_kind(request),
        name=request.match_info["name"],
        expected_version=expected_version,
        end_streams=read_flag(request.query, "end_streams"),
    )


def _read_edit(fields: Fields) -> api.RegistryEdit:
    """Read a change of a body; one without a value deletes the entry."""
    kind = fields.required("kind")
    edit = api.RegistryEdit(
        kind=_PLURALS.get(kind, kind),
        name=fields.required("name"),
        expected_version=fields.count("expected_version", (0, (1 << 63) - 1)),
        end_streams=fields.flag("end_streams"),
    )
    if (value := fields.object("value")) is not None:
        _fill(edit, value.rest(), "value")
    fields.leftovers()
    return edit


def _fill(edit: api.RegistryEdit, value: Mapping[str, Any], place: str) -> None:
    edit.value.SetInParent()
    try:
        edit.value.update(value)
        # A number beyond those of JSON can be set, and not read again.
        MessageToDict(edit.value)
    except (ValueError, OverflowError, RecursionError):
        raise BodyError(place, "must be an object of texts, lists, objects and finite numbers") from None


def _asked(edits: Sequence[api.RegistryEdit], query: Mapping[str, str]) -> api.EditRegistryRequest:
    asked = api.EditRegistryRequest(edits=edits, dry_run=read_flag(query, "dry_run"), force=read_flag(query, "force"))
    if text := query.get("wait", ""):
        asked.wait.CopyFrom(_seconds(text))
    return asked


def _seconds(text: str) -> Duration:
    if not re.fullmatch(r"-?[0-9]{1,9}(\.[0-9]{1,9})?", text):
        raise BodyError("wait", f"must be seconds, such as 5 or 0.5, got {shown(text)}")
    return duration_to_wire(float(text))


def _expected(request: web.Request) -> int | None:
    """Return the version that the headers ask for; None for any.

    Raises:
        BodyError: they can't be read.
    """
    match, none = request.headers.get("If-Match", ""), request.headers.get("If-None-Match", "")
    if none:
        if none != "*" or match:
            raise BodyError("If-None-Match", f"must be *, without If-Match, got {shown(none)}")
        return 0
    if not match:
        return None
    found = _VERSION.fullmatch(match)
    if found is None:
        raise BodyError("If-Match", f'must be the ETag of an entry, such as "12", got {shown(match)}')
    return int(found[1])


def read_flag(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name, "").lower()
    if text not in ("", "0", "1", "false", "true"):
        raise BodyError(name, f"must be true or false, got {shown(text)}")
    return text in ("1", "true")


def _count(query: Mapping[str, str], name: str, most: int) -> int:
    text = query.get(name, "")
    if not text:
        return 0
    if not re.fullmatch(r"[0-9]{1,20}", text) or int(text) > most:
        raise BodyError(name, f"must be a whole number of at least 0 and at most {most}, got {shown(text)}")
    return int(text)


def _texts(fields: Fields, name: str) -> list[str]:
    found = list(fields.list(name))
    if not all(isinstance(each, str) for each in found):
        raise fields.wrong(name, f"must be a list of texts, got {shown(found)}")
    return found


def read_moment(fields: Fields, name: str, text: str) -> Timestamp:
    found = Timestamp()
    try:
        moment = datetime.datetime.fromisoformat(text)
        known = moment.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        moment = None
    if moment is None or moment.tzinfo is None:
        raise fields.wrong(name, f"must be a time with its zone, such as 2027-01-31T12:00:00Z, got {shown(text)}")
    found.FromDatetime(known)
    return found


# --- answers ----------------------------------------------------------------------------------------------------------


def _entry(wire: api.RegistryEntry) -> dict[str, Any]:
    found = RegistryEntry.from_proto(wire)
    entry = {
        "object": "registry.entry",
        "kind": found.kind,
        "name": found.name,
        "value": found.value,
        "version": found.version,
        "changed_at": int(found.changed_at.timestamp()) if found.changed_at is not None else None,
        "fixed": found.fixed,
    }
    return {**entry, "replicas": [asdict(each) for each in found.replicas]} if found.replicas else entry


def _result(wire: api.EditRegistryResponse) -> dict[str, Any]:
    found = RegistryResult.from_proto(wire)
    return {
        "object": "registry.edit",
        "differences": [_difference(each) for each in found.differences],
        "version": found.version,
        "behind": list(found.behind),
        "adapters": [asdict(each) for each in found.adapters],
    }


def _difference(found: RegistryDifference) -> dict[str, Any]:
    return {"kind": found.kind, "name": found.name, "before": found.before, "after": found.after}


def _change(wire: api.RegistryChange) -> dict[str, Any]:
    found = RegistryChange.from_proto(wire)
    return {
        "object": "registry.change",
        "number": found.number,
        "at": int(found.at.timestamp()),
        "tenant": found.tenant or None,
        "credential": found.credential or None,
        **_difference(found.difference),
        "version": found.version,
        "digest": found.digest,
        "intact": found.intact,
    }
