"""What a caller may see and change in the registry. Pure.

Operators see everything, and admins change everything. A tenant's own operators see what is their tenant's or what its
keys may use, and change its keys. They never learn the name of another tenant.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.errors import PermissionDeniedError
from cluster.registry.contract import Author, Change, Edit
from router.identity import Caller, Role, may_use, require_role
from router.identity.caller import CredentialKind
from router.registry.kinds import ADAPTER, ALIAS, KEY, TENANT

Fields = Mapping[str, Any]


class Scope:
    """Part of the registry that is a caller's."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.sees_all = caller.role >= Role.OPERATOR
        self._marks = tuple(
            b'"tenant":' + json.dumps(caller.tenant, ensure_ascii=text).encode() for text in (False, True)
        )

    # --- see ----------------------------------------------------------------------------------------------------------

    def shown(self, kind: str, name: str, fields: Fields) -> Fields | None:
        """Return what a caller may see of an entry; None where that is nothing."""
        caller = self._caller
        if self.sees_all:
            return fields
        if kind == TENANT.name:
            return fields if name == caller.tenant else None
        if kind == KEY.name:
            return fields if fields.get("tenant") == caller.tenant else None
        if kind == ALIAS.name:
            return fields if may_use(caller, name) else None
        if kind == ADAPTER.name and (may_use(caller, name) or may_use(caller, str(fields.get("pool")))):
            # Where its files are is the cluster's business.
            return {field: value for field, value in fields.items() if field == "pool"}
        return None

    def may_have(self, kind: str, value: bytes) -> bool:
        """Return whether an entry may be the caller's, at a glance: a cluster may have 100,000 keys."""
        return self.sees_all or kind != KEY.name or any(mark in value for mark in self._marks)

    def of_change(self, change: Change) -> Author | None:
        """Return who the caller is told made a change; None for a change that is not the caller's to see."""
        if self.sees_all:
            return change.author
        own = change.kind == TENANT.name and change.name == self._caller.tenant
        if change.kind == KEY.name:
            own = all(self._is_own(one) for one in (change.before, change.after) if one is not None)
        if not own:
            return None
        return change.author if change.author.tenant == self._caller.tenant else Author("")

    def _is_own(self, value: bytes) -> bool:
        return bool(json.loads(value).get("tenant") == self._caller.tenant)

    # --- change -------------------------------------------------------------------------------------------------------

    def require_changes(self, method: str) -> None:
        """Check that a caller may change anything. Operators of the cluster only read.

        Raises:
            PermissionDeniedError: it may not.
        """
        if self.sees_all:
            require_role(self._caller, Role.ADMIN, method)

    def check_kind(self, kind: str) -> None:
        """Check that a caller may change entries of a kind.

        Raises:
            PermissionDeniedError: it may not.
        """
        if self._caller.role < Role.ADMIN and kind != KEY.name:
            raise PermissionDeniedError(self._caller.tenant, "kind", kind, [KEY.name])

    def check(self, edit: Edit, present: Fields | None) -> None:
        """Check that a caller may make an edit. `present`: content of the entry, None where there is none.

        A key with an id of the caller's choice could have that of another tenant's key, so only CreateKey makes keys.

        Raises:
            PermissionDeniedError: it is not the caller's to change.
        """
        if self._caller.role >= Role.ADMIN:
            return
        self.check_kind(edit.kind)
        if present is None or not self._holds(present):
            # The same whether there is none, or another tenant's.
            raise PermissionDeniedError(self._caller.tenant, "key", edit.name, ["keys of its tenant and of its rights"])
        if edit.value is not None:
            after = json.loads(edit.value)
            self._check_rights(after)
            # What is not the caller's to give may stay as it is.
            if _ends_ms(after) > _ends_ms(present):
                self._check_end(after)

    def check_key(self, key: Fields) -> None:
        """Check that a caller may give a new key its rights.

        Raises:
            PermissionDeniedError: they are more than the caller's own, or another tenant's.
        """
        if self._caller.role >= Role.ADMIN:
            return
        self._check_rights(key)
        self._check_end(key)

    def _check_rights(self, key: Fields) -> None:
        caller = self._caller
        if key["tenant"] != caller.tenant:
            raise PermissionDeniedError(caller.tenant, "tenant", key["tenant"], [caller.tenant])
        if _role(key) > caller.role:
            allowed = [role.name.lower() for role in Role if role <= caller.role]
            raise PermissionDeniedError(caller.tenant, "role", str(key["role"]), allowed)
        classes = None if caller.classes is None else [each.name.lower() for each in sorted(caller.classes)]
        for name, own in (("models", caller.models), ("classes", classes)):
            given: Sequence[str] | None = key.get(name)
            if own is not None and (given is None or not set(given) <= set(own)):
                wanted = "all" if given is None else ", ".join(given)
                raise PermissionDeniedError(caller.tenant, name, wanted, sorted(own))

    def _check_end(self, key: Fields) -> None:
        credential = self._caller.credential
        # A token lives for minutes, and its issuer decides who gets the next one.
        if credential.kind is not CredentialKind.TOKEN and _ends_ms(key) > credential.expires_ms:
            own = datetime.datetime.fromtimestamp(credential.expires_ms / 1000, datetime.UTC)
            allowed = [f"up to that of its own key, {own.isoformat(timespec='seconds')}"]
            raise PermissionDeniedError(self._caller.tenant, "expires", str(key.get("expires") or "never"), allowed)

    def _holds(self, key: Fields) -> bool:
        try:
            self._check_rights(key)
        except PermissionDeniedError:
            return False
        return True


def _role(key: Fields) -> Role:
    return Role[str(key.get("role", "user")).upper()]


def _ends_ms(key: Fields) -> float:
    expires = key.get("expires")
    return datetime.datetime.fromisoformat(expires).timestamp() * 1000 if expires else math.inf
