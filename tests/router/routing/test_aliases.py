"""Aliases in force, the pools that they lead to, and the callers that may use them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from cluster.registry.contract import Entry
from cluster.settings import load_settings
from router.identity import Caller
from router.routing import Aliases, Route, WayKind

POOLS = {"small": {}, "small-new": {}, "large": {}}
CANARY: dict[str, Any] = {
    "targets": [{"model": "small", "weight": 95}, {"model": "small-new", "weight": 5}],
    "fallback": "large",
}


def aliases(**declared: Any) -> Aliases:
    return Aliases(load_settings(flags={"pools": POOLS, "aliases": declared}, environ={}))


def entry(name: str, value: Any) -> Entry:
    return Entry("alias", name, 1, 0, None if value is None else json.dumps(value).encode())


def pools(found: Aliases, tenant: str = "acme", sessions: int = 2_000) -> Counter[str]:
    routes = [found.target("fast", tenant, f"s{number}", f"r{number}") for number in range(sessions)]
    return Counter(route.pool for route in routes if route is not None)


def test_sessions_stay_whatever_their_requests_are() -> None:
    found = aliases(fast=CANARY)
    first = [found.target("fast", "acme", f"s{number}", "one") for number in range(200)]
    assert first == [found.target("fast", "acme", f"s{number}", "another") for number in range(200)]
    assert 70 <= pools(found)["small-new"] <= 130


def test_requests_without_a_session_are_drawn_one_by_one() -> None:
    found = aliases(fast=CANARY)
    drawn = [found.target("fast", "acme", "", f"r{number}") for number in range(2_000)]
    assert 70 <= drawn.count(Route("small-new")) <= 130


def test_a_tenant_stays_as_a_whole() -> None:
    found = aliases(fast={**CANARY, "sticky": "tenant"})
    assert {1} == {len(pools(found, f"tenant-{number}", 20)) for number in range(50)}
    assert 2 == len({next(iter(pools(found, f"tenant-{number}", 1))) for number in range(200)})


def test_another_alias_draws_anew() -> None:
    found = aliases(fast={"targets": CANARY["targets"]}, other={"targets": CANARY["targets"]})
    names = [f"s{number}" for number in range(2_000)]
    fast, other = ([found.target(name, "acme", one, "") for one in names] for name in ("fast", "other"))
    both = sum(one == two == Route("small-new") for one, two in zip(fast, other, strict=True))
    assert both < 30


def test_the_registry_wins_and_gives_way_again() -> None:
    found = aliases(fast=CANARY)
    found.take(entry("fast", {"targets": [{"model": "large"}]}))
    assert {"large": 50} == pools(found, sessions=50)
    found.take(entry("new", {"targets": [{"model": "small"}]}))
    assert ["fast", "new"] == found.names()
    found.take(entry("fast", None))
    assert "small" in pools(found, sessions=50)
    found.take(entry("new", None))
    assert found.get("new") is None


def test_an_entry_that_cannot_be_read_changes_nothing() -> None:
    found = aliases(fast=CANARY)
    found.take(entry("fast", {"targets": []}))
    assert "small" in pools(found, sessions=50)


def test_a_pools_name_is_no_alias_and_a_target_without_a_pool_gets_nothing() -> None:
    found = aliases()
    found.take(entry("large", {"targets": [{"model": "small"}]}))
    assert found.get("large") is None
    assert [] == found.names()
    found.take(entry("fast", {"targets": [{"model": "gone", "weight": 99}, {"model": "small"}], "fallback": "gone"}))
    assert {"small": 50} == pools(found, sessions=50)
    assert found.fallback("fast", Route("small")) is None
    assert "small" == found.home("fast")
    found.take(entry("fast", {"targets": [{"model": "gone"}]}))
    assert found.target("fast", "acme", "s", "r") is None
    assert "" == found.home("fast")


def test_questions_go_to_the_largest_part() -> None:
    found = aliases(fast={"targets": [{"model": "small", "weight": 1}, {"model": "large", "weight": 2}]})
    assert "large" == found.home("fast")
    assert "small" == found.home("small")
    assert "" == found.home("none")


def test_a_fallback_is_another_model_than_the_target() -> None:
    found = aliases(fast={"targets": [{"model": "large", "adapter": "law"}], "fallback": "large"})
    assert Route("large", kind=WayKind.FALLBACK) == found.fallback("fast", Route("large", "law"))
    assert found.fallback("fast", Route("large")) is None
    assert found.fallback("small", Route("small")) is None


def test_a_share_of_the_requests_is_copied() -> None:
    found = aliases(fast={"targets": [{"model": "small"}], "shadow": {"model": "small-new", "share": 0.1}})
    copies = [found.shadow("fast", f"r{number}") for number in range(2_000)]
    assert 150 <= copies.count(Route("small-new", kind=WayKind.SHADOW)) <= 250
    assert 1_750 <= copies.count(None)


def test_a_caller_reaches_the_targets_of_its_aliases_only() -> None:
    found = aliases(fast=CANARY)
    assert ["large", "small", "small-new"] == found.reached(Caller("acme", models=frozenset({"fast"})))
    assert ["fast"] == found.allowed(Caller("acme", models=frozenset({"fast"})))
    assert ["small"] == found.reached(Caller("acme", models=frozenset({"small"})))
    assert ["fast", "large", "small", "small-new"] == found.allowed(Caller("acme"))
