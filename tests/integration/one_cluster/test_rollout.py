"""A roll-out through Ray Serve, under streams."""

from __future__ import annotations

import concurrent.futures
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer as TokenizerFile

from deployments.demo_model import MODEL_DIR
from penstock.client import Client, RolloutAction, RolloutState
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


def test_a_real_engine_gets_a_model_with_another_tokenizer_and_every_prompt_is_read_by_its_own(
    engines: ClusterThread, random_model: Path
) -> None:
    """Requests that wait while the only replica changes were encoded for the old model, and run on the new one."""
    text = "What is Penstock?"

    def ask(number: int) -> tuple[int, int]:
        with Client(engines.target(number % 2)) as client:
            answer = client.generate("demo", text, max_tokens=4, ignore_eos=True, timeout=240.0)
            return answer.usage.prompt_tokens, len(answer.choices[0].token_ids)

    def read_by(folder: Path) -> int:
        return len(TokenizerFile.from_file(str(folder / "tokenizer.json")).encode(text).ids)

    with Client(engines.target()) as admin, concurrent.futures.ThreadPoolExecutor(4) as pool:
        old, new = read_by(MODEL_DIR), read_by(random_model)
        assert (old, 4) == ask(0)
        assert old != new
        admin.start_rollout("demo", {"model": str(random_model), "vllm": {"max_num_seqs": 16}}, judge_s=0.0)
        until_sync(lambda: not ready(admin), 60)
        waited = [pool.submit(ask, number) for number in range(4)]
        until_sync(lambda: state(admin) is RolloutState.DONE, 240)
        assert {(new, 4)} == {one.result() for one in waited}
        admin.change_rollout("demo", RolloutAction.GO_BACK)
        until_sync(lambda: state(admin) is RolloutState.DONE and ready(admin), 240)
        assert {(old, 4)} == {ask(0), ask(1)}


def ready(client: Client) -> bool:
    return client.get_model("demo").ready_replicas > 0


def state(client: Client) -> RolloutState | None:
    found = client.rollout("demo")
    return found.state if found is not None else None
