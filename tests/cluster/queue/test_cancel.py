"""Cancel finds a request wherever it is, and only for its own tenant."""

from __future__ import annotations

import pytest

from cluster.models import Windows
from cluster.queue.entries import MAX_CHOICES, Mail, Order, Settlement
from tests.cluster.queue.backends import Backend, Scene, entry

ONE = Windows(sequences=1, kv_tokens=1000, prefill_tokens=1000)


@pytest.fixture
async def full(scene: Scene) -> Scene:
    """A's "running" holds the only slot."""
    await scene.start({"r1": ONE}, routers=("A", "B"))
    assert (await scene.queue.submit("A", entry("running", client_key="key"))).grant
    return scene


async def test_the_callers_own_waiting_request_is_gone_at_once(full: Scene) -> None:
    await full.queue.submit("A", entry("waiting"))

    assert await full.queue.cancel("A", "acme", "waiting") == "waiting"

    assert await full.queue.cancel("A", "acme", "waiting") is None
    assert (await full.queue.collect("A")).orders == ()
    assert (await full.beat_router("A")).waiting == (0, 0, 0)


async def test_anothers_waiting_request_leaves_the_line_and_its_owner_is_told(full: Scene) -> None:
    await full.queue.submit("A", entry("waiting"))

    assert await full.queue.cancel("B", "acme", "waiting") == "waiting"

    assert (await full.beat_router("B")).waiting == (0, 0, 0)
    for _ in range(2):
        assert (await full.queue.collect("A")).orders == (Order("waiting", "cancel"),)
    await full.queue.release("A", "waiting", "", Settlement(0))
    assert (await full.queue.collect("A")).orders == ()
    assert await full.queue.cancel("A", "acme", "waiting") is None


async def test_an_owner_that_obeys_a_cancel_leaves_nothing_behind(full: Scene) -> None:
    """Its own cancel answers the order: the entry does not count on until its next heartbeat."""
    await full.queue.submit("A", entry("waiting"))
    await full.queue.cancel("B", "acme", "waiting")

    assert await full.queue.cancel("A", "acme", "waiting") == "waiting"

    assert (await full.queue.collect("A")).orders == ()
    assert await full.queue.cancel("B", "acme", "waiting") is None


@pytest.mark.parametrize("caller", ["A", "B"])
async def test_a_request_is_cancelled_with_all_its_choices(full: Scene, backend: Backend, caller: str) -> None:
    """Also with those that wait when the first ones are gone; another tenant's of that name stay."""
    for index in range(MAX_CHOICES):
        await full.queue.submit("A", entry(f"many/{index}", tenant="acme" if index else "other"))

    assert await full.queue.cancel(caller, "acme", "many") == "many"

    assert (await full.beat_router("B")).waiting == (0, 1, 0)
    for index in range(MAX_CHOICES):
        await full.queue.cancel("A", "acme" if index else "other", f"many/{index}")
    assert await full.queue.cancel("A", "acme", "many") is None
    assert (await full.queue.collect("A")).orders == ()
    await full.queue.release("A", "running", "base-running.1", Settlement(3))
    assert backend.leftovers() == set()


@pytest.mark.parametrize("caller", ["A", "B"])
@pytest.mark.parametrize("by_key", [False, True])
async def test_a_running_request_keeps_its_slot_until_its_owner_releases(
    full: Scene, backend: Backend, caller: str, by_key: bool
) -> None:
    await full.beat_router("A", started=(("running", "base-running.1"),))
    target = "key" if by_key else "running"

    assert await full.queue.cancel(caller, "acme", target, by_key=by_key) == "running"

    assert await full.queue.collect("A") == Mail((), (Order("running", "cancel"),))
    assert (await full.queue.submit("A", entry("next"))).grant is None
    mail = await full.queue.release("A", "running", "base-running.1", Settlement(3))
    assert [grant.request_id for grant in mail.grants] == ["next"]
    await full.queue.release("A", "next", "base-next.1", Settlement(3))
    assert backend.leftovers() == set()


async def test_a_grant_that_was_not_started_can_be_cancelled_and_does_not_come_back(full: Scene) -> None:
    await full.queue.cancel("B", "acme", "running")

    mail = await full.queue.collect("A")
    assert [grant.request_id for grant in mail.grants] == ["running"]
    assert mail.orders == (Order("running", "cancel"),)

    await full.queue.refuse("A", "running", "base-running.1")
    await full.beat_replica("r1")
    assert (await full.queue.collect("A")).grants == ()
    await full.queue.release("A", "running", "", Settlement(0))
    assert await full.queue.collect("A") == Mail()


async def test_another_tenants_request_is_not_found(full: Scene) -> None:
    assert await full.queue.cancel("A", "other", "running") is None
    assert await full.queue.cancel("A", "other", "key", by_key=True) is None
    assert await full.queue.cancel("A", "acme", "no such") is None
    assert (await full.queue.collect("A")).orders == ()


async def test_a_cancel_makes_room_for_who_stood_behind(scene: Scene) -> None:
    """A large request that reserves the replica is cancelled: the others go on at once."""
    await scene.start({"r1": Windows(8, 100, 1000)})
    for i in range(4):
        await scene.queue.submit("A", entry(f"first-{i}"))
    await scene.queue.submit("A", entry("large", kv_tokens=90))
    granted = 0
    for i in range(30):
        granted += bool((await scene.queue.submit("A", entry(f"small-{i}", kv_tokens=1))).grant)
    before = len((await scene.queue.collect("A")).grants)

    await scene.queue.cancel("A", "acme", "large")

    assert len((await scene.queue.collect("A")).grants) >= before
    assert 1 <= granted <= 16
