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
from router.identity.revocations import Revocations
from router.registry.api import RegistryApi
from router.registry.keys import RegisteredKeys, follow_revocations
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
    revocations: Revocations


def open_registry(
    settings: Settings, store: RegistryStore, router_id: str, authenticator: Authenticator
) -> RegistryParts:
    """Compose the parts; nothing connects before the view looks."""
    view = RegistryView(store, Watcher(router_id, "router"))
    keys = RegisteredKeys(view)
    authenticator.bearers.append(keys)
    tenants, adapters, revocations = Tenants(settings, view), PoolAdapters(), Revocations()
    view.listen(KIND, adapters.hear)
    follow_revocations(view, revocations)
    authenticate = revocations.tracked(tenants.limited(authenticator))
    return RegistryParts(view, tenants, RegistryApi(settings, view), authenticate, keys, adapters, revocations)
