"""A Redis that has no memory left refuses what adds, and takes what frees memory or keeps leases."""

from __future__ import annotations

import pytest

from cluster.errors import QueueUnavailableError
from cluster.queue.entries import Mark, QueueLimits, Settlement
from tests.cluster.queue.backends import WIDE, Backend, Scene, entry

pytestmark = pytest.mark.every_store("how refusals are worded")


async def test_a_full_redis_lets_go_of_what_it_holds(redis_backend: Backend) -> None:
    scene = Scene(redis_backend.queue(QueueLimits(result_ms=60_000, attach_grace_ms=1000)), redis_backend.clock)
    queue = scene.queue
    await scene.start({"r1": WIDE}, ("A", "B", "C"))
    kept = (await queue.submit("A", entry("kept", client_key="key"))).grant
    assert await queue.finish_key("A", "acme", "key", "kept", b"result")
    await queue.release("A", "kept", kept.attempt, Settlement(1))
    names = ("released", "requeued", "refused", "canceled")
    grants = {name: (await queue.submit("A", entry(name))).grant for name in names}
    await scene.beat_router("A", started=tuple((grant.request_id, grant.attempt) for grant in grants.values()))
    for name in ("withdrawn", "adopted"):
        await queue.submit("A", entry(name, client_key=f"key-{name}"))

    assert redis_backend.server is not None
    with redis_backend.server.full():
        with pytest.raises(QueueUnavailableError):
            await queue.submit("A", entry("more"))
        with pytest.raises(QueueUnavailableError):
            await queue.finish_key("A", "acme", "key-adopted", "adopted", b"result")
        await queue.withdraw("A", "withdrawn", None)
        assert await queue.adopt("B", "acme", "adopted")
        await queue.requeue("A", "requeued", grants["requeued"].attempt, Settlement(1))
        await queue.refuse("A", "refused", grants["refused"].attempt)
        await queue.cancel("A", "acme", "canceled")
        await queue.release("A", "released", grants["released"].attempt, Settlement(1))
        await queue.quarantine("A", Mark(b"content", "incident", 1000))
        # Leases go on, and results go when they are due.
        for _ in range(70):
            redis_backend.clock.advance(1)
            await scene.beat_replica("r1")
            reply = await scene.beat_router("B")
        assert reply.routers == ("B",)
        assert "results" not in redis_backend.sizes()
        await queue.retire_router("B")
        await scene.beat_replica("r1")
        assert redis_backend.leftovers() == set()
        await queue.retire_replica("r1")
        assert "replicas" not in redis_backend.sizes()

    assert (await queue.submit("A", entry("later"))).position == 0
