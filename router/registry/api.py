"""Calls on the registry: entries listed, changed and accounted for."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from cluster.errors import InvalidRequestError, QueueUnavailableError
from cluster.registry.contract import Author, Change, Edit
from cluster.registry.view import RegistryView
from cluster.settings import Settings
from cluster.trust.masking import filled
from penstock.models import FieldViolation
from penstock.v1 import registry_pb2 as api
from penstock.wire import duration_from_wire
from router.identity import Caller, Role, require_role
from router.identity.key import hash_key, key_id, mint_key
from router.registry.adapters import AdapterCalls
from router.registry.keys import REVOCATION, outlived, replaced_key, revocation_of
from router.registry.kinds import KEY, KINDS, POOL, Kind, WrongEntryError
from router.registry.pools import PoolCalls
from router.registry.scope import Scope
from router.registry.targets import torn_targets

_LOG = logging.getLogger(__name__)

MOST_EDITS = 1_000
MOST_ENTRIES, DEFAULT_ENTRIES = 10_000, 1_000
MOST_CHANGES, DEFAULT_CHANGES = 1_000, 50
MOST_PAGES = 20
"""Most pages of the history that one call reads: few of the changes may be of the kind, or the caller's to see."""
MOST_OWN_KEYS = 1_000
"""Keys of a tenant beyond which its own operators make no more: every router has all keys in memory."""
MOST_WAIT_S, DEFAULT_WAIT_S = 60.0, 5.0

Fields = dict[str, Any]


class RegistryApi:
    """Answers of the admin service about the registry."""

    def __init__(self, settings: Settings, view: RegistryView) -> None:
        self._settings = settings
        self._view = view
        self._adapters = AdapterCalls(view)
        self._pools = PoolCalls(settings, view)

    # --- list ---------------------------------------------------------------------------------------------------------

    async def list_entries(self, request: api.ListRegistryRequest, caller: Caller) -> api.ListRegistryResponse:
        """Answer ListRegistry.

        Raises:
            InvalidRequestError: no such kind, or the limit is out of range.
            PermissionDeniedError: hashes are for admins.
        """
        limit = _limit(request.limit, DEFAULT_ENTRIES, MOST_ENTRIES)
        kinds = [_kind(request.kind, "kind")] if request.kind else [KINDS[name] for name in sorted(KINDS)]
        if request.hashes:
            require_role(caller, Role.ADMIN, "AdminService/ListRegistry with hashes")
        reply = api.ListRegistryResponse(version=self._view.version)
        scope = Scope(caller)
        for entry in self._entries(kinds, request.name, request.after, scope, hashes=request.hashes):
            if len(reply.entries) == limit:
                reply.more = True
                break
            reply.entries.append(entry)
        with suppress(QueueUnavailableError):
            # What is in force is known without Redis.
            if scope.sees_all:
                await self._adapters.fill(reply.entries)
                await self._pools.fill(reply.entries)
        return reply

    def _entries(
        self, kinds: Sequence[Kind[Any]], name: str, after: str, scope: Scope, *, hashes: bool
    ) -> Iterator[api.RegistryEntry]:
        for kind in kinds:
            entries, declared = self._view.entries(kind.name), kind.declared(self._settings)
            names = [name] if name else sorted({*entries, *declared})
            for each in names:
                if f"{kind.name}/{each}" <= after:
                    continue
                fixed = self._settings.registry.holds(kind.name, each)
                if (entry := entries.get(each)) is not None and not fixed:
                    if not scope.may_have(kind.name, entry.value or b""):
                        continue
                    fields = json.loads(entry.value or b"{}")
                    version, at_ms = entry.version, entry.at_ms
                elif each in declared:
                    fields, version, at_ms = kind.declared_fields(declared[each]), 0, 0
                else:
                    continue
                if (seen := scope.shown(kind.name, each, fields)) is None:
                    continue
                yield api.RegistryEntry(
                    kind=kind.name,
                    name=each,
                    value=_struct(seen if hashes else kind.shown(seen)),
                    version=version,
                    changed_at_ms=at_ms,
                    fixed=fixed,
                )

    # --- change -------------------------------------------------------------------------------------------------------

    async def edit(self, request: api.EditRegistryRequest, caller: Caller) -> api.EditRegistryResponse:
        """Answer EditRegistry.

        Raises:
            InvalidRequestError: names every wrong field of every edit.
            PermissionDeniedError: an entry is not the caller's to change.
            RegistryConflictError: an entry does not have the version that was expected.
            AdapterInUseError: an adapter that is to be deleted is in use after the wait, and nothing is forced.
            QueueUnavailableError: Redis does not answer.
        """
        scope = Scope(caller)
        scope.require_changes("AdminService/EditRegistry")
        wait_s = duration_from_wire(request.wait) if request.HasField("wait") else DEFAULT_WAIT_S
        if not 0 <= wait_s <= MOST_WAIT_S:
            raise InvalidRequestError.of("wait", f"must be 0 s to {MOST_WAIT_S:g} s, got {wait_s:g} s")
        # What is compared and completed must be what is there now.
        await self._view.refresh()
        edits = self._read(request.edits, scope)
        if torn := list(torn_targets(edits, self._settings, self._view, force=request.force)):
            raise InvalidRequestError(torn)
        if wrong := await self._pools.problems(edits):
            raise InvalidRequestError(wrong)
        differences = [difference for edit in edits if (difference := self._difference(edit)) is not None]
        if request.dry_run:
            return api.EditRegistryResponse(differences=differences, version=self._view.version)
        if not request.force:
            await self._adapters.check_unused(edits, wait_s)
            await self._view.refresh()
            # Somebody may have put an alias meanwhile.
            if torn := list(torn_targets(edits, self._settings, self._view, force=False)):
                raise InvalidRequestError(torn)
        began = time.monotonic()
        revocations = [revocation_of(one.name) for one in request.edits if one.end_streams]
        old = outlived(self._view, self._settings, revocations) if revocations else []
        version = await self._view.apply([*edits, *revocations, *old], _author(caller))
        # At once: ending a key's work may end this very call.
        _log(differences, revocations, caller, version)
        behind = await self._view.behind(version, wait_s)
        adapters = await self._adapters.loaded(edits, max(0.0, wait_s + began - time.monotonic()))
        if behind:
            _LOG.warning("registry.behind", extra={"version": version, "behind": behind})
        return api.EditRegistryResponse(differences=differences, version=version, behind=behind, adapters=adapters)

    def _read(self, given: Sequence[api.RegistryEdit], scope: Scope) -> list[Edit]:
        if not 1 <= len(given) <= MOST_EDITS:
            raise InvalidRequestError.of("edits", f"must be 1 to {MOST_EDITS}, got {len(given)}")
        wrong: list[FieldViolation] = []
        edits: list[Edit] = []
        seen: set[tuple[str, str]] = set()
        for number, one in enumerate(given):
            place = f"edits[{number}]"
            try:
                edits.append(self._edit(one, place, scope))
            except WrongEntryError as error:
                wrong += error.wrong
            except InvalidRequestError as error:
                wrong += error.violations
            if (one.kind, one.name) in seen:
                wrong.append(FieldViolation(f"{place}.name", f"{one.kind} {one.name!r} is edited twice"))
            seen.add((one.kind, one.name))
        if wrong:
            raise InvalidRequestError(wrong)
        return edits

    def _edit(self, one: api.RegistryEdit, place: str, scope: Scope) -> Edit:
        kind = _kind(one.kind, f"{place}.kind")
        # Whoever may not change it at all hears that, and not what is wrong with it.
        scope.check_kind(kind.name)
        if one.end_streams and kind is not KEY:
            raise InvalidRequestError.of(f"{place}.end_streams", f"must be false for kind {kind.name!r}")
        if one.end_streams and kind.names.fullmatch(one.name) is None:
            raise InvalidRequestError.of(f"{place}.name", f"must match {kind.names.pattern}, got {one.name!r}")
        expected = one.expected_version if one.HasField("expected_version") else None
        present = self._view.get(kind.name, one.name)
        before = json.loads(present.value or b"{}") if present is not None else None
        if expected is None and kind is KEY and (one.HasField("value") or not scope.sees_all):
            # Rights were checked, and a hash was kept, against this version. A key that is revoked meanwhile stays so.
            expected = present.version if present is not None else 0
        edit = Edit(kind.name, one.name, None, expected)
        # First: what is wrong with the content, and whether it is fixed, would tell of another tenant's key.
        scope.check(edit, before)
        if self._settings.registry.holds(kind.name, one.name):
            problem = f"{kind.name} {one.name!r} is fixed by the setting registry.fixed"
            raise InvalidRequestError.of(f"{place}.name", problem)
        if one.HasField("value"):
            kept = {name: before[name] for name in kind.hidden if before is not None and name in before}
            value = {**kept, **_whole_numbers(_plain(one.value, place))}
            # Who was shown an entry without its secrets sends it back so.
            value = filled(value, before if before is not None else self._below(kind, one.name) or {})
            section = kind.read(one.name, value, self._settings, place)
            if kind is POOL:
                section = self._pools.based(one.name, section)
            edit = Edit(kind.name, one.name, kind.write(section), expected)
            scope.check(edit, before)
        return edit

    def _below(self, kind: Kind[Any], name: str) -> Fields | None:
        """Return the entry of the settings; None where there is none."""
        declared = kind.declared(self._settings).get(name)
        return None if declared is None else kind.declared_fields(declared)

    def _difference(self, edit: Edit) -> api.RegistryDifference | None:
        kind = KINDS[edit.kind]
        present = self._view.get(edit.kind, edit.name)
        below = self._below(kind, edit.name)
        before = below if present is None else json.loads(present.value or b"{}")
        after = below if edit.value is None else json.loads(edit.value)
        return None if kind.same(edit.name, before, after) else _difference(kind, edit.name, before, after)

    async def create_key(self, request: api.CreateKeyRequest, caller: Caller) -> api.CreateKeyResponse:
        """Answer CreateKey.

        Raises:
            InvalidRequestError: names every wrong field.
            PermissionDeniedError: the key would have rights that are not the caller's to give.
            QueueUnavailableError: Redis does not answer.
        """
        scope = Scope(caller)
        scope.require_changes("AdminService/CreateKey")
        key = mint_key()
        name = key_id(key) or ""
        # What is replaced must be what is there now.
        await self._view.refresh()
        old = replaced_key(self._view, self._settings, request, scope)
        tenant = request.tenant or ("" if scope.sees_all else caller.tenant)
        fields: Fields = {"tenant": tenant, "role": "user", **(old.rights if old is not None else {})}
        fields |= {each: found for each in ("tenant", "role") if (found := getattr(request, each))}
        fields |= {each: list(found) for each in ("models", "classes") if (found := getattr(request, each))}
        fields["sha256"] = hash_key(key)
        for each in ("not_before", "expires"):
            if request.HasField(each):
                moment: Timestamp = getattr(request, each)
                fields[each] = moment.ToJsonString()
        if self._settings.registry.holds(KEY.name, name):
            raise InvalidRequestError.of("", "keys are fixed by the setting registry.fixed")
        try:
            section = KEY.read(name, fields, self._settings, "key")
        except WrongEntryError as error:
            # Of a key as a whole there is one rule, which is about its times.
            fields_of = {"key.value": "expires"}
            wrong = [(fields_of.get(one.field, one.field.removeprefix("key.value.")), one) for one in error.wrong]
            raise InvalidRequestError([FieldViolation(field, one.description) for field, one in wrong]) from None
        scope.check_key(KEY.fields(section))
        if not scope.sees_all:
            own = sum(scope.may_have(KEY.name, one.value or b"") for one in self._view.entries(KEY.name).values())
            if own >= MOST_OWN_KEYS:
                raise InvalidRequestError.of("tenant", f"has {own} keys; its own operators may make {MOST_OWN_KEYS}")
        edits = [Edit(KEY.name, name, KEY.write(section), 0)]
        edits += [old.edit] if old is not None else []
        version = await self._view.apply(edits, _author(caller))
        made = {"entry": name, "for": section.tenant, "replaces": request.replaces}
        _LOG.warning("registry.key_made", extra={**made, "tenant": caller.tenant, "credential": caller.credential.name})
        behind = await self._view.behind(version, DEFAULT_WAIT_S, ("router",))
        return api.CreateKeyResponse(key=key, id=name, behind=behind)

    # --- history ------------------------------------------------------------------------------------------------------

    async def changes(self, request: api.ListRegistryChangesRequest, caller: Caller) -> api.ListRegistryChangesResponse:
        """Answer ListRegistryChanges.

        Raises:
            InvalidRequestError: no such kind, or the limit is out of range.
            QueueUnavailableError: Redis does not answer.
        """
        if request.kind:
            _kind(request.kind, "kind")
        limit = _limit(request.limit, DEFAULT_CHANGES, MOST_CHANGES)
        scope, before, found = Scope(caller), request.before or None, list[api.RegistryChange]()
        for _ in range(MOST_PAGES):
            most = limit if scope.sees_all else MOST_CHANGES
            past = await self._view.history(request.kind, request.name, most, before)
            found += [_change(line, author) for line in past.changes if (author := scope.of_change(line)) is not None]
            before = past.before
            if len(found) >= limit or not before:
                break
        if len(found) > limit:
            found = found[:limit]
            before = found[-1].number
        return api.ListRegistryChangesResponse(changes=found, before=before or 0)


def _kind(name: str, place: str) -> Kind[Any]:
    kind = KINDS.get(name)
    if kind is None:
        raise InvalidRequestError.of(place, f"must be one of {', '.join(sorted(KINDS))}, got {name!r}")
    return kind


def _plain(value: Struct, place: str) -> Fields:
    try:
        return dict(MessageToDict(value))
    except ValueError:
        raise InvalidRequestError.of(f"{place}.value", "must have finite numbers") from None


def _limit(given: int, default: int, most: int) -> int:
    if given > most:
        raise InvalidRequestError.of("limit", f"must be at most {most}, got {given}")
    return given or default


def _author(caller: Caller) -> Author:
    return Author(caller.tenant, caller.credential.name)


def _log(
    differences: Sequence[api.RegistryDifference], revocations: Sequence[Edit], caller: Caller, version: int
) -> None:
    author = {"tenant": caller.tenant, "credential": caller.credential.name, "version": version}
    for one in differences:
        _LOG.warning("registry.changed", extra={"kind": one.kind, "entry": one.name, **author})
    for edit in revocations:
        _LOG.warning("registry.changed", extra={"kind": edit.kind, "entry": edit.name, **author})


def _struct(fields: Mapping[str, Any]) -> Struct:
    found = Struct()
    found.update(fields)
    return found


def _whole_numbers(value: Any) -> Any:
    """Return a value in which whole numbers are integers again: a Struct has only floats."""
    if isinstance(value, dict):
        return {name: _whole_numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _difference(kind: Kind[Any], name: str, before: Fields | None, after: Fields | None) -> api.RegistryDifference:
    found = api.RegistryDifference(kind=kind.name, name=name)
    for fields, target in ((before, found.before), (after, found.after)):
        if fields is not None:
            # An empty content is a content.
            target.SetInParent()
            target.update(kind.shown(fields))
    return found


def _change(change: Change, author: Author) -> api.RegistryChange:
    difference = api.RegistryDifference(kind=change.kind, name=change.name)
    if (kind := KINDS.get(change.kind)) is not None:
        before, after = (None if one is None else json.loads(one) for one in (change.before, change.after))
        difference = _difference(kind, change.name, before, after)
    elif change.kind == REVOCATION:
        (difference.before if change.after is None else difference.after).update({"end_streams": True})
    return api.RegistryChange(
        number=change.number,
        at_ms=change.at_ms,
        tenant=author.tenant,
        credential=author.credential,
        difference=difference,
        version=change.version,
        digest=change.digest,
        intact=change.intact,
    )
