"""API keys of the registry."""

from __future__ import annotations

import datetime
import json
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.errors import InvalidRequestError
from cluster.registry.contract import Edit
from cluster.registry.contract import Entry as RegistryEntry
from cluster.registry.view import RegistryView
from cluster.settings import Settings
from penstock.v1 import registry_pb2 as api
from penstock.wire import duration_from_wire
from router.identity.key import key_id
from router.identity.keys_file import KeysFile
from router.identity.revocations import Revocations
from router.identity.table import Entry, KeyTable
from router.registry.kinds import KEY
from router.registry.scope import Scope

_LOG = logging.getLogger(__name__)

DEFAULT_OVERLAP_S, MOST_OVERLAP_S = 3_600.0, 366 * 86_400.0
"""Seconds for which a key that was replaced stays valid."""
_MARGIN_S = 86_400.0
"""Seconds for uploads of jobs, and for clocks that differ."""
_MOST_OUTLIVED = 100
"""Revocations that one call deletes."""
_RIGHTS = ("tenant", "role", "models", "classes")
REVOCATION = "revocation"
"""Kind of the entries that end what a key has begun. Their names are those of keys."""


@dataclass(frozen=True, slots=True)
class _Read:
    version: int
    table: KeyTable


class RegisteredKeys:
    """API keys of the registry, looked up by key. An entry is read when its key is used first: a cluster may have
    100,000 of them.
    """

    def __init__(self, view: RegistryView) -> None:
        self._view = view
        self._read: dict[str, _Read] = {}
        view.listen(KEY.name, self._forget)

    def __len__(self) -> int:
        return len(self._view.entries(KEY.name))

    def __call__(self, key: str) -> Entry | None:
        """Return the entry of a key; None when there is none."""
        public = key_id(key)
        entry = self._view.get(KEY.name, public) if public is not None else None
        if public is None or entry is None or entry.value is None:
            return None
        read = self._read.get(public)
        if read is None or read.version != entry.version:
            try:
                found = KEY.load(public, entry.value)
            except ValueError as error:
                _LOG.error("registry.unreadable", extra={"kind": entry.kind, "entry": public, "why": str(error)})
                return None
            read = self._read[public] = _Read(entry.version, KeyTable(KeysFile(keys=(found,))))
        return read.table.by_key(key)

    def _forget(self, entry: RegistryEntry) -> None:
        if entry.value is None:
            self._read.pop(entry.name, None)


@dataclass(frozen=True, slots=True)
class ReplacedKey:
    """A key that another one replaces."""

    rights: Mapping[str, Any]
    """Rights that the new one takes."""
    edit: Edit
    """Change that lets it expire."""


def replaced_key(
    view: RegistryView, settings: Settings, request: api.CreateKeyRequest, scope: Scope
) -> ReplacedKey | None:
    """Return the key that a new one replaces; None for none.

    Raises:
        InvalidRequestError: there is no such key, it is fixed, or the overlap is out of range.
        PermissionDeniedError: it is not the caller's to change.
    """
    overlap_s = duration_from_wire(request.overlap) if request.HasField("overlap") else DEFAULT_OVERLAP_S
    if not 0 <= overlap_s <= MOST_OVERLAP_S:
        raise InvalidRequestError.of("overlap", f"must be 0 s to {MOST_OVERLAP_S:.0f} s, got {overlap_s:.12g} s")
    if not request.replaces:
        return None
    present = view.get(KEY.name, request.replaces)
    fixed = settings.registry.holds(KEY.name, request.replaces)
    if present is None or fixed:
        scope.check(Edit(KEY.name, request.replaces, None), None)
        problem = f"must be a key of the registry, got {request.replaces!r}"
        if fixed:
            problem = f"key {request.replaces!r} is fixed by the setting registry.fixed"
        raise InvalidRequestError.of("replaces", problem)
    fields = json.loads(present.value or b"{}")
    # First of all: other errors would tell that another tenant's key is there.
    scope.check(Edit(KEY.name, present.name, None), fields)
    over = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=overlap_s)
    known = KEY.load(present.name, present.value or b"{}")
    if known.expires is None or known.expires > over:
        fields["expires"] = over.isoformat(timespec="seconds")
        if known.not_before is not None and known.not_before >= over:
            raise InvalidRequestError.of("replaces", f"{request.replaces!r} is not valid before the overlap is over")
    edit = Edit(KEY.name, present.name, json.dumps(fields, separators=(",", ":")).encode(), present.version)
    scope.check(edit, json.loads(present.value or b"{}"))
    return ReplacedKey({name: fields[name] for name in _RIGHTS if name in fields}, edit)


def revocation_of(name: str) -> Edit:
    """Return the edit that ends what a key has begun. It goes along with that of the key."""
    # Another value each time, so that a key which came back can be revoked again.
    return Edit(REVOCATION, name, secrets.token_hex(8).encode())


def outlived(view: RegistryView, settings: Settings, now: Sequence[Edit]) -> list[Edit]:
    """Return edits that delete the oldest revocations of which no work can be left. `now`: those of the same call.

    A job ends, and a response is forgotten, some time after it began.
    """
    longest_s = max(settings.jobs.run_within_s, settings.router.http.responses_ttl_s) + _MARGIN_S
    before_ms = (time.time() - longest_s) * 1000
    again = {edit.name for edit in now}
    old = [one for one in view.entries(REVOCATION).values() if one.at_ms < before_ms and one.name not in again]
    some = sorted(old, key=lambda one: one.version)[:_MOST_OUTLIVED]
    return [Edit(REVOCATION, one.name, None, one.version) for one in some]


def follow_revocations(view: RegistryView, revocations: Revocations) -> None:
    """End the work of keys as the registry says."""

    def hear(entry: RegistryEntry) -> None:
        if entry.value is None:
            revocations.forget(entry.name)
        elif ended := revocations.revoke(entry.name, entry.at_ms):
            _LOG.warning("registry.key_revoked", extra={"entry": entry.name, "ended": ended})

    view.listen(REVOCATION, hear)
