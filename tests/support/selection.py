"""pytest plugin: marks the quick tests, leaves out stores that nobody asked for, gives slow machines time."""

from __future__ import annotations

import pytest

from tests.cluster.queue.servers import find_program
from tests.support.speed import patience
from tests.support.stores import KINDS, all_stores, runs, store_of

_NEVER_QUICK = frozenset({"slow", "cluster", "engine", "node", "alone"})
"""Markers."""
_STARTERS = frozenset({"redis_servers", "redis_backend", "kubelet"})
"""Fixtures that start processes. Where a parameter chooses the store, it decides."""
_STACKS = frozenset({"running_stack", "running_cluster", "running_sentinels", "running_redis_cluster"})
"""Functions that start routers, replicas or servers, and wait for real time to pass. All tests of a module that imports
one count as users.
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # A test that is named with its parameters is meant, whatever its store.
    if not all_stores() and not any("[" in argument for argument in config.args):
        kept = [item for item in items if runs(item)]
        config.hook.pytest_deselected(items=list(set(items).difference(kept)))
        items[:] = kept
    for item in items:
        if is_quick(item):
            item.add_marker("quick")
        if patience() > 1 and config.getoption("timeout", None) is None:
            item.add_marker(pytest.mark.timeout(timeout_s(config, item) * patience()), append=False)


def pytest_report_header() -> str:
    redis = find_program() or "Redis 6.2 (NOT 7.0 or newer, which is not on this machine)"
    stores = "all" if all_stores() else f"Redis in process and {redis}, all in modules marked every_store"
    return f"stores: {stores}; time limits of this machine: x {patience():.1f}"


def is_quick(item: pytest.Item) -> bool:
    """Return whether a test starts no process and no stack of servers, and is not marked as slow."""
    if not _NEVER_QUICK.isdisjoint(marker.name for marker in item.iter_markers()):
        return False
    if not _STACKS.isdisjoint(vars(getattr(item, "module", item))):
        return False
    store = store_of(item)
    if store is not None:
        return store not in KINDS
    return _STARTERS.isdisjoint(getattr(item, "fixturenames", ()))


def timeout_s(config: pytest.Config, item: pytest.Item) -> float:
    """Return the time limit of a test, seconds."""
    marker = item.get_closest_marker("timeout")
    if marker is None:
        return float(config.getini("timeout"))
    return float(marker.args[0] if marker.args else marker.kwargs["timeout"])
