"""Announced load at work: replicas are there before it comes, for those whose word is good."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest

from cluster.announced.arrivals import TenantCounts
from cluster.announced.belief import Belief, TenantBelief
from cluster.announced.load import AnnouncedLoad
from cluster.autoscaler.ahead.hours import EVERY_S, LENGTH_S, STEP_S
from cluster.autoscaler.decision_record import DecisionRecord
from cluster.autoscaler.leader_state import PoolMemory
from cluster.autoscaler.metrics import AutoscalerMetrics
from cluster.autoscaler.router_report import empty_counts, pack_report, unpack_report
from cluster.control.step_fit import FittedStep
from cluster.control.step_model import StepModel
from cluster.models import ModelInfo
from cluster.telemetry.tenant_labels import MAX_TENANTS, OTHER_TENANTS
from cluster.trust.announcement import Announcement
from penstock.models import Capabilities
from tests.cluster.autoscaler.conftest import Backend
from tests.cluster.autoscaler.scaled_pool import MODEL, OUTPUT, PROMPT, SECRET, TICK_S, Site, both, names

RATE = 60.0
QUIET = 2.0


async def announce(site: Site, from_s: float, to_s: float, rate: float = RATE, tenant: str = "acme") -> None:
    """Announce load from so many seconds ahead on."""
    now_ms = site.backend.clock.wall_ms()
    load = AnnouncedLoad(
        "a", tenant, now_ms + round(1000 * from_s), now_ms + round(1000 * to_s), rate, 0.0, PROMPT, OUTPUT
    )
    await site.backend.announced().put(load, 4)


def needed(made: list[DecisionRecord]) -> list[int]:
    return [record.needed for record in made]


@both
async def test_replicas_are_ordered_a_cold_start_before_the_load(backend: Backend) -> None:
    site = Site(backend, cold_start_s=60.0)
    scaler = site.scaler()
    usual = await site.run(scaler, 40, rate=QUIET)
    assert 1 == max(needed(usual))
    await announce(site, 300.0, 900.0)
    before = await site.run(scaler, 19, rate=QUIET)
    assert 1 == max(needed(before[:10]))
    assert "announced" not in names(usual[-1])
    ordered = [record for record in before if record.needed > 1]
    assert ordered
    steps = {step.name: step for step in ordered[0].steps}
    assert "are announced for the next" in steps["announced"].reason
    assert "announced" in {each.without for each in ordered[0].counterfactuals}
    # As much as really comes then.
    announced = scaler.announcements.work
    full = await site.run(scaler, 20, rate=RATE)
    assert announced is not None
    assert full[-1].work is not None
    check = {step.name: step.value for step in full[-1].steps}.get("check", 1.0)
    assert pytest.approx(announced.said * check, rel=0.1) == full[-1].work
    assert ordered[-1].needed <= full[-1].needed


@both
async def test_load_that_never_comes_loses_its_replicas_and_the_next_word_counts_less(backend: Backend) -> None:
    site = Site(backend, cold_start_s=60.0)
    site.tenants = {"acme": TenantCounts()}
    scaler = site.scaler()
    await site.run(scaler, 40, rate=QUIET)
    await announce(site, 0.0, 3 * 3600.0)
    made = await site.run(scaler, 240, rate=QUIET)
    believed = needed(made)
    assert max(believed) == believed[0] or max(believed) == believed[1]
    assert believed[-1] < max(believed) / 2
    assert 0.3 > scaler.announcements.belief.of("acme").part

    other = site.scaler("b")
    await scaler.resign()
    [after] = await site.run(other, 1, rate=QUIET)
    assert after.needed < max(believed) / 2
    assert scaler.announcements.belief.of("acme").judged < other.announcements.belief.of("acme").judged


@both
async def test_the_next_hours_show_what_is_announced_and_what_is_planned_for_it(backend: Backend) -> None:
    now = 60 * 60.0
    site = Site(
        backend,
        cold_start_s=60.0,
        schedule=[{"start": "00:00", "end": "00:00", "min_replicas": 2}],
        announced="active",
    )
    scaler = site.scaler()
    await site.run(scaler, 40, rate=QUIET)
    await announce(site, now, 2 * now)
    [*_, made] = await site.run(scaler, 5, rate=QUIET)
    hours = (await site.backend.store().load()).state
    assert hours is not None
    found = PoolMemory.from_bytes(hours).hours
    assert found is not None
    assert made.at_ms / 1000 - EVERY_S <= found.at <= made.at_ms / 1000
    assert LENGTH_S / STEP_S + 1 == len(found.points)
    assert {2} == {point.scheduled for point in found.points}
    busy = [point for point in found.points if point.said]
    assert round(now / STEP_S) == len(busy)
    assert {True} == {now - 300 < point.at - found.at < 2 * now + 300 for point in busy}
    # Nothing came before: the word counts in full, beyond nothing that comes of this tenant.
    check = scaler._leader_state.slow.check.factor
    assert pytest.approx(busy[0].said * check, rel=0.05) == busy[0].announced
    assert {2} == {point.planned for point in found.points if not point.said}
    # As many as are decided when it is due.
    [*_, due] = await site.run(scaler, round(now / TICK_S) + 4, rate=QUIET)
    assert 2 < busy[0].planned
    assert abs(due.needed - busy[0].planned) <= 1


@both
async def test_an_advisory_announcement_decides_nothing_and_is_exported(backend: Backend) -> None:
    site = Site(backend, announced="advisory", cold_start_s=60.0)
    scaler = site.scaler()
    await announce(site, 0.0, 900.0)
    made = await site.run(scaler, 10, rate=QUIET)
    assert 1 == max(needed(made))

    text = generate_latest(AutoscalerMetrics(lambda: {"demo": scaler}).registry).decode()
    assert 'penstock_autoscaler_announcements{pool="demo"} 1.0' in text
    assert 'penstock_autoscaler_announced_part{pool="demo",tenant="acme"}' in text
    assert scaler.announcements.work is not None
    assert f'penstock_autoscaler_announced_work{{pool="demo"}} {scaler.announcements.work.said}' in text


def test_tenants_beyond_the_first_share_a_series_with_the_least_part() -> None:
    """Their names come from clients, and may be new ones every day."""
    parts = {f"t{number}": TenantBelief(1.0 / (number + 1)) for number in range(MAX_TENANTS + 20)}
    announcements = SimpleNamespace(work=None, loads=[], belief=Belief(tenants=parts))
    scaler: Any = SimpleNamespace(announcements=announcements)
    metrics, seen = AutoscalerMetrics(dict), dict[str, float | None]()
    for tenants in (["t5"], sorted(parts)):
        announcements.loads = [SimpleNamespace(tenant=each) for each in tenants]
        seen = {
            labels["tenant"]: value for name, _, labels, value in metrics._announced(scaler) if name == "announced_part"
        }
    assert MAX_TENANTS + 1 == len(seen)
    others = [parts[each].part for each in parts if each not in seen]
    assert (pytest.approx(1 / 6), min(others)) == (seen["t5"], seen[OTHER_TENANTS])


@both
async def test_a_pool_that_takes_no_announcements_reads_none(backend: Backend) -> None:
    site = Site(backend, announced="off", cold_start_s=60.0)
    scaler = site.scaler()
    await announce(site, 0.0, 900.0)
    assert 1 == max(needed(await site.run(scaler, 4, rate=QUIET)))
    assert [] == list(scaler.announcements.loads)


@both
async def test_an_idle_pool_comes_back_before_announced_load(backend: Backend) -> None:
    site = Site(backend, min_replicas=0, idle_s=120.0, cold_start_s=60.0)
    info = ModelInfo("model", "tokenizer", 4096, 256, Capabilities())
    site.record = Announcement("r0", "demo", "a:1", "group", info, 1, "cpu", 0, 1.0).seal(SECRET)
    fitted = FittedStep("group", StepModel(MODEL["step_a"], MODEL["step_b"], MODEL["step_g"]), 5000, 0.02)
    await backend.store().store_fit("group", fitted.to_json())
    scaler = site.scaler()
    await site.run(scaler, 30, rate=QUIET)
    gone = await site.run(scaler, 60)
    assert 0 == gone[-1].replicas
    await announce(site, 300.0, 900.0)
    back = await site.run(scaler, 20)
    assert 0 == back[8].replicas
    assert 1 < back[-1].replicas


def test_a_report_without_announcers_is_as_it_was() -> None:
    """An autoscaler of the last release reads two parts."""
    counts = empty_counts()
    assert pack_report(counts) == pack_report(counts, (), {})
    tenants = {"acme": TenantCounts(1.0, 2.0, 0.5, 3.0)}
    assert tenants == unpack_report(pack_report(counts, (), tenants)).tenants
    assert {} == unpack_report(pack_report(counts)).tenants
