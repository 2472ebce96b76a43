"""Tenants of the settings and of the registry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cluster.registry.contract import Entry
from cluster.registry.view import RegistryView
from cluster.settings import Settings, TenantSettings
from penstock.models import RequestClass
from router.identity import Caller
from router.registry.kinds import TENANT

_LOG = logging.getLogger(__name__)


class Tenants:
    """Tenants in force: those of the registry, else those of the settings."""

    def __init__(self, settings: Settings, view: RegistryView) -> None:
        self._settings = settings
        self._tenants: dict[str, TenantSettings] = dict(settings.tenants)
        view.listen(TENANT.name, self._take)

    @property
    def all(self) -> Mapping[str, TenantSettings]:
        """Tenants by name; a mapping that follows the registry."""
        return self._tenants

    def _take(self, entry: Entry) -> None:
        if self._settings.registry.holds(entry.kind, entry.name):
            return
        declared = self._settings.tenants.get(entry.name)
        if entry.value is not None:
            try:
                self._tenants[entry.name] = TENANT.load(entry.name, entry.value)
            except ValueError as error:
                _LOG.error("registry.unreadable", extra={"kind": entry.kind, "entry": entry.name, "why": str(error)})
        elif declared is not None:
            self._tenants[entry.name] = declared
        else:
            self._tenants.pop(entry.name, None)

    def limited(self, authenticate: Callable[[Any], Caller]) -> Callable[[Any], Caller]:
        """Return a function that authenticates calls and takes from callers what their tenant may not use."""

        def limit(context: Any) -> Caller:
            caller = authenticate(context)
            tenant = self._tenants.get(caller.tenant, self._settings.default_tenant)
            if tenant.models is None and tenant.classes is None:
                return caller
            models, classes = tenant.models, tenant.classes
            return replace(
                caller,
                models=_both(caller.models, models),
                classes=_both(caller.classes, None if classes is None else [RequestClass[c.upper()] for c in classes]),
            )

        return limit


def _both(one: Any, other: Any) -> Any:
    """Return what two sets have in common; None is the set of all."""
    if other is None:
        return one
    return frozenset(other) if one is None else one & frozenset(other)
