"""Settings of the registry."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cluster.settings.section import Section

FixedName = Annotated[str, Field(pattern=r"^(tenant|key|adapter|alias|pool)(/[A-Za-z0-9][A-Za-z0-9._-]{0,62})?$")]


class RegistrySettings(Section):
    """Registry of what changes while the cluster runs. The settings are its beginning."""

    fixed: tuple[FixedName, ...] = ()
    """Entries that only the settings may change: a kind, such as "tenant", or one entry, such as "tenant/acme"."""

    def holds(self, kind: str, name: str) -> bool:
        """Return whether an entry is fixed."""
        return kind in self.fixed or f"{kind}/{name}" in self.fixed
