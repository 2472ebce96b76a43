"""The aliases that are in force, as a router uses them: who may use which, and the way of each request."""

from __future__ import annotations

from cluster.registry.aliases import AliasTable
from cluster.registry.choose import choose, part_of
from cluster.registry.view import RegistryView
from cluster.settings import Settings
from router.identity import Caller, may_use
from router.routing.way import Route, WayKind


class Aliases(AliasTable):
    """Aliases of one router."""

    def __init__(self, settings: Settings, view: RegistryView | None = None) -> None:
        """Without `view` there are those of the settings only."""
        # A view: pools come and go.
        self._pools = settings.pools.keys()
        super().__init__(settings.aliases, settings.registry, lambda: self._pools, view)

    def home(self, name: str) -> str:
        """Return the pool that answers questions about a name, and keeps its jobs: a pool itself, or the target of an
        alias with the largest weight. Empty for a name that is neither.
        """
        if name in self._pools:
            return name
        alias = self.get(name)
        served = self.served(alias) if alias is not None else []
        return max(served, key=lambda target: target.weight).model if served else ""

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
        found = choose(self.served(alias), name, *key)
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
