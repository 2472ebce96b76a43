"""An entry changes its owner: it keeps its place or its slot, and the old owner is told."""

from __future__ import annotations

import pytest

from cluster.models import Windows
from cluster.queue.entries import Quota, Settlement
from tests.cluster.queue.backends import Backend, Scene, entry

ONE = Windows(1, 10**6, 10**6)


async def test_a_running_entry_keeps_its_slot(scene: Scene) -> None:
    await scene.start({"r1": ONE}, ("A", "B"))
    grant = (await scene.queue.submit("A", entry("q1"))).grant
    await scene.beat_router("A", started=(("q1", grant.attempt),))

    adopted = await scene.queue.adopt("B", "acme", "q1")

    assert (adopted.grant, adopted.started) == (grant, True)
    # The old owner's release means nothing; the new one's frees the slot.
    await scene.queue.submit("B", entry("q2"))
    assert (await scene.queue.release("A", "q1", grant.attempt, Settlement(1))).grants == ()
    assert [g.request_id for g in (await scene.queue.release("B", "q1", grant.attempt, Settlement(1))).grants] == ["q2"]


async def test_who_adopts_is_told_how_long_ago_it_was_submitted(scene: Scene) -> None:
    await scene.start({"r1": ONE}, ("A", "B"))
    await scene.queue.submit("A", entry("q1"))
    scene.clock.advance(0.7)
    await scene.queue.submit("A", entry("q2"))
    scene.clock.advance(0.25)

    assert [950, 250] == [(await scene.queue.adopt("B", "acme", name)).age_ms for name in ("q1", "q2")]
    scene.clock.advance(0.05)
    assert [1000, 300] == [(await scene.queue.adopt("A", "acme", name)).age_ms for name in ("q1", "q2")]


async def test_a_grant_that_was_not_started_moves_with_its_mail(scene: Scene) -> None:
    await scene.start({"r1": ONE}, ("A", "B"))
    grant = (await scene.queue.submit("A", entry("q1"))).grant

    adopted = await scene.queue.adopt("B", "acme", "q1")

    assert (adopted.grant, adopted.started) == (grant, False)
    assert (await scene.queue.collect("B")).grants == (grant,)
    assert (await scene.queue.collect("A")).grants == ()


async def test_a_waiting_entry_keeps_its_place(scene: Scene) -> None:
    await scene.start({"r1": ONE}, ("A", "B"))
    first = (await scene.queue.submit("A", entry("q0"))).grant
    for i in range(1, 4):
        await scene.queue.submit("A", entry(f"q{i}"))

    adopted = await scene.queue.adopt("B", "acme", "q2")

    assert (adopted.grant, adopted.position) == (None, 1)
    await scene.queue.release("A", "q0", first.attempt, Settlement(1))
    second = (await scene.queue.collect("A")).grants[0]
    assert second.request_id == "q1"
    await scene.queue.release("A", "q1", second.attempt, Settlement(1))
    assert [grant.request_id for grant in (await scene.queue.collect("B")).grants] == ["q2"]


async def test_the_old_owner_is_told_until_it_answers(scene: Scene, backend: Backend) -> None:
    await scene.start({"r1": ONE}, ("A", "B"))
    await scene.queue.submit("A", entry("q1"))
    await scene.queue.adopt("B", "acme", "q1")

    for _ in range(2):
        assert [(o.request_id, o.kind) for o in (await scene.queue.collect("A")).orders] == [("q1", "moved")]
    await scene.queue.release("A", "q1", "", Settlement(0))
    assert (await scene.queue.collect("A")).orders == ()
    # And nothing of the entry was touched by that.
    grant = (await scene.queue.collect("B")).grants[0]
    await scene.queue.release("B", "q1", grant.attempt, Settlement(0))
    assert backend.leftovers() == set()


async def test_a_dead_routers_entry_is_found_again(scene: Scene) -> None:
    """Within the grace its waiting entry keeps its place; its running one its slot while the replica reports it."""
    await scene.start({"r1": ONE}, ("A", "B"))
    grant = (await scene.queue.submit("A", entry("q1"))).grant
    await scene.queue.submit("A", entry("q2"))
    running = {"r1": [("q1", grant.attempt)]}
    await scene.pass_time(6, routers=["B"], replicas=["r1"], running=running)

    assert (await scene.queue.adopt("B", "acme", "q1")).grant == grant
    assert (await scene.queue.adopt("B", "acme", "q2")).position == 0
    await scene.pass_time(12, routers=["B"], replicas=["r1"], running=running)
    assert [g.request_id for g in (await scene.queue.release("B", "q1", grant.attempt, Settlement(1))).grants] == ["q2"]


@pytest.mark.parametrize("trace", ["", "a-b"])
async def test_who_adopts_is_told_whose_token_ids_it_has(scene: Scene, trace: str) -> None:
    await scene.start({"r1": ONE}, ("A", "B"))
    await scene.queue.submit("A", entry("q1", tokenizer="digest", trace=trace))
    await scene.queue.submit("A", entry("q2"))
    found = [await scene.queue.adopt("B", "acme", name) for name in ("q1", "q2")]
    assert [("digest", trace), ("", "")] == [(each.tokenizer, each.trace) for each in found if each is not None]


async def test_nothing_to_adopt(scene: Scene) -> None:
    await scene.start({"r1": ONE}, ("A", "B"))
    await scene.queue.submit("A", entry("q1"))
    assert await scene.queue.adopt("B", "acme", "nobody") is None
    assert await scene.queue.adopt("B", "beta", "q1") is None
    await scene.queue.cancel("B", "acme", "q1")
    assert await scene.queue.adopt("B", "acme", "q1") is None


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("how", ["expired", "cancelled"])
async def test_what_goes_at_another_router_may_be_submitted_anew(
    scene: Scene, backend: Backend, how: str, gone: bool
) -> None:
    """A dead router obeys no order: who resumes the request elsewhere must not go with it."""
    await scene.start({"r1": ONE}, ("A", "B"))
    slot = (await scene.queue.submit("B", entry("slot"))).grant
    running = {"r1": [("slot", slot.attempt)]}
    key = {"client_key": "key", "digest": "d"}
    quota = Quota(tokens_per_minute=1000, concurrency=5)
    await scene.queue.submit("A", entry("q1", start_within_ms=2000, quota=quota, **key))
    if how == "cancelled":
        await scene.queue.cancel("B", "acme", "q1")
    await scene.pass_time(2.5, routers=["B"] if gone else ["A", "B"], replicas=["r1"], running=running)
    if gone:
        await scene.queue.retire_router("A", keep=True)
    assert await scene.queue.adopt("B", "acme", "q1") is None

    assert (await scene.queue.submit("B", entry("q1", resume=True, **key))).grant is None

    assert (await scene.queue.submit("B", entry("q2", **key))).known.request_id == "q1"
    orders = (await scene.queue.collect("A")).orders
    assert [(order.request_id, order.kind) for order in orders] == ([] if gone else [("q1", "moved")])
    # What the old owner still says changes nothing.
    await scene.queue.withdraw("A", "q1", None)
    await scene.queue.release("A", "q1", "", Settlement(0))
    await scene.pass_time(12, routers=["B"], replicas=["r1"], running=running)
    [grant] = (await scene.queue.release("B", "slot", slot.attempt, Settlement(1))).grants
    assert grant.request_id == "q1"
    await scene.queue.release("B", "q1", grant.attempt, Settlement(1))
    assert backend.leftovers() == set()


async def test_who_gets_a_request_back_is_not_told_that_it_moved(scene: Scene, backend: Backend) -> None:
    await scene.start({"r1": ONE}, ("A", "B"))
    slot = (await scene.queue.submit("B", entry("slot"))).grant
    await scene.queue.submit("B", entry("q1"))
    await scene.queue.adopt("A", "acme", "q1")
    await scene.queue.cancel("B", "acme", "q1")

    await scene.queue.submit("B", entry("q1", resume=True))

    assert (await scene.queue.collect("B")).orders == ()
    await scene.queue.cancel("B", "acme", "q1")
    assert [(o.request_id, o.kind) for o in (await scene.queue.collect("A")).orders] == [("q1", "moved")]
    await scene.queue.release("A", "q1", "", Settlement(0))
    await scene.queue.release("B", "slot", slot.attempt, Settlement(1))
    assert backend.leftovers() == set()


async def test_an_id_of_another_tenant_is_left_alone(scene: Scene) -> None:
    await scene.start({"r1": Windows(0, 10**6, 10**6)}, ("A", "B"))
    await scene.queue.submit("A", entry("q1"))
    await scene.queue.cancel("B", "acme", "q1")

    await scene.queue.submit("B", entry("q1", tenant="beta"))

    assert [(order.request_id, order.kind) for order in (await scene.queue.collect("A")).orders] == [("q1", "cancel")]


async def test_who_submits_what_another_router_has_is_told(scene: Scene) -> None:
    """It may come back after a long partition, when its client is served elsewhere."""
    await scene.start({"r1": ONE}, ("A", "B"))
    await scene.queue.submit("A", entry("runs"))
    await scene.queue.submit("A", entry("waits"))
    for name in ("runs", "waits"):
        assert await scene.queue.adopt("B", "acme", name)
        again = await scene.queue.submit("A", entry(name))
        assert (True, None) == (again.elsewhere, again.grant)
        assert not (await scene.queue.submit("B", entry(name))).elsewhere


async def test_what_expired_early_is_submitted_anew_by_its_own_router(scene: Scene, backend: Backend) -> None:
    """The clock was set forward, and the router knows how long it waited."""
    await scene.start({"r1": ONE}, ("A",))
    slot = (await scene.queue.submit("A", entry("slot"))).grant
    running = {"r1": [("slot", slot.attempt)]}
    key = {"client_key": "key", "digest": "d", "quota": Quota(tokens_per_minute=1000, concurrency=5)}
    await scene.queue.submit("A", entry("q1", start_within_ms=60_000, **key))
    backend.clock.jump_wall(300)
    await scene.pass_time(12, routers=["A"], replicas=["r1"], running=running)
    assert [("q1", "expired")] == [(each.request_id, each.kind) for each in (await scene.queue.collect("A")).orders]

    assert (await scene.queue.submit("A", entry("q1", start_within_ms=48_000, **key))).grant is None

    assert () == tuple((await scene.queue.collect("A")).orders)
    mail = await scene.queue.release("A", "slot", slot.attempt, Settlement(0))
    assert ["q1"] == [grant.request_id for grant in mail.grants]
