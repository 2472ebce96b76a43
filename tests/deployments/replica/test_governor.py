"""The host of the fast loop, around the simulated engine's own scheduler in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from prometheus_client import CollectorRegistry

from cluster.clock import ManualClock
from cluster.control.settings import ControlMode
from cluster.control.step_fit import FittedStep
from cluster.control.step_model import StepModel
from cluster.settings import ControlSettings, EngineKind, PoolSettings, SimSettings
from deployments.replica.control_metrics import ControlMetrics
from deployments.replica.governor import Governor
from penstock.values.slo import ClassSlo, OperatingPoint
from tests.deployments.replica.virtual_engine import VirtualEngine
from tests.support.waiting import ended

SIM = SimSettings(base_ms=10, per_token_us=50, per_kv_token_us=0.2, max_num_seqs=128, kv_tokens=400_000)
TRUE = StepModel(10e-3, 50e-6, 0.2e-6)


class Site:
    """A governor with its engine."""

    def __init__(self, *, slo: float | None = 0.04, prompt: int = 150, **control: Any) -> None:
        pool = PoolSettings.model_validate(
            {
                "engine": EngineKind.SIM,
                "sim": SIM.model_dump(),
                "slo": {"interactive": {"itl_p95_s": slo}},
                "control": control,
            }
        )
        self.clock = ManualClock()
        self.engine = VirtualEngine(self.clock, SIM, prompt=prompt, output=100)
        self.applied: list[int] = []
        self.interactive = (0, 0)
        """Running, and ever started."""
        self.governor = Governor(
            self.engine,  # type: ignore[arg-type]
            pool,
            self.engine.windows,
            self.clock,
            self._apply,
            lambda: self.engine.held,
            interactive=lambda: self.interactive,
        )

    async def _apply(self, sequences: int) -> int:
        applied, _ = await self.engine.set_batch_limits(sequences, None)
        self.applied.append(applied)
        return applied

    async def run(self, seconds: int) -> tuple[float, float]:
        for _ in range(seconds):
            self.engine.run(1.0)
            await self.governor.tick()
        return self.engine.measure(seconds / 2)

    def metric(self, name: str, **labels: str) -> float | None:
        registry = CollectorRegistry()
        registry.register(ControlMetrics({"pool": "p"}, self.governor))
        return registry.get_sample_value(f"penstock_replica_{name}", {"pool": "p", **labels})


def point(itl_s: float | None) -> OperatingPoint:
    return OperatingPoint(interactive=ClassSlo(itl_p95_s=itl_s))


@pytest.mark.slow
async def test_overload_is_held_at_the_slo_and_a_looser_one_gives_throughput() -> None:
    site = Site(slo=0.03)
    await site.governor.start()
    await site.run(40)
    held, tight = await site.run(40)
    site.governor.set_operating_point(point(0.06))
    await site.run(40)
    loose_held, loose = await site.run(40)
    site.engine.run(1.0)

    assert held <= 0.03
    assert loose_held <= 0.06
    assert loose > 1.3 * tight
    assert 1 <= min(site.applied)


@pytest.mark.slow
async def test_the_model_is_found_and_its_error_exported() -> None:
    site = Site()
    await site.governor.start()
    await site.run(60)
    model = site.governor.model

    assert model is not None
    assert pytest.approx(TRUE.predict(60, 12_000), rel=0.06) == model.predict(60, 12_000)
    error = site.metric("step_error_median")
    assert error is not None
    assert 0 < error < 0.08
    assert pytest.approx(site.metric("step_measured_seconds"), rel=0.1) == site.metric("step_predicted_seconds")
    assert 1 == site.metric("control_mode", mode="active")
    assert site.governor.report()["step_a"] == model.a


@pytest.mark.slow
async def test_batch_work_leaves_room_for_interactive_sequences_to_come() -> None:
    site = Site()
    await site.governor.start()
    await site.run(40)
    assert site.governor.batch_slots is None
    for second in range(30):
        site.interactive = (6, 4 * second)
        await site.run(1)
    decision = site.governor.decision
    assert decision is not None
    # Six run, and of four a second up to nine come in the next one.
    assert site.governor.batch_slots == decision.batch_class_limit
    assert decision.limit - 18 <= decision.batch_class_limit <= decision.limit - 12
    for _ in range(120):
        site.interactive = (0, 120)
        await site.run(1)

    assert site.governor.batch_slots is None or site.governor.batch_slots >= site.governor.decision.limit - 1  # type: ignore[union-attr]
    site.governor.set_operating_point(point(0.04), ControlMode.ADVISORY)
    assert site.governor.batch_slots is None


async def test_without_an_slo_nothing_moves_and_steps_are_still_learned_from() -> None:
    site = Site(slo=None)
    await site.governor.start()
    await site.run(30)

    assert [] == site.applied
    assert site.governor.model is not None
    assert site.metric("control_limit") is None


async def test_advisory_mode_decides_and_does_not_act() -> None:
    site = Site(slo=0.02, mode="advisory")
    await site.governor.start()
    await site.run(30)

    assert [] == site.applied
    assert site.governor.decisions
    limit = site.metric("control_limit")
    assert limit is not None
    assert limit < SIM.max_num_seqs


@pytest.mark.slow
async def test_a_promise_that_is_taken_back_gives_the_whole_batch_back() -> None:
    site = Site(slo=0.02)
    await site.governor.start()
    await site.run(30)
    assert site.engine.stats().batch_limit < SIM.max_num_seqs
    site.governor.set_operating_point(point(None))
    await site.run(2)

    assert SIM.max_num_seqs == site.engine.stats().batch_limit
    assert ControlMode.OFF is site.governor.mode


@pytest.mark.parametrize("mode", ["off", "advisory"])
async def test_decisions_that_no_longer_act_leave_no_limit_behind(mode: Literal["off", "advisory"]) -> None:
    site = Site(start_batch=3)
    await site.governor.start()
    assert [3] == site.applied
    site.governor.change(ControlSettings(mode=mode))
    await site.run(1)
    assert SIM.max_num_seqs == site.engine.stats().batch_limit
    site.governor.change(ControlSettings(mode=mode, max_batch=20))
    await site.run(1)
    assert 20 == site.engine.stats().batch_limit
    site.governor.change(ControlSettings(mode=mode, max_batch=30))
    await site.run(2)
    assert [3, SIM.max_num_seqs, 20, 30] == site.applied


async def test_without_decisions_the_largest_batch_of_the_settings_holds_from_the_start() -> None:
    site = Site(slo=None, max_batch=20)
    await site.governor.start()
    await site.run(2)
    assert [20] == site.applied


async def test_a_limit_that_the_engine_does_not_take_back_is_told_again() -> None:
    site = Site(start_batch=3)
    await site.governor.start()
    take = site.engine.set_batch_limits

    async def refuse(*_: int | None) -> tuple[int, int]:
        raise RuntimeError("no answer from the scheduler")

    site.engine.set_batch_limits = refuse  # type: ignore[method-assign]
    site.governor.change(ControlSettings(mode="off"))
    with pytest.raises(RuntimeError):
        await site.governor.tick()
    site.engine.set_batch_limits = take  # type: ignore[method-assign]
    await site.governor.tick()
    assert [3, SIM.max_num_seqs] == site.applied


async def test_a_new_replica_starts_low_and_a_seeded_one_does_not() -> None:
    cold, seeded = Site(), Site()
    seeded.governor.seed(FittedStep("group", TRUE, 1000, 0.05))
    await cold.governor.start()
    await seeded.governor.start()

    assert [16] == cold.applied
    assert [128] == seeded.applied


@pytest.mark.slow
async def test_limits_stay_within_the_settings() -> None:
    site = Site(slo=0.0101, min_batch=4, max_batch=20)
    await site.governor.start()
    await site.run(40)
    assert 4 == site.engine.stats().batch_limit
    assert 1 == site.metric("control_overloaded")
    site.governor.set_operating_point(point(5.0))
    await site.run(60)

    assert 20 == site.engine.stats().batch_limit
    assert all(4 <= limit <= 20 for limit in site.applied)


@pytest.mark.slow
async def test_an_engine_that_gets_slower_is_followed() -> None:
    site = Site(slo=0.04)
    await site.governor.start()
    await site.run(40)
    before = site.engine.stats().batch_limit
    site.engine.slowdown = 1.5
    await site.run(40)
    held, _ = await site.run(40)

    assert site.engine.stats().batch_limit < 0.8 * before
    assert held <= 0.04


@pytest.mark.slow
async def test_every_change_is_explained() -> None:
    site = Site(slo=0.02)
    await site.governor.start()
    await site.run(30)
    _, decision = site.governor.decisions[-1]

    assert sum(site.governor.changes.values()) == len(site.governor.decisions)
    assert any("ITL SLO of 20 ms" in step.reason for step in decision.steps)
    assert decision.limit == next(step.value for step in decision.steps if step.name == "limit")


@pytest.mark.slow
async def test_a_limit_that_the_engine_does_not_take_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    site = Site(period_s=0.1, start_batch=8)
    await site.governor.start()
    take, refused = site.engine.set_batch_limits, 0

    async def refuse(*_: int | None) -> tuple[int, int]:
        nonlocal refused
        refused += 1
        raise RuntimeError("no answer from the scheduler")

    async def until_moved(run: asyncio.Task[None], moves: int) -> None:
        while not run.done() and refused + len(site.applied) < moves:
            site.engine.run(1.0)
            await asyncio.sleep(0.01)

    run = asyncio.create_task(site.governor.run())
    site.engine.set_batch_limits = refuse  # type: ignore[method-assign]
    await until_moved(run, 3)
    site.engine.set_batch_limits = take  # type: ignore[method-assign]
    await until_moved(run, refused + 3)
    await ended(run)

    assert refused >= 2
    assert site.applied[-1] > 8
    # A fault that lasts does not fill the log.
    assert 1 == caplog.text.count("control.tick_failed")
