"""Which stores the tests run on.

A test with a store as parameter runs on Redis in process and on the server that is installed ("redis-7.0", which also
stands for newer ones and for Valkey). On Redis 6.2 and on a Redis Cluster the same Lua scripts run, so there it runs
only in modules marked `every_store`: they test what differs, which is connections, the wording of refusals, publishing,
and every script once in random walks.
PENSTOCK_STORES=all, which CI sets, runs everything on all stores. PENSTOCK_TEST_REDIS=/path/to/valkey-server runs the
tests of the server that is installed, and those of a Redis Cluster, on another one.
"""

from __future__ import annotations

import os

import pytest

IN_PROCESS = "in-process"
USUAL = "redis-7.0"
KINDS = ("redis-6.2", USUAL, "redis-cluster")
"""Kinds of Redis servers."""
PARAMETERS = ("backend", "redis_backend", "store_url", "redis_url", "server", "kind")
"""Names of fixtures and parameters that choose a store."""


def all_stores() -> bool:
    """Return whether every test runs on all stores."""
    chosen = os.environ.get("PENSTOCK_STORES", "")
    if chosen not in {"", "all"}:
        raise pytest.UsageError(f"PENSTOCK_STORES is {chosen!r}: it may be 'all' or absent")
    return chosen == "all"


def store_of(item: pytest.Item) -> str | None:
    """Return the store that an item's parameters choose, or None when they choose none."""
    callspec = getattr(item, "callspec", None)
    chosen = [] if callspec is None else [callspec.params.get(name) for name in PARAMETERS]
    return next((store for store in chosen if store in {IN_PROCESS, *KINDS}), None)


def runs(item: pytest.Item) -> bool:
    """Return whether an item runs on its store when not all stores are asked for."""
    return store_of(item) in {None, IN_PROCESS, USUAL} or item.get_closest_marker("every_store") is not None
