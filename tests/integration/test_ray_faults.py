"""Ray's control plane dies under streams: what goes on without it, for how long, and how it comes back by itself."""

from __future__ import annotations

import concurrent.futures
import logging
import os
import time
from collections.abc import Iterator

import psutil
import pytest

from cluster.bootstrap.local import LocalCluster
from cluster.settings import load_settings
from penstock.client import Client, InvalidArgumentError, RegistryEdit, RetryPolicy, Sampling
from penstock.values.errors import PenstockClientError
from tests.integration.ray_control import BACK_S, POOL, ended, ray_processes, running_replicas, stream
from tests.support.running import ClusterThread
from tests.support.waiting import until_sync

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(420),
    pytest.mark.skipif(
        os.environ.get("PENSTOCK_RAY_FAULTS") != "1", reason="minutes of Ray's own time-outs; run by `make chaos-ray`"
    ),
]
STEP_MS = 20.0
GCS_PATIENCE_S = 20
"""How long Ray's processes look for a lost GCS before they end; their own default is 60."""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterThread]:
    """A supervised cluster with two simulated replicas."""
    settings = load_settings(
        flags={
            "cluster": {"state_dir": str(tmp_path_factory.mktemp("ray-faults"))},
            "router": {"port": 0, "processes": 2, "drain_s": 1.0},
            "replica": {"drain_s": 1.0},
            "pools": {POOL: {"engine": "sim", "model": "demo", "replicas": 2, "sim": {"base_ms": STEP_MS}}},
        },
        environ={},
    )
    log = logging.getLogger("tests.cluster")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", str(GCS_PATIENCE_S))
        cluster = LocalCluster(settings, lambda step, text: log.warning("%s: %s", step, text), same_port=False)
        running = ClusterThread(cluster)
        running.start()
        watching = running.begin(cluster.watch())
        yield running
        watching.cancel()
        concurrent.futures.wait([watching], 10)
        running.stop()


def test_the_serve_controller_dies_and_nobody_notices(toy: ClusterThread) -> None:
    [controller] = ray_processes(toy, "ServeController")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(stream, toy, 300, number % 2) for number in range(4)]
        time.sleep(1.0)
        controller.kill()
        until_sync(lambda: ended(controller))
        # New ones, while there is no controller.
        began = time.monotonic()
        assert 20 == len(stream(toy, 20)[0])
        assert 5.0 > time.monotonic() - began
        ends = [one.result() for one in streams]

    assert {(300, 1)} == {(len(ids), len(end.receipt.attempts)) for ids, end in ends}
    until_sync(lambda: [p for p in ray_processes(toy, "ServeController") if p.pid != controller.pid], BACK_S)
    serve = toy.cluster.serve
    assert serve is not None
    until_sync(lambda: running_replicas(toy) == 2, BACK_S)
    # It is in charge again.
    toy.run(serve.scale(POOL, 3))
    until_sync(lambda: running_replicas(toy) == 3, BACK_S)
    toy.run(serve.scale(POOL, 2))
    until_sync(lambda: running_replicas(toy) == 2, BACK_S)


def test_without_its_gcs_requests_are_served_until_ray_gives_up_and_then_it_is_replaced(toy: ClusterThread) -> None:
    host = toy.cluster.ray_host
    with Client(toy.target()) as client:
        # What the test before took away may still drain, and would hand its streams on.
        until_sync(lambda: client.get_model(POOL).ready_replicas == 2, BACK_S)
    [gcs] = ray_processes(toy, "gcs_server")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        streams = [pool.submit(stream, toy, 300, number) for number in range(2)]
        time.sleep(1.0)
        gcs.kill()
        until_sync(lambda: ended(gcs))
        killed_at = time.monotonic()
        served = 0
        while time.monotonic() - killed_at < GCS_PATIENCE_S / 2:
            assert 20 == len(stream(toy, 20)[0])
            served += 1
        assert {(300, 1)} == {(len(ids), len(end.receipt.attempts)) for ids, end in (s.result() for s in streams)}
    assert served > 1
    until_sync(lambda: toy.cluster.ray_host is not host, BACK_S)
    assert 20 == len(stream(toy, 20)[0])


def test_the_whole_head_dies_and_what_ran_and_waited_goes_on_when_it_is_back(toy: ClusterThread) -> None:
    until_sync(lambda: not toy.cluster.ray_ended(), BACK_S)
    until_sync(lambda: running_replicas(toy) == 2, BACK_S)
    plain, _end = stream(toy, 300)
    host = toy.cluster.ray_host
    assert host is not None
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        streams = [pool.submit(stream, toy, 300, number % 2) for number in range(4)]
        time.sleep(1.5)
        family = [psutil.Process(host.pid), *psutil.Process(host.pid).children(recursive=True)]
        for process in family:
            process.kill()
        until_sync(lambda: all(ended(process) for process in family))
        time.sleep(1.0)
        # With a bound on its wait a request hears within it that nobody can take it.
        began = time.monotonic()
        with Client(toy.target(), retry=RetryPolicy(max_attempts=1)) as client, pytest.raises(PenstockClientError):
            client.generate(POOL, [5, 6, 7], Sampling(max_tokens=4), timeout=3.0)
        assert 5.0 > time.monotonic() - began
        # Without one it waits in line.
        waiting = pool.submit(stream, toy, 20)
        ends = [one.result() for one in streams]
        assert 20 == len(waiting.result()[0])

    assert [plain] * 4 == [ids for ids, _end in ends]
    assert {(True, 2)} == {(end.receipt.exact, len(end.receipt.attempts)) for _ids, end in ends}
    assert all(ended(process) for process in family)
    assert toy.cluster.ray_host is not host


def test_a_pool_of_the_registry_starts_again_with_ray_and_is_not_called_serving_before(toy: ClusterThread) -> None:
    def state() -> str:
        return next((entry.state for entry in admin.registry("pool", name="extra")), "")

    def taken() -> bool:
        try:
            admin.edit_registry([RegistryEdit("pool", "extra", {"settings": settings})], wait=20.0, timeout=30.0)
        except InvalidArgumentError:
            return False
        return True

    settings = {"engine": "sim", "sim": {"base_ms": STEP_MS}}
    with Client(toy.target()) as admin:
        until_sync(taken, 30)
        until_sync(lambda: state() == "serving", BACK_S)
        host = toy.cluster.ray_host
        assert host is not None
        psutil.Process(host.pid).kill()
        until_sync(lambda: state() == "starting", BACK_S)
        until_sync(lambda: state() == "serving", BACK_S)
        assert toy.cluster.ray_host is not host
        assert 4 == len(admin.generate("extra", "x", max_tokens=4, ignore_eos=True, timeout=60.0).choices[0].token_ids)
        admin.edit_registry([RegistryEdit("pool", "extra", {"removed": True})], wait=20.0, timeout=30.0)
        until_sync(lambda: state() == "gone", BACK_S)
