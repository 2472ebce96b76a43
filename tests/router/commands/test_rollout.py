"""`penstock rollout`, over a real router and replicas with simulated engines."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cluster.cli.main import main
from cluster.errors import EngineStartError
from cluster.settings import PoolSettings
from deployments.engines.base import Engine
from deployments.engines.factory import build_engine
from loadtest.benchmarks.rollouts.places import Places
from penstock.client import Rollout, RolloutReplica, RolloutState
from router.commands.rollout import _state
from tests.support.places import places
from tests.support.stack import Stack, running_stack, sim_pool
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
Captured = pytest.CaptureFixture[str]

MORE = ("--set", "sim.max_num_seqs=32")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    pool = {**sim_pool(base_ms=2.0), "replicas": 2, "rollout": {"judge_s": 0.2, "drain_s": 5}}
    pools = {"demo": pool, "other": {**pool, "rollout": {"judge_s": 60.0, "drain_s": 5}}}
    async with running_stack(tmp_path_factory.mktemp("stack"), replicas=0, pools=pools) as running:
        yield running


class Command:
    """The command, against the stack's router."""

    def __init__(self, stack: Stack, capsys: Captured) -> None:
        self._target = f"127.0.0.1:{stack.routers[0].port}"
        self._capsys = capsys

    async def __call__(self, *words: str) -> tuple[int, str]:
        """Return its exit status, and what it printed."""
        status = await asyncio.to_thread(main, ["rollout", *words, "--target", self._target])
        said = self._capsys.readouterr()
        return status, said.out + said.err

    async def fields(self, pool: str) -> Any:
        """Return the newest roll-out of a pool."""
        status, said = await self(pool, "--json")
        assert 0 == status
        return json.loads(said)


@pytest.fixture
def command(stack: Stack, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("COLUMNS", "140")
    return Command(stack, capsys)


async def begin(stack: Stack, fleet: Places, pool: str) -> None:
    """Wait until all replicas take work."""
    await until(lambda: len(fleet.replicas) == 2)
    links = stack.routers[0].pools[pool].replicas
    await until(lambda: set(links.connected()) == {one.plan.replica_id for one in fleet.replicas.values()})


async def test_a_roll_out_is_followed_to_its_end_and_taken_back(stack: Stack, command: Command) -> None:
    async with places(stack, "demo", 2) as fleet:
        await begin(stack, fleet, "demo")
        assert (0, "no roll-out: all replicas have the pool's own settings\n") == await command("demo")
        assert await command.fields("demo") is None

        status, said = await command("demo", *MORE)
        assert 0 == status
        assert [1, 1] == fleet.revisions
        assert "revision 0 to 1, begun by anonymous" in said
        assert 2 == said.count("serves well")
        assert "pool demo, done: 2 of 2 replicas have revision 1" in said
        assert "revision 1: sim.max_num_seqs = 32" in said

        found = await command.fields("demo")
        assert ("done", 1, {"sim": {"max_num_seqs": 32}}) == (
            found["state"], found["new_revision"], found["new_changes"],
        )  # fmt: skip
        status, said = await command("demo")
        assert (0, True) == (status, said.startswith("pool demo, done"))

        status, said = await command("demo", *MORE)
        assert 1 == status
        assert "its replicas have these settings already: revision 1" in said

        status, said = await command("demo", "--back")
        assert 0 == status
        assert "revision 2: the pool's own settings" in said
        assert [2, 2] == fleet.revisions


async def test_one_that_goes_back_by_itself_says_why_and_fails(stack: Stack, command: Command, tmp_path: Path) -> None:
    def engine(pool: PoolSettings) -> Engine:
        if pool.sim.max_num_seqs == 48:
            raise EngineStartError("out of memory")
        return build_engine(pool)

    async with places(stack, "demo", 2, engine) as fleet:
        await begin(stack, fleet, "demo")
        before = fleet.revisions
        status, said = await command("demo", "--set", "sim.max_num_seqs=48")
        assert 1 == status
        assert "back because:" in said
        assert "out of memory" in said
        assert before == fleet.revisions


async def test_one_is_begun_apart_stopped_continued_and_ended(stack: Stack, command: Command) -> None:
    async with places(stack, "other", 2) as fleet:
        await begin(stack, fleet, "other")
        status, said = await command("other", *MORE, "--judge-s", "30", "--detach")
        assert 0 == status
        assert "pool other, rolling: 0 of 2 replicas have revision 1" in said
        assert 30.0 == (await command.fields("other"))["judge_s"]

        status, said = await command("other", *MORE)
        assert 1 == status
        assert "a roll-out to revision 1 goes on" in said

        async def judged() -> bool:
            replicas = (await command.fields("other"))["replicas"]
            return any(one["revision"] == 1 and one["ready"] for one in replicas)

        await until(judged)
        _, said = await command("other")
        assert "is judged" in said

        status, said = await command("other", "--stop")
        assert 0 == status
        assert "pool other, held" in said
        status, said = await command("other", "--stop")
        assert 1 == status
        assert "the roll-out is 'held'" in said
        status, said = await command("other", "--go-on", "--detach")
        assert 0 == status
        assert "pool other, rolling" in said

        status, said = await command("other", "--back")
        assert 0 == status
        assert "pool other, returned" in said
        status, said = await command("other", "--go-on")
        assert 1 == status
        assert "the roll-out is 'returned'" in said
        assert [0, 0] == fleet.revisions


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("none", *MORE), 2, "'none' is none of demo, other"),
        (MORE, 2, "POOL: is required, one of demo, other"),
        (
            ("demo", "--set", "replicas=3"),
            2,
            "replicas: changes with `penstock apply`, and no replica restarts",
        ),
        (("demo", "--set", "sim.max_num_seqs=0"), 2, "sim.max_num_seqs"),
        (("demo", *MORE, "--surge", "1"), 2, "--surge: must be 0 in a pool whose autoscale.mode is not 'active'"),
        (("demo", "--set", "model"), 2, "--set must be KEY=VALUE, such as model=/models/new, got 'model'"),
        (("demo", *MORE, *MORE), 2, "--set sim.max_num_seqs: it is given twice"),
        (("demo", *MORE, "--set", "sim=1"), 2, "--set sim: it is given twice"),
        (("demo", *MORE, "--stop"), 2, "--stop gives an order; --set and --unset begin a roll-out"),
        (("demo", "--surge", "1"), 2, "--surge and --judge-s need --set or --unset"),
    ],
)
async def test_a_wrong_order_is_named(command: Command, words: tuple[str, ...], status: int, told: str) -> None:
    found, said = await command(*words)
    assert told in " ".join(said.split())
    assert status == found


@pytest.mark.parametrize(
    ("ready", "retiring", "words"),
    [
        (True, False, "serves"),
        (True, True, "finishes its requests"),
        (False, True, "finishes its requests"),
        (False, False, "takes no work"),
    ],
)
async def test_a_replica_that_stands_by_is_not_said_to_end(ready: bool, retiring: bool, words: str) -> None:
    one = RolloutReplica("demo-1", 1, ready, passed=False, retiring=retiring, ended=0, failed=0, late=0)
    began = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
    over = Rollout("demo", RolloutState.DONE, 0, 1, {}, {}, 1, 0, 1.0, "", (), (), (one,), "ops", began)
    assert words == _state(one, over)
