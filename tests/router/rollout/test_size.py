"""What a router keeps of a pool for its roll-out: the number of replicas, and when it may be judged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import pytest_asyncio

from cluster.clock import ManualClock
from cluster.errors import InvalidRequestError
from cluster.models import Windows
from cluster.queue.heartbeats import ReplicaBeat
from cluster.queue.redis.queue import RedisQueue
from cluster.redis.in_process.server import InProcessRedis
from cluster.rollout.decide import hold
from cluster.rollout.record import Revision, Rollout
from cluster.rollout.redis.store import RedisRolloutStore
from cluster.settings import PoolSettings, Settings
from penstock.models import ReplicaState
from penstock.v1 import rollout_pb2 as api
from penstock.values.admin.rollout import RolloutState
from router.identity import Caller, Role
from router.rollout.api import RolloutApi
from router.rollout.keeper import RolloutKeeper, open_rollouts

ADMIN = Caller("ops", Role.ADMIN)
SURGE = 1


class Desk:
    """A pool whose number of replicas somebody else sets, and an admin who gives orders."""

    def __init__(self) -> None:
        self.clock = clock = ManualClock()
        self.memory = InProcessRedis(clock)
        self.queue = RedisQueue(self.memory, "demo")
        scaled = {"mode": "active", "min_replicas": 1, "max_replicas": 20}
        pool = PoolSettings.model_validate({"engine": "sim", "autoscale": scaled, "rollout": {"surge": SURGE}})
        self.keeper: RolloutKeeper = open_rollouts(
            Settings(pools={"demo": pool}),
            lambda name: RedisRolloutStore(self.memory, name, clock=clock),
            lambda name: RedisQueue(self.memory, name),
        )
        self.target = 0
        self.addresses: tuple[str, ...] = ()
        """Where replicas are reached."""
        self.api = RolloutApi(self.keeper, self._target, self._nobody, lambda _: self.addresses)

    async def _target(self, _: str) -> int:
        return self.target

    async def _nobody(self) -> tuple[()]:
        return ()

    async def has(self, replicas: int) -> None:
        """Let the pool have so many replicas, by the word of its autoscaler."""
        for number in range(replicas, self.target):
            await self.queue.retire_replica(f"r{number}")
        self.target = replicas
        for number in range(replicas):
            windows = Windows(8, 10_000, 10_000)
            await self.queue.heartbeat_replica(ReplicaBeat(f"r{number}", b"", ReplicaState.READY, windows, ()))

    async def begin(self, changes: Mapping[str, Any] = MappingProxyType({"sim": {"max_num_seqs": 32}})) -> None:
        request = api.StartRolloutRequest(pool="demo")
        request.changes.update(dict(changes))
        await self.api.start(request, ADMIN)

    async def order(self, action: int) -> int:
        """Give an order; return the replicas that the pool keeps from then on, without the surge."""
        answer = await self.api.change(api.ChangeRolloutRequest(pool="demo", action=action), ADMIN)  # type: ignore[arg-type]
        return answer.rollout.size

    async def becomes(self, state: RolloutState) -> None:
        """Bring the roll-out into a state."""

        def change(found: Rollout | None, now_ms: int) -> Rollout:
            assert found is not None
            return hold(found, now_ms, "ops") if state is RolloutState.HELD else replace(found, state=state)

        await self.keeper.pools["demo"].book.change(change)


@pytest_asyncio.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    yield desk
    await desk.keeper.close()
    await desk.queue.close()


@pytest.mark.parametrize("action", [api.ROLLOUT_ACTION_GO_ON, api.ROLLOUT_ACTION_GO_BACK])
async def test_a_pool_that_grew_while_its_roll_out_was_stopped_does_not_shrink(desk: Desk, action: int) -> None:
    await desk.has(3)
    await desk.begin()
    await desk.becomes(RolloutState.HELD)
    await desk.has(10)
    assert 10 - SURGE == await desk.order(action)


@pytest.mark.parametrize("action", [api.ROLLOUT_ACTION_GO_ON, api.ROLLOUT_ACTION_GO_BACK])
async def test_a_pool_that_did_not_grow_meanwhile_keeps_its_number(desk: Desk, action: int) -> None:
    await desk.has(3)
    await desk.begin()
    await desk.becomes(RolloutState.HELD)
    await desk.has(3 + SURGE)
    assert 3 == await desk.order(action)


@pytest.mark.parametrize("now", [1, 3, 10])
async def test_the_way_back_from_a_roll_out_that_is_over_keeps_the_number_of_now(desk: Desk, now: int) -> None:
    await desk.has(3)
    await desk.begin()
    await desk.becomes(RolloutState.DONE)
    await desk.has(now)
    assert now == await desk.order(api.ROLLOUT_ACTION_GO_BACK)


@pytest.mark.parametrize(("mode", "surge"), [("active", SURGE), ("advisory", 0), ("off", 0)])
async def test_the_way_back_has_a_surge_only_where_an_autoscaler_starts_it(desk: Desk, mode: str, surge: int) -> None:
    """The pool's autoscaler may have been switched off since. Nobody would start the replica that is waited for."""
    await desk.has(3)
    await desk.begin()
    await desk.becomes(RolloutState.DONE)
    pool = desk.keeper.pools["demo"]
    scaled = pool.settings.autoscale.model_copy(update={"mode": mode})
    pool.settings = pool.settings.model_copy(update={"autoscale": scaled, "replicas": 3})
    await desk.order(api.ROLLOUT_ACTION_GO_BACK)
    found, _ = await pool.book.read()
    assert found is not None
    assert (RolloutState.ROLLING, surge) == (found.state, found.extra)


@pytest.mark.parametrize(("later_s", "size"), [(0.0, 3), (60.0, 3), (3_600.0, 3 + SURGE)])
@pytest.mark.parametrize("back", [False, True])
async def test_the_surge_of_a_roll_out_that_has_just_ended_is_that_of_the_next(
    desk: Desk, later_s: float, size: int, *, back: bool
) -> None:
    """The autoscaler looks back before it removes it. With a second surge there may be no room."""
    await desk.has(3)
    await desk.begin()
    await desk.becomes(RolloutState.DONE)
    desk.clock.advance(later_s)
    await desk.has(3 + SURGE)
    if back:
        assert size == await desk.order(api.ROLLOUT_ACTION_GO_BACK)
    else:
        await desk.begin({"sim": {"max_num_seqs": 16}})
    found, _ = await desk.keeper.pools["demo"].book.read()
    assert found is not None
    assert (size, SURGE) == (found.size, found.extra)


@pytest.mark.parametrize("address", ["127.0.0.1:5000", "10.0.0.7:5000"])
async def test_no_replica_gives_way_to_an_earlier_model_that_is_gone(desk: Desk, address: str) -> None:
    """The router sees that only where replicas are on its machine."""
    await desk.has(1)
    desk.addresses = (address,)
    await desk.begin()
    pool = desk.keeper.pools["demo"]
    older = Revision(7, {"model": "/nowhere/m"})
    await pool.book.change(lambda found, _: found and replace(found, state=RolloutState.DONE, old=older))
    if address.startswith("127."):
        with pytest.raises(InvalidRequestError, match="there is no folder /nowhere/m"):
            await desk.order(api.ROLLOUT_ACTION_GO_BACK)
    else:
        await desk.order(api.ROLLOUT_ACTION_GO_BACK)
    found, _ = await pool.book.read()
    assert found is not None
    assert found.state.active is not address.startswith("127.")


@pytest.mark.parametrize(("replicas", "words"), [(1, "1 replica"), (5, "5 replicas")])
async def test_a_number_that_an_operator_changes_is_that_of_the_roll_out(desk: Desk, replicas: int, words: str) -> None:
    """By the registry, where no autoscaler decides on it."""
    pool = desk.keeper.pools["demo"]
    pool.settings = PoolSettings.model_validate({"engine": "sim", "replicas": 3})
    await desk.has(3)
    await pool.step()
    await desk.begin()
    await pool.step()
    pool.settings = pool.settings.model_copy(update={"replicas": replicas})
    await pool.step()
    found, _ = await pool.book.read()
    assert found is not None
    assert (replicas, f"the pool has {words} from now on") == (found.size, found.steps[-1].text)


async def test_a_clock_that_is_set_back_stops_no_roll_out(desk: Desk) -> None:
    pool = desk.keeper.pools["demo"]
    await desk.has(2)
    view = replace(await desk.queue.observe(), time_ms=100_000_000)
    longer_than_a_lease = range(0, 10_000, 1_000)
    for now_ms in (100_000_000, 100_000_000 - 3_600_000):
        found = [pool._settled(replace(view, time_ms=now_ms + passed)) for passed in longer_than_a_lease]
        assert [False, True] == [found[0], found[-1]]
