"""Who is taken for dead, when, and what becomes of what they held."""

from __future__ import annotations

import itertools

import pytest

from cluster.models import Windows
from cluster.queue.entries import Order, QueueLimits, Settlement
from cluster.settings import QueueSettings
from penstock.models import ReplicaState
from tests.cluster.queue.backends import WIDE, Backend, Scene, entry

ONE = Windows(sequences=1, kv_tokens=1000, prefill_tokens=1000)
TWO = Windows(sequences=2, kv_tokens=1000, prefill_tokens=1000)


async def _ready(scene: Scene, replicas: dict[str, Windows], routers: tuple[str, ...] = ("A", "B")) -> None:
    """Start, and let the first amnesty pass."""
    await scene.start(replicas, routers)
    await scene.pass_time(5, routers=list(routers), replicas=list(replicas))


async def test_a_dead_routers_waiting_requests_keep_their_place_for_the_grace_and_are_not_granted(scene: Scene) -> None:
    await _ready(scene, {"r1": ONE})
    grant = (await scene.queue.submit("B", entry("busy"))).grant
    running = {"r1": [("busy", grant.attempt)]}
    await scene.beat_router("B", started=(("busy", grant.attempt),))
    await scene.queue.submit("A", entry("a"))
    await scene.queue.submit("B", entry("b"))

    await scene.pass_time(4.5, routers=["B"], replicas=["r1"], running=running)
    mail = await scene.queue.release("B", "busy", grant.attempt, Settlement(1))

    assert [granted.request_id for granted in mail.grants] == ["b"]
    reply = await scene.beat_router("A", positions_of=("a", "b"))
    assert reply.positions == {"a": 0}
    assert reply.routers == ("A", "B")


async def test_a_dead_routers_waiting_requests_go_after_the_grace(scene: Scene, backend: Backend) -> None:
    await _ready(scene, {"r1": ONE})
    await scene.queue.submit("B", entry("busy"))
    await scene.beat_router("B", started=(("busy", "base-busy.1"),))
    await scene.queue.submit("A", entry("a", client_key="key"))

    await scene.pass_time(12, routers=["B"], replicas=["r1"])

    assert await scene.queue.cancel("B", "acme", "a") is None
    assert (await scene.beat_router("A", positions_of=("a",))).positions == {}
    await scene.queue.release("B", "busy", "base-busy.1", Settlement(1))
    assert backend.leftovers() == set()


async def test_a_dead_routers_slots_are_held_while_the_replica_reports_them(scene: Scene) -> None:
    await _ready(scene, {"r1": TWO})
    grants = [(await scene.queue.submit("A", entry(name))).grant for name in ("q1", "q2")]
    started = tuple((grant.request_id, grant.attempt) for grant in grants)
    await scene.beat_router("A", started=started)
    await scene.queue.submit("B", entry("next"))

    await scene.pass_time(15, routers=["B"], replicas=["r1"], running={"r1": started})
    assert (await scene.queue.collect("B")).grants == ()

    await scene.beat_replica("r1", running=started[:1])
    assert [grant.request_id for grant in (await scene.queue.collect("B")).grants] == ["next"]


async def test_a_dead_routers_grant_that_never_started_is_freed(scene: Scene) -> None:
    await _ready(scene, {"r1": ONE})
    assert (await scene.queue.submit("A", entry("lost"))).grant
    await scene.queue.submit("B", entry("next"))

    await scene.pass_time(6, routers=["B"], replicas=["r1"])

    assert [grant.request_id for grant in (await scene.queue.collect("B")).grants] == ["next"]
    assert await scene.queue.cancel("B", "acme", "lost") is None


async def test_a_dead_replica_leaves_the_registry_and_its_slots_stay_with_living_routers(
    scene: Scene, backend: Backend
) -> None:
    await _ready(scene, {"r1": ONE}, routers=("A",))
    grant = (await scene.queue.submit("A", entry("q1"))).grant
    await scene.beat_router("A", started=(("q1", grant.attempt),))

    await scene.pass_time(6, routers=["A"], replicas=[])

    reply = await scene.beat_router("A")
    assert reply.replicas == ()
    assert reply.running == 1
    assert (await scene.queue.submit("A", entry("q2"))).grant is None
    await scene.queue.release("A", "q1", grant.attempt, Settlement(1))
    await scene.queue.cancel("A", "acme", "q2")
    assert backend.leftovers() == set()


@pytest.mark.parametrize("first", ["router", "replica"])
async def test_what_a_dead_router_held_on_a_dead_replica_is_freed(scene: Scene, backend: Backend, first: str) -> None:
    await _ready(scene, {"r1": ONE, "r2": ONE})
    for name in ("q1", "q2"):
        await scene.queue.submit("A", entry(name))
    started = (("q1", "base-q1.1"), ("q2", "base-q2.1"))
    await scene.beat_router("A", started=started)
    survivors = {"routers": ["B"], "replicas": ["r1", "r2"]} if first == "router" else {"routers": ["A", "B"]}
    running = {"r1": started[:1], "r2": started[1:]}

    await scene.pass_time(6, replicas=survivors.get("replicas", []), routers=survivors["routers"], running=running)
    assert (await scene.beat_router("B")).running == 2
    await scene.pass_time(20, routers=["B"], replicas=[])

    assert (await scene.beat_router("B")).running == 0
    assert backend.leftovers() == set()


async def test_a_replica_that_comes_back_holds_what_it_held(scene: Scene) -> None:
    await _ready(scene, {"r1": TWO}, routers=("A",))
    grant = (await scene.queue.submit("A", entry("q1"))).grant
    started = (("q1", grant.attempt),)
    await scene.beat_router("A", started=started)
    await scene.pass_time(6, routers=["A"], replicas=[])

    await scene.beat_replica("r1", running=started)

    (record,) = (await scene.beat_router("A")).replicas
    assert (record.sequences, record.kv_tokens, record.prefill_tokens) == (1, 20, 10)


async def test_a_grant_that_the_router_never_lists_is_revoked_and_granted_again(backend: Backend) -> None:
    """As when the reply that carried it was lost: three heartbeats later it is the next attempt's turn."""
    scene = Scene(backend.queue(QueueLimits(grant_heartbeats=3)), backend.clock)
    await _ready(scene, {"r1": ONE}, routers=("A",))
    await scene.queue.submit("A", entry("q1"))
    await scene.queue.submit("A", entry("q2"))

    attempts = [(await scene.beat_router("A")).mail.grants[0].attempt for _ in range(3)]

    assert attempts == ["base-q1.1", "base-q1.1", "base-q1.2"]
    await scene.queue.release("A", "q1", "base-q1.1", Settlement(1))
    assert (await scene.beat_router("A")).running == 1


async def test_a_grant_waits_for_a_router_that_has_no_time_for_its_mail(backend: Backend) -> None:
    """It has the grant, and would start what somebody else has got by then."""
    scene = Scene(backend.queue(QueueLimits(grant_heartbeats=3)), backend.clock)
    await _ready(scene, {"r1": ONE}, routers=("A",))
    await scene.queue.submit("A", entry("q1"))
    for _ in range(5):
        assert "base-q1.1" == (await scene.beat_router("A", busy=True)).mail.grants[0].attempt
    attempts = [(await scene.beat_router("A")).mail.grants[0].attempt for _ in range(3)]
    assert attempts == ["base-q1.1", "base-q1.1", "base-q1.2"]


@pytest.mark.parametrize("lister", ["router", "replica"])
async def test_a_grant_that_is_listed_as_started_is_kept(scene: Scene, lister: str) -> None:
    await _ready(scene, {"r1": ONE}, routers=("A",))
    await scene.queue.submit("A", entry("q1"))
    started = (("q1", "base-q1.1"),)
    if lister == "router":
        await scene.beat_router("A", started=started)
    else:
        await scene.beat_replica("r1", running=started)

    for _ in range(10):
        reply = await scene.beat_router("A")

    assert reply.mail.grants == ()
    assert reply.running == 1


async def test_a_request_is_not_granted_after_its_bound_and_its_owner_is_told(scene: Scene) -> None:
    await _ready(scene, {"r1": ONE}, routers=("A",))
    grant = (await scene.queue.submit("A", entry("busy"))).grant
    await scene.beat_router("A", started=(("busy", grant.attempt),))
    await scene.queue.submit("A", entry("late", start_within_ms=1000))
    await scene.queue.submit("A", entry("patient"))

    scene.clock.advance(1.001)
    mail = await scene.queue.release("A", "busy", grant.attempt, Settlement(1))
    assert [granted.request_id for granted in mail.grants] == ["patient"]

    assert await scene.queue.reap() == 1
    assert (await scene.queue.collect("A")).orders == (Order("late", "expired"),)
    await scene.queue.release("A", "late", "", Settlement(0))
    assert (await scene.queue.collect("A")).orders == ()


async def test_a_request_may_start_up_to_its_bound(scene: Scene) -> None:
    await _ready(scene, {"r1": ONE}, routers=("A",))
    grant = (await scene.queue.submit("A", entry("busy"))).grant
    await scene.queue.submit("A", entry("just", start_within_ms=1000))

    scene.clock.advance(1.0)
    mail = await scene.queue.release("A", "busy", grant.attempt, Settlement(1))

    assert [granted.request_id for granted in mail.grants] == ["just"]


@pytest.mark.parametrize("event", ["outage", "restart", "jump forward", "jump back"])
async def test_after_a_gap_nobody_loses_anything_for_one_full_lease(scene: Scene, backend: Backend, event: str) -> None:
    await _ready(scene, {"r1": ONE})
    await scene.queue.submit("A", entry("running"))
    await scene.beat_router("A", started=(("running", "base-running.1"),))
    await scene.queue.submit("A", entry("waiting"))
    if event == "outage":
        scene.clock.advance(600)
    elif event == "restart":
        scene.clock.advance(3.9)
        backend.restart()
    else:
        scene.clock.jump_wall(3600 if event == "jump forward" else -3600)

    assert await scene.queue.reap() == 0
    await scene.pass_time(3.5, routers=["B"], replicas=[])
    reply = await scene.beat_router("B")

    assert reply.routers == ("A", "B")
    assert [record.replica_id for record in reply.replicas] == ["r1"]
    assert reply.waiting == (0, 1, 0)
    await scene.pass_time(6, routers=["B"], replicas=[])
    assert (await scene.beat_router("B")).routers == ("B",)


async def test_one_that_beats_alone_as_seldom_as_it_may_does_not_keep_the_dead(scene: Scene) -> None:
    """The settings ask for three heartbeats per lease; with two, each would look like the end of a gap."""
    await _ready(scene, {"r1": ONE})
    seldom = QueueSettings(lease_s=4.0, heartbeat_s=1.333)
    await scene.queue.submit("B", entry("q1"))
    for _ in range(12):
        scene.clock.advance(seldom.heartbeat_s)
        reply = await scene.beat_router("A", connected=())

    assert (reply.routers, reply.replicas, reply.running) == (("A",), (), 0)


async def test_pool_time_goes_on_after_the_clock_was_set_back(scene: Scene) -> None:
    """An hour back does not keep leases alive for an hour."""
    await _ready(scene, {"r1": ONE})
    scene.clock.jump_wall(-3600)

    await scene.pass_time(12, routers=["B"], replicas=["r1"])

    assert (await scene.beat_router("B")).routers == ("B",)


async def test_retired_router_and_replica_are_gone_at_once(scene: Scene, backend: Backend) -> None:
    await _ready(scene, {"r1": ONE, "r2": ONE})
    for name in ("q1", "q2", "q3"):
        await scene.queue.submit("A", entry(name))

    await scene.queue.retire_router("A")
    await scene.queue.retire_replica("r2")

    reply = await scene.beat_router("B")
    assert reply.routers == ("B",)
    assert reply.waiting == (0, 0, 0)
    assert [record.replica_id for record in reply.replicas] == ["r1"]


async def test_what_a_retired_router_leaves_can_be_adopted_for_a_while(scene: Scene, backend: Backend) -> None:
    await _ready(scene, {"r1": ONE})
    for name in ("q1", "q2", "q3"):
        await scene.queue.submit("A", entry(name))

    await scene.queue.retire_router("A", keep=True)

    reply = await scene.beat_router("B")
    assert reply.routers == ("B",)
    running = await scene.queue.adopt("B", "acme", "q1")
    assert running is not None
    assert running.grant is not None
    waiting = await scene.queue.adopt("B", "acme", "q2")
    assert waiting is not None
    assert (waiting.grant, waiting.position) == (None, 0)
    # Nobody came for the third.
    await scene.pass_time(12, routers=["B"], replicas=["r1"])
    assert await scene.queue.adopt("B", "acme", "q3") is None
    assert (await scene.beat_router("B")).waiting == (0, 1, 0)


async def test_a_router_that_only_ever_submitted_is_reaped(scene: Scene, backend: Backend) -> None:
    await _ready(scene, {"r1": ONE}, routers=("B",))
    await scene.queue.submit("stranger", entry("q1"))

    await scene.pass_time(12, routers=["B"], replicas=["r1"])

    assert backend.leftovers() == set()


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("late", ["refuse", "requeue"])
async def test_what_a_retired_router_still_gives_back_is_reaped(
    scene: Scene, backend: Backend, late: str, cancelled: bool
) -> None:
    """Its lease is ended on another connection than its last calls come by."""
    await _ready(scene, {"r1": ONE})
    grant = (await scene.queue.submit("A", entry("q1"))).grant
    await scene.queue.retire_router("A")
    if cancelled:
        await scene.queue.cancel("B", "acme", "q1")
    if late == "refuse":
        await scene.queue.refuse("A", "q1", grant.attempt)
    else:
        await scene.queue.requeue("A", "q1", grant.attempt, Settlement(0))

    await scene.pass_time(12, routers=["B"], replicas=["r1"])

    assert (await scene.queue.observe()).waiting == (0, 0, 0)
    assert backend.leftovers() == set()


async def test_the_registry_version_follows_records_states_and_windows_only(scene: Scene) -> None:
    await _ready(scene, {"r1": WIDE}, routers=("A",))
    versions = [(await scene.beat_router("A")).registry_version]
    for changes in (
        {"stats": {"load": 0.5}},
        {"record": b"other"},
        {"record": b"other", "state": ReplicaState.DRAINING},
        {"record": b"other", "windows": ONE},
    ):
        await scene.beat_replica("r1", **changes)
        versions.append((await scene.beat_router("A")).registry_version)
    await scene.queue.retire_replica("r1")
    versions.append((await scene.beat_router("A")).registry_version)

    assert [b - a for a, b in itertools.pairwise(versions)] == [0, 1, 1, 1, 1]


async def test_the_registry_shows_what_replicas_report(scene: Scene) -> None:
    await _ready(scene, {"r1": WIDE}, routers=("A",))
    await scene.beat_replica("r1", record=b"\x00\xffsigned", stats={"load": 0.25})
    scene.clock.advance(0.25)
    await scene.queue.submit("A", entry("q1"))

    (record,) = (await scene.beat_router("A")).replicas

    assert record.record == b"\x00\xffsigned"
    assert record.stats == {"load": 0.25}
    assert record.windows == WIDE
    assert record.heartbeat_age_ms == 250
    assert (record.sequences, record.kv_tokens, record.prefill_tokens) == (1, 20, 10)
