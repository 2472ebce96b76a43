"""What a class below its reserved share may have to come."""

from __future__ import annotations

from cluster.models import Windows
from cluster.queue.entries import QueueLimits, Settlement
from penstock.models import RequestClass
from tests.cluster.queue.backends import Backend, Scene, entry

ONE = Windows(sequences=1, kv_tokens=10**9, prefill_tokens=10**9)
INTERACTIVE, STANDARD, BATCH = RequestClass
LIMITS = QueueLimits(class_shares=(0.0, 0.0, 0.5))
COST = 2000


class Counter:
    """Serves one after the other, with a line of every class that is never empty."""

    def __init__(self, scene: Scene, backend: Backend) -> None:
        self._scene = scene
        self._backend = backend
        self._made = 0
        self._current = ("", "")

    async def open(self, *classes: RequestClass) -> None:
        """Fill the slot and the line."""
        for request_class in classes:
            for _ in range(3):
                await self.arrive(request_class)

    async def arrive(self, request_class: RequestClass, router: str = "A") -> None:
        """Let one more wait."""
        self._made += 1
        name = f"{int(request_class)}-{self._made}"
        cost = {"prompt_tokens": COST // 2, "expected_tokens": COST // 2}
        new = entry(name, tenant=request_class.name, request_class=request_class, **cost)
        granted = (await self._scene.queue.submit(router, new)).grant
        if granted:
            self._current = granted.request_id, granted.attempt

    async def serve(self, count: int) -> str:
        """End so many; returns whose turn it was each time, a class number each."""
        turns = ""
        for _ in range(count):
            (grant,) = (await self._scene.queue.release("A", *self._current, Settlement(COST // 2))).grants
            self._current = grant.request_id, grant.attempt
            turns += grant.request_id[0]
            await self.arrive(RequestClass(int(turns[-1])))
        return turns

    def relieve(self, relief: str) -> None:
        """Give a relief for ten minutes, as the autoscaler's store does."""
        until = self._backend.clock.wall_ms() + 600_000
        self._backend.relieve(relief, until)


async def test_batch_that_gave_way_is_owed_nothing_afterwards(backend: Backend) -> None:
    scene = Scene(backend.queue(LIMITS), backend.clock)
    await scene.start({"r1": ONE})
    counter = Counter(scene, backend)
    await counter.open(INTERACTIVE, STANDARD, BATCH)
    before = await counter.serve(20)

    counter.relieve("preempt_batch")
    during = await counter.serve(100)
    counter.relieve("none")
    after = await counter.serve(20)

    assert before.count("2") == 10
    assert during == "0" * 100
    assert after.count("2") == 10


async def test_batch_that_could_not_run_does_not_shut_out_others_for_as_long(backend: Backend) -> None:
    """Here its router reaches no replica for a while."""
    scene = Scene(backend.queue(LIMITS), backend.clock)
    await scene.start({"r1": ONE}, ("A", "B"))
    counter = Counter(scene, backend)
    await counter.open(INTERACTIVE)
    await scene.beat_router("B", connected=())
    for _ in range(3):
        await counter.arrive(BATCH, "B")
    assert await counter.serve(200) == "0" * 200

    # Sixteen grants, and as its share is a half, each turn makes up for half of one.
    await counter.open(BATCH)
    await scene.beat_router("B", connected=())
    after = await counter.serve(60)

    assert after.startswith("2" * 30)
    assert after.index("0") <= 34
    assert after[34:].count("2") in (12, 13, 14)
