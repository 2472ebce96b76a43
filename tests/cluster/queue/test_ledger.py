"""The ledger adds up what was used, once per settlement."""

from __future__ import annotations

import pytest

from cluster.models import Windows
from cluster.queue import QueueLimits, Settlement, UsageLine
from tests.cluster.queue.backends import Backend, Scene, entry

WIDE = Windows(64, 10**6, 10**6)
DAYS = (0, 10**6)


async def run_one(scene: Scene, name: str, used: Settlement, tenant: str = "acme", router: str = "A") -> None:
    grant = (await scene.queue.submit(router, entry(name, tenant=tenant))).grant
    await scene.queue.release(router, name, grant.attempt, used)
    # Saying it again changes nothing.
    await scene.queue.release(router, name, grant.attempt, used)


async def test_lines_add_up_by_tenant_and_day(scene: Scene, backend: Backend) -> None:
    await scene.start({"r1": WIDE}, ("A", "B"))
    today = scene.clock.wall_ms() // 86_400_000
    for i in range(4):
        await run_one(scene, f"q{i}", Settlement(10, 1, 7, 3, 0.5, 0.25), router="AB"[i % 2])
    await run_one(scene, "other", Settlement(1, 1, 2, 0, 0.125, 0.0), tenant="beta")
    backend.clock.advance(86_400)
    await scene.pass_time(6, routers=["A", "B"], replicas=["r1"])
    await run_one(scene, "late", Settlement(5, 1, 1, 0, 0.0, 1.0))

    lines = await scene.queue.usage("", *DAYS)

    assert lines == (
        UsageLine(today, "acme", 4, 28, 40, 12, 2.0, 1.0),
        UsageLine(today, "beta", 1, 2, 1, 0, 0.125, 0.0),
        UsageLine(today + 1, "acme", 1, 1, 5, 0, 0.0, 1.0),
    )
    assert await scene.queue.usage("beta", *DAYS) == lines[1:2]
    assert await scene.queue.usage("acme", today + 1, today + 1) == lines[2:]
    assert await scene.queue.usage("", *DAYS, limit=2) == lines[:2]


async def test_an_attempt_that_gave_way_counts_its_time_and_the_end_its_tokens(scene: Scene) -> None:
    await scene.start({"r1": WIDE}, ("A", "B"))
    first = (await scene.queue.submit("A", entry("q1"))).grant
    mail = await scene.queue.requeue("A", "q1", first.attempt, Settlement(4, gpu_seconds=0.5, cost=0.25))
    await scene.queue.release("A", "q1", mail.grants[0].attempt, Settlement(10, 1, 7, 0, 0.25, 0.5))

    [line] = await scene.queue.usage("acme", *DAYS)

    assert (line.requests, line.prompt_tokens, line.output_tokens) == (1, 7, 10)
    assert (line.gpu_seconds, line.cost) == (0.75, 0.75)


@pytest.mark.parametrize(("days", "kept"), [(0, 0), (2, 2), (30, 3)])
async def test_old_lines_go(backend: Backend, days: int, kept: int) -> None:
    scene = Scene(backend.queue(QueueLimits(ledger_days=days)), backend.clock)
    await scene.start({"r1": WIDE}, ("A", "B"))
    for i in range(3):
        await run_one(scene, f"q{i}", Settlement(1, 1, 1))
        backend.clock.advance(86_400)
        await scene.pass_time(6, routers=["A", "B"], replicas=["r1"])

    assert len(await scene.queue.usage("", *DAYS)) == kept
