"""A replica whose engine is not up."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.clock import SystemClock
from cluster.errors import EngineStartError
from cluster.queue.redis.queue import RedisQueue
from cluster.redis.in_process.server import InProcessRedis
from cluster.settings import load_settings
from deployments.engines.factory import build_engine
from deployments.replica.life import ReplicaPlan
from deployments.replica.replica import Replica
from tests.support.stack import SECRET, sim_pool


@pytest.mark.parametrize("name", ["identity", "table", "governor"])
async def test_a_replica_says_that_its_engine_is_not_up(tmp_path: Path, name: str) -> None:
    replica = made(tmp_path)
    with pytest.raises(EngineStartError, match="the engine is not up yet"):
        getattr(replica, name)


async def test_a_replica_that_never_started_can_be_stopped(tmp_path: Path) -> None:
    replica = made(tmp_path)
    await replica.stop()
    assert replica.stopped


async def test_a_replica_whose_model_has_no_tokenizer_is_never_ready(tmp_path: Path) -> None:
    """Else it would say that it is ready, and every request would fail."""
    with pytest.raises(EngineStartError, match=r"pool 'demo', model 'org/name': there is no tokenizer"):
        await made(tmp_path, model="org/name").start()


async def test_a_tokenizer_that_routers_cannot_fetch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.replica.links.questions.MAX_TOKENIZER", 1_000)
    with pytest.raises(EngineStartError, match=r"files have \d+ bytes, and at most 1000 fit"):
        await made(tmp_path).start()


def made(state_dir: Path, **pool: object) -> Replica:
    flags = {"cluster": {"state_dir": str(state_dir)}, "pools": {"demo": sim_pool() | pool}}
    settings = load_settings(flags=flags, environ={})
    plan = ReplicaPlan("r0", "demo", settings.pools["demo"], settings.queue, settings.replica)
    store = InProcessRedis(SystemClock())
    return Replica(plan, build_engine(plan.pool_settings), lambda: RedisQueue(store, "demo"), SECRET)
