"""Labels of tenants in metrics. Names come from clients' credentials, so their number has no bound of its own."""

from __future__ import annotations

MAX_TENANTS = 100
"""Most tenants with a series of their own; later ones share a series. The ledger has all tenants."""
OTHER_TENANTS = "(other)"


class TenantLabels:
    """Labels of one metric, or of several that go together. The first tenants keep theirs until the process ends."""

    def __init__(self) -> None:
        self._tenants: set[str] = set()

    def of(self, tenant: str) -> str:
        """Return the label of a tenant."""
        if len(self._tenants) < MAX_TENANTS:
            self._tenants.add(tenant)
        return tenant if tenant in self._tenants else OTHER_TENANTS
