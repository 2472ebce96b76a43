"""Budgets of tenants are those of the ledger: exact, per day and month, as durable as its lines."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from cluster.errors import QuotaExceededError
from cluster.models import Windows
from cluster.queue.entries import BudgetUse, QueueLimits, Quota, Settlement, Submitted
from cluster.redis.keys import pool_key
from tests.cluster.queue.backends import POOL, Backend, Scene, entry

WIDE = Windows(64, 10**6, 10**6)
DAY_MS = 86_400_000
EPOCH = datetime.date(1970, 1, 1)


async def to_day(scene: Scene, backend: Backend, day: datetime.date, hour: int = 12) -> None:
    """Go on to an hour of a later day."""
    at_ms = (day - EPOCH).days * DAY_MS + hour * 3_600_000
    backend.clock.advance((at_ms - scene.clock.wall_ms()) / 1000)
    await scene.beat()
    await scene.pass_time(5, routers=["A"], replicas=["r1"])


async def ask(scene: Scene, name: str, tenant: str = "acme", choices: int = 1, **budgets: float) -> Submitted:
    quota = Quota(**budgets)  # type: ignore[arg-type]
    found: Submitted = await scene.queue.submit("A", entry(name, tenant=tenant, quota=quota, choices=choices))
    return found


async def spend(scene: Scene, name: str, cost: float, tenant: str = "acme", **budgets: float) -> BudgetUse | None:
    submitted = await ask(scene, name, tenant, **budgets)
    assert submitted.grant is not None
    await scene.queue.release("A", name, submitted.grant.attempt, Settlement(1, 1, 1, cost=cost))
    return submitted.budget


async def refusal(scene: Scene, **budgets: Any) -> QuotaExceededError:
    with pytest.raises(QuotaExceededError) as refused:
        await ask(scene, "refused", **budgets)
    return refused.value


async def test_a_request_is_refused_once_the_days_budget_is_used(scene: Scene, backend: Backend) -> None:
    await scene.start({"r1": WIDE}, ("A",))
    await to_day(scene, backend, datetime.date(2026, 3, 30))
    assert 0.0 == (await spend(scene, "q1", 0.75, cost_per_day=1.0)).used  # type: ignore[union-attr]
    use = await spend(scene, "q2", 0.5, cost_per_day=1.0)
    assert use is not None
    assert ("cost_per_day", 0.75, 1.0) == (use.budget, use.used, use.limit)
    assert 12 * 3_600_000 - 6000 < use.renews_ms <= 12 * 3_600_000

    error = await refusal(scene, cost_per_day=1.0)
    assert ("cost_per_day", 1.0, 1.25, "acme") == (error.quota, error.limit, error.used, error.tenant)
    assert error.retry_after_s == pytest.approx(12 * 3600, abs=6)
    assert "has used 1.25 of its 1 cost per day of 'demo'; the budget renews at" in str(error)
    # Others have budgets of their own, and a higher one holds at once.
    assert (await ask(scene, "other", "beta", cost_per_day=1.0)).grant
    assert (await ask(scene, "raised", cost_per_day=2.0)).grant

    await to_day(scene, backend, datetime.date(2026, 3, 31), hour=0)
    assert 0.0 == (await spend(scene, "q3", 0.1, cost_per_day=1.0)).used  # type: ignore[union-attr]


async def test_what_runs_when_the_budget_is_used_up_goes_on(scene: Scene, backend: Backend) -> None:
    await scene.start({"r1": WIDE}, ("A",))
    await to_day(scene, backend, datetime.date(2026, 3, 30))
    running = [(await ask(scene, f"r{i}", cost_per_day=1.0)).grant for i in range(3)]
    await spend(scene, "q1", 5.0, cost_per_day=1.0)
    for grant in running:
        assert grant is not None
        await scene.queue.release("A", grant.request_id, grant.attempt, Settlement(1, 1, 1, cost=1.0))
    assert 8.0 == (await refusal(scene, cost_per_day=1.0)).used


async def test_a_months_budget_adds_up_its_days(scene: Scene, backend: Backend) -> None:
    await scene.start({"r1": WIDE}, ("A",))
    both = {"cost_per_day": 5.0, "cost_per_month": 10.0}
    for number, day in enumerate((27, 28)):
        await to_day(scene, backend, datetime.date(2026, 2, day))
        await spend(scene, f"feb{number}", 4.0, **both)
    await to_day(scene, backend, datetime.date(2026, 3, 1), hour=0)
    for day in (1, 2, 31):
        await to_day(scene, backend, datetime.date(2026, 3, day), hour=1)
        use = await spend(scene, f"mar{day}", 4.0, **both)
        again = await ask(scene, f"again{day}", **both) if day != 31 else None
        assert use is not None
        if again is not None:
            assert again.budget is not None
    error = await refusal(scene, **both)
    assert ("cost_per_month", 12.0, 10.0) == (error.quota, error.used, error.limit)
    assert error.retry_after_s == pytest.approx(23 * 3600, abs=10)
    await to_day(scene, backend, datetime.date(2026, 4, 1), hour=0)
    assert 0.0 == (await spend(scene, "apr", 1.0, **both)).used  # type: ignore[union-attr]


@pytest.mark.parametrize("day", ["2027-12-31", "2028-02-28", "2028-02-29", "2028-03-01", "2030-02-28", "2032-06-30"])
async def test_a_month_renews_with_the_calendar(scene: Scene, backend: Backend, day: str) -> None:
    await scene.start({"r1": WIDE}, ("A",))
    today = datetime.date.fromisoformat(day)
    await to_day(scene, backend, today)
    use = await spend(scene, "q1", 1.0, cost_per_month=10.0)
    assert use is not None
    following = (today.replace(day=1) + datetime.timedelta(days=32)).replace(day=1)
    assert (following - EPOCH).days * DAY_MS == scene.clock.wall_ms() + use.renews_ms


async def test_the_choices_of_a_request_are_let_in_together(scene: Scene, backend: Backend) -> None:
    await scene.start({"r1": WIDE}, ("A",))
    await spend(scene, "q1", 2.0, cost_per_day=1.0)
    assert (await ask(scene, "rest/1", choices=0, cost_per_day=1.0)).grant
    await refusal(scene, choices=2, cost_per_day=1.0)


async def test_a_refused_request_takes_none_of_the_other_quotas(scene: Scene, backend: Backend) -> None:
    await scene.start({"r1": WIDE}, ("A",))
    await spend(scene, "q1", 2.0, cost_per_day=1.0)
    for _ in range(3):
        await refusal(scene, cost_per_day=1.0, requests_per_minute=1, concurrency=1)
    assert (await ask(scene, "q2", requests_per_minute=1, concurrency=1)).grant


async def test_budgets_survive_a_restart_as_the_ledger_does(scene: Scene, backend: Backend) -> None:
    """And what was added up before is added up again where it is lost."""
    await scene.start({"r1": WIDE}, ("A",))
    await to_day(scene, backend, datetime.date(2026, 3, 29))
    await spend(scene, "q1", 6.0, cost_per_month=10.0)
    await to_day(scene, backend, datetime.date(2026, 3, 30))
    await spend(scene, "q2", 4.0, cost_per_month=10.0)
    backend.restart()
    assert 10.0 == (await refusal(scene, cost_per_month=10.0)).used
    backend.ask("DEL", pool_key(POOL, "budgets"))
    assert 10.0 == (await refusal(scene, cost_per_month=10.0)).used


async def test_without_a_budget_nothing_is_stored_or_told(scene: Scene, backend: Backend) -> None:
    await scene.start({"r1": WIDE}, ("A",))
    assert (await spend(scene, "q1", 2.0)) is None
    assert 0 == backend.sizes().get("budgets", 0)


async def test_what_was_added_up_is_forgotten_after_an_hour(backend: Backend) -> None:
    scene = Scene(backend.queue(QueueLimits()), backend.clock)
    await scene.start({"r1": WIDE}, ("A",))
    await spend(scene, "q1", 2.0, cost_per_month=10.0)
    assert 1 == backend.sizes()["budgets"]
    backend.clock.advance(3700)
    await scene.pass_time(6, routers=["A"], replicas=["r1"])
    assert 0 == backend.sizes().get("budgets", 0)
