"""Who calls, and what that one may do."""

from router.identity.caller import ANONYMOUS, Caller, Role

__all__ = ["ANONYMOUS", "Caller", "Role"]
