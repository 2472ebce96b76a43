"""What the autoscaler does where something fails, is silent, or says what can't be: nothing rash."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from cluster.autoscaler.cell_standbys import CellStandbys
from cluster.autoscaler.redis.store import RedisControlStore
from cluster.errors import QueueUnavailableError
from cluster.settings import PoolSettings
from penstock.models import RequestClass
from penstock.values.steps import Relief
from tests.cluster.autoscaler import scaled_pool
from tests.cluster.autoscaler.conftest import Backend
from tests.cluster.autoscaler.scaled_pool import TICK_S, Site, names


async def test_the_platform_is_told_again_when_it_forgets(local: Backend) -> None:
    site = Site(local, replicas=3, min_replicas=3)
    scaler = site.scaler()
    await site.run(scaler, 2)
    assert [] == site.platform.told
    # A redeploy resets it to what the config says.
    site.platform.target = 1
    await site.run(scaler, 1)

    assert [3] == site.platform.told


async def test_an_order_is_carried_out_though_the_forecast_can_not_be_stored(
    local: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> None:
        raise QueueUnavailableError("out of memory")

    site = Site(local, min_replicas=3)
    scaler = site.scaler()
    scaler.foresight.changed = True
    with monkeypatch.context() as away:
        away.setattr(RedisControlStore, "store_forecast", fails)
        await site.run(scaler, 1)
    assert [3] == site.platform.told
    assert await local.store().forecast() is None
    # The next tick stores it.
    await site.run(scaler, 1)
    assert await local.store().forecast() is not None


async def test_an_order_is_carried_out_before_other_cells_are_told(local: Backend) -> None:
    """One that is away may take long to fail."""
    site = Site(local, min_replicas=3)
    seen: list[list[int]] = []

    class Watched(CellStandbys):
        async def give(self, *_: Any) -> None:
            seen.append(list(site.platform.told))

    await site.run(site.scaler(cells=Watched("demo", lambda _: local.store())), 1)
    assert [[3]] == seen


async def test_advisory_decides_and_changes_nothing(local: Backend) -> None:
    site = Site(local, mode="advisory")
    scaler = site.scaler()
    await site.run(scaler, 1)
    records = await site.run(scaler, 6, rate=60.0)

    assert records[-1].replicas >= 3
    assert [] == site.platform.told
    assert site.relief == "none"
    assert records[-1].relief is not Relief.NONE


async def test_advice_is_no_order_that_a_platform_without_an_answer_carries_out(local: Backend) -> None:
    site = Site(local, mode="advisory", start_timeout_s=60)
    site.platform.down = True
    scaler = site.scaler()
    await site.run(scaler, 1)
    records = await site.run(scaler, 12, rate=60.0)

    assert records[-1].replicas >= 3
    assert {0} == {record.starting for record in records}
    assert {("does not answer",)} == {tuple(alarm.split(": ")[-1] for alarm in record.alarms) for record in records}


@pytest.mark.slow
async def test_advice_that_nobody_follows_stays_the_same(local: Backend) -> None:
    site = Site(local, replicas=8, mode="advisory")
    records = (await site.run(site.scaler(), 60, rate=1.0))[30:]

    # A quarter fewer at a time.
    assert {6} == {record.replicas for record in records}
    assert not [record.reason for record in records if "last change" in record.reason]


@pytest.mark.slow
async def test_a_removal_that_the_platform_refuses_is_tried_again_at_once(local: Backend) -> None:
    site = Site(local, replicas=8)
    site.platform.refuses = True
    scaler = site.scaler()
    records = (await site.run(scaler, 60, rate=1.0))[30:]
    assert {6} == {record.replicas for record in records}
    assert 0 == scaler.tally.changes_down

    site.platform.refuses = False
    await site.run(scaler, 1, rate=1.0)
    assert [6] == site.platform.told
    assert 1 == scaler.tally.changes_down


async def test_removal_waits_while_replicas_do_not_report(local: Backend) -> None:
    site = Site(local, replicas=4, look_back_s=30, down_window_s=1, stale_s=10)
    scaler = site.scaler()
    await site.run(scaler, 1)
    # The store was away: its leases count as live, its values are old.
    site.dead = set(site.ready)
    site.backend.clock.advance(300)
    assert await scaler.lead()
    record = await scaler.tick()

    assert record is not None
    assert record.age_s > 10
    assert record.replicas >= 4
    assert "stale" in names(record) or "keep" in names(record)


@pytest.mark.slow
async def test_removal_waits_while_a_router_reports_what_this_version_cannot_read(
    local: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(local, replicas=4, look_back_s=30, down_window_s=1)
    scaler = site.scaler()
    await site.run(scaler, 20, rate=30.0)
    have = site.platform.target
    with monkeypatch.context() as newer:
        newer.setattr(scaled_pool, "pack_report", lambda *_: b"\x93\x01\x02\x03")
        records = await site.run(scaler, 40, rate=30.0)

    assert {have} == {record.replicas for record in records}
    assert records[-1].age_s > 500
    assert any("report of router A can't be read" in alarm for alarm in records[-1].alarms)
    # It is read again.
    [*_, record] = await site.run(scaler, 2, rate=30.0)
    assert () == record.alarms
    assert record.age_s < 5


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["step_a", "step_g", "step_tokens", "itl_p95_s", "live_batch"])
async def test_what_is_no_number_counts_as_not_reported(local: Backend, name: str, value: float) -> None:
    site = Site(local, replicas=2)
    scaler = site.scaler()
    site.stats |= {"step_tokens": 4096.0, "live_batch": 64.0, "itl_mean_s": 0.02, "itl_p95_s": 0.025}
    await site.run(scaler, 10, rate=40.0)
    site.stats[name] = value
    [*_, broken] = await site.run(scaler, 4, rate=40.0)
    assert (2 <= broken.replicas, 0) == (True, scaler.tally.failures)


@pytest.mark.parametrize("value", [math.nan, math.inf])
async def test_a_router_that_counts_what_is_no_number_is_not_read(local: Backend, value: float) -> None:
    """Averages would stay what they become with it, also in a successor."""
    site = Site(local, replicas=2)
    scaler = site.scaler()
    await site.run(scaler, 10, rate=40.0)
    good = site.counts[RequestClass.INTERACTIVE]
    site.counts[RequestClass.INTERACTIVE] = replace(good, requests=value, output_tokens=value)
    [*_, broken] = await site.run(scaler, 3)
    site.counts[RequestClass.INTERACTIVE] = good
    [*_, after] = await site.run(scaler, 3, rate=40.0)
    assert "can't be read" in " ".join(broken.alarms)
    assert () == after.alarms
    assert math.isfinite(after.demands[0].rate)


async def test_replicas_that_vanish_are_awaited_and_not_written_off(local: Backend) -> None:
    site = Site(local, replicas=3, look_back_s=30, down_window_s=1)
    scaler = site.scaler()
    await site.run(scaler, 1, rate=20.0)
    site.dead = set(site.ready[1:])
    [*_, record] = await site.run(scaler, 3, rate=20.0)

    assert (1, 2, 3) == (record.ready, record.starting, record.replicas)


@pytest.mark.slow
async def test_starts_that_fail_are_not_asked_for_again_at_once(local: Backend) -> None:
    site = Site(local, start_timeout_s=60)
    scaler = site.scaler()
    site.broken = True
    await site.run(scaler, 1)
    records = await site.run(scaler, 30, rate=60.0)
    failed = next(record for record in records if record.failed_starts)

    assert "failed_starts" in names(failed)
    assert failed.replicas == 1
    assert any("failed" in alarm for alarm in failed.alarms)
    # Each further failure doubles the pause.
    rises = [later.at_ms for record, later in itertools.pairwise(records) if later.replicas > record.replicas]
    pauses = [b - a for a, b in itertools.pairwise(rises)]
    assert len(pauses) >= 2
    assert pauses[0] < pauses[1]
    # The cause is gone.
    site.broken = False
    records = await site.run(scaler, 80, rate=60.0)
    assert records[-1].failed_starts == 0
    assert records[-1].ready == records[-1].replicas > 1


async def test_a_failure_that_a_replica_reports_counts_at_once(local: Backend) -> None:
    site = Site(local)
    scaler = site.scaler()
    site.broken = True
    await site.run(scaler, 1)
    [*_, before] = await site.run(scaler, 3, rate=60.0)
    assert before.replicas > 1
    await site.backend.store().note_failed_start("no memory")
    [record] = await site.run(scaler, 1, rate=60.0)

    assert record.failed_starts == 1
    assert record.replicas < before.replicas


async def test_without_a_model_to_trust_the_fallback_rule_decides(local: Backend) -> None:
    site = Site(local)
    site.stats = {"step_error": 0.7}
    [*_, record] = await site.run(site.scaler(), 2, rate=60.0)

    assert "fallback" in names(record)


async def test_a_platform_that_does_not_answer_is_an_alarm_and_is_told_later(local: Backend) -> None:
    site = Site(local)
    scaler = site.scaler()
    await site.run(scaler, 1)
    site.platform.down = True
    [*_, record] = await site.run(scaler, 5, rate=60.0)
    assert any("does not answer" in alarm for alarm in record.alarms)
    assert [] == site.platform.told
    site.platform.down = False
    await site.run(scaler, 1, rate=60.0)

    assert site.platform.told


async def test_an_alarm_that_joins_others_is_logged_and_one_that_goes_on_is_not(
    local: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    def logged() -> list[str]:
        return [vars(each)["alarms"] for each in caplog.records if each.message == "autoscaler.alarm"]

    site = Site(local, start_timeout_s=60)
    scaler = site.scaler()
    site.broken = True
    await site.run(scaler, 1)
    records = await site.run(scaler, 30, rate=60.0)
    # Several failed, which is one alarm with a number that grows.
    assert {"1", "2"} <= {alarm.split(": ")[-1] for record in records for alarm in record.alarms}
    assert ["starts that failed in a row: 1"] == logged()
    site.platform.down = True
    [*_, record] = await site.run(scaler, 3, rate=60.0)
    assert 2 == len(record.alarms)
    [_, both] = logged()
    assert "starts that failed in a row" in both
    assert "does not answer" in both


async def test_a_store_that_is_away_changes_nothing(local: Backend) -> None:
    site = Site(local, replicas=2)
    scaler = site.scaler()
    await site.run(scaler, 1)
    local.memory.down = True
    with pytest.raises(QueueUnavailableError):
        await scaler.lead()

    assert not scaler.leading
    assert [] == site.platform.told


@pytest.mark.slow
async def test_a_night_without_anybody_is_no_cold_start(local: Backend) -> None:
    site = Site(local)
    site.cold_s = 60.0
    scaler = site.scaler()
    await site.run(scaler, 4)
    while not site.coming:
        await site.run(scaler, 1, rate=60.0)
    local.clock.advance(12 * 3600)
    again = Site(local)
    again.cold_s = 60.0
    again.ready, again.born = ["again"], {"again": local.clock.monotonic()}
    records = await again.run(again.scaler("b"), 40, rate=100.0)

    assert max(record.cold_start_s for record in records) < 200
    assert not any(record.alarms for record in records)


@pytest.mark.slow
async def test_a_night_without_anybody_is_no_idleness(local: Backend) -> None:
    site = Site(local, min_replicas=0, idle_s=900.0)
    await site.run(scaler := site.scaler(), 40, rate=5.0)
    await scaler.resign()
    local.clock.advance(12 * 3600)
    again = Site(local, min_replicas=0, idle_s=900.0)
    again.ready, again.born = ["again"], {"again": local.clock.monotonic()}
    records = await again.run(again.scaler("b"), 70)

    assert 1 == records[0].replicas == records[50].replicas
    # Nobody comes for a quarter of an hour.
    assert 0 == records[-1].replicas


async def test_ids_that_no_replica_announces_say_nothing(local: Backend) -> None:
    """Such as those of another version of Ray: replicas that run are not taken for another cluster's."""
    site = Site(local, replicas=2)
    site.platform.names = ["other#r0", "other#r1"]
    [record] = await site.run(site.scaler(), 1)
    assert 2 == record.ready


@pytest.mark.parametrize(("before", "after"), [("advisory", "active"), ("active", "active"), ("active", "advisory")])
async def test_a_number_that_was_decided_under_other_settings_is_not_sent(
    local: Backend, monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    site = Site(local, mode=before, min_replicas=5)
    scaler = site.scaler()
    await site.live(TICK_S)
    assert await scaler.lead()
    commit = scaler._store.commit

    async def meanwhile(*args: Any) -> int:
        scaler.change(
            PoolSettings.model_validate(site.settings.model_dump() | {"autoscale": {"mode": after, "max_replicas": 2}})
        )
        return await commit(*args)

    monkeypatch.setattr(scaler._store, "commit", meanwhile)
    record = await scaler.tick()
    assert record is not None
    assert (before, 5) == (record.mode.value, record.replicas)
    assert [] == site.platform.told
