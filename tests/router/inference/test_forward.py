"""Refusals that send a request of an alias on, what its caller hears where nobody serves it, and a bound on copies."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    NoReplicaError,
    NotInTimeError,
    PenstockError,
    PermissionDeniedError,
    QueueFullError,
    QueueUnavailableError,
    QuotaExceededError,
)
from cluster.settings import load_settings
from router.generation.generation import Generation
from router.identity import Caller
from router.inference.forward import Forwarding, adapter_of
from router.inference.shadows import Shadows
from router.metrics import RouterMetrics
from router.routing import Aliases, Route, Way, WayKind

FULL = QueueFullError("small", 10, 1.0)
LATE = NotInTimeError("shed_after", 9.0, 2.0, 1.0)
NONE = NoReplicaError("no replica of 'small' takes work", 2.0)
SMALL, LARGE = Route("small"), Route("large", kind=WayKind.FALLBACK)
CALLER = Caller("acme", models=frozenset({"fast"}))


def forwarding(shadows: Shadows | None = None, metrics: RouterMetrics | None = None, **ready: int) -> Forwarding:
    aliases = {"fast": {"targets": [{"model": "small"}], "fallback": "large", "shadow": {"model": "large", "share": 1}}}
    settings = load_settings(flags={"pools": {"small": {}, "large": {}}, "aliases": aliases}, environ={})
    pools: Any = {
        name: SimpleNamespace(replicas=SimpleNamespace(ready=lambda name=name: ready.get(name, 1)))
        for name in settings.pools
    }
    return Forwarding(Aliases(settings), pools, metrics or RouterMetrics(), shadows)


class Pools:
    """Pools that refuse as told, and remember who came and how."""

    def __init__(self, **refusals: PenstockError) -> None:
        self.refusals = refusals
        self.came: list[tuple[Route, Caller, Way]] = []

    async def open(self, route: Route, caller: Caller, way: Way) -> str:
        self.came.append((route, caller, way))
        if (error := self.refusals.get(route.pool)) is not None:
            raise error
        return route.pool


@pytest.mark.parametrize("error", [FULL, LATE, NONE])
async def test_a_refusal_in_time_sends_a_request_to_the_fallback_once(error: PenstockError) -> None:
    pools = Pools(small=error)
    found = await forwarding().forward("fast", SMALL, CALLER, "id", pools.open)
    assert ("large", LARGE) == (found.opened, found.route)
    assert found.refusal is not None
    assert error.reason == found.refusal.reason
    free = Caller("acme")
    assert [(SMALL, free, Way("fast", "id", ready_only=True, goes_on=True)), (LARGE, free, Way("fast"))] == pools.came


@pytest.mark.parametrize(
    "error",
    [
        QuotaExceededError("small", "acme", "tokens_per_minute", 10, 1.0),
        InvalidRequestError.of("prompt", "is too long"),
        QueueUnavailableError("Redis does not answer"),
    ],
)
async def test_other_errors_are_the_callers(error: PenstockError) -> None:
    pools = Pools(small=error)
    with pytest.raises(type(error)):
        await forwarding().forward("fast", SMALL, CALLER, "id", pools.open)
    assert 1 == len(pools.came)


async def test_where_both_refuse_the_caller_hears_the_target() -> None:
    pools = Pools(small=FULL, large=InvalidRequestError.of("prompt", "is too long"))
    with pytest.raises(QueueFullError) as raised:
        await forwarding().forward("fast", SMALL, CALLER, "id", pools.open)
    assert FULL is raised.value


async def test_a_fallback_without_a_replica_does_not_keep_a_request_from_waiting_for_its_target() -> None:
    pools = Pools()
    await forwarding(large=0).forward("fast", SMALL, CALLER, "id", pools.open)
    assert not pools.came[0][2].ready_only


async def test_a_request_that_has_begun_stays() -> None:
    pools = Pools(small=FULL)
    with pytest.raises(QueueFullError):
        await forwarding().forward("fast", SMALL, CALLER, "id", pools.open, begun=True)
    assert [Way("fast", "id")] == [way for _, _, way in pools.came]


async def test_an_alias_is_for_those_who_may_use_it_and_must_lead_somewhere() -> None:
    with pytest.raises(PermissionDeniedError):
        await forwarding().forward("fast", SMALL, Caller("acme", models=frozenset({"small"})), "id", Pools().open)
    with pytest.raises(ModelNotFoundError):
        await forwarding().forward("fast", None, CALLER, "id", Pools().open)


def test_an_alias_that_chooses_the_adapter_lets_nobody_else_choose_it() -> None:
    assert "law" == adapter_of("fast", "", Route("small", "law")) == adapter_of("fast", "law", Route("small", "law"))
    assert "tax" == adapter_of("fast", "tax", Route("small"))
    with pytest.raises(InvalidRequestError, match=r"lora_adapter: must be empty for the alias 'fast'.*got 'tax'"):
        adapter_of("fast", "tax", Route("small", "law"))


async def test_copies_in_flight_are_bounded_and_end_with_the_router() -> None:
    metrics, gate, begun = RouterMetrics(), asyncio.Event(), 0
    shadows = Shadows(metrics, lambda _generation: None, most=2)
    forward = forwarding(shadows, metrics)

    async def stuck(_route: Route, _caller: Caller, _way: Way) -> Generation:
        nonlocal begun
        begun += 1
        await gate.wait()
        raise FULL

    for number in range(5):
        forward.copy("fast", str(number), stuck)
    await asyncio.sleep(0)
    assert (2, 2) == (begun, len(shadows))
    labels = {"alias": "fast", "model": "large", "reason": "TOO_MANY_SHADOWS"}
    assert 3 == metrics.registry.get_sample_value("penstock_alias_shadow_errors_total", labels)
    await shadows.close()
    forward.copy("fast", "later", stuck)
    assert (2, 0) == (begun, len(shadows))
