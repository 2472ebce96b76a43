"""A replica whose engine is not up."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.errors import EngineStartError
from cluster.settings import load_settings
from deployments.engines.factory import build_engine
from deployments.replica.replica import Replica, ReplicaPlan
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


def made(state_dir: Path) -> Replica:
    flags = {"cluster": {"state_dir": str(state_dir)}, "pools": {"demo": sim_pool()}}
    settings = load_settings(flags=flags, environ={})
    plan = ReplicaPlan("r0", "demo", settings.pools["demo"], settings.queue, settings.replica)
    return Replica(plan, build_engine(plan.pool_settings), lambda: pytest.fail("must not connect"), SECRET)
