"""API keys of the registry."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass

from cluster.registry.contract import Edit
from cluster.registry.contract import Entry as RegistryEntry
from cluster.registry.view import RegistryView
from router.identity.key import key_id
from router.identity.keys_file import KeysFile
from router.identity.revocations import Revocations
from router.identity.table import Entry, KeyTable
from router.registry.kinds import KEY

_LOG = logging.getLogger(__name__)

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


def revocation_of(name: str) -> Edit:
    """Return the edit that ends what a key has begun. It goes along with that of the key."""
    # Another value each time, so that a key which came back can be revoked again.
    return Edit(REVOCATION, name, secrets.token_hex(8).encode())


def follow_revocations(view: RegistryView, revocations: Revocations) -> None:
    """End the work of keys as the registry says."""

    def hear(entry: RegistryEntry) -> None:
        if entry.value is not None and (ended := revocations.revoke(entry.name, entry.at_ms)):
            _LOG.warning("registry.key_revoked", extra={"entry": entry.name, "ended": ended})

    view.listen(REVOCATION, hear)
