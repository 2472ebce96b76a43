"""The fast loop on a real vLLM engine. Ratios of one run, as the machine is what it is."""

from __future__ import annotations

import pytest

from loadtest.bench_control import bench_pool, measure
from tests.deployments.engines.conftest import Started

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.mark.parametrize("started", ["vllm"], indirect=True)
async def test_the_loop_holds_an_itl_slo_with_nearly_all_of_the_best_throughput(started: Started) -> None:
    report = await measure(started.engine, started.identity, bench_pool(str(started.model)), seconds=1.0)

    assert report.step_error_median is not None
    assert report.step_error_median < 0.25
    if report.disturbed:
        pytest.skip(f"other work disturbs this machine too much to compare latencies: {report.static}")
    assert report.loop.itl_p95_s <= 1.1 * report.slo_s
    assert report.loop_over_best is not None
    assert report.loop_over_best >= 0.85
    assert report.loop_loose.tokens_per_s > 1.1 * report.loop.tokens_per_s
