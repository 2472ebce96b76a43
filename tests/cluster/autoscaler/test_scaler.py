"""One pool's autoscaler from what heartbeats say to what the platform is told, on a clock that is moved by hand."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from cluster.autoscaler.actuator import Actual
from cluster.autoscaler.metrics import AutoscalerMetrics
from cluster.autoscaler.point import PointRecord
from cluster.autoscaler.record import DecisionRecord
from cluster.autoscaler.report import ClassCounts, empty_counts, pack_report
from cluster.autoscaler.scaler import PoolScaler
from cluster.control.decision import Relief
from cluster.control.slo import ClassSlo, OperatingPoint
from cluster.control.step_fit import FittedStep
from cluster.control.step_model import StepModel
from cluster.errors import ActuatorError, QueueUnavailableError
from cluster.models import Capabilities, ModelInfo, ReplicaState, RequestClass, Windows
from cluster.queue import ReplicaBeat, RouterBeat
from cluster.registry import Announcement
from cluster.secret import ClusterSecret
from cluster.settings import AutoscalerSettings, PoolSettings
from tests.cluster.autoscaler.conftest import Backend

SECRET = ClusterSecret(b"0" * 32)
MODEL = {"step_a": 0.01, "step_b": 20e-6, "step_g": 0.02e-6, "step_error": 0.02}
PROMPT, OUTPUT = 500, 200
TICK_S = 15.0
BEAT_S = 1.5


both = pytest.mark.parametrize("backend", ["memory", "redis-7.0"], indirect=True)
"""The store's own suite goes through all kinds."""


class FakePlatform:
    """Starts a replica `cold_s` after it was asked for, and removes one at once."""

    def __init__(self, replicas: int = 1) -> None:
        self.target = replicas
        self.told: list[int] = []
        self.down = False
        self.refuses = False
        """It says how things are, and takes nothing."""
        self.names: list[str] | None = None
        """What it says of its replicas."""

    async def look(self, pool: str) -> Actual:
        if self.down:
            raise ActuatorError(pool, "does not answer")
        return Actual(self.target, self.target, "", None if self.names is None else frozenset(self.names))

    async def scale(self, pool: str, replicas: int) -> None:
        if self.down or self.refuses:
            raise ActuatorError(pool, "does not answer")
        self.told.append(replicas)
        self.target = replicas


class Site:
    """Acts a pool's router and replicas, and runs autoscalers on it."""

    def __init__(self, backend: Backend, replicas: int = 1, **autoscale: Any) -> None:
        self.backend = backend
        self.platform = FakePlatform(replicas)
        self.settings = PoolSettings.model_validate(
            {
                "engine": "sim",
                "slo": {"interactive": {"ttft_p99_s": 2.0, "itl_p95_s": 0.03}},
                "price_per_gpu_hour": 1.0,
                "autoscale": {"mode": "active", "max_replicas": 20, **autoscale},
            }
        )
        self.queue = backend.queue()
        self.ready = [f"r{n}" for n in range(replicas)]
        self.counts = empty_counts()
        self.born = dict.fromkeys(self.ready, -1000.0)
        self.stats: dict[str, float] = dict(MODEL)
        self.record = b""
        """What replicas announce."""
        self.cold_s = 20.0
        self.coming: list[float] = []
        self.broken = False
        """Nothing that starts ever comes up."""
        self.dead: set[str] = set()
        self.point: bytes | None = None
        self.relief = ""

    def scaler(self, name: str = "a") -> PoolScaler:
        host = AutoscalerSettings(tick_s=TICK_S, lease_s=40.0, decisions_kept=50)
        return PoolScaler(
            "demo", name, self.settings, host, self.queue, self.backend.store(), self.platform, SECRET
        )  # fmt: skip

    async def live(self, seconds: float, rate: float = 0.0) -> None:
        """Let time pass: requests come, replicas start and stop, everybody sends heartbeats."""
        for _ in range(round(seconds / BEAT_S)):
            self.backend.clock.advance(BEAT_S)
            now = self.backend.clock.monotonic()
            mine, came = self.counts[RequestClass.INTERACTIVE], rate * BEAT_S
            self.counts[RequestClass.INTERACTIVE] = ClassCounts(
                mine.requests + came, mine.prompt_tokens + came * PROMPT, 0.0, mine.output_tokens + came * OUTPUT
            )
            self._carry_out(now)
            for name in self.ready:
                if name in self.dead:
                    continue
                stats = {**self.stats, "up_s": now - self.born[name], "kv_usage": 0.3, "largest_batch": 64.0}
                beat = ReplicaBeat(name, self.record, ReplicaState.READY, Windows(64, 10**6, 10**6), (), stats=stats)
                reply = await self.queue.heartbeat_replica(beat)
                self.point, self.relief = reply.point, reply.relief
            await self.queue.heartbeat_router(RouterBeat("A", tuple(self.ready), report=pack_report(self.counts)))

    def _carry_out(self, now: float) -> None:
        wanted = self.platform.target
        while len(self.ready) > wanted:
            self.ready.pop()
        missing = wanted - len(self.ready)
        self.coming = [*self.coming[:missing], *(now + self.cold_s for _ in range(missing - len(self.coming)))]
        while self.coming and self.coming[0] <= now and not self.broken:
            self.coming.pop(0)
            name = f"r{now:.0f}-{len(self.coming)}"
            self.born[name] = now
            self.ready.append(name)

    async def run(self, scaler: PoolScaler, ticks: int, rate: float = 0.0) -> list[DecisionRecord]:
        made = []
        for _ in range(ticks):
            await self.live(TICK_S, rate)
            assert await scaler.lead()
            record = await scaler.tick()
            assert record is not None
            made.append(record)
        return made


def names(record: DecisionRecord) -> list[str]:
    return [step.name for step in record.steps]


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


async def test_the_platform_is_told_again_when_it_forgets(twin: Backend) -> None:
    site = Site(twin, replicas=3, min_replicas=3)
    scaler = site.scaler()
    await site.run(scaler, 2)
    assert [] == site.platform.told
    # A redeploy resets it to what the config says.
    site.platform.target = 1
    await site.run(scaler, 1)

    assert [3] == site.platform.told


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


async def test_advisory_decides_and_changes_nothing(twin: Backend) -> None:
    site = Site(twin, mode="advisory")
    scaler = site.scaler()
    await site.run(scaler, 1)
    records = await site.run(scaler, 6, rate=60.0)

    assert records[-1].replicas >= 3
    assert [] == site.platform.told
    assert site.relief == "none"
    assert records[-1].relief is not Relief.NONE


async def test_advice_is_no_order_that_a_platform_without_an_answer_carries_out(twin: Backend) -> None:
    site = Site(twin, mode="advisory", start_timeout_s=60)
    site.platform.down = True
    scaler = site.scaler()
    await site.run(scaler, 1)
    records = await site.run(scaler, 12, rate=60.0)

    assert records[-1].replicas >= 3
    assert {0} == {record.starting for record in records}
    assert {("does not answer",)} == {tuple(alarm.split(": ")[-1] for alarm in record.alarms) for record in records}


async def test_advice_that_nobody_follows_stays_the_same(twin: Backend) -> None:
    site = Site(twin, replicas=8, mode="advisory")
    records = (await site.run(site.scaler(), 60, rate=1.0))[30:]

    # A quarter fewer at a time.
    assert {6} == {record.replicas for record in records}
    assert not [record.reason for record in records if "last change" in record.reason]


async def test_a_removal_that_the_platform_refuses_is_tried_again_at_once(twin: Backend) -> None:
    site = Site(twin, replicas=8)
    site.platform.refuses = True
    scaler = site.scaler()
    records = (await site.run(scaler, 60, rate=1.0))[30:]
    assert {6} == {record.replicas for record in records}
    assert 0 == scaler.tally.changes_down

    site.platform.refuses = False
    await site.run(scaler, 1, rate=1.0)
    assert [6] == site.platform.told
    assert 1 == scaler.tally.changes_down


@both
async def test_a_standby_takes_over_with_the_memory_of_the_dead(backend: Backend) -> None:
    site = Site(backend)
    first, second = site.scaler("a"), site.scaler("b")
    await site.run(first, 1)
    await site.run(first, 8, rate=60.0)
    assert first.record is not None
    assert not await second.lead()
    # `a` stands still for longer than its lease.
    await site.live(42, rate=60.0)
    [record] = await site.run(second, 1, rate=60.0)

    assert (2, "b", first.record.number + 1) == (record.fence, record.leader, record.number)
    assert record.replicas == first.record.replicas
    # It knows what was measured before it.
    assert record.cold_start_s == first.record.cold_start_s < 180
    [demand, *_] = record.demands
    assert pytest.approx(60.0, rel=0.15) == demand.rate
    # `a` wakes up in the middle of a tick: what it decides is not stored, and not done.
    told = list(site.platform.told)
    site.platform.target = 1
    assert await first.tick() is None
    assert told == site.platform.told
    assert not await first.lead()


async def test_removal_waits_while_replicas_do_not_report(twin: Backend) -> None:
    site = Site(twin, replicas=4, look_back_s=30, down_window_s=1, stale_s=10)
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


async def test_replicas_that_vanish_are_awaited_and_not_written_off(twin: Backend) -> None:
    site = Site(twin, replicas=3, look_back_s=30, down_window_s=1)
    scaler = site.scaler()
    await site.run(scaler, 1, rate=20.0)
    site.dead = set(site.ready[1:])
    [*_, record] = await site.run(scaler, 3, rate=20.0)

    assert (1, 2, 3) == (record.ready, record.starting, record.replicas)


async def test_starts_that_fail_are_not_asked_for_again_at_once(twin: Backend) -> None:
    site = Site(twin, start_timeout_s=60)
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


async def test_a_failure_that_a_replica_reports_counts_at_once(twin: Backend) -> None:
    site = Site(twin)
    scaler = site.scaler()
    site.broken = True
    await site.run(scaler, 1)
    [*_, before] = await site.run(scaler, 3, rate=60.0)
    assert before.replicas > 1
    await site.backend.store().note_failed_start("no memory")
    [record] = await site.run(scaler, 1, rate=60.0)

    assert record.failed_starts == 1
    assert record.replicas < before.replicas


async def test_without_a_model_to_trust_the_fallback_rule_decides(twin: Backend) -> None:
    site = Site(twin)
    site.stats = {"step_error": 0.7}
    [*_, record] = await site.run(site.scaler(), 2, rate=60.0)

    assert "fallback" in names(record)


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


@both
async def test_an_operating_point_survives_a_lost_store_whoever_leads_then(backend: Backend) -> None:
    site = Site(backend)
    first, second = site.scaler("a"), site.scaler("b")
    await site.run(second, 1)
    await second.resign()
    points = [
        PointRecord(OperatingPoint(interactive=ClassSlo(2.0, itl_s)), "ops").to_bytes() for itl_s in (0.012, 0.015)
    ]
    for point in points:
        await backend.store().set_point(point)
        await site.run(first, 1)
        # Whoever stands by asks now and then whether it leads.
        assert not await second.lead()

    backend.forget()
    await site.run(second, 1)
    assert points[-1] == await backend.store().point()


async def test_relief_is_published_in_its_order_and_ends(twin: Backend) -> None:
    site = Site(twin, max_replicas=2)
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


async def test_a_platform_that_does_not_answer_is_an_alarm_and_is_told_later(twin: Backend) -> None:
    site = Site(twin)
    scaler = site.scaler()
    await site.run(scaler, 1)
    site.platform.down = True
    [*_, record] = await site.run(scaler, 5, rate=60.0)
    assert any("does not answer" in alarm for alarm in record.alarms)
    assert [] == site.platform.told
    site.platform.down = False
    await site.run(scaler, 1, rate=60.0)

    assert site.platform.told


async def test_a_platform_that_hangs_does_not_cost_the_lease(twin: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(twin)
    scaler = site.scaler()
    await site.run(scaler, 1)

    async def hang(_pool: str) -> Actual:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(site.platform, "look", hang)
    monkeypatch.setattr(scaler, "_host", AutoscalerSettings(tick_s=TICK_S, lease_s=0.5))
    await site.live(TICK_S)
    record = await scaler.tick()

    assert record is not None
    assert any("no answer within 0.2 s" in alarm for alarm in record.alarms)


async def test_a_store_that_is_away_changes_nothing(twin: Backend) -> None:
    site = Site(twin, replicas=2)
    scaler = site.scaler()
    await site.run(scaler, 1)
    twin.memory.down = True
    with pytest.raises(QueueUnavailableError):
        await scaler.lead()

    assert not scaler.leading
    assert [] == site.platform.told


async def test_the_metrics_say_what_was_decided(twin: Backend) -> None:
    site = Site(twin)
    scaler = site.scaler()
    await site.run(scaler, 1)
    [*_, record] = await site.run(scaler, 6, rate=60.0)
    registry = AutoscalerMetrics({"demo": scaler}).registry

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"penstock_autoscaler_{name}", {"pool": "demo", **labels})

    assert (1, 1) == (value("leading"), value("mode", mode="active"))
    assert record.replicas == value("replicas_decided") == value("replicas_target")
    assert (7, 0) == (value("ticks_total"), value("alarms"))
    assert 1 <= (value("changes_total", direction="up") or 0)
    assert pytest.approx(60.0, rel=0.3) == value("arrival_rate", **{"class": "interactive"})


async def test_who_was_deposed_does_not_go_on_saying_what_it_saw_last(twin: Backend) -> None:
    site = Site(twin)
    first = site.scaler()
    await site.run(first, 1)
    registry = AutoscalerMetrics({"demo": first}).registry
    names = [f"penstock_autoscaler_replicas_{name}" for name in ("target", "running", "decided")]
    assert None not in [registry.get_sample_value(name, {"pool": "demo"}) for name in names]
    await first.resign()
    await site.run(site.scaler("b"), 1)
    assert not await first.lead()

    assert [None] * 3 == [registry.get_sample_value(name, {"pool": "demo"}) for name in names]
    assert 0 == registry.get_sample_value("penstock_autoscaler_leading", {"pool": "demo"})


async def test_replicas_of_the_cluster_that_takes_over_are_not_counted_as_ours(twin: Backend) -> None:
    """Both clusters' replicas are in the pool; what is decided is told to the old one."""
    site = Site(twin, replicas=4)
    site.platform.names = site.ready
    scaler = site.scaler()
    await site.run(scaler, 60, rate=40.0)
    before = site.platform.target
    others = [
        ReplicaBeat(f"new{number}", b"", ReplicaState.READY, Windows(64, 10**6, 10**6), (), stats=dict(MODEL))
        for number in range(before)
    ]

    for _ in range(10):
        for _ in range(round(TICK_S / BEAT_S)):
            await site.live(BEAT_S, rate=40.0)
            for other in others:
                await site.queue.heartbeat_replica(other)
        assert await scaler.lead()
        record = await scaler.tick()

    assert record is not None
    assert before == record.ready == site.platform.target


async def test_a_night_without_anybody_is_no_cold_start(twin: Backend) -> None:
    site = Site(twin)
    site.cold_s = 60.0
    scaler = site.scaler()
    await site.run(scaler, 4)
    while not site.coming:
        await site.run(scaler, 1, rate=60.0)
    twin.clock.advance(12 * 3600)
    again = Site(twin)
    again.cold_s = 60.0
    again.ready, again.born = ["again"], {"again": twin.clock.monotonic()}
    records = await again.run(again.scaler("b"), 40, rate=100.0)

    assert max(record.cold_start_s for record in records) < 200
    assert not any(record.alarms for record in records)


async def test_a_night_without_anybody_is_no_idleness(twin: Backend) -> None:
    site = Site(twin, min_replicas=0, idle_s=900.0)
    await site.run(scaler := site.scaler(), 40, rate=5.0)
    await scaler.resign()
    twin.clock.advance(12 * 3600)
    again = Site(twin, min_replicas=0, idle_s=900.0)
    again.ready, again.born = ["again"], {"again": twin.clock.monotonic()}
    records = await again.run(again.scaler("b"), 70)

    assert 1 == records[0].replicas == records[50].replicas
    # Nobody comes for a quarter of an hour.
    assert 0 == records[-1].replicas


async def test_ids_that_no_replica_announces_say_nothing(twin: Backend) -> None:
    """Such as those of another version of Ray: replicas that run are not taken for another cluster's."""
    site = Site(twin, replicas=2)
    site.platform.names = ["other#r0", "other#r1"]
    [record] = await site.run(site.scaler(), 1)
    assert 2 == record.ready
