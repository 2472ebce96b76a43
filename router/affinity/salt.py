"""Whose cached beginnings a request may share."""

from __future__ import annotations

from functools import lru_cache

from cluster.trust.secret import ClusterSecret

_PURPOSE = "cache-salt"
_TENANTS = 4_096


class CacheSalts:
    """Mints a salt per tenant that engines mix into the names of cached blocks.

    Without it one tenant could learn from the time to the first token what another one sent. It is derived from the
    cluster secret, so all routers mint the same, and no client can name another tenant's.
    """

    def __init__(self, secret: ClusterSecret, *, shared: bool) -> None:
        """With `shared` all tenants share their cached beginnings."""
        self._shared = shared
        self._mint = lru_cache(maxsize=_TENANTS)(lambda tenant: secret.sign(_PURPOSE, tenant.encode()).hex()[:32])

    def of(self, tenant: str) -> str:
        """Return a tenant's salt; empty when caches are shared."""
        return "" if self._shared else self._mint(tenant)
