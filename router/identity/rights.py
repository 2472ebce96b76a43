"""Authorization: what a caller may do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cluster.errors import InvalidRequestError, PermissionDeniedError
from penstock.models import RequestClass
from router.identity.caller import Caller, Role

ADMIN_SERVICE = "AdminService"
_ADMIN_METHODS: Mapping[str, Role] = {
    "GetClusterStatus": Role.TENANT_OPERATOR,
    "GetUsage": Role.USER,
    "GetCosts": Role.OPERATOR,
    "ListDecisions": Role.OPERATOR,
    "Explain": Role.USER,
    "ListRequests": Role.USER,
    "WhoAmI": Role.USER,
    "ListRegistry": Role.TENANT_OPERATOR,
    "EditRegistry": Role.TENANT_OPERATOR,
    "ListRegistryChanges": Role.TENANT_OPERATOR,
    "CreateKey": Role.TENANT_OPERATOR,
    "GetRollout": Role.OPERATOR,
    "GetOutlook": Role.OPERATOR,
    "AnnounceLoad": Role.USER,
    "ListAnnouncedLoad": Role.USER,
    "WithdrawAnnouncedLoad": Role.USER,
}
_CHANGES_OF_OWN = frozenset({f"{ADMIN_SERVICE}/EditRegistry", f"{ADMIN_SERVICE}/CreateKey"})
"""Methods with which tenants' own operators change what is theirs. Operators look at everything and change nothing."""


def minimum_role(service: str, method: str) -> Role:
    """Return the least role that a method requires. A method of AdminService that is not listed requires the highest
    role. The other services serve tenants, so every role may call them.
    """
    return _ADMIN_METHODS.get(method, Role.ADMIN) if service == ADMIN_SERVICE else Role.USER


def require_role(caller: Caller, role: Role, method: str) -> None:
    """Check that a caller has at least a role.

    Raises:
        PermissionDeniedError: its role is lower.
    """
    if caller.role < role:
        enough = [one for one in Role if one >= role and (one is not Role.OPERATOR or method not in _CHANGES_OF_OWN)]
        allowed = [f"role {one.name.lower()}" for one in enough]
        raise PermissionDeniedError(caller.tenant, "method", method, allowed)


def may_use(caller: Caller, model: str) -> bool:
    """Return whether a caller may see and use a model."""
    return caller.models is None or model in caller.models


def require_model(caller: Caller, model: str) -> None:
    """Check that a caller may use a model. Call it before the model is looked up, so that callers don't learn which
    models exist.

    Raises:
        PermissionDeniedError: the caller may not.
    """
    if not may_use(caller, model):
        raise PermissionDeniedError(caller.tenant, "model", model, sorted(caller.models or ()))


def wrong_pool(wanted: str, known: Iterable[str]) -> InvalidRequestError:
    """Return the error of a call for a pool that is not there, or for none where there is not just one.

    Args:
        wanted: name in the call; may be empty.
        known: pools and aliases that the caller may name.
    """
    names = ", ".join(sorted(known))
    if wanted:
        return InvalidRequestError.of("pool", f"{wanted!r} is none of {names or 'no pools'}")
    return InvalidRequestError.of("pool", f"is required, one of {names}" if names else "there is none to use")


def require_class(caller: Caller, request_class: RequestClass) -> None:
    """Check that a caller may use a request class.

    Raises:
        PermissionDeniedError: the caller may not.
    """
    if caller.classes is not None and request_class not in caller.classes:
        allowed = [one.name.lower() for one in sorted(caller.classes)]
        raise PermissionDeniedError(caller.tenant, "class", request_class.name.lower(), allowed)
