"""Nobody is starved: tenants, classes, large requests, requests that prefer a replica."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from cluster.models import Windows
from cluster.queue.entries import QueueLimits, Settlement
from penstock.models import RequestClass
from tests.cluster.queue.backends import Backend, Scene, entry

BUSY = Windows(sequences=8, kv_tokens=10**9, prefill_tokens=10**9)


def jain(served: list[float]) -> float:
    """Jain's index: 1 is equal shares."""
    return sum(served) ** 2 / (len(served) * sum(x * x for x in served))


async def _serve(scene: Scene, running: list[str], attempts: dict[str, str], used: int) -> str:
    """End the oldest running request; returns its id."""
    name = running.pop(0)
    mail = await scene.queue.release("A", name, attempts.pop(name), Settlement(used))
    for grant in mail.grants:
        running.append(grant.request_id)
        attempts[grant.request_id] = grant.attempt
    return name


async def test_over_declaring_costs_nothing_in_the_end(scene: Scene) -> None:
    """One declares 4096 tokens and uses 100, the other declares what it uses: both get the same."""
    await scene.start({"r1": BUSY})
    running: list[str] = []
    attempts: dict[str, str] = {}
    for i in range(450):
        for tenant, declared in (("loud", 4096), ("plain", 100)):
            answer = await scene.queue.submit("A", entry(f"{tenant}-{i}", tenant=tenant, expected_tokens=declared))
            if answer.grant:
                running.append(answer.grant.request_id)
                attempts[answer.grant.request_id] = answer.grant.attempt

    ended = Counter([(await _serve(scene, running, attempts, 100)).split("-")[0] for _ in range(400)])

    assert jain([ended["loud"], ended["plain"]]) >= 0.95


async def test_shares_follow_weights(scene: Scene) -> None:
    await scene.start({"r1": BUSY})
    running: list[str] = []
    attempts: dict[str, str] = {}
    for i in range(300):
        for tenant, weight in (("gold", 3.0), ("tin", 1.0)):
            answer = await scene.queue.submit("A", entry(f"{tenant}-{i}", tenant=tenant, weight=weight))
            if answer.grant:
                running.append(answer.grant.request_id)
                attempts[answer.grant.request_id] = answer.grant.attempt

    ended = Counter([(await _serve(scene, running, attempts, 10)).split("-")[0] for _ in range(300)])

    assert 2.7 <= ended["gold"] / ended["tin"] <= 3.3


async def test_a_returning_tenant_has_no_credit(scene: Scene) -> None:
    """Being away saves nothing: the one that comes back shares equally from then on."""
    await scene.start({"r1": BUSY})
    running: list[str] = []
    attempts: dict[str, str] = {}

    async def submit(tenant: str, i: int) -> None:
        answer = await scene.queue.submit("A", entry(f"{tenant}-{i}", tenant=tenant))
        if answer.grant:
            running.append(answer.grant.request_id)
            attempts[answer.grant.request_id] = answer.grant.attempt

    for i in range(300):
        await submit("old", i)
    for _ in range(100):
        await _serve(scene, running, attempts, 10)
    for i in range(150):
        await submit("new", i)
    for _ in range(8):
        await _serve(scene, running, attempts, 10)
    ended = Counter([(await _serve(scene, running, attempts, 10)).split("-")[0] for _ in range(100)])

    assert jain([ended["old"], ended["new"]]) >= 0.98


async def test_lower_classes_get_their_reserved_share_under_a_flood(scene: Scene) -> None:
    await scene.start({"r1": BUSY})
    running: list[str] = []
    attempts: dict[str, str] = {}
    for i in range(400):
        for kind in RequestClass:
            answer = await scene.queue.submit("A", entry(f"{kind.name}-{i}", request_class=kind))
            if answer.grant:
                running.append(answer.grant.request_id)
                attempts[answer.grant.request_id] = answer.grant.attempt

    ended = Counter([(await _serve(scene, running, attempts, 10)).split("-")[0] for _ in range(400)])

    assert 0.17 <= ended["STANDARD"] / 400 <= 0.23
    assert 0.03 <= ended["BATCH"] / 400 <= 0.08


async def test_a_large_request_is_not_starved_by_small_ones(backend: Backend) -> None:
    """After `lookahead` passes it reserves the replica: nothing is granted there until it fits."""
    limits = QueueLimits(lookahead=4)
    scene = Scene(backend.queue(limits), backend.clock)
    await scene.start({"r1": Windows(8, 160, 10_000)})
    running: list[str] = []
    attempts: dict[str, str] = {}

    async def submit(name: str, kv: int) -> None:
        answer = await scene.queue.submit("A", entry(name, kv_tokens=kv))
        if answer.grant:
            running.append(name)
            attempts[name] = answer.grant.attempt

    for i in range(8):
        await submit(f"first-{i}", 20)
    await submit("large", 140)
    for i in range(40):
        await submit(f"small-{i}", 20)

    ended = []
    while "large" not in running:
        ended.append(await _serve(scene, running, attempts, 1))

    passed = [name for name in [*ended, *running] if name.startswith("small")]
    assert len(passed) <= limits.lookahead


async def test_a_replica_takes_what_prefers_it_from_the_lookahead(scene: Scene) -> None:
    """With a standing queue most preferences are honoured; each candidate is passed at most `lookahead` times."""
    replicas = {f"r{i}": Windows(4, 10**9, 10**9) for i in range(4)}
    await scene.start(replicas)
    rnd = random.Random(1)
    where: dict[str, str] = {}
    attempts: dict[str, str] = {}
    wishes = {f"q{i}": rnd.choice(list(replicas)) for i in range(500)}

    def note(grants: object) -> None:
        for grant in grants:  # type: ignore[attr-defined]
            where[grant.request_id] = grant.replica_id
            attempts[grant.request_id] = grant.attempt

    for name, wish in wishes.items():
        answer = await scene.queue.submit("A", entry(name, preferred_replicas=(wish,)))
        note([answer.grant] if answer.grant else [])
    order = []
    while len(order) < 400:
        name = rnd.choice(sorted(attempts))
        order.append(name)
        note((await scene.queue.release("A", name, attempts.pop(name), Settlement(10))).grants)

    hits = [where[name] == wishes[name] for name in list(where)[16:416]]
    assert sum(hits) / len(hits) >= 0.75
    # In order of grants nobody was passed by more than the lookahead allows.
    granted = [int(name[1:]) for name in where][16:]
    latest = max(place - rank for rank, place in enumerate(granted, start=min(granted)))
    assert latest <= 16


async def test_positions_count_who_is_ahead(scene: Scene) -> None:
    await scene.start({"r1": Windows(1, 1000, 1000)})
    await scene.queue.submit("A", entry("running"))
    for i in range(3):
        await scene.queue.submit("A", entry(f"a{i}", tenant="a"))
    for i in range(2):
        await scene.queue.submit("A", entry(f"b{i}", tenant="b"))
    await scene.queue.submit("A", entry("urgent", request_class=RequestClass.INTERACTIVE))

    names = ("running", "a0", "a1", "a2", "b0", "b1", "urgent", "nobody")
    reply = await scene.beat_router("A", positions_of=names)

    assert reply.positions == {"urgent": 0, "a0": 1, "b0": 2, "a1": 3, "b1": 4, "a2": 5}
    assert (await scene.beat_router("B", positions_of=names)).positions == {}
    assert reply.waiting == (1, 5, 0)
    assert reply.running == 1


async def test_a_heartbeat_asks_for_so_many_positions_at_most(scene: Scene) -> None:
    await scene.beat_router("A", positions_of=("a",) * 256)
    with pytest.raises(ValueError, match="positions_of must be at most 256 entries, got 257"):
        await scene.beat_router("A", positions_of=("a",) * 257)
