"""Errors of changes of the registry."""

from __future__ import annotations

from cluster.errors.requests import RequestError
from cluster.plural import counted


class RegistryConflictError(RequestError):
    """A change of an entry that somebody else changed meanwhile."""

    reason = "REGISTRY_CONFLICT"
    remedy = "Read the entry again, and send the change with its present version."

    def __init__(self, kind: str, name: str, expected: int, found: int) -> None:
        self.kind = kind
        self.name = name
        self.expected = expected
        self.found = found
        here = f"has version {found}" if found else "does not exist"
        self.facts = {"kind": kind, "name": name, "version": str(found)}
        super().__init__(f"{kind} {name!r} {here}; the change expects {f'version {expected}' if expected else 'none'}")


class KeyRevokedError(RequestError):
    """A call or other work whose API key was revoked while it ran, where the revocation asked for its end."""

    reason = "KEY_REVOKED"
    remedy = "Use another key. Whoever revoked this one asked that what it had begun ends too."

    def __init__(self, key: str) -> None:
        self.facts = {"key": key}
        super().__init__(f"the API key {key} was revoked, and what it had begun ended with it")


class AdapterInUseError(RequestError):
    """A deletion of an adapter that requests use."""

    reason = "ADAPTER_IN_USE"
    remedy = "Wait until its requests have ended, or force the deletion: they then keep the adapter to their end."

    def __init__(self, name: str, uses: int) -> None:
        self.facts = {"adapter": name, "uses": str(uses)}
        super().__init__(f"adapter {name!r} is in use by {counted(uses, 'sequence')}")
