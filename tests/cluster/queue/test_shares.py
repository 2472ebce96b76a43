"""Tenants share by the tokens they are served, whatever they send; two routers, one queue."""

from __future__ import annotations

import random

import pytest

from cluster.models import Windows
from cluster.queue.entries import Quota, Settlement
from cluster.settings.queue import LEAST_WEIGHT
from tests.cluster.queue.backends import Backend, Scene, entry
from tests.cluster.queue.shop import Shop, service_s
from tests.cluster.queue.test_fairness import jain

SLOTS = 8
WINDOWS = Windows(sequences=SLOTS, kv_tokens=10**9, prefill_tokens=10**9)

# Every tenant keeps a standing line, so that shares are the queue's doing.
LOADS = {
    "ten times the requests": {"loud": (10, 100, 50, 50), "plain": (1, 100, 50, 50)},
    "ten times the prompt": {"loud": (1, 1000, 50, 50), "plain": (1, 100, 50, 50)},
    "declares 4096, uses 100": {"loud": (1, 100, 100, 4096), "plain": (1, 100, 100, 100)},
}
"""Tenant to (requests per turn, prompt tokens, tokens used, tokens declared)."""


@pytest.mark.parametrize("weight", [LEAST_WEIGHT, 1000.0])
async def test_any_weight_that_is_taken_serves_the_longest_prompt(
    scene: Scene, backend: Backend, weight: float
) -> None:
    await scene.start({"r1": Windows(1, 10**9, 10**9)}, ("A", "B"))
    long = {"weight": weight, "prompt_tokens": 10**7, "expected_tokens": 10**7, "quota": Quota(concurrency=5)}
    for i in range(3):
        await scene.queue.submit("A", entry(f"q{i}", **long))
    for _ in range(3):
        [grant] = (await scene.queue.collect("A")).grants
        await scene.queue.release("A", grant.request_id, grant.attempt, Settlement(5))
    assert backend.leftovers() == set()


@pytest.mark.slow
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS.keys())
async def test_tokens_served_are_equal_by_jains_index(scene: Scene, load: dict[str, tuple[int, int, int, int]]) -> None:
    await scene.start({"r1": WINDOWS}, ("A", "B"))
    shop = Shop(scene)
    for turn in range(100):
        for tenant, (count, prompt, used, declared) in load.items():
            for _ in range(count):
                shop.job(tenant, turn * 0.01, prompt, used, declared)

    # With half of the slots each they would need twice as long: at this moment both still wait.
    least = min(sum(service_s(job) for job in shop.jobs.values() if job.entry.tenant == tenant) for tenant in load)
    await shop.run(1.2 * least / SLOTS)

    waiting = {job.entry.tenant for job in shop.jobs.values() if job.started < 0}
    assert waiting == {"loud", "plain"}
    served = shop.served()
    # What runs at the end is not in yet: count it as far as it got.
    for job in shop.jobs.values():
        if job.started >= 0 > job.ended:
            part = (shop.now - job.started) / service_s(job)
            served[job.entry.tenant] = served.get(job.entry.tenant, 0) + (job.entry.prompt_tokens + job.used) * part
    assert jain([served["loud"], served["plain"]]) >= 0.95


async def test_a_light_tenants_wait_stays_near_what_it_has_alone(scene: Scene) -> None:
    """p99 of its wait is under what it waits alone plus five times the mean service time over the slots."""
    await scene.start({"r1": WINDOWS}, ("A", "B"))
    rnd = random.Random(7)
    shop = Shop(scene)
    for i in range(600):
        shop.job("heavy", i * 0.02, rnd.randrange(50, 400), rnd.randrange(20, 80), 4096)
    light = [shop.job("light", 1.0 + i * 0.7, 100, 30) for i in range(60)]

    await shop.run(60.0)

    assert all(job.ended > 0 for job in light)
    # Alone there is always a free slot: a wait of 0.
    ended = [job for job in shop.jobs.values() if job.ended > 0]
    mean_service = sum(service_s(job) for job in ended) / len(ended)
    waits = shop.waits("light")
    assert waits[int(0.99 * len(waits))] < 5 * mean_service / SLOTS
    heavy_waits = shop.waits("heavy")
    assert heavy_waits[len(heavy_waits) // 2] > 5 * mean_service / SLOTS
