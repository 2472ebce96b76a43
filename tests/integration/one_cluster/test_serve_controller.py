"""Ray Serve's controller dies under streams. Longer faults of Ray: ../test_ray_faults.py."""

from __future__ import annotations

import concurrent.futures

import pytest

from tests.integration.ray_control import POOL, ended, ray_processes, running_replicas, stream
from tests.support.running import ClusterThread
from tests.support.waiting import until_sync

pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.timeout(600)]
BACK_S = 60.0


def test_without_the_controller_streams_and_new_requests_run_and_it_comes_back(engines: ClusterThread) -> None:
    [controller] = ray_processes(engines, "ServeController")
    before = running_replicas(engines)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(stream, engines, 600, number % 2) for number in range(4)]
        # It answers nobody, however long that takes, and no other one does either.
        controller.suspend()
        assert 20 == len(stream(engines, 20)[0])
        controller.kill()
        until_sync(lambda: ended(controller))
        assert 20 == len(stream(engines, 20)[0])
        ends = [one.result() for one in streams]

    assert {(600, 1)} == {(len(ids), len(end.receipt.attempts)) for ids, end in ends}
    until_sync(lambda: [p for p in ray_processes(engines, "ServeController") if p.pid != controller.pid], BACK_S)
    serve = engines.cluster.serve
    assert serve is not None
    until_sync(lambda: running_replicas(engines) == before, BACK_S)
    # It is in charge again.
    target = 2 if before == 1 else 1
    engines.run(serve.scale(POOL, target))
    until_sync(lambda: running_replicas(engines) == target, BACK_S)
