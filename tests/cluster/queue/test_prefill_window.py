"""Long prompts and small ones side by side: no prefill queue inside an engine, and nobody starves."""

from __future__ import annotations

from collections import Counter

from cluster.models import Windows
from cluster.queue.entries import Grant, QueueLimits, Settlement
from tests.cluster.queue.backends import Backend, Scene, entry

WINDOW = 8_192
ROUTERS = ("A", "B")
"""Requests come through both in turn."""


class Engines:
    """Runs what is granted: each turn every replica finishes one prefill and one whole request."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.prompts: dict[str, int] = {}
        self.owners: dict[str, str] = {}
        self.order: list[str] = []
        """Request ids as they were granted."""
        self.prefilling: dict[str, list[str]] = {name: [] for name in scene.replicas}
        self.decoding: dict[str, list[str]] = {name: [] for name in scene.replicas}
        self.attempts: dict[str, str] = {}

    async def submit(self, name: str, prompt: int, **changes: object) -> None:
        self.owners[name] = ROUTERS[len(self.prompts) % 2]
        self.prompts[name] = prompt
        fields = {"prompt_tokens": prompt, "kv_tokens": prompt + 10, **changes}
        answer = await self.scene.queue.submit(self.owners[name], entry(name, **fields))
        self.take([answer.grant] if answer.grant else [])

    def take(self, grants: list[Grant] | tuple[Grant, ...]) -> None:
        for grant in grants:
            if self.attempts.get(grant.request_id) != grant.attempt:
                self.attempts[grant.request_id] = grant.attempt
                self.order.append(grant.request_id)
                self.prefilling[grant.replica_id].append(grant.request_id)

    def outstanding(self, replica: str) -> int:
        return sum(self.prompts[name] for name in self.prefilling[replica])

    async def turn(self) -> None:
        for replica in self.scene.replicas:
            prefilled = tuple(self.prefilling[replica][:1])
            self.prefilling[replica] = self.prefilling[replica][1:]
            self.decoding[replica].extend(prefilled)
            running = tuple((name, self.attempts[name]) for name in self.prefilling[replica] + self.decoding[replica])
            await self.scene.beat_replica(replica, running, prefilled=prefilled)
            for router in ROUTERS:
                self.take((await self.scene.queue.collect(router)).grants)
            if self.decoding[replica]:
                name = self.decoding[replica].pop(0)
                mail = await self.scene.queue.release(self.owners[name], name, self.attempts[name], Settlement(10))
                self.take(mail.grants)
        for router in ROUTERS:
            started = tuple((name, tried) for name, tried in self.attempts.items() if self.owners[name] == router)
            await self.scene.beat_router(router, started)
        self.scene.clock.advance(0.1)


async def test_a_burst_of_long_prompts_stays_in_the_queue_and_not_inside_an_engine(scene: Scene) -> None:
    """Slots and KV are plenty; only the third window holds the burst where it can still be ordered."""
    await scene.start({name: Windows(64, 10**9, WINDOW) for name in ("r1", "r2")}, ROUTERS)
    engines = Engines(scene)
    for number in range(30):
        await engines.submit(f"long-{number}", 6_000 if number % 3 else 3_000)
        assert all(engines.outstanding(name) <= WINDOW for name in scene.replicas)

    turns = 0
    while len(engines.order) < 30:
        await engines.turn()
        assert all(engines.outstanding(name) <= WINDOW for name in scene.replicas)
        turns += 1
        assert turns < 60

    assert Counter(engines.order) == Counter(f"long-{number}" for number in range(30))


async def test_a_prompt_larger_than_the_window_is_not_starved_by_small_ones(backend: Backend) -> None:
    """It needs a replica without any other prefill. Small ones pass it `lookahead` times; then a replica is kept."""
    limits = QueueLimits(lookahead=16)
    scene = Scene(backend.queue(limits), backend.clock)
    await scene.start({"r1": Windows(64, 10**9, WINDOW), "r2": Windows(64, 10**9, WINDOW)}, ROUTERS)
    engines = Engines(scene)
    small = 0

    async def flood() -> None:
        nonlocal small
        for _ in range(8):
            await engines.submit(f"small-{small}", 2_000)
            small += 1

    for _ in range(4):
        await flood()
    ahead = small
    await engines.submit("large", 30_000)
    turns = 0
    while "large" not in engines.order:
        await flood()
        await engines.turn()
        turns += 1
        assert turns < 60

    passed = [name for name in engines.order[: engines.order.index("large")] if int(name.split("-")[1]) >= ahead]
    # While one replica is kept for it the other one goes on, for as long as the kept one's prefills take.
    kept_for = WINDOW // 2_000
    assert len(passed) <= limits.lookahead + kept_for
    assert len(passed) > 0


async def test_preferences_pass_nobody_over_more_often_than_the_lookahead(scene: Scene) -> None:
    """Everybody but one wants the same replica; the one that nobody wants to run is granted all the same."""
    await scene.start({"r1": Windows(4, 10**9, 10**9)}, ROUTERS)
    engines = Engines(scene)
    for number in range(4):
        await engines.submit(f"first-{number}", 10)
    await engines.submit("elsewhere", 10, preferred_replicas=("r9",))
    for number in range(60):
        await engines.submit(f"warm-{number}", 10, preferred_replicas=("r1",))

    for _ in range(40):
        await engines.turn()

    assert engines.order.index("elsewhere") - 4 == QueueLimits().lookahead
