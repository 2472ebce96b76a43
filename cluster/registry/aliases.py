"""The aliases that are in force: those of the settings, and over them those of the registry."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from pydantic import ValidationError

from cluster.registry.choose import choose
from cluster.registry.contract import Entry
from cluster.registry.view import RegistryView
from cluster.settings import AliasSettings, AliasTarget
from cluster.settings.registry import RegistrySettings

_LOG = logging.getLogger(__name__)

KIND = "alias"
"""Kind of an alias' entry."""


class AliasTable:
    """Aliases in force, as one process knows them. A pool's own name is never an alias."""

    def __init__(
        self,
        declared: Mapping[str, AliasSettings],
        fixed: RegistrySettings,
        pools: Callable[[], Collection[str]],
        view: RegistryView | None = None,
    ) -> None:
        """Follow the registry.

        Args:
            declared: aliases of the settings.
            fixed: names that only the settings may change.
            pools: returns the names of the pools of now.
            view: of the registry; without one there are the aliases of the settings only.
        """
        self._declared = declared
        self._fixed = fixed
        self._serving = pools
        self._registered: dict[str, AliasSettings] = {}
        if view is not None:
            view.listen(KIND, self.take)

    def take(self, entry: Entry) -> None:
        """Take an entry of the registry. One that is deleted gives way to the settings."""
        if self._fixed.holds(KIND, entry.name):
            return
        if entry.value is None:
            self._registered.pop(entry.name, None)
            return
        try:
            self._registered[entry.name] = AliasSettings.model_validate(json.loads(entry.value))
        except (ValueError, ValidationError) as error:
            # It was checked when it was made, perhaps by a router of another version. What was in force stays.
            _LOG.error("registry.unreadable", extra={"kind": KIND, "entry": entry.name, "why": str(error)})

    def get(self, name: str) -> AliasSettings | None:
        """Return an alias; None for a name that is none."""
        if name in self._serving():
            return None
        return self._registered.get(name) or self._declared.get(name)

    def names(self) -> list[str]:
        """Return the names of all aliases, in order."""
        return sorted({*self._declared, *self._registered} - set(self._serving()))

    def served(self, alias: AliasSettings) -> list[AliasTarget]:
        """Return the targets of an alias that get requests: they have a weight, and their pool is served."""
        serving = self._serving()
        return [target for target in alias.targets if target.weight and target.model in serving]

    def targets(self, name: str) -> list[str]:
        """Return the pools of an alias' targets."""
        alias = self.get(name)
        return list(dict.fromkeys(target.model for target in self.served(alias))) if alias is not None else []

    def leading_to(self, pool: str) -> Sequence[str]:
        """Return the aliases with a target in a pool."""
        return [name for name in self.names() if pool in self.targets(name)]

    def parts(self, name: str, tenant: str) -> Mapping[str, float]:
        """Return the parts of a tenant's requests that the targets of an alias get, by pool; empty for no alias.

        They follow from the weights. Where all requests of a tenant stay with one target, that one gets all.
        """
        if (alias := self.get(name)) is None:
            return {}
        served = self.served(alias)
        if alias.sticky == "tenant":
            found = choose(served, name, "tenant", tenant)
            return {} if found is None else {found.model: 1.0}
        total, parts = sum(target.weight for target in served), defaultdict[str, float](float)
        for target in served:
            parts[target.model] += target.weight / total
        return parts
