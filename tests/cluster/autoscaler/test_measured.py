"""What the slow loop rests on: rates from counters, starts, and the snapshot that they make. All pure."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from cluster.autoscaler.assemble import UNKNOWN_SHAPE, GroupFacts, assemble
from cluster.autoscaler.leader_state import PoolMemory
from cluster.autoscaler.meter import ClassRates, Meter
from cluster.autoscaler.operating_point import PointRecord, point_in_force
from cluster.autoscaler.own_settings import slow_rules
from cluster.autoscaler.router_report import ClassCounts, Counts, JobWork, empty_counts, pack_report, unpack_report
from cluster.autoscaler.starts import Starts
from cluster.control.bursts.hold import Hold
from cluster.control.load_forecast import Need
from cluster.control.rails import Move
from cluster.control.replica_rules import SlowRules, SlowState
from cluster.control.step_model import Shape, StepModel
from cluster.models import Windows
from cluster.queue.heartbeats import PoolView, ReplicaRecord, RouterReport
from cluster.settings import AutoscaleSettings
from cluster.standby.rule import StandbyState
from penstock.models import ReplicaState, RequestClass
from penstock.values.slo import ClassSlo, OperatingPoint
from penstock.values.steps import Relief

FACTS = GroupFacts(cold_start_s=180.0, gpus_per_replica=1)
STORED = StepModel(0.02, 1e-5, 1e-8)
JOB = JobWork(RequestClass.BATCH, 600, 4, 3600.0, 80.0, 16.0, 40.0)


def counts(requests: float, *, prompt: float = 100.0, output: float = 50.0, **more: float) -> Counts:
    found = empty_counts()
    found[RequestClass.INTERACTIVE] = ClassCounts(requests, requests * prompt, 0.0, requests * output, **more)
    return found


def metered(*looks: tuple[float, dict[str, Counts]], window_s: float = 60.0) -> Meter:
    meter = Meter()
    for at, reports in looks:
        meter = meter.update(at, reports, 0.5 if reports else None, window_s)
    return meter


def rate(meter: Meter) -> float:
    return meter.rates[RequestClass.INTERACTIVE].requests


# --- rates ------------------------------------------------------------------------------------------------------------


def test_rates_add_up_over_routers() -> None:
    meter = metered((0, {"a": counts(5), "b": counts(0)}), (10, {"a": counts(25), "b": counts(40, prompt=400)}))

    assert pytest.approx(6.0) == rate(meter)
    shape = meter.rates[RequestClass.INTERACTIVE].shape
    assert shape is not None
    assert pytest.approx((20 * 100 + 40 * 400) / 60) == shape.prompt_tokens


def test_what_was_counted_before_the_first_look_is_no_rate() -> None:
    assert metered((0, {"a": counts(1e6)})).rates == {}
    assert rate(metered((0, {"a": counts(1e6)}), (10, {"a": counts(1e6)}))) == 0


def test_a_router_that_comes_counts_from_its_start() -> None:
    looks = [(t * 10.0, {"a": counts(t * 10)}) for t in range(7)]
    meter = metered(*looks, (70, {"a": counts(70), "b": counts(20)}))

    new = 1 - math.exp(-10 / 60)
    assert pytest.approx(1.0 + new * 2.0) == rate(meter)


@pytest.mark.parametrize("first", [{}, {"a": counts(500)}])
def test_a_router_that_the_first_look_missed_brings_no_past(first: dict[str, Counts]) -> None:
    """All have to join again where a store lost everything, and one that begins to lead may be quicker."""
    meter = metered((0, first), (15, {"a": counts(515), "b": counts(1e6)}), (30, {"a": counts(530), "b": counts(1e6)}))

    assert pytest.approx(1.0) == rate(meter)
    assert pytest.approx(-0.5) == (meter.reported_at or 0.0) - 30


def test_a_pool_of_which_no_router_is_ever_heard_has_old_values() -> None:
    assert 0.0 == metered((0, {}), (15, {}), (30, {})).reported_at


def test_a_router_that_died_fades_and_is_not_zero() -> None:
    looks = [(t * 10.0, {"a": counts(t * 100)}) for t in range(12)]
    meter = metered(*looks)
    assert pytest.approx(10.0, rel=0.02) == rate(meter)
    meter = meter.update(120, {}, None, 60.0)

    assert rate(meter) > 8
    assert meter.reported_at == 109.5


def test_the_mean_size_is_by_requests_and_follows_a_shift() -> None:
    looks = [(t * 10.0, {"a": counts(t * 10)}) for t in range(10)]
    meter = metered(*looks)
    # Long ones at the same rate.
    total = counts(90)
    for step in range(1, 13):
        mine = total[RequestClass.INTERACTIVE]
        total[RequestClass.INTERACTIVE] = ClassCounts(
            mine.requests + 10, mine.prompt_tokens + 10 * 1000, 0.0, mine.output_tokens + 10 * 50
        )
        meter = meter.update(90 + step * 10.0, {"a": total}, 0.5, 60.0)
        total = {name: ClassCounts(**_fields(one)) for name, one in total.items()}

    shape = meter.rates[RequestClass.INTERACTIVE].shape
    assert shape is not None
    assert 850 < shape.prompt_tokens <= 1000
    assert pytest.approx(1.0, rel=0.05) == rate(meter)


def _fields(one: ClassCounts) -> dict[str, float]:
    return {name: getattr(one, name) for name in ClassCounts.__slots__}


def test_attainment_needs_enough_requests() -> None:
    few = metered((0, {"a": counts(0)}), (100, {"a": counts(100, judged=100, met=50)}))
    many = metered((0, {"a": counts(0)}), (100, {"a": counts(1000, judged=1000, met=900)}))

    assert few.attainment is None
    assert pytest.approx(0.9) == many.attainment


def test_a_report_survives_the_wire_and_nonsense_is_refused() -> None:
    report = unpack_report(pack_report(counts(7, judged=3, met=2), [JOB]))
    assert (counts(7, judged=3, met=2), (JOB,)) == (report.counts, report.jobs)
    for bad in (b"", b"\x01", pack_report(counts(1))[:-1], b"\x91\x90", b"\x92\x90\x90"):
        with pytest.raises(ValueError, match="no report of a router"):
            unpack_report(bad)


# --- starts -----------------------------------------------------------------------------------------------------------


def started(starts: Starts, at: float, ready: dict[str, float], target: int, reported: int = 0) -> Starts:
    return starts.update(at, ready, target, reported, 100.0)


def test_a_cold_start_is_measured_from_asking_to_ready() -> None:
    starts = started(Starts(), 0, {"a": 500.0}, 1)
    starts = starts.asked_for(0, 2)
    starts = started(starts, 30, {"a": 530.0}, 3)
    assert (0.0, 0.0) == starts.asked
    starts = started(starts, 60, {"a": 560.0, "b": 20.0, "c": 5.0}, 3)

    assert ((40.0, 55.0), ()) == (starts.samples, starts.asked)
    assert 55.0 == starts.cold_start_s(180.0)
    assert 180.0 == Starts().cold_start_s(180.0)


def test_what_started_before_the_first_look_is_no_short_start() -> None:
    starts = started(Starts(), 0, {}, 3)
    starts = started(starts, 15, {"a": 10.0, "b": 5.0}, 3)
    assert ((), 10.0) == (starts.samples, starts.least_s)
    assert 50.0 == starts.cold_start_s(50.0)
    # What took longer than that took at least so long.
    starts = started(starts, 75, {"a": 70.0, "b": 65.0, "c": 5.0}, 3).asked_for(75, 1)
    assert 70.0 == starts.cold_start_s(50.0)

    stored = PoolMemory.from_bytes(PoolMemory(starts=starts).to_bytes()).starts
    starts = started(stored, 110, {"a": 105.0, "b": 100.0, "c": 40.0, "d": 5.0}, 4)
    assert ((30.0,), 30.0) == (starts.samples, starts.cold_start_s(50.0))


def test_what_is_held_goes_to_the_next_leader() -> None:
    hold = Hold(7, 7.5, 3, 100.0, 50.0, 1, 45.0, 90.0, 80.0)
    stored = PoolMemory(slow=SlowState(hold=hold)).to_bytes()
    assert hold == PoolMemory.from_bytes(stored).slow.hold
    ahead = replace(hold, checked_at=60.0, late_since=60.0, suspended_at=60.0)
    assert ahead == PoolMemory.from_bytes(stored).up_to(60.0).slow.hold

    fields = json.loads(stored)
    fields["slow"]["hold"] = fields.pop("hold")
    assert hold == PoolMemory.from_bytes(json.dumps(fields).encode()).slow.hold
    del fields["slow"]["hold"]
    assert Hold() == PoolMemory.from_bytes(json.dumps(fields).encode()).slow.hold


def test_each_step_of_the_dial_plans_for_more_room() -> None:
    rules = [slow_rules(AutoscaleSettings(headroom=name)) for name in ("less", "balanced", "more")]
    assert sorted((one.fill for one in rules), reverse=True) == [one.fill for one in rules]
    assert sorted((one.hold.worth for one in rules), reverse=True) == [one.hold.worth for one in rules]
    assert SlowRules() == slow_rules(AutoscaleSettings())
    assert 0.3 == slow_rules(AutoscaleSettings(headroom="less", fill=0.3)).fill


def test_one_that_falls_silent_and_returns_is_no_start() -> None:
    starts = started(Starts(), 0, {"a": 10.0, "b": 10.0}, 2)
    starts = started(starts, 15, {"a": 25.0}, 2)
    assert (15,) == starts.asked
    starts = started(starts, 30, {"a": 40.0, "b": 40.0}, 2)

    assert ((), ()) == (starts.samples, starts.asked)


def test_what_does_not_come_in_time_has_failed_and_a_good_start_forgives() -> None:
    starts = started(Starts(), 0, {"a": 10.0}, 3)
    starts = started(starts, 101, {"a": 111.0}, 3)
    assert (1, 101, ()) == (starts.failed, starts.last_failure_at, starts.asked)
    # The target was lowered, and after a while raised again.
    starts = started(starts, 200, {"a": 210.0}, 1).asked_for(200, 1)
    starts = started(starts, 250, {"a": 260.0, "b": 5.0}, 2)

    assert 0 == starts.failed


def test_a_failed_start_that_nobody_tries_again_is_forgotten() -> None:
    starts = started(Starts(), 0, {"a": 10.0}, 2)
    starts = started(starts, 101, {"a": 111.0}, 2)
    assert 1 == started(starts, 3600, {"a": 3610.0}, 1).failed
    starts = started(starts, 3701, {"a": 3711.0}, 1)

    assert (0, None) == (starts.failed, starts.last_failure_at)


def test_failures_that_replicas_report_count_at_once_but_not_those_of_the_past() -> None:
    starts = started(Starts(), 0, {}, 1, reported=7)
    assert 0 == starts.failed
    starts = started(starts, 15, {}, 1, reported=8)
    assert (1, ()) == (starts.failed, starts.asked)
    # A store that lost everything.
    assert 1 == started(starts, 30, {}, 0, reported=0).failed


# --- the snapshot -----------------------------------------------------------------------------------------------------


def replica(
    name: str = "r1", state: ReplicaState = ReplicaState.READY, age_ms: int = 300, **stats: float
) -> ReplicaRecord:
    return ReplicaRecord(name, b"", state, Windows(32, 1000, 100), 4, 0, 0, age_ms, {"kv_usage": 0.5, **stats})


def view(*replicas: ReplicaRecord, **changes: Any) -> PoolView:
    fields: dict[str, Any] = {
        "time_ms": 1_000_000,
        "run_id": "",
        "replicas": replicas,
        "reports": (RouterReport("a", 700, b""),),
        "waiting": (0, 0, 0),
        "longest_wait_ms": (0, 0, 0),
        "running": 4,
        "point": None,
        "routers": ("a",),
    }
    return PoolView(**{**fields, **changes})


def test_only_ready_replicas_count_as_ready() -> None:
    seen = assemble(
        view(replica("a"), replica("b", ReplicaState.DRAINING, kv_usage=1.0), replica("c", kv_usage=0.1)),
        Meter(), Starts(asked=(1.0, 2.0)), FACTS,
    )  # fmt: skip

    assert (2, 2, 1) == (seen.ready, seen.starting, seen.draining)
    assert pytest.approx(0.3) == seen.kv_usage
    assert (1000.0, 180.0, 32, 1000) == (seen.at, seen.cold_start_s, seen.max_sequences, seen.kv_tokens)


def test_the_step_budget_is_known_where_replicas_say_it() -> None:
    for told, budget in (((2048.0, 2048.0, 512.0), 2048), ((), 0)):
        replicas = [replica(f"r{n}", step_tokens=tokens) for n, tokens in enumerate(told)] or [replica("old")]
        assert budget == assemble(view(*replicas), Meter(), Starts(), FACTS).step_tokens


def test_what_waits_is_seen_although_nothing_was_counted() -> None:
    [demand] = assemble(view(waiting=(0, 3, 0), longest_wait_ms=(0, 2500, 0)), Meter(), Starts(), FACTS).demands

    assert (RequestClass.STANDARD, 3, 2.5, UNKNOWN_SHAPE) == (
        demand.request_class, demand.queued, demand.oldest_wait_s, demand.shape,
    )  # fmt: skip


def test_jobs_are_work_with_a_deadline_and_nobody_who_waits() -> None:
    waits = view(waiting=(0, 0, 9), longest_wait_ms=(0, 0, 70_000), running=12)
    seen = assemble(waits, Meter(), Starts(), FACTS, None, [replace(JOB, left_s=90.0), JOB])

    assert seen.filled
    # Eight of the nine are what the feeders keep there.
    assert 1.0 == seen.waiting
    standing, *due = seen.demands
    assert (RequestClass.BATCH, 1, None) == (standing.request_class, standing.queued, standing.deadline_s)
    assert [
        (RequestClass.BATCH, 0.0, 600, 90.0, Shape(80, 40, 16)),
        (RequestClass.BATCH, 0.0, 600, 3600.0, Shape(80, 40, 16)),
    ] == [(each.request_class, each.rate, each.queued, each.deadline_s, each.shape) for each in due]


def test_a_job_without_results_is_taken_for_like_other_requests() -> None:
    fresh = replace(JOB, prompt_tokens=0.0, cached_tokens=0.0, output_tokens=0.0)
    meter = Meter(rates={RequestClass.BATCH: ClassRates(0.0, Shape(10, 20))})

    [_, known] = assemble(view(), meter, Starts(), FACTS, None, [fresh]).demands
    [unknown] = assemble(view(), Meter(), Starts(), FACTS, None, [fresh]).demands
    assert (Shape(10, 20), UNKNOWN_SHAPE) == (known.shape, unknown.shape)
    assert not assemble(view(), Meter(), Starts(), FACTS, None, [replace(fresh, items=0)]).filled


def test_the_oldest_value_decides_the_age() -> None:
    meter = Meter(at=990.0, reported_at=940.0)

    assert 0.7 == assemble(view(replica()), meter, Starts(), FACTS).age_s
    assert 45.0 == assemble(view(replica(age_ms=45_000)), meter, Starts(), FACTS).age_s
    # No router reports any more: what they last said is a minute old.
    assert 60.0 == assemble(view(replica(), reports=()), meter, Starts(), FACTS).age_s


def test_the_middle_of_the_replicas_models_is_taken() -> None:
    models = [replica(f"r{n}", step_a=a, step_b=1e-5, step_g=1e-8) for n, a in enumerate((0.5, 0.01, 0.012))]

    model = assemble(view(*models), Meter(), Starts(), FACTS, STORED).model
    assert model is not None
    assert 0.012 == model.a


def test_a_stored_model_serves_until_replicas_have_measured() -> None:
    assert STORED == assemble(view(replica()), Meter(), Starts(), FACTS, STORED).model
    assert STORED == assemble(view(), Meter(), Starts(), FACTS, STORED).model
    # They have, and trust none.
    assert assemble(view(replica(step_error=0.6)), Meter(), Starts(), FACTS, STORED).model is None


def test_the_live_batch_is_the_middle_one_of_those_that_fast_loops_hold() -> None:
    beats = [replica(live_batch=8.0), replica(), replica(live_batch=12.0), replica(live_batch=40.0)]
    assert 12.0 == assemble(view(*beats), Meter(), Starts(), FACTS).live_batch
    assert assemble(view(replica()), Meter(), Starts(), FACTS).live_batch is None


def test_the_spread_is_measured_within_reason() -> None:
    spread = assemble(view(replica(itl_p95_s=0.03, itl_mean_s=0.02)), Meter(), Starts(), FACTS).spread
    assert pytest.approx(1.5) == spread
    assert 3.0 == assemble(view(replica(itl_p95_s=0.9, itl_mean_s=0.02)), Meter(), Starts(), FACTS).spread
    assert 1.0 == assemble(view(replica(itl_p95_s=0.0, itl_mean_s=0.0)), Meter(), Starts(), FACTS).spread


# --- what is handed over ----------------------------------------------------------------------------------------------


def test_a_leaders_memory_survives_the_handover() -> None:
    needs = (Need(1.0, 0.5, 2), Need(16.0, 0.5, 2, 3.0, UNKNOWN_SHAPE))
    memory = PoolMemory(
        SlowState(needs, (Move(1.0, 3),), 0.7, 5.0, None, relief=Relief.SHED),
        metered((0, {"a": counts(0)}), (10, {"a": counts(30, judged=4, met=1)})),
        Starts((1.0,), frozenset({"r1"}), (40.0,), 2, 3.0, 7),
        "group",
        StandbyState(4, (90.0, 120.0), (60.0,), 2, 1.5, ("r1", "r2")),
    )

    assert memory == PoolMemory.from_bytes(memory.to_bytes())
    assert PoolMemory() == PoolMemory.from_bytes(PoolMemory().to_bytes())


def test_a_leader_takes_over_from_a_release_that_wrote_less_down() -> None:
    fields = json.loads(PoolMemory(SlowState((Need(1.0, 0.5, 2, 3.0, UNKNOWN_SHAPE),))).to_bytes())
    fields["slow"]["needs"] = [need[:3] for need in fields["slow"]["needs"]]
    del fields["slow"]["relief"], fields["group"], fields["standby"]

    assert PoolMemory(SlowState((Need(1.0, 0.5, 2),))) == PoolMemory.from_bytes(json.dumps(fields).encode())


def test_a_leader_takes_over_from_a_later_release() -> None:
    memory = PoolMemory(
        SlowState((Need(1.0, 0.5, 2, 3.0, UNKNOWN_SHAPE),), (Move(1.0, 3),), hold=Hold(7)),
        metered((0, {"a": counts(0)}), (10, {"a": counts(30)})),
    )
    fields = json.loads(memory.to_bytes())
    parts = [fields, fields["slow"], fields["slow"]["check"], fields["hold"], fields["starts"], fields["standby"]]
    for part in [*parts, fields["meter"]]:
        part["later"] = 1.0
    fields["slow"]["needs"][0].append(9.0)
    fields["slow"]["moves"][0].append(9.0)

    assert memory == PoolMemory.from_bytes(json.dumps(fields).encode())


def test_a_release_that_knew_no_held_number_can_still_take_over() -> None:
    """It refuses any field of this part that it does not know, and reads past other parts."""
    fields = json.loads(PoolMemory(SlowState(hold=Hold(7))).to_bytes())
    slow = {
        "needs", "moves", "fill", "fill_at", "active_at", "check", "relief", "patience", "regretted_at",
    }  # fmt: skip

    assert slow == fields["slow"].keys()


def test_what_lies_ahead_is_forgotten_when_another_store_is_behind() -> None:
    memory = PoolMemory(
        SlowState((Need(1.0, 0.5, 2), Need(100.0, 0.5, 2)), (Move(1.0, 3), Move(90.0, 4)), 0.7, 395.0, 99.0),
        metered((0, {"a": counts(0)}), (100, {"a": counts(300)})),
        Starts((2.0, 98.0), frozenset({"r1"}), (40.0,), 2, 97.0, 7),
    )
    kept = memory.up_to(50.0)

    assert ((Need(1.0, 0.5, 2),), (Move(1.0, 3),), 350.0, 50.0) == (
        kept.slow.needs, kept.slow.moves, kept.slow.fill_at, kept.slow.active_at,
    )  # fmt: skip
    assert ((2.0, 50.0), 50.0) == (kept.starts.asked, kept.starts.last_failure_at)
    assert memory is memory.up_to(100.0)
    # The rates go on from there.
    later = kept.meter.update(50.0, {"a": counts(300)}, 0.5, 60.0).update(60.0, {"a": counts(330)}, 0.5, 60.0)
    assert pytest.approx(3.0) == rate(kept.meter) == rate(later)


def test_a_regret_that_lies_ahead_ends_in_time() -> None:
    memory = PoolMemory(SlowState(patience=4.0, regretted_at=90_000.0)).up_to(50.0)

    assert (4.0, 50.0) == (memory.slow.patience, memory.slow.regretted_at)


def test_an_operating_point_survives_and_nonsense_is_the_settings() -> None:
    point = OperatingPoint(interactive=ClassSlo(2.0, 0.05), price_per_gpu_hour=3.5, budget_per_hour=70.0)
    default = OperatingPoint()

    assert point == point_in_force(PointRecord(point, "ops", 5).to_bytes(), default)
    assert default == point_in_force(PointRecord(None, "ops", 6).to_bytes(), default)
    assert default == point_in_force(None, default)
    assert default == point_in_force(b"{}", default)
