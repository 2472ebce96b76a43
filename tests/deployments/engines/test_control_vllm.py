"""The fast loop on a real vLLM engine."""

from __future__ import annotations

import pytest

from loadtest.benchmarks.control import bench_pool, measure
from tests.deployments.engines.conftest import Started

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.mark.parametrize("started", ["vllm"], indirect=True)
async def test_the_steps_of_a_real_engine_are_learned_while_the_loop_runs(started: Started) -> None:
    """What the loop gains is a question for a quiet machine: `make bench-control`."""
    report = await measure(started.engine, started.identity, bench_pool(str(started.model)), seconds=0.2)

    assert report.step_error_median is not None
    assert report.step_error_median < 0.5
    assert report.loop.tokens_per_s > 0
