"""Who calls, and what that one may do."""

from router.identity.caller import ANONYMOUS, Caller, Role
from router.identity.policies import TenantPolicies, TenantPolicy

__all__ = ["ANONYMOUS", "Caller", "Role", "TenantPolicies", "TenantPolicy"]
