"""Who gets a slot, where, and who does not."""

from __future__ import annotations

import pytest

from cluster.errors import QueueFullError
from cluster.models import Windows
from cluster.queue.entries import Grant, QueueLimits, Settlement
from penstock.models import ReplicaState, RequestClass
from tests.cluster.queue.backends import WIDE, Backend, Scene, entry

ONE = Windows(sequences=1, kv_tokens=1000, prefill_tokens=1000)


async def test_a_free_replica_grants_at_once(scene: Scene) -> None:
    await scene.start({"r1": WIDE})

    submitted = await scene.queue.submit("A", entry("q1"))

    assert submitted.grant == Grant("q1", "base-q1.1", "r1")
    assert submitted.position == 0


async def test_the_same_request_again_answers_as_the_first_time(scene: Scene) -> None:
    await scene.start({"r1": ONE})
    first = await scene.queue.submit("A", entry("q1"))
    waiting = await scene.queue.submit("A", entry("q2"))

    assert await scene.queue.submit("A", entry("q1")) == first
    assert await scene.queue.submit("A", entry("q2")) == waiting
    assert (await scene.beat_router("A")).waiting == (0, 1, 0)


async def test_one_tenants_requests_start_in_order_of_arrival(scene: Scene) -> None:
    await scene.start({"r1": ONE})
    grant = (await scene.queue.submit("A", entry("q0"))).grant
    positions = [(await scene.queue.submit("A", entry(f"q{i}"))).position for i in range(1, 5)]

    order = []
    for _ in range(4):
        mail = await scene.queue.release("A", grant.request_id, grant.attempt, Settlement(10))
        (grant,) = mail.grants
        order.append(grant.request_id)

    assert positions == [0, 1, 2, 3]
    assert order == ["q1", "q2", "q3", "q4"]


async def test_more_urgent_classes_go_first(scene: Scene) -> None:
    await scene.start({"r1": ONE})
    grant = (await scene.queue.submit("A", entry("q0"))).grant
    await scene.queue.submit("A", entry("batch", request_class=RequestClass.BATCH))
    await scene.queue.submit("A", entry("chat", request_class=RequestClass.INTERACTIVE))

    mail = await scene.queue.release("A", "q0", grant.attempt, Settlement(10))

    assert [grant.request_id for grant in mail.grants] == ["chat"]


async def test_the_least_loaded_replica_is_taken(scene: Scene) -> None:
    await scene.start({"r1": Windows(2, 10_000, 10_000), "r2": Windows(8, 10_000, 10_000)})

    taken = [(await scene.queue.submit("A", entry(f"q{i}"))).grant.replica_id for i in range(10)]

    assert taken[:4] == ["r1", "r2", "r2", "r2"]
    assert sorted(taken) == ["r1"] * 2 + ["r2"] * 8


async def test_a_preferred_replica_with_room_wins_over_a_less_loaded_one(scene: Scene) -> None:
    await scene.start({"r1": WIDE, "r2": WIDE})
    await scene.queue.submit("A", entry("q0", preferred_replicas=("r2",)))

    again = await scene.queue.submit("A", entry("q1", preferred_replicas=("gone", "r2", "r1")))

    assert again.grant.replica_id == "r2"


async def test_two_routers_share_a_replica_without_passing_its_windows(scene: Scene) -> None:
    await scene.start({"r1": Windows(3, 1000, 1000)}, routers=("A", "B"))

    granted = [
        bool((await scene.queue.submit(router, entry(f"{router}{i}"))).grant) for i in range(3) for router in "AB"
    ]

    assert granted == [True, True, True, False, False, False]


async def test_a_release_by_one_router_grants_anothers_request_by_mail(scene: Scene) -> None:
    await scene.start({"r1": ONE}, routers=("A", "B"))
    first = (await scene.queue.submit("A", entry("a"))).grant
    await scene.queue.submit("B", entry("b"))

    answer = await scene.queue.release("A", "a", first.attempt, Settlement(10))

    assert answer.grants == ()
    assert [grant.request_id for grant in (await scene.queue.collect("B")).grants] == ["b"]


@pytest.mark.parametrize(
    ("windows", "fits"),
    [
        (Windows(10, 45, 1000), 2),  # 20 KV tokens each
        (Windows(10, 1000, 35), 3),  # 10 prompt tokens each
        (Windows(4, 1000, 1000), 4),
        (Windows(0, 1000, 1000), 0),
    ],
)
async def test_each_window_bounds_a_replica(scene: Scene, windows: Windows, fits: int) -> None:
    await scene.start({"r1": windows})

    granted = [bool((await scene.queue.submit("A", entry(f"q{i}"))).grant) for i in range(6)]

    assert granted == [True] * fits + [False] * (6 - fits)


async def test_a_prefill_larger_than_the_window_starts_when_nothing_else_is_prefilling(scene: Scene) -> None:
    await scene.start({"r1": Windows(4, 10_000, 100)})
    small = (await scene.queue.submit("A", entry("small"))).grant
    big = await scene.queue.submit("A", entry("big", prompt_tokens=500))
    assert big.grant is None

    await scene.beat_replica("r1", running=(("small", small.attempt),), prefilled=("small",))

    assert [grant.request_id for grant in (await scene.queue.collect("A")).grants] == ["big"]
    assert (await scene.queue.submit("A", entry("next"))).grant is None


async def test_reported_kv_use_corrects_the_estimate_both_ways(scene: Scene) -> None:
    await scene.start({"r1": Windows(10, 100, 1000)})
    grant = (await scene.queue.submit("A", entry("q1", kv_tokens=80))).grant
    running = (("q1", grant.attempt),)
    assert (await scene.queue.submit("A", entry("q2", kv_tokens=50))).grant is None

    await scene.beat_replica("r1", running=running, kv_tokens=30)
    assert [grant.request_id for grant in (await scene.queue.collect("A")).grants] == ["q1", "q2"][1:]

    await scene.beat_replica("r1", running=running, kv_tokens=95)
    assert (await scene.queue.submit("A", entry("q3", kv_tokens=10))).grant is None


async def test_work_that_only_the_replica_knows_of_counts_against_its_window(scene: Scene) -> None:
    await scene.start({"r1": Windows(2, 1000, 1000)})

    await scene.beat_replica("r1", running=(("ghost", "ghost.1"), ("other", "other.7")))

    assert (await scene.queue.submit("A", entry("q1"))).grant is None
    (record,) = (await scene.beat_router("A")).replicas
    assert record.sequences == 2


@pytest.mark.parametrize("state", [ReplicaState.STARTING, ReplicaState.DRAINING])
async def test_only_a_ready_replica_is_granted(scene: Scene, state: ReplicaState) -> None:
    await scene.start({"r1": WIDE})
    await scene.beat_replica("r1", state=state)
    assert (await scene.queue.submit("A", entry("q1"))).grant is None

    await scene.beat_replica("r1")

    assert len((await scene.queue.collect("A")).grants) == 1


async def test_a_router_is_granted_only_replicas_that_it_reaches(scene: Scene) -> None:
    await scene.start({"r1": WIDE, "r2": WIDE}, routers=("A", "B"))
    await scene.beat_router("A", connected=())
    assert (await scene.queue.submit("A", entry("a"))).grant is None
    assert (await scene.queue.submit("B", entry("b"))).grant is not None

    reply = await scene.beat_router("A", connected=("r2",))

    assert [(grant.request_id, grant.replica_id) for grant in reply.mail.grants] == [("a", "r2")]


async def test_a_new_replica_and_a_wider_window_wake_the_queue(scene: Scene) -> None:
    await scene.start({"r1": ONE})
    for i in range(4):
        await scene.queue.submit("A", entry(f"q{i}"))

    await scene.beat_replica("r1", windows=Windows(2, 1000, 1000))
    assert len((await scene.queue.collect("A")).grants) == 2

    scene.replicas["r2"] = ONE
    await scene.beat()
    assert len((await scene.queue.collect("A")).grants) == 3


async def test_a_refused_grant_goes_to_the_head_and_closes_the_replica_until_its_heartbeat(scene: Scene) -> None:
    await scene.start({"r1": Windows(2, 1000, 1000)})
    first = (await scene.queue.submit("A", entry("q1"))).grant
    await scene.queue.submit("A", entry("q2"))
    await scene.queue.submit("A", entry("q3"))

    mail = await scene.queue.refuse("A", "q1", first.attempt)

    assert mail.grants == ()
    assert (await scene.beat_router("A", positions_of=("q1", "q2", "q3"))).positions == {"q1": 0, "q3": 1}
    await scene.beat_replica("r1")
    (grant,) = [grant for grant in (await scene.queue.collect("A")).grants if grant.request_id == "q1"]
    assert grant.attempt == "base-q1.2"


async def test_a_refused_grant_is_granted_elsewhere_at_once(scene: Scene) -> None:
    await scene.start({"r1": WIDE, "r2": WIDE})
    first = (await scene.queue.submit("A", entry("q1"))).grant

    mail = await scene.queue.refuse("A", "q1", first.attempt)

    assert [(grant.attempt, grant.replica_id) for grant in mail.grants] == [("base-q1.2", "r2")]


async def test_a_stale_attempt_changes_nothing(scene: Scene) -> None:
    await scene.start({"r1": ONE, "r2": ONE}, routers=("A", "B"))
    old = (await scene.queue.submit("A", entry("q1"))).grant
    (new,) = (await scene.queue.refuse("A", "q1", old.attempt)).grants

    for attempt in (old.attempt, "", "base-q1.3"):
        await scene.queue.release("A", "q1", attempt, Settlement(1))
        await scene.queue.refuse("A", "q1", attempt)
    await scene.queue.release("B", "q1", new.attempt, Settlement(1))

    assert (await scene.queue.collect("A")).grants == (new,)


async def test_a_resumed_request_goes_to_the_head_of_its_tenants_list(scene: Scene) -> None:
    await scene.start({"r1": ONE})
    running = (await scene.queue.submit("A", entry("q0"))).grant
    await scene.queue.submit("A", entry("q1"))
    resumed = await scene.queue.submit("A", entry("q2", resume=True))

    mail = await scene.queue.release("A", "q0", running.attempt, Settlement(1))

    assert resumed.position == 0
    assert [grant.request_id for grant in mail.grants] == ["q2"]


async def test_a_full_waiting_room_refuses_new_work_but_not_resumed(backend: Backend) -> None:
    scene = Scene(backend.queue(QueueLimits(max_waiting=2)), backend.clock)
    await scene.start({"r1": ONE})
    for i in range(3):
        await scene.queue.submit("A", entry(f"q{i}"))

    with pytest.raises(QueueFullError) as raised:
        await scene.queue.submit("A", entry("q3"))

    assert raised.value.limit == 2
    assert raised.value.retry_after_s > 0
    assert (await scene.queue.submit("A", entry("q4", resume=True))).position == 0


async def test_when_all_is_released_nothing_is_left(scene: Scene, backend: Backend) -> None:
    await scene.start({"r1": Windows(2, 100, 30)}, routers=("A", "B"))
    grants = {}
    for i in range(30):
        router = "AB"[i % 2]
        name = f"q{i}"
        changes = {"tenant": f"t{i % 7}", "client_key": f"k{i}", "preferred_replicas": ("r1",), "start_within_ms": 9000}
        answer = await scene.queue.submit(router, entry(name, request_class=RequestClass(i % 3), **changes))
        if answer.grant:
            grants[name] = (router, answer.grant)
    done = 0
    while done < 30:
        for router in "AB":
            grants |= {g.request_id: (router, g) for g in (await scene.queue.collect(router)).grants}
        name, (router, grant) = grants.popitem()
        done += 1
        mail = await scene.queue.release(router, name, grant.attempt, Settlement(5))
        grants |= {g.request_id: (router, g) for g in mail.grants}
    for router in "AB":
        await scene.queue.collect(router)

    assert backend.leftovers() == set()


@pytest.mark.parametrize(
    "changes",
    [
        {"tenant": ""},
        {"tenant": "a\0b"},
        {"weight": 0.0},
        {"weight": 0.0009},
        {"weight": float("inf")},
        {"kv_tokens": -1},
        {"attempt_base": "a b"},
        {"preferred_replicas": ("r\0",)},
    ],
)
async def test_entries_that_cannot_be_stored_are_refused(scene: Scene, changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        await scene.queue.submit("A", entry("q1", **changes))


async def test_one_call_grants_a_bounded_number_and_heartbeats_grant_the_rest(scene: Scene) -> None:
    """So that no call blocks the store for long: 32 per replica and 128 in all."""
    replicas = {f"r{i}": Windows(50, 10_000, 10_000) for i in range(6)}
    await scene.start(replicas)
    await scene.beat_router("A", connected=())
    for i in range(300):
        await scene.queue.submit("A", entry(f"q{i}"))

    reply = await scene.beat_router("A")

    assert reply.running == 128
    for name in replicas:
        await scene.beat_replica(name)
    assert (await scene.beat_router("A")).running == 300


async def test_who_has_room_is_asked_again_after_a_preferred_replica_served_another(scene: Scene) -> None:
    """The slot that went to another there makes it the fuller one: the next to be looked at is the other replica."""
    many = Windows(sequences=64, kv_tokens=100_000, prefill_tokens=100_000)
    await scene.start({"r1": Windows(100, 100_000, 100_000), "r2": many}, routers=("A", "B"))
    await scene.beat_router("B", connected=("r2",))
    await scene.beat_replica("r1", running=tuple((f"x{i}", f"x{i}.1") for i in range(51)))
    await scene.beat_replica("r2", state=ReplicaState.DRAINING)
    # So many that those left stand in front of one that prefers it, beyond what is looked at.
    for i in range(60):
        await scene.queue.submit("B", entry(f"q{i}"))
    # It takes 32 of them in one call: 32 of its 64 slots are held, and 51 of 100 of the other's.
    await scene.beat_replica("r2")

    submitted = await scene.queue.submit("A", entry("mine", preferred_replicas=("r2",)))

    assert submitted.grant == Grant("mine", "base-mine.1", "r1")
    assert (await scene.queue.observe()).running == 32 + 1 + 1
