"""Idempotency keys: one execution, its result for a while, and never another request under the same key."""

from __future__ import annotations

import asyncio

import pytest

from cluster.errors import KeyReusedError, QuotaExceededError
from cluster.models import Windows
from cluster.queue.entries import QueueLimits, Quota, Settlement, Submitted
from tests.cluster.queue.backends import Backend, Scene, entry

WIDE = Windows(64, 10**6, 10**6)


@pytest.fixture
async def shared(scene: Scene) -> Scene:
    """A pool with room and two routers."""
    await scene.start({"r1": WIDE}, ("A", "B"))
    return scene


def keyed(name: str, digest: str = "d", **changes: object) -> object:
    return entry(name, client_key="key", digest=digest, **changes)


async def test_the_same_key_tells_whose_it_is(shared: Scene) -> None:
    assert (await shared.queue.submit("A", keyed("first"))).grant

    again = await shared.queue.submit("B", keyed("second"))

    assert again.grant is None
    assert (again.known.request_id, again.known.result) == ("first", None)
    # Nothing was submitted.
    assert await shared.queue.adopt("B", "acme", "second") is None


async def test_of_many_at_once_one_runs(shared: Scene) -> None:
    answers: list[Submitted] = await asyncio.gather(
        *(shared.queue.submit("AB"[i % 2], keyed(f"q{i}")) for i in range(20))
    )
    granted = [answer.grant.request_id for answer in answers if answer.grant]
    assert len(granted) == 1
    assert {answer.known.request_id for answer in answers if answer.known} == set(granted)


async def test_another_body_under_the_key_is_refused(shared: Scene) -> None:
    await shared.queue.submit("A", keyed("first"))
    with pytest.raises(KeyReusedError) as reused:
        await shared.queue.submit("B", keyed("second", digest="other"))
    assert reused.value.request_id == "first"


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("ab/p", "cd/p", True),
        ("ab/p", "p", True),
        ("p", "ab/p", True),
        ("ab", "ab/p", True),
        ("ab/p", "ab", True),
        ("ab/p", "ab/q", True),
        ("ab/p", "cd/q", False),
        ("ab/p", "q", False),
        ("p", "ab/q", False),
    ],
)
async def test_either_digest_tells_a_repeat(shared: Scene, first: str, second: str, same: bool) -> None:
    """The exact one is all that routers of earlier versions know; the plain one leaves defaults out."""
    await shared.queue.submit("A", keyed("first", first))

    if same:
        assert "first" == (await shared.queue.submit("B", keyed("second", second))).known.request_id
    else:
        with pytest.raises(KeyReusedError):
            await shared.queue.submit("B", keyed("second", second))


async def test_a_request_lives_until_its_last_choice_has_ended(shared: Scene) -> None:
    grants = [
        (await shared.queue.submit("A", keyed("first/0"))).grant,
        (await shared.queue.submit("A", entry("first/1"))).grant,
    ]
    for number, grant in enumerate(grants):
        assert (await shared.queue.submit("B", keyed("second/0"))).known.live
        await shared.queue.release("A", f"first/{number}", grant.attempt, Settlement(3))
    known = (await shared.queue.submit("B", keyed("second/0"))).known
    assert ("first", None, False) == (known.request_id, known.result, known.live)


async def test_a_key_is_kept_while_a_choice_runs_however_long(shared: Scene, backend: Backend) -> None:
    """The first choice, which opened the key, may end hours before the last."""
    first = (await shared.queue.submit("A", keyed("first/0"))).grant
    second = (await shared.queue.submit("A", entry("first/1"))).grant
    await shared.queue.release("A", "first/0", first.attempt, Settlement(3))
    running = {"r1": (("first/1", second.attempt),)}
    for _ in range(5):
        backend.clock.advance(400)
        await shared.pass_time(6, routers=["A", "B"], replicas=["r1"], running=running)
        known = (await shared.queue.submit("B", keyed("second/0"))).known
        assert (known.request_id, known.live) == ("first", True)
    await shared.queue.release("A", "first/1", second.attempt, Settlement(3))
    assert await shared.queue.finish_key("A", "acme", "key", "first", b"result")
    assert (await shared.queue.submit("B", keyed("second/0"))).known.result == b"result"

    backend.clock.advance(601)
    await shared.pass_time(6, routers=["A", "B"], replicas=["r1"])
    assert not {"keys", "key_due", "results"} & backend.sizes().keys()


@pytest.mark.parametrize("by", ["cancel", "withdraw"])
async def test_a_key_is_kept_when_its_first_choice_alone_goes(shared: Scene, backend: Backend, by: str) -> None:
    first = (await shared.queue.submit("A", keyed("first/0"))).grant
    second = (await shared.queue.submit("A", entry("first/1"))).grant
    if by == "cancel":
        assert await shared.queue.cancel("B", "acme", "first/0") == "first/0"
        await shared.queue.refuse("A", "first/0", first.attempt)
        await shared.queue.release("A", "first/0", first.attempt, Settlement(0))
    else:
        await shared.queue.withdraw("A", "first/0", None)
    running = {"r1": (("first/1", second.attempt),)}
    for _ in range(3):
        known = (await shared.queue.submit("B", keyed("second/0"))).known
        assert known is not None
        assert (known.request_id, known.result, known.live) == ("first", None, True)
        await shared.pass_time(6, routers=["A", "B"], replicas=["r1"], running=running)

    await shared.queue.release("A", "first/1", second.attempt, Settlement(3))
    assert await shared.queue.finish_key("A", "acme", "key", "first", b"")
    assert (await shared.queue.submit("B", keyed("second/0"))).grant


async def test_a_key_goes_with_the_last_choice_where_nobody_says_so(shared: Scene, backend: Backend) -> None:
    """Its router died: the others of its request go a moment after the first one."""
    for name in ("first/0", "first/1"):
        await shared.queue.submit("A", keyed(name) if name == "first/0" else entry(name))
    for name in ("first/0", "first/1"):
        await shared.queue.withdraw("A", name, None)
    await shared.pass_time(6, routers=["B"], replicas=["r1"])
    assert not {"keys", "key_due"} & backend.sizes().keys()


async def test_a_cancel_of_all_choices_that_wait_frees_their_key_at_once(shared: Scene) -> None:
    shared.replicas["r1"] = Windows(0, 10**6, 10**6)
    await shared.beat()
    for name in ("first/0", "first/1", "first/2"):
        await shared.queue.submit("A", keyed(name) if name == "first/0" else entry(name))
    assert await shared.queue.cancel("A", "acme", "first") == "first"
    assert (await shared.queue.submit("B", keyed("second/0"))).known is None


async def test_keys_belong_to_tenants(shared: Scene) -> None:
    await shared.queue.submit("A", keyed("first"))
    assert (await shared.queue.submit("B", keyed("second", tenant="beta"))).grant


async def test_a_result_is_returned_for_its_window(shared: Scene, backend: Backend) -> None:
    grant = (await shared.queue.submit("A", keyed("first"))).grant
    await shared.queue.release("A", "first", grant.attempt, Settlement(3))
    # Between end and result the key still belongs to the request.
    waiting = (await shared.queue.submit("B", keyed("second"))).known
    assert (None, False) == (waiting.result, waiting.live)
    assert await shared.queue.finish_key("A", "acme", "key", "first", b"result")

    assert (await shared.queue.submit("B", keyed("second"))).known.result == b"result"
    with pytest.raises(KeyReusedError):
        await shared.queue.submit("B", keyed("second", digest="other"))
    backend.clock.advance(599)
    assert (await shared.queue.submit("B", keyed("second"))).known.result == b"result"
    backend.clock.advance(2)
    await shared.pass_time(6, routers=["A", "B"], replicas=["r1"])
    assert (await shared.queue.submit("B", keyed("second"))).grant


async def test_a_result_may_come_before_the_release(shared: Scene) -> None:
    grant = (await shared.queue.submit("A", keyed("first"))).grant
    await shared.queue.finish_key("A", "acme", "key", "first", b"result")
    await shared.queue.release("A", "first", grant.attempt, Settlement(3))
    assert (await shared.queue.submit("B", keyed("second"))).known.result == b"result"


async def test_who_comes_back_to_its_own_request_finds_the_result_and_cannot_drop_it(shared: Scene) -> None:
    queue = shared.queue
    assert await queue.find_key("acme", "key", "first", "d") is None
    grant = (await queue.submit("A", keyed("first/0"))).grant
    assert await queue.find_key("acme", "key", "first/0", "d") is None
    other = await queue.find_key("acme", "key", "second", "d")
    assert ("first", None, True) == (other.request_id, other.result, other.live)
    await queue.release("A", "first/0", grant.attempt, Settlement(3))
    assert await queue.finish_key("A", "acme", "key", "first", b"result")

    assert await queue.finish_key("B", "acme", "key", "first", b"")

    own = await queue.find_key("acme", "key", "first/1", "d")
    assert ("first", b"result", False) == (own.request_id, own.result, own.live)
    assert (await queue.submit("B", keyed("first/0"))).known.result == b"result"
    with pytest.raises(KeyReusedError):
        await queue.find_key("acme", "key", "first", "other")


async def test_a_wait_for_a_result_is_known_for_one_lease(shared: Scene) -> None:
    queue = shared.queue
    await queue.submit("A", keyed("first/0"))
    assert not await queue.await_key("acme", "key", "first", note=False)
    assert not await queue.await_key("acme", "key", "another", note=True)
    assert await queue.await_key("acme", "key", "first", note=True)
    assert await queue.await_key("acme", "key", "first", note=False)
    # The key is as it was.
    assert (await queue.submit("B", keyed("second"))).known.request_id == "first"
    await shared.pass_time(5, routers=["A"], replicas=["r1"])
    assert not await queue.await_key("acme", "key", "first", note=False)


@pytest.mark.parametrize("end", ["cancel", "no result", "router gone"])
async def test_what_left_no_result_lets_the_key_be_used_again(shared: Scene, end: str) -> None:
    shared.replicas["r1"] = WIDE if end == "no result" else Windows(0, 10**6, 10**6)
    await shared.beat()
    answer = await shared.queue.submit("A", keyed("first"))
    if end == "cancel":
        await shared.queue.cancel("A", "acme", "first")
    elif end == "no result":
        await shared.queue.finish_key("A", "acme", "key", "first", b"")
        await shared.queue.release("A", "first", answer.grant.attempt, Settlement(0))
    else:
        await shared.pass_time(12, routers=["B"], replicas=["r1"])
    assert (await shared.queue.submit("B", keyed("second"))).known is None


async def test_a_stranger_cannot_finish_a_key(shared: Scene) -> None:
    await shared.queue.submit("A", keyed("first"))
    assert not await shared.queue.finish_key("B", "acme", "key", "second", b"forged")
    assert not await shared.queue.finish_key("B", "beta", "key", "first", b"forged")
    assert (await shared.queue.submit("B", keyed("second"))).known.result is None


async def test_choices_of_a_request_share_its_key(shared: Scene) -> None:
    """The key names the request; a cancel by key finds the choices that are still there."""
    first = (await shared.queue.submit("A", keyed("first/0"))).grant
    second = (await shared.queue.submit("A", entry("first/1"))).grant
    assert (await shared.queue.submit("B", keyed("second/0"))).known.request_id == "first"
    assert await shared.queue.cancel("B", "acme", "key", by_key=True) == "first"
    orders = (await shared.queue.collect("A")).orders
    assert {"first/0", "first/1"} == {order.request_id for order in orders}
    await shared.queue.release("A", "first/0", first.attempt, Settlement(1))
    assert await shared.queue.cancel("B", "acme", "key", by_key=True) == "first"
    await shared.queue.release("A", "first/1", second.attempt, Settlement(1))


async def test_the_oldest_results_make_room(backend: Backend) -> None:
    scene = Scene(backend.queue(QueueLimits(max_result_bytes=250)), backend.clock)
    await scene.start({"r1": WIDE}, ("A", "B"))
    for i in range(5):
        grant = (await scene.queue.submit("A", entry(f"q{i}", client_key=f"k{i}"))).grant
        await scene.queue.release("A", f"q{i}", grant.attempt, Settlement(1))
        await scene.queue.finish_key("A", "acme", f"k{i}", f"q{i}", b"x" * 100)
        backend.clock.advance(0.5)
        await scene.beat()

    kept = [(await scene.queue.submit("B", entry(f"again{i}", client_key=f"k{i}"))).known for i in range(5)]
    assert [known is not None for known in kept] == [False, False, False, True, True]


async def test_a_result_that_goes_with_a_request_that_is_then_refused_leaves_its_room(backend: Backend) -> None:
    """Who comes back to a request on its way out may be refused; what went by then is gone all the same."""
    scene = Scene(backend.queue(QueueLimits(max_result_bytes=250)), backend.clock)
    await scene.start({"r1": Windows(0, 10**6, 10**6)}, ("A", "B"))
    await scene.queue.submit("A", keyed("first"))
    assert await scene.queue.cancel("B", "acme", "first") == "first"
    assert await scene.queue.finish_key("A", "acme", "key", "first", b"x" * 200)
    with pytest.raises(QuotaExceededError):
        await scene.queue.submit("B", keyed("first", quota=Quota(concurrency=1), choices=2))

    scene.replicas["r1"] = WIDE
    await scene.beat()
    grant = (await scene.queue.submit("A", keyed("second"))).grant
    await scene.queue.release("A", "second", grant.attempt, Settlement(1))
    assert await scene.queue.finish_key("A", "acme", "key", "second", b"y" * 200)
    assert (await scene.queue.submit("B", keyed("third"))).known.result == b"y" * 200


async def test_no_room_is_made_at_the_cost_of_what_still_runs(backend: Backend) -> None:
    scene = Scene(backend.queue(QueueLimits(max_result_bytes=250)), backend.clock)
    await scene.start({"r1": WIDE}, ("A", "B"))
    grants = [
        (await scene.queue.submit("A", keyed("first/0"))).grant,
        (await scene.queue.submit("A", entry("first/1"))).grant,
    ]
    await scene.queue.release("A", "first/0", grants[0].attempt, Settlement(1))
    for i in range(5):
        backend.clock.advance(0.1)
        grant = (await scene.queue.submit("A", entry(f"q{i}", client_key=f"k{i}"))).grant
        await scene.queue.release("A", f"q{i}", grant.attempt, Settlement(1))
        await scene.queue.finish_key("A", "acme", f"k{i}", f"q{i}", b"x" * 100)

    assert (await scene.queue.submit("B", keyed("second/0"))).known.request_id == "first"
    await scene.queue.release("A", "first/1", grants[1].attempt, Settlement(1))
    assert await scene.queue.finish_key("A", "acme", "key", "first", b"result")
    kept = [(await scene.queue.submit("B", entry(f"again{i}", client_key=f"k{i}"))).known for i in range(5)]
    assert [known is not None for known in kept] == [False, False, False, True, True]


async def test_a_result_that_is_larger_than_all_room_pushes_nobody_out(backend: Backend) -> None:
    scene = Scene(backend.queue(QueueLimits(max_result_bytes=250)), backend.clock)
    await scene.start({"r1": WIDE}, ("A", "B"))
    for name, size in (("small", 100), ("large", 251)):
        backend.clock.advance(0.1)
        grant = (await scene.queue.submit("A", entry(name, client_key=f"of-{name}"))).grant
        await scene.queue.release("A", name, grant.attempt, Settlement(1))
        assert await scene.queue.finish_key("A", "acme", f"of-{name}", name, b"x" * size)

    assert (await scene.queue.submit("B", entry("again", client_key="of-small"))).known.result == b"x" * 100
    # Without a result it runs again.
    assert (await scene.queue.submit("B", entry("anew", client_key="of-large"))).grant
