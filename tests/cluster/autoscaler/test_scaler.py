"""One pool's autoscaler from what heartbeats say to what the platform is told."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from cluster.autoscaler.decision_record import DecisionRecord
from cluster.autoscaler.metrics import AutoscalerMetrics
from cluster.autoscaler.operating_point import PointRecord
from cluster.control.step_fit import FittedStep
from cluster.control.step_model import StepModel
from cluster.models import ModelInfo
from cluster.trust.announcement import Announcement
from penstock.models import Capabilities, RequestClass
from penstock.values.slo import ClassSlo, OperatingPoint
from penstock.values.steps import Relief
from tests.cluster.autoscaler.conftest import Backend
from tests.cluster.autoscaler.scaled_pool import BEAT_S, MODEL, PROMPT, SECRET, Site, both, names


@pytest.mark.slow
@both
async def test_load_brings_replicas_and_its_end_takes_them_away(backend: Backend) -> None:
    site = Site(backend)
    scaler = site.scaler()
    idle = await site.run(scaler, 3)
    busy = await site.run(scaler, 12, rate=60.0)
    quiet = await site.run(scaler, 90)

    assert {1} == {record.replicas for record in idle}
    top = busy[-1].replicas
    assert top >= 3
    assert top == busy[-1].ready
    assert 1 == quiet[-1].replicas
    # Nothing is removed while the last three minutes needed it, and then at most a quarter in five minutes, but one.
    assert top == quiet[9].replicas
    assert all(later.replicas >= record.replicas - 1 for record, later in itertools.pairwise(quiet))
    assert max(site.platform.told) == top
    assert 20.0 <= busy[-1].cold_start_s <= 25.0


@both
async def test_a_decision_is_stored_with_its_reasons(backend: Backend) -> None:
    site = Site(backend)
    scaler = site.scaler()
    await site.run(scaler, 1)
    [*_, made] = await site.run(scaler, 4, rate=60.0)
    [stored, *older] = await backend.store().decisions(10)

    read = DecisionRecord.from_bytes(stored.record, stored.number)
    assert made == read
    assert (5, 4, "a", 1) == (read.number, len(older), read.leader, read.fence)
    assert {"demand", "needed"} <= set(names(read))
    [demand] = [one for one in read.demands if one.request_class is RequestClass.INTERACTIVE]
    assert pytest.approx(60.0, rel=0.3) == demand.rate
    assert pytest.approx(PROMPT) == demand.prompt_tokens
    assert read.alarms == ()


@both
async def test_a_pool_at_zero_is_sized_by_what_its_last_replicas_learned(backend: Backend) -> None:
    site = Site(backend, min_replicas=0)
    info = ModelInfo("model", "tokenizer", 4096, 256, Capabilities())
    site.record = Announcement("r0", "demo", "a:1", "group", info, 1, "cpu", 0, 1.0).seal(SECRET)
    # They have not learned enough to trust it yet.
    site.stats = {}
    scaler = site.scaler()
    [before] = await site.run(scaler, 1)
    fitted = FittedStep("group", StepModel(MODEL["step_a"], MODEL["step_b"], MODEL["step_g"]), 5000, 0.02)
    await backend.store().store_fit("group", fitted.to_json())
    [after] = await site.run(scaler, 1)
    assert "fallback" in names(before)
    assert "fallback" not in names(after)

    site.platform.target = 0
    # The registry forgets them.
    backend.clock.advance(60.0)
    await scaler._store.resign("a")
    [away] = await site.run(site.scaler("b"), 1)
    assert 0 == away.ready
    assert "fallback" not in names(away)


@both
async def test_what_a_pools_replicas_learned_last_counts_and_outlives_the_store(backend: Backend) -> None:
    site = Site(backend)
    info = ModelInfo("model", "tokenizer", 4096, 256, Capabilities())
    site.record = Announcement("r0", "demo", "a:1", "group", info, 1, "cpu", 0, 1.0).seal(SECRET)
    site.stats = {}
    fitted = FittedStep("group", StepModel(MODEL["step_a"], MODEL["step_b"], MODEL["step_g"]), 5000, 0.02)
    await backend.store().store_fit("group", fitted.to_json())
    scaler = site.scaler()
    [*_, before] = await site.run(scaler, 8, rate=60.0)
    later = FittedStep("group", fitted.model.times(4.0), 90_000, 0.02)
    await backend.store().store_fit("group", later.to_json())
    [after] = await site.run(scaler, 1, rate=60.0)
    backend.forget()
    [lost] = await site.run(scaler, 1, rate=60.0)

    assert after.needed >= 2 * before.needed
    assert "fallback" not in names(lost)


@both
async def test_an_operating_point_takes_effect_at_the_next_tick_and_survives_a_lost_store(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(backend)
    scaler = site.scaler()
    await site.run(scaler, 1)
    tight = OperatingPoint(interactive=ClassSlo(2.0, 0.012), price_per_gpu_hour=1.0, budget_per_hour=2.0)
    await backend.store().set_point(PointRecord(tight, "ops").to_bytes())
    [*_, record] = await site.run(scaler, 5, rate=60.0)
    assert record.replicas == 2
    assert "budget" in names(record)
    # Told once: the settings no longer count.
    [told] = [one for one in caplog.records if one.message == "autoscaler.point_in_place_of_settings"]
    assert "ops" == told.tenant  # type: ignore[attr-defined]

    backend.forget()
    await site.run(scaler, 1, rate=60.0)
    assert PointRecord(tight, "ops").to_bytes() == await backend.store().point()
    await site.live(BEAT_S)
    assert PointRecord(tight, "ops").to_bytes() == site.point


async def test_relief_is_published_in_its_order_and_ends(local: Backend) -> None:
    site = Site(local, max_replicas=2)
    scaler = site.scaler()
    await site.run(scaler, 1)
    first = await site.run(scaler, 1, rate=40.0)
    # One more is to come and will be enough: nobody is refused before it is there.
    assert (2, Relief.PREEMPT_BATCH) == (first[0].replicas, first[0].relief)
    seen = [record.relief for record in [*first, *await site.run(scaler, 10, rate=200.0)]]
    assert seen[-1] is Relief.SHED
    await site.live(BEAT_S)
    assert site.relief == seen[-1].value != "none"
    order = list(Relief)
    assert [order.index(relief) for relief in seen] == sorted(order.index(relief) for relief in seen)
    records = await site.run(scaler, 30)
    await site.live(BEAT_S)

    assert ("none", Relief.NONE) == (site.relief, records[-1].relief)


async def test_the_metrics_say_what_was_decided(local: Backend) -> None:
    site = Site(local)
    scaler = site.scaler()
    await site.run(scaler, 1)
    [*_, record] = await site.run(scaler, 6, rate=60.0)
    registry = AutoscalerMetrics(lambda: {"demo": scaler}).registry

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"penstock_autoscaler_{name}", {"pool": "demo", **labels})

    assert (1, 1) == (value("leading"), value("mode", mode="active"))
    assert record.replicas == value("replicas_decided") == value("replicas_target")
    assert (7, 0) == (value("ticks_total"), value("alarms"))
    assert 1 <= (value("changes_total", direction="up") or 0)
    assert pytest.approx(60.0, rel=0.3) == value("arrival_rate", **{"class": "interactive"})


def planned_full(record: DecisionRecord) -> int:
    """Return how full replicas are planned to be, in percent."""
    [why] = [step.reason for step in record.steps if step.name == "demand"]
    return int(why.partition("% full")[0].split()[-1])


@pytest.mark.parametrize("successor", [False, True])
@pytest.mark.parametrize("changed", [{"headroom": "more"}, {"fill": 0.55}])
async def test_a_turned_dial_counts_from_the_next_decision_on(
    local: Backend, changed: dict[str, Any], successor: bool
) -> None:
    """Whatever the attainment had made of the fill before, and also after a restart with the changed settings."""
    site = Site(local)
    scaler = site.scaler()
    await site.run(scaler, 8, rate=60.0)
    slow = replace(scaler._leader_state.slow, fill=0.9, fill_at=local.clock.wall_ms() / 1000)
    scaler._leader_state = replace(scaler._leader_state, slow=slow)
    [before] = await site.run(scaler, 1, rate=60.0)
    assert planned_full(before) >= 85
    autoscale = site.settings.autoscale.model_copy(update=changed)
    site.settings = site.settings.model_copy(update={"autoscale": autoscale})
    if successor:
        await scaler.resign()
        scaler = site.scaler("b")
    else:
        scaler.change(site.settings)
    after = await site.run(scaler, 3, rate=60.0)
    assert {True} == {planned_full(each) <= 60 for each in after}
