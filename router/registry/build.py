"""Composition of a router's part of the registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cluster.registry.adapters import KIND, PoolAdapters
from cluster.registry.contract import RegistryStore, Watcher
from cluster.registry.view import RegistryView
from cluster.settings import Settings
from router.identity import Authenticator, Caller
from router.registry.api import RegistryApi
from router.registry.keys import RegisteredKeys
from router.registry.tenants import Tenants


@dataclass(frozen=True, slots=True)
class RegistryParts:
    """A router's part of the registry."""

    view: RegistryView
    tenants: Tenants
    api: RegistryApi
    authenticate: Callable[[Any], Caller]
    """Function from a call to its caller, within what its tenant may use."""
    keys: RegisteredKeys
    adapters: PoolAdapters


def open_registry(
    settings: Settings, store: RegistryStore, router_id: str, authenticator: Authenticator
) -> RegistryParts:
    """Compose the parts; nothing connects before the view looks."""
    view = RegistryView(store, Watcher(router_id, "router"))
    keys = RegisteredKeys(view)
    authenticator.bearers.append(keys)
    tenants, adapters = Tenants(settings, view), PoolAdapters()
    view.listen(KIND, adapters.hear)
    return RegistryParts(view, tenants, RegistryApi(settings, view), tenants.limited(authenticator), keys, adapters)
