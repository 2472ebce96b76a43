"""Ray is started again when it ends, with growing waits; other ends end the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from cluster.bootstrap.back_off import BackOff
from cluster.bootstrap.supervisor import supervise
from cluster.errors import BootstrapError
from tests.support.waiting import until


def test_waits_double_up_to_the_longest_and_begin_anew_after_a_calm_time() -> None:
    back_off = BackOff(first_s=1.0, longest_s=5.0, calm_s=100.0)
    assert [1.0, 2.0, 4.0, 5.0, 5.0] == [back_off.wait_s(now) for now in (0.0, 10.0, 20.0, 30.0, 130.0)]
    assert 1.0 == back_off.wait_s(230.1)


class Cluster:
    """Is a cluster whose Ray ends at will."""

    def __init__(self, restart: Callable[[int], None] = lambda _number: None) -> None:
        self.ended = False
        self.router_ended = False
        self.restarts = 0
        self.looks = 0
        self._restart = restart

    def check_kept(self) -> None:
        if self.router_ended:
            raise BootstrapError("router 0", "it ended")

    async def look(self) -> None:
        """Count it; there is nothing to remember."""
        self.looks += 1

    def ray_ended(self) -> bool:
        return self.ended

    async def restart_ray(self) -> None:
        self.restarts += 1
        self._restart(self.restarts)
        self.ended = False


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
    cluster.router_ended = True
    with pytest.raises(BootstrapError, match="router 0"):
        await running


async def test_a_router_that_ends_during_a_restart_is_not_taken_for_ray() -> None:
    cluster = Cluster()

    def restart(_number: int) -> None:
        cluster.router_ended = True
        raise BootstrapError("router 0", "it ended")

    cluster._restart = restart
    cluster.ended = True
    with pytest.raises(BootstrapError, match="router 0"):
        await supervise(cluster, BackOff(first_s=0.001), look_s=0.001)
    assert 1 == cluster.restarts
