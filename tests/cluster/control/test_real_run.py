"""The step fit on a real vLLM run that others measured: seconds of it, as the file has no single steps."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from cluster.control.step_fit import FitRules, StepFit
from cluster.control.step_model import StepSample

DATA = Path(os.environ.get("PENSTOCK_DATA", Path(__file__).resolve().parents[4] / "shared" / "data"))
RUN = DATA / "vllm_run_rtx4090_llama8b"
KV_TOKENS = 41_408
"""The capacity that this run's engine reported."""


def seconds_of_the_run() -> list[StepSample]:
    """Make one sample per second: the mean step of it. A sequence makes a token per step."""
    found = []
    with (RUN / "timeseries.csv").open() as file:
        for row in csv.DictReader(file):
            running, generated = int(row["running"]), float(row["gen_throughput"])
            prompts = float(row["prompt_throughput"])
            if running < 2 or generated < 2 * running:
                continue
            steps = generated / running
            kv_tokens = int(float(row["kv_cache_pct"]) / 100 * KV_TOKENS)
            found.append(StepSample(1 / steps, int(running + prompts / steps), kv_tokens, running))
    return found


def test_the_first_third_of_a_real_run_predicts_the_rest() -> None:
    if not RUN.is_dir():
        pytest.skip(f"no measured run at {RUN}; PENSTOCK_DATA names the folder that holds it")
    samples = seconds_of_the_run()
    third = len(samples) // 3
    fit = StepFit(rules=FitRules(forgetting=1.0, min_samples=10))
    fit.learn(samples[:third])
    assert fit.model is not None
    errors = sorted(abs(fit.model.predict(s.tokens, s.kv_tokens) / s.seconds - 1) for s in samples[third:])

    assert len(samples) > 60
    assert errors[len(errors) // 2] < 0.1
    # What others fitted to the same run's requests: 89.7 us per token. The KV cache was full nearly all the time, so
    # its part and the constant one (17.7 ms) can't be told apart here; together they can.
    assert pytest.approx(89.7e-6, rel=0.2) == fit.model.b
    assert pytest.approx(0.0211, rel=0.2) == fit.model.predict(0, KV_TOKENS)
