"""A roll-out through Ray Serve, under streams."""

from __future__ import annotations

import concurrent.futures
import time

import pytest

from penstock.client import Client, RolloutState
from tests.support.running import ClusterThread
from tests.support.waiting import until_sync

pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.timeout(600)]


def test_serve_starts_each_replica_anew_and_no_stream_fails(engines: ClusterThread) -> None:
    """Pool `toy` has two replicas. Each gets other weights, so that no stream may move from one to the other."""

    def stream(number: int, over: list[bool]) -> int:
        ended = 0
        with Client(engines.target(number % 2)) as client:
            while not over:
                answer = client.generate("toy", f"client {number}", max_tokens=100, ignore_eos=True, timeout=120.0)
                assert 100 == len(answer.choices[0].token_ids)
                ended += 1
        return ended

    serve = engines.cluster.serve
    assert serve is not None
    # Another test of this cluster leaves one.
    engines.run(serve.scale("toy", 2))
    with Client(engines.target()) as client:
        until_sync(lambda: client.get_model("toy").ready_replicas == 2, 120)
    over: list[bool] = []
    with Client(engines.target()) as admin, concurrent.futures.ThreadPoolExecutor(4) as pool:
        before = {one.replica_id for one in pool_of(admin)}
        streams = [pool.submit(stream, number, over) for number in range(4)]
        try:
            found = admin.start_rollout("toy", {"sim": {"answer": "something else"}}, judge_s=2.0)
            until = time.monotonic() + 300.0
            while found.state.active and time.monotonic() < until:
                assert len(found.replicas) <= 2
                time.sleep(0.2)
                newest = admin.rollout("toy")
                assert newest is not None
                found = newest
        finally:
            over.append(True)
        ended = [one.result() for one in streams]
        after = pool_of(admin)

    assert RolloutState.DONE is found.state, found
    assert all(ended)
    assert 2 == len(after)
    assert not before & {one.replica_id for one in after}


def pool_of(client: Client) -> list[object]:
    """Return the replicas of pool `toy`."""
    [found] = [pool for pool in client.cluster_status().pools if pool.name == "toy"]
    return list(found.replicas)
