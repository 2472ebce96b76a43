"""What a tenant may use: exact over all routers, on pool time."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from cluster.errors import QueueFullError, QuotaExceededError
from cluster.models import Windows
from cluster.queue.entries import Quota, Settlement
from tests.cluster.queue.backends import Backend, Scene, entry

WIDE = Windows(sequences=64, kv_tokens=10**9, prefill_tokens=10**9)
TIGHT = Windows(sequences=0, kv_tokens=10**9, prefill_tokens=10**9)


async def start(scene: Scene, windows: Windows = WIDE) -> None:
    await scene.start({"r1": windows}, ("A", "B"))


@pytest.mark.slow
async def test_strict_tokens_never_pass_the_bucket_and_its_rate(scene: Scene) -> None:
    """For any two moments, what is granted between them is at most C + r x T; two routers, one of which is reaped."""
    await start(scene)
    rnd = random.Random(11)
    limit = 6_000
    quota = Quota(tokens_per_minute=limit, strict=True)
    granted: list[tuple[float, int]] = []
    refused = 0
    for i in range(300):
        tokens = rnd.randrange(1, 400)
        # Halfway B dies with what it holds; its requests are reaped, and what they took stays taken.
        router = "A" if i > 150 else rnd.choice(("A", "B"))
        new = entry(f"q{i}", prompt_tokens=tokens // 2, max_tokens=tokens - tokens // 2, quota=quota)
        try:
            answer = await scene.queue.submit(router, new)
        except QuotaExceededError:
            refused += 1
        else:
            granted.append((scene.clock.monotonic(), tokens))
            if answer.grant and rnd.random() < 0.5:
                await scene.queue.release(router, f"q{i}", answer.grant.attempt, Settlement(0))
            elif rnd.random() < 0.2:
                await scene.queue.cancel(router, "acme", f"q{i}")
        await scene.pass_time(0.5, routers=["A"] if i > 150 else ["A", "B"], replicas=["r1"])

    assert refused > 50
    for first in range(len(granted)):
        total = 0
        for at, tokens in granted[first:]:
            total += tokens
            assert total <= limit + limit / 60 * (at - granted[first][0]) + 1e-6
    # And the quota is used, not only kept.
    span = granted[-1][0] - granted[0][0]
    assert sum(tokens for _, tokens in granted) > 0.9 * (limit / 60 * span)


async def test_settled_tokens_pass_it_by_no_more_than_what_is_in_flight(scene: Scene) -> None:
    await start(scene)
    rnd = random.Random(12)
    limit = 6_000
    quota = Quota(tokens_per_minute=limit)
    used: list[tuple[float, int]] = []
    in_flight: list[tuple[str, str, str, int]] = []
    most_open = refused = 0
    for i in range(400):
        output = rnd.choice((20, 40, 900))
        router = rnd.choice(("A", "B"))
        new = entry(f"q{i}", prompt_tokens=50, expected_tokens=30, max_tokens=1000, quota=quota)
        try:
            answer = await scene.queue.submit(router, new)
        except QuotaExceededError:
            refused += 1
        else:
            assert answer.grant
            used.append((scene.clock.monotonic(), 50 + output))
            in_flight.append((router, new.request_id, answer.grant.attempt, output))
            most_open = max(most_open, len(in_flight))
        if len(in_flight) > 4 or rnd.random() < 0.5:
            for router, name, attempt, output in in_flight[:1]:
                await scene.queue.release(router, name, attempt, Settlement(output))
            del in_flight[:1]
        running = {"r1": [(name, attempt) for _, name, attempt, _ in in_flight]}
        await scene.pass_time(0.5, routers=["A", "B"], replicas=["r1"], running=running)

    assert refused > 50
    # Each request in flight may use up to prompt + max_tokens more than what was held for it.
    slack = most_open * 1050
    for first in range(len(used)):
        total = 0
        for at, tokens in used[first:]:
            total += tokens
            assert total <= limit + limit / 60 * (at - used[first][0]) + slack


async def test_settled_holds_what_is_likely_and_gives_back_the_rest(scene: Scene) -> None:
    """Declaring 4096 costs nothing to who uses 10; the default is the estimate until 20 outputs were seen."""
    await start(scene)
    quota = Quota(tokens_per_minute=2_000)
    for i in range(40):
        new = entry(f"q{i}", prompt_tokens=10, expected_tokens=256, max_tokens=4096, quota=quota)
        answer = await scene.queue.submit("AB"[i % 2], new)
        await scene.queue.release("AB"[i % 2], f"q{i}", answer.grant.attempt, Settlement(10))
    # 40 x 20 tokens are used. What is held per request is now 10 + 12, the edge above 10.
    for i in range(1200 // 22):
        await scene.queue.submit("A", entry(f"h{i}", prompt_tokens=10, max_tokens=4096, quota=quota))
    with pytest.raises(QuotaExceededError):
        await scene.queue.submit("A", entry("one-more", prompt_tokens=10, max_tokens=4096, quota=quota))


async def test_settled_allows_debt_and_makes_it_wait(scene: Scene) -> None:
    await start(scene)
    quota = Quota(tokens_per_minute=600)
    answer = await scene.queue.submit("A", entry("big", prompt_tokens=100, max_tokens=50, quota=quota))
    await scene.queue.release("A", "big", answer.grant.attempt, Settlement(2_300))

    # 2,400 used of 600 a minute: 1,800 of debt, and the next needs 20 free.
    with pytest.raises(QuotaExceededError) as refused:
        await scene.queue.submit("B", entry("next", prompt_tokens=10, max_tokens=10, quota=quota))
    assert refused.value.retry_after_s == pytest.approx((1800 + 20) / 10, abs=0.01)
    await scene.pass_time(181.5, routers=["A", "B"], replicas=["r1"])
    with pytest.raises(QuotaExceededError):
        await scene.queue.submit("B", entry("next", prompt_tokens=10, max_tokens=10, quota=quota))
    await scene.pass_time(0.5, routers=["A", "B"], replicas=["r1"])
    assert (await scene.queue.submit("B", entry("next", prompt_tokens=10, max_tokens=10, quota=quota))).grant


async def test_a_request_larger_than_a_strict_quota_is_told_so(scene: Scene) -> None:
    await start(scene)
    quota = Quota(tokens_per_minute=100, strict=True)
    with pytest.raises(QuotaExceededError) as refused:
        await scene.queue.submit("A", entry("big", prompt_tokens=90, max_tokens=11, quota=quota))
    assert refused.value.retry_after_s is None
    assert "may use 100 tokens per minute of 'demo'; this one alone asks for 101" in str(refused.value)
    assert (await scene.queue.submit("A", entry("fits", prompt_tokens=90, max_tokens=10, quota=quota))).grant


async def test_requests_per_minute_come_back_one_by_one(scene: Scene) -> None:
    await start(scene)
    quota = Quota(requests_per_minute=6)
    for i in range(6):
        await scene.queue.submit("AB"[i % 2], entry(f"q{i}", quota=quota))
    with pytest.raises(QuotaExceededError) as refused:
        await scene.queue.submit("A", entry("q6", quota=quota))
    assert (refused.value.quota, refused.value.retry_after_s) == ("requests_per_minute", 10.0)
    await scene.pass_time(10, routers=["A", "B"], replicas=["r1"])
    await scene.queue.submit("B", entry("q7", quota=quota))
    with pytest.raises(QuotaExceededError):
        await scene.queue.submit("A", entry("q8", quota=quota))


async def test_a_lowered_quota_locks_nobody_out(scene: Scene) -> None:
    """What drained within a minute drains within a minute, also what was in flight when it was lowered."""
    await start(scene)
    large, small = Quota(tokens_per_minute=600_000, requests_per_minute=6_000), Quota(6_000, 60)
    sizes = {"prompt_tokens": 900, "expected_tokens": 100, "max_tokens": 100}
    running = []
    for number in range(60):
        asked = entry(f"q{number}", prompt_tokens=5_000, expected_tokens=5_000, max_tokens=5_000, quota=large)
        running.append((asked.request_id, (await scene.queue.submit("A", asked)).grant.attempt))
    with pytest.raises(QuotaExceededError):
        await scene.queue.submit("A", entry("more", quota=large, **sizes))

    with pytest.raises(QuotaExceededError) as caught:
        await scene.queue.submit("A", entry("less", quota=small, **sizes))
    assert 10.0 == caught.value.retry_after_s
    # Half of what each held is used: 330,000 of 600,000 are 3,300 of 6,000, and with one more request 4,300.
    for name, attempt in running[:54]:
        await scene.queue.release("A", name, attempt, Settlement(0))
    await scene.queue.submit("A", entry("s0", quota=small, **sizes))
    # What the others give back is 300 of the new ones.
    for name, attempt in running[54:]:
        await scene.queue.release("A", name, attempt, Settlement(0))
    for name in ("s1", "s2"):
        await scene.queue.submit("A", entry(name, quota=small, **sizes))
    with pytest.raises(QuotaExceededError):
        await scene.queue.submit("A", entry("s3", quota=small, **sizes))
    # A raised one is there at once.
    await scene.queue.submit("A", entry("s4", quota=large, **sizes))


async def test_a_lowered_number_of_requests_locks_nobody_out(scene: Scene) -> None:
    await start(scene)
    for number in range(60):
        await scene.queue.submit("A", entry(f"q{number}", quota=Quota(requests_per_minute=60)))
    with pytest.raises(QuotaExceededError) as caught:
        await scene.queue.submit("A", entry("less", quota=Quota(requests_per_minute=6)))
    assert 10.0 == caught.value.retry_after_s


async def test_concurrency_counts_what_waits_and_runs_at_all_routers(scene: Scene, backend: Backend) -> None:
    await start(scene, Windows(1, 10**6, 10**6))
    quota = Quota(concurrency=3)
    first = await scene.queue.submit("A", entry("q0", quota=quota))
    await scene.queue.submit("B", entry("q1", quota=quota))
    await scene.queue.submit("A", entry("q2", quota=quota))
    with pytest.raises(QuotaExceededError) as refused:
        await scene.queue.submit("B", entry("q3", quota=quota))
    assert (refused.value.quota, refused.value.limit) == ("concurrency", 3)
    # Each way to end gives it back: release, cancel, the death of a router.
    await scene.queue.release("A", "q0", first.grant.attempt, Settlement(1))
    await scene.queue.submit("B", entry("q4", quota=quota))
    await scene.queue.cancel("A", "acme", "q2")
    await scene.queue.submit("A", entry("q5", quota=quota))
    with pytest.raises(QuotaExceededError):
        await scene.queue.submit("A", entry("q6", quota=quota))
    await scene.pass_time(12, routers=["A"], replicas=["r1"])
    for i in range(2):
        await scene.queue.submit("A", entry(f"after{i}", quota=quota))
    with pytest.raises(QuotaExceededError):
        await scene.queue.submit("A", entry("q7", quota=quota))


async def test_quotas_are_per_tenant_and_pool(backend: Backend) -> None:
    quota = Quota(requests_per_minute=1)
    scenes = [Scene(backend.queue(pool=pool), backend.clock) for pool in ("demo", "other")]
    for scene in scenes:
        await start(scene)
        for tenant in ("acme", "beta"):
            await scene.queue.submit("A", entry(f"{tenant}-1", tenant=tenant, quota=quota))
    for scene in scenes:
        for tenant in ("acme", "beta"):
            with pytest.raises(QuotaExceededError):
                await scene.queue.submit("B", entry(f"{tenant}-2", tenant=tenant, quota=quota))


async def test_a_refused_request_takes_nothing(scene: Scene, backend: Backend) -> None:
    await start(scene)
    tokens = Quota(tokens_per_minute=1000, requests_per_minute=2, strict=True)
    for i in range(5):
        with pytest.raises(QuotaExceededError):
            await scene.queue.submit("A", entry(f"big{i}", prompt_tokens=2000, quota=tokens))
    for i in range(2):
        await scene.queue.submit("A", entry(f"q{i}", prompt_tokens=400, max_tokens=100, quota=tokens))
    assert "open_counts" not in backend.leftovers()


@pytest.mark.parametrize("strict", [False, True])
async def test_a_waiting_request_that_goes_gives_back_what_it_held(scene: Scene, strict: bool) -> None:
    await start(scene, TIGHT)
    quota = Quota(tokens_per_minute=100, strict=strict)
    for i in range(20):
        name = f"q{i}"
        await scene.queue.submit("A", entry(name, prompt_tokens=50, expected_tokens=40, max_tokens=40, quota=quota))
        with pytest.raises(QuotaExceededError):
            await scene.queue.submit("B", entry("second", prompt_tokens=50, max_tokens=40, quota=quota))
        if i % 2:
            await scene.queue.cancel("A", "acme", name)
        else:
            await scene.queue.withdraw("A", name, None)


async def test_a_strict_quota_gets_back_no_more_than_cannot_have_drained(scene: Scene) -> None:
    """What waited drains like what ran. Given back whole, it would let twice the bucket in at one moment."""
    await start(scene, TIGHT)
    quota = Quota(tokens_per_minute=6_000, strict=True)
    for i, (wait_s, left) in enumerate(((60.0, 0), (45.0, 1500), (15.0, 4500))):
        await scene.queue.submit("A", entry(f"first{i}", prompt_tokens=6_000, quota=quota))
        scene.clock.advance(wait_s)
        drained = 6_000 - left
        await scene.queue.submit("B", entry(f"second{i}", prompt_tokens=drained, quota=quota))
        await scene.queue.cancel("A", "acme", f"first{i}")
        # Without the first one, the bucket holds the second.
        with pytest.raises(QuotaExceededError):
            await scene.queue.submit("B", entry("over", prompt_tokens=left + 1, quota=quota))
        await scene.queue.submit("B", entry(f"third{i}", prompt_tokens=left, quota=quota))
        scene.clock.advance(60)


@pytest.mark.parametrize("strict", [False, True])
async def test_what_was_refused_and_then_expired_gives_back_what_never_ran(
    scene: Scene, backend: Backend, strict: bool
) -> None:
    """But what had a slot counts as granted where that is what counts."""
    await start(scene)
    quota = Quota(tokens_per_minute=100, strict=strict)
    new = entry("q0", prompt_tokens=50, expected_tokens=40, max_tokens=40, start_within_ms=2000, quota=quota)
    answer = await scene.queue.submit("A", new)
    await scene.queue.refuse("A", "q0", answer.grant.attempt)
    scene.replicas["r1"] = TIGHT
    await scene.pass_time(2.5, routers=["B"], replicas=["r1"])
    assert [order.kind for order in (await scene.beat_router("A")).mail.orders] == ["expired"]
    await scene.queue.release("A", "q0", answer.grant.attempt, Settlement(0))

    again = entry("q1", prompt_tokens=50, expected_tokens=40, max_tokens=40, quota=quota)
    if strict:
        with pytest.raises(QuotaExceededError):
            await scene.queue.submit("A", again)
    else:
        await scene.queue.submit("A", again)
    assert "outstanding" not in backend.leftovers()


async def test_one_tenants_line_is_bounded_and_the_others_wait_on(scene: Scene) -> None:
    await start(scene, TIGHT)
    bound = Quota(max_waiting=3)
    for i in range(3):
        await scene.queue.submit("AB"[i % 2], entry(f"q{i}", quota=bound))
    with pytest.raises(QueueFullError) as full:
        await scene.queue.submit("B", entry("q3", quota=bound))
    assert (full.value.tenant, full.value.limit) == ("acme", 3)
    await scene.queue.submit("B", entry("other", tenant="beta", quota=bound))


async def test_an_idle_tenant_is_forgotten_after_an_hour(scene: Scene, backend: Backend) -> None:
    await start(scene)
    quota = Quota(tokens_per_minute=1000, requests_per_minute=10)
    answer = await scene.queue.submit("A", entry("q0", max_tokens=10, quota=quota))
    await scene.queue.release("A", "q0", answer.grant.attempt, Settlement(5))
    assert {"quotas", "outputs", "tenant_due"} <= backend.sizes().keys()
    backend.clock.advance(3601)
    await scene.pass_time(6, routers=["A", "B"], replicas=["r1"])
    assert not {"quotas", "outputs", "tenant_due"} & backend.sizes().keys()


@pytest.mark.parametrize(
    ("quota", "retry_s"),
    [
        (Quota(requests_per_minute=4), 30.0),
        (Quota(tokens_per_minute=80, strict=True), 30.0),
        (Quota(tokens_per_minute=40), 90.0),  # From a full bucket into debt.
        (Quota(concurrency=4), 1.0),
    ],
    ids=["requests", "strict", "settled", "concurrency"],
)
async def test_choices_of_a_request_are_let_in_together(scene: Scene, quota: Quota, retry_s: float) -> None:
    await start(scene, TIGHT)

    async def submit(name: str) -> None:
        for number, choices in enumerate((3, 0, 0)):
            new = entry(f"{name}/{number}", expected_tokens=10, max_tokens=10, quota=quota, choices=choices)
            await scene.queue.submit("A", new)

    await submit("first")
    with pytest.raises(QuotaExceededError) as refused:
        await submit("second")
    assert refused.value.retry_after_s == pytest.approx(retry_s, abs=0.01)
    for number in range(3):
        await scene.queue.cancel("A", "acme", f"first/{number}")
    await scene.pass_time(30, routers=["A"], replicas=["r1"])
    await submit("second")


@pytest.mark.parametrize(
    ("quota", "asked"),
    [
        (Quota(requests_per_minute=2), 3),
        (Quota(tokens_per_minute=50, strict=True), 60),
        (Quota(concurrency=2), 3),
    ],
    ids=["requests", "tokens", "concurrency"],
)
async def test_more_choices_than_a_quota_ever_allows_are_told_so(scene: Scene, quota: Quota, asked: int) -> None:
    await start(scene)
    with pytest.raises(QuotaExceededError) as refused:
        await scene.queue.submit("A", entry("q/0", max_tokens=10, quota=quota, choices=3))
    assert (None, asked) == (refused.value.retry_after_s, refused.value.asked)
    assert (await scene.queue.submit("A", entry("q", max_tokens=10, quota=quota, choices=2))).grant


async def test_the_part_of_a_choice_that_finds_no_room_comes_back(scene: Scene) -> None:
    await start(scene, TIGHT)
    quota = Quota(tokens_per_minute=60, requests_per_minute=3, max_waiting=1, strict=True)
    await scene.queue.submit("A", entry("q/0", max_tokens=10, quota=quota, choices=3))
    for number in (1, 2):
        with pytest.raises(QueueFullError):
            await scene.queue.submit("A", entry(f"q/{number}", max_tokens=10, quota=quota, choices=0))
    quota = replace(quota, max_waiting=0)
    await scene.queue.submit("A", entry("p/0", max_tokens=10, quota=quota, choices=2))
    with pytest.raises(QuotaExceededError):
        await scene.queue.submit("A", entry("o", max_tokens=10, quota=quota))


async def test_a_request_that_is_refused_after_all_counts_for_no_rate(scene: Scene) -> None:
    """Its other choices found no room, or it would wait for too long. One that its client cancels counts."""
    await start(scene, TIGHT)
    quota = Quota(requests_per_minute=3, max_waiting=1)
    for _ in range(5):
        await scene.queue.submit("A", entry("q/0", quota=quota, choices=3))
        for number in (1, 2):
            with pytest.raises(QueueFullError):
                await scene.queue.submit("A", entry(f"q/{number}", quota=quota, choices=0))
        await scene.queue.withdraw("A", "q/0", None, refused=True)
    await scene.queue.submit("A", entry("p/0", quota=quota, choices=3))
    await scene.queue.withdraw("A", "p/0", None)
    with pytest.raises(QuotaExceededError):
        await scene.queue.submit("A", entry("o", quota=quota))


async def test_a_refused_request_gives_back_no_more_than_cannot_have_drained(scene: Scene) -> None:
    """Redis may hear late that it was refused. It was granted never, but what drained meanwhile let others in."""
    await start(scene, TIGHT)
    quota = Quota(requests_per_minute=4)
    await scene.queue.submit("A", entry("late", quota=quota))
    scene.clock.advance(15)
    for number in range(4):
        await scene.queue.submit("A", entry(f"q{number}", quota=quota))
    await scene.queue.withdraw("A", "late", None, refused=True)
    with pytest.raises(QuotaExceededError):
        await scene.queue.submit("A", entry("over", quota=quota))


async def test_a_granted_request_counts_for_its_rate_although_it_is_refused(scene: Scene) -> None:
    await start(scene)
    quota = Quota(requests_per_minute=1)
    assert (await scene.queue.submit("A", entry("q", quota=quota))).grant
    await scene.queue.withdraw("A", "q", None, refused=True)
    with pytest.raises(QuotaExceededError):
        await scene.queue.submit("A", entry("p", quota=quota))
