"""The aliases that are in force: those of the settings, and over them those of the registry."""

from __future__ import annotations

import json
import logging

from pydantic import ValidationError

from cluster.registry.contract import Entry
from cluster.registry.view import RegistryView
from cluster.settings import AliasSettings, AliasTarget, Settings
from router.identity import Caller, may_use
from router.routing.choose import choose, part_of
from router.routing.way import Route, WayKind

_LOG = logging.getLogger(__name__)

KIND = "alias"
"""Kind of the registry's entries."""


class Aliases:
    """Aliases of one router. A pool's own name is never an alias."""

    def __init__(self, settings: Settings, view: RegistryView | None = None) -> None:
        """Without `view` there are those of the settings only."""
        self._fixed = settings.registry
        # A view: pools come and go.
        self._pools = settings.pools.keys()
        self._declared = settings.aliases
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
        if name in self._pools:
            return None
        return self._registered.get(name) or self._declared.get(name)

    def names(self) -> list[str]:
        """Return the names of all aliases, in order."""
        return sorted({*self._declared, *self._registered} - self._pools)

    def home(self, name: str) -> str:
        """Return the pool that answers questions about a name, and keeps its jobs: a pool itself, or the target of an
        alias with the largest weight. Empty for a name that is neither.
        """
        if name in self._pools:
            return name
        alias = self.get(name)
        served = self._served(alias) if alias is not None else []
        return max(served, key=lambda target: target.weight).model if served else ""

    def targets(self, name: str) -> list[str]:
        """Return the pools of an alias' targets."""
        alias = self.get(name)
        return list(dict.fromkeys(target.model for target in self._served(alias))) if alias is not None else []

    def pools(self, name: str) -> list[str]:
        """Return the pools that a caller of a name may get to."""
        if (alias := self.get(name)) is None:
            return [name] if name in self._pools else []
        spare = [alias.fallback] if alias.fallback in self._pools else []
        return list(dict.fromkeys([*self.targets(name), *(each for each in spare if each is not None)]))

    def reached(self, caller: Caller) -> list[str]:
        """Return the pools that a caller may use, be it by their own names or through an alias."""
        through = {pool for name in self.names() if may_use(caller, name) for pool in self.pools(name)}
        return [pool for pool in sorted(self._pools) if pool in through or may_use(caller, pool)]

    def allowed(self, caller: Caller) -> list[str]:
        """Return the names that a caller may use as a model."""
        return [name for name in sorted({*self._pools, *self.names()}) if may_use(caller, name)]

    # --- the way of one request ---------------------------------------------------------------------------------------

    def target(self, name: str, tenant: str, session: str, request: str) -> Route | None:
        """Return where a request of an alias goes; None where no target is served here.

        Args:
            name: of an alias.
            tenant: its caller's tenant.
            session: its session; empty for none.
            request: something that is the same only for the same request.
        """
        alias = self.get(name)
        if alias is None:
            return None
        key: tuple[str, ...] = ("request", tenant, request)
        if alias.sticky == "tenant":
            key = ("tenant", tenant)
        elif alias.sticky == "session" and session:
            key = ("session", tenant, session)
        found = choose(self._served(alias), name, *key)
        return Route(found.model, found.adapter) if found is not None else None

    def fallback(self, name: str, route: Route) -> Route | None:
        """Return where a request goes when its target refuses it; None for nowhere."""
        alias = self.get(name)
        if alias is None or alias.fallback is None or alias.fallback not in self._pools:
            return None
        found = Route(alias.fallback, kind=WayKind.FALLBACK)
        return found if (found.pool, found.adapter) != (route.pool, route.adapter) else None

    def shadow(self, name: str, request: str) -> Route | None:
        """Return where a copy of a request goes; None for nowhere."""
        alias = self.get(name)
        if alias is None or (shadow := alias.shadow) is None or shadow.model not in self._pools:
            return None
        if part_of(name, "shadow", request) >= shadow.share:
            return None
        return Route(shadow.model, shadow.adapter, WayKind.SHADOW)

    def _served(self, alias: AliasSettings) -> list[AliasTarget]:
        return [target for target in alias.targets if target.weight and target.model in self._pools]
