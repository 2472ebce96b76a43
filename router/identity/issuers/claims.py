"""Claims of a verified token as a caller, by the settings of its issuer."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from cluster.errors import UnauthenticatedError
from cluster.settings import IssuerSettings
from cluster.settings.auth import ANONYMOUS_TENANT
from penstock.models import RequestClass
from router.identity.caller import Caller, Credential, CredentialKind, Role
from router.identity.table import Entry

_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_SHOWN = 100
"""Most characters of a claim that an error repeats."""
_LAST_S = 253_402_300_800
"""The year 10,000. A later time is no time."""

Claims = Mapping[str, Any]


def entry_of(name: str, settings: IssuerSettings, claims: Claims) -> Entry:
    """Return the caller and the time in which the token is valid. `name` is that of the issuer in the settings.

    Raises:
        UnauthenticatedError: a claim is missing or has a value that this issuer's tokens may not have.
    """
    for claim, value in settings.require.items():
        if value not in _texts(claim_at(claims, claim)):
            raise UnauthenticatedError(f"the token's claim {claim!r} has not the value that this cluster requires")
    expires_s = _time(claims, "exp")
    if expires_s is None:
        raise UnauthenticatedError("the token has no claim 'exp'")
    not_before_s = _time(claims, "nbf")
    expires_ms = (expires_s + settings.leeway_s) * 1000
    caller = Caller(
        tenant=_tenant(settings, claims),
        role=_role(settings, claims),
        models=_allowed(settings.models, settings.models_claim, claims),
        classes=_classes(settings, claims),
        credential=Credential(CredentialKind.TOKEN, name, expires_ms),
    )
    return Entry(
        name,
        caller,
        float("-inf") if not_before_s is None else (not_before_s - settings.leeway_s) * 1000,
        expires_ms,
    )


def claim_at(claims: Claims, name: str) -> Any:
    """Return a claim; None where there is none. A name that begins with / is a JSON Pointer (RFC 6901)."""
    if not name.startswith("/"):
        return claims.get(name)
    found: Any = claims
    for part in name[1:].split("/"):
        if not isinstance(found, dict):
            return None
        found = found.get(part.replace("~1", "/").replace("~0", "~"))
    return found


def _time(claims: Claims, name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    # Python's bool is an int, and its JSON reader knows infinity.
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UnauthenticatedError(f"the token's claim {name!r} must be a number of seconds")
    return float(min(max(value, 0), _LAST_S))


def _tenant(settings: IssuerSettings, claims: Claims) -> str:
    if settings.tenant is not None:
        return settings.tenant
    claim = settings.tenant_claim or ""
    value = claim_at(claims, claim)
    if not isinstance(value, str):
        raise UnauthenticatedError(f"the token has no text in the claim {claim!r}, which names its tenant")
    if settings.tenants:
        if value not in settings.tenants:
            raise UnauthenticatedError(f"the token's claim {claim!r} names no tenant of this cluster: {_shown(value)}")
        return settings.tenants[value]
    if _TENANT.fullmatch(value) is None or value == ANONYMOUS_TENANT:
        raise UnauthenticatedError(
            f"the token's claim {claim!r} is no name of a tenant (1 to 63 letters, digits, dots, - and _, the first a "
            f"letter or digit): {_shown(value)}"
        )
    return value


def _role(settings: IssuerSettings, claims: Claims) -> Role:
    values = _texts(claim_at(claims, settings.role_claim)) if settings.role_claim is not None else frozenset()
    found = [Role[role.upper()] for value, role in settings.roles.items() if value in values]
    if found:
        return max(found)
    if settings.role == "none":
        raise UnauthenticatedError(f"the token's claim {settings.role_claim!r} gives it no role in this cluster")
    return Role[settings.role.upper()]


def _classes(settings: IssuerSettings, claims: Claims) -> frozenset[RequestClass] | None:
    names = _allowed(settings.classes, settings.classes_claim, claims)
    if names is None:
        return None
    return frozenset(each for each in RequestClass if each.name.lower() in names)


def _allowed(most: tuple[str, ...] | None, claim: str | None, claims: Claims) -> frozenset[str] | None:
    """Return what the settings and the token allow both; None for everything."""
    bound = None if most is None else frozenset(most)
    if claim is None:
        return bound
    told = _texts(claim_at(claims, claim))
    return told if bound is None else told & bound


def _texts(value: Any) -> frozenset[str]:
    """Return the texts of a claim: a list's items, or a text and its words."""
    if isinstance(value, str):
        return frozenset({value, *value.split()})
    if isinstance(value, list):
        return frozenset(each for each in value if isinstance(each, str))
    return frozenset()


def _shown(value: str) -> str:
    return repr(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}...")
