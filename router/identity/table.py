"""The owners of keys and client certificates, and whether these are valid now."""

from __future__ import annotations

import enum
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from penstock.models import RequestClass
from router.identity.caller import Caller, Credential, CredentialKind, Role
from router.identity.key import hash_key, key_id
from router.identity.keys_file import CertificateEntry, KeyEntry, KeysFile

_NOBODY = "0" * 64
"""Hash that no known key has. With it an unknown id costs the same comparison as a known one."""


class Validity(enum.StrEnum):
    """Validity of an entry at a given time."""

    VALID = "valid"
    EARLY = "not valid yet"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Entry:
    """Caller, and the time in which its key, certificate or token is valid."""

    name: str
    """Name in messages: a key's public id, a certificate's name, or a token's issuer in the settings."""
    caller: Caller
    not_before_ms: float
    expires_ms: float
    sha256: str = _NOBODY

    def validity(self, now_ms: int) -> Validity:
        """Return the validity at a time in milliseconds since the Unix epoch. At `expires` itself it is over."""
        if now_ms < self.not_before_ms:
            return Validity.EARLY
        return Validity.VALID if now_ms < self.expires_ms else Validity.EXPIRED


class KeyTable:
    """Entries of a keys file by key, by URI and by common name."""

    def __init__(self, file: KeysFile) -> None:
        self._keys = {entry.id: _entry(entry, entry.id, entry.sha256) for entry in file.keys}
        self._uris = {entry.uri: _entry(entry, entry.name) for entry in file.certificates if entry.uri is not None}
        self._common_names = {
            entry.common_name: _entry(entry, entry.name) for entry in file.certificates if entry.common_name is not None
        }

    def entries(self) -> dict[str, Entry]:
        """Return all entries by name."""
        everything = (*self._keys.values(), *self._uris.values(), *self._common_names.values())
        return {entry.name: entry for entry in everything}

    def by_key(self, key: str) -> Entry | None:
        """Return the entry of a key; None when there is none. The time it takes does not depend on how much of the key
        is right.
        """
        public = key_id(key)
        entry = self._keys.get(public) if public is not None else None
        expected = entry.sha256 if entry is not None else _NOBODY
        same = hmac.compare_digest(expected, hash_key(key))
        return entry if same else None

    def by_certificate(self, uris: Iterable[str], common_names: Iterable[str]) -> Entry | None:
        """Return the entry of a verified certificate: that of its first URI with one, else that of its common name."""
        for uri in uris:
            if (entry := self._uris.get(uri)) is not None:
                return entry
        for name in common_names:
            if (entry := self._common_names.get(name)) is not None:
                return entry
        return None


def _entry(entry: KeyEntry | CertificateEntry, name: str, sha256: str = _NOBODY) -> Entry:
    kind = CredentialKind.API_KEY if isinstance(entry, KeyEntry) else CredentialKind.CERTIFICATE
    expires_ms = _ms(entry.expires, float("inf"))
    caller = Caller(
        tenant=entry.tenant,
        role=Role[entry.role.upper()],
        models=frozenset(entry.models) if entry.models is not None else None,
        classes=frozenset(RequestClass[c.upper()] for c in entry.classes) if entry.classes is not None else None,
        credential=Credential(kind, name, expires_ms),
    )
    return Entry(name, caller, _ms(entry.not_before, float("-inf")), expires_ms, sha256)


def _ms(moment: datetime | None, default: float) -> float:
    return default if moment is None else moment.timestamp() * 1000
