"""Ray, routers and the autoscaler are started again when they end, with growing waits; Redis' end ends the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from cluster.bootstrap.supervisor import BackOff, supervise
from cluster.errors import BootstrapError
from tests.support.waiting import ended, until


def test_waits_double_up_to_the_longest_and_begin_anew_after_a_calm_time() -> None:
    back_off = BackOff(first_s=1.0, longest_s=5.0, calm_s=100.0)
    assert [1.0, 2.0, 4.0, 5.0, 5.0] == [back_off.wait_s(now) for now in (0.0, 10.0, 20.0, 30.0, 130.0)]
    assert 1.0 == back_off.wait_s(230.1)


class Cluster:
    """A cluster whose Ray ends at will."""

    def __init__(self, restart: Callable[[int], None] = lambda _number: None) -> None:
        self.ended = False
        self.redis_ended = False
        self.router_ended = False
        self.router_starts = 0
        self.router_trouble: Callable[[int], None] = lambda _number: None
        self.restarts = 0
        self.looks = 0
        self.autoscaler_ended = False
        self.autoscaler_starts = 0
        self.autoscaler_trouble: Callable[[int], None] = lambda _number: None
        self._restart = restart

    def check_kept(self) -> None:
        if self.redis_ended:
            raise BootstrapError("redis", "it ended")

    async def look(self) -> None:
        """Count it; there is nothing to remember."""
        self.looks += 1

    def ray_ended(self) -> bool:
        return self.ended

    async def restart_ray(self) -> None:
        self.restarts += 1
        self._restart(self.restarts)
        self.ended = False

    def routers_missing(self) -> bool:
        return self.router_ended

    async def restart_routers(self) -> None:
        self.router_starts += 1
        self.router_trouble(self.router_starts)
        self.router_ended = False

    def autoscaler_missing(self) -> bool:
        return self.autoscaler_ended

    async def restart_autoscaler(self) -> None:
        self.autoscaler_starts += 1
        self.autoscaler_trouble(self.autoscaler_starts)
        self.autoscaler_ended = False


async def test_ray_is_started_again_until_it_comes_up() -> None:
    def third_time_lucky(number: int) -> None:
        if number < 3:
            raise BootstrapError("ray", "not yet")

    cluster = Cluster(third_time_lucky)
    running = asyncio.create_task(supervise(cluster, BackOff(first_s=0.001, longest_s=0.002), look_s=0.001))
    await until(lambda: cluster.looks >= 3)
    assert 0 == cluster.restarts
    cluster.ended = True
    await until(lambda: not cluster.ended)
    assert (3, False) == (cluster.restarts, running.done())
    cluster.redis_ended = True
    with pytest.raises(BootstrapError, match="redis"):
        await running


async def test_redis_that_ends_during_a_restart_is_not_taken_for_ray() -> None:
    cluster = Cluster()

    def restart(_number: int) -> None:
        cluster.redis_ended = True
        raise BootstrapError("redis", "it ended")

    cluster._restart = restart
    cluster.ended = True
    with pytest.raises(BootstrapError, match="redis"):
        await supervise(cluster, BackOff(first_s=0.001), look_s=0.001)
    assert 1 == cluster.restarts


@pytest.mark.parametrize("error", [BootstrapError("autoscaler", "its port is taken"), OSError("no space left")])
async def test_an_autoscaler_that_does_not_start_is_tried_again_and_ends_nothing(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster()

    looks: list[int] = []

    def fourth_time_lucky(number: int) -> None:
        looks.append(cluster.looks)
        if number < 4:
            raise error

    cluster.autoscaler_trouble = fourth_time_lucky
    cluster.autoscaler_ended = True
    waits = BackOff(first_s=0.01, longest_s=0.02)
    running = asyncio.create_task(supervise(cluster, BackOff(), 0.001, waits))
    await until(lambda: not cluster.autoscaler_ended)
    assert (4, 0, False) == (cluster.autoscaler_starts, cluster.restarts, running.done())
    # Ray was looked at between the starts.
    assert sorted(set(looks)) == looks
    failures = [record for record in caplog.records if record.message == "autoscaler.start_failed"]
    assert [0.01, 0.02, 0.02] == [vars(record)["again_in_s"] for record in failures]
    await ended(running)


async def test_an_autoscaler_that_starts_and_ends_at_once_is_started_with_growing_waits() -> None:
    class Short(Cluster):
        def autoscaler_missing(self) -> bool:
            return True

    cluster = Short()
    running = asyncio.create_task(supervise(cluster, BackOff(), 0.001, BackOff(first_s=0.001, longest_s=3600)))
    # The wait doubles from 1 ms: 300 looks of 1 ms each see eight starts, and a slow machine a few more.
    await until(lambda: cluster.looks > 300)
    assert 4 <= cluster.autoscaler_starts < 20
    await ended(running)


async def test_ray_is_replaced_while_the_autoscaler_waits_for_its_next_start() -> None:
    cluster = Cluster()

    def never(_number: int) -> None:
        raise BootstrapError("autoscaler", "its port is taken")

    cluster.autoscaler_trouble = never
    cluster.autoscaler_ended = True
    running = asyncio.create_task(supervise(cluster, BackOff(first_s=0.001), 0.001, BackOff(first_s=3600)))
    await until(lambda: cluster.autoscaler_starts == 1)
    cluster.ended = True
    await until(lambda: not cluster.ended)
    assert (1, 1, False) == (cluster.restarts, cluster.autoscaler_starts, running.done())
    await ended(running)


async def test_redis_that_ends_while_the_autoscaler_starts_is_not_taken_for_the_autoscaler() -> None:
    cluster = Cluster()

    def redis_ends(_number: int) -> None:
        cluster.redis_ended = True
        raise BootstrapError("redis", "it ended")

    cluster.autoscaler_trouble = redis_ends
    cluster.autoscaler_ended = True
    with pytest.raises(BootstrapError, match="redis"):
        await supervise(cluster, BackOff(), 0.001, BackOff(first_s=0.001))
    assert 1 == cluster.autoscaler_starts


async def test_a_router_that_ends_is_started_again_with_growing_waits_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster()

    looks: list[int] = []

    def fourth_time_lucky(number: int) -> None:
        looks.append(cluster.looks)
        if number < 4:
            raise BootstrapError("router 0", "its port is taken")

    cluster.router_trouble = fourth_time_lucky
    cluster.router_ended = True
    waits = BackOff(first_s=0.01, longest_s=0.02)
    running = asyncio.create_task(supervise(cluster, BackOff(), 0.001, router_back_off=waits))
    await until(lambda: not cluster.router_ended)
    assert (4, 0, False) == (cluster.router_starts, cluster.restarts, running.done())
    # Ray was looked at between the starts.
    assert sorted(set(looks)) == looks
    failures = [record for record in caplog.records if record.message == "router.start_failed"]
    assert [0.01, 0.02, 0.02] == [vars(record)["again_in_s"] for record in failures]
    await ended(running)


async def test_routers_are_replaced_while_ray_comes_back() -> None:
    back = asyncio.Event()

    class Slow(Cluster):
        async def restart_ray(self) -> None:
            self.restarts += 1
            await back.wait()
            self.ended = False

    cluster = Slow()
    cluster.ended = True
    running = asyncio.create_task(supervise(cluster, BackOff(first_s=0.001), 0.001))
    await until(lambda: cluster.restarts == 1)
    cluster.router_ended = True
    await until(lambda: cluster.router_starts == 1)
    assert (True, False) == (cluster.ended, running.done())
    back.set()
    await until(lambda: not cluster.ended)
    await ended(running)


async def test_redis_that_ends_while_ray_comes_back_ends_the_cluster_at_once() -> None:
    class Slow(Cluster):
        gone = False

        async def restart_ray(self) -> None:
            self.restarts += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.gone = True

    cluster = Slow()
    cluster.ended = True
    running = asyncio.create_task(supervise(cluster, BackOff(first_s=0.001), 0.001))
    await until(lambda: cluster.restarts == 1)
    cluster.redis_ended = True
    with pytest.raises(BootstrapError, match="redis"):
        await running
    assert cluster.gone
