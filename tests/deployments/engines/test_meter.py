from __future__ import annotations

from cluster.models import EngineStats
from deployments.engines.meter import StepMeter


def stats(meter: StepMeter) -> EngineStats:
    return meter.stats(0.0, 8, 512, output_tokens_live=0, gpu_s_live=0.0)


def test_sequences_that_are_not_in_the_batch_wait() -> None:
    meter = StepMeter()
    for _ in range(5):
        meter.arrive(0.0, 10)
    meter.step(1.0, 2, running=2, kv_usage=0.5)
    assert (stats(meter).running, stats(meter).waiting, stats(meter).kv_usage) == (2, 3, 0.5)


def test_empty_engine_is_idle_whatever_its_last_step_said() -> None:
    meter = StepMeter()
    meter.arrive(0.0, 10)
    meter.step(1.0, 1, running=1, kv_usage=0.5)
    meter.leave(prompt_tokens=10, prefilled=False, output_tokens=0, gpu_seconds=0.5)
    assert (stats(meter).running, stats(meter).kv_usage, stats(meter).prefill_tokens) == (0, 0.0, 0)
    assert meter.idle_for(1000.0) == 0.0


def test_prompt_counts_as_prefill_until_its_first_token() -> None:
    meter = StepMeter()
    meter.arrive(0.0, 100)
    meter.arrive(0.0, 30)
    assert stats(meter).prefill_tokens == 130
    meter.prefilled(100, 64)
    assert (stats(meter).prefill_tokens, stats(meter).prompt_tokens, stats(meter).cached_tokens) == (30, 100, 64)
    meter.leave(prompt_tokens=100, prefilled=True, output_tokens=7, gpu_seconds=0.5)
    assert (stats(meter).prefill_tokens, stats(meter).output_tokens) == (30, 7)


def test_work_without_steps_is_no_progress() -> None:
    meter = StepMeter()
    meter.arrive(50.0, 10)
    assert meter.idle_for(57.0) == 7.0
    meter.step(58.0, 1, running=1, kv_usage=0.1)
    assert meter.idle_for(59.0) == 1.0
    assert meter.longest_step_s == 8.0
