"""Callers of the API: who they are, and what they may do."""

from router.identity.authenticator import Authenticator
from router.identity.caller import ANONYMOUS, Caller, Role
from router.identity.rights import may_use, minimum_role, require_class, require_model, require_role, wrong_pool
from router.identity.tenant_policies import TenantPolicies

__all__ = [
    "ANONYMOUS",
    "Authenticator",
    "Caller",
    "Role",
    "TenantPolicies",
    "may_use",
    "minimum_role",
    "require_class",
    "require_model",
    "require_role",
    "wrong_pool",
]
