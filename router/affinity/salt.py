"""Cache salts: which tenants' cached beginnings a request may share."""

from __future__ import annotations

from functools import lru_cache

from cluster.trust.secret import ClusterSecret

_PURPOSE = "cache-salt"
_TENANTS = 4_096


class CacheSalts:
    """One salt per tenant, which engines mix into the names of cached blocks.

    Without it a tenant could learn from the time to first token what another tenant sent. The salt is derived from the
    cluster secret: all routers get the same one, and no client can compute that of another tenant. A new secret makes
    new salts, so cached beginnings are computed once more then.
    """

    def __init__(self, secret: ClusterSecret, *, shared: bool) -> None:
        """Derive salts from the cluster secret; with `shared` all tenants share their cached beginnings."""
        self._shared = shared
        self._secret = secret
        self._mint = lru_cache(maxsize=_TENANTS)(_mint)

    def of(self, tenant: str) -> str:
        """Return a tenant's salt; empty when caches are shared."""
        return "" if self._shared else self._mint(self._secret.current()[0], tenant)


def _mint(key: bytes, tenant: str) -> str:
    return ClusterSecret(key).sign(_PURPOSE, tenant.encode()).hex()[:32]
