"""GPUs that pools share: never more than there are, and first come, first served."""

from __future__ import annotations

import random

from loadtest.simulate.models.gpus import Gpus, Share


class Pool:
    """Wants replicas, and takes what is held for it."""

    def __init__(self, gpus: Gpus, per_replica: int) -> None:
        self.wanted = self.has = 0
        self.share: Share = gpus.share(per_replica, self.settle)

    def settle(self, now: float) -> None:
        while self.has < self.wanted and self.share.take():
            self.has += 1
        while self.has > self.wanted:
            self.has -= 1
            self.share.give(now)
        self.share.lacks(self.wanted - self.has, now)

    def want(self, replicas: int, now: float) -> None:
        self.wanted = replicas
        self.settle(now)


def test_random_wishes_never_use_more_than_there_are_and_leave_none_idle() -> None:
    rnd = random.Random(4)
    gpus = Gpus(12)
    pools = [Pool(gpus, size) for size in (1, 2, 4)]
    for now in range(2_000):
        rnd.choice(pools).want(rnd.randint(0, 8), float(now))
        used = sum(pool.has * pool.share.per_replica for pool in pools)
        assert 12 - used == gpus.free >= 0
        assert all(pool.has <= pool.wanted for pool in pools)
        lacking = [pool.share.per_replica for pool in pools if pool.has < pool.wanted]
        assert not lacking or gpus.free < min(lacking)
    assert 12 == gpus.most_used


def test_who_has_waited_longest_gets_what_is_free() -> None:
    gpus = Gpus(2)
    first, second, third = (Pool(gpus, 1) for _ in range(3))
    first.want(2, 0.0)
    second.want(1, 1.0)
    third.want(1, 2.0)
    first.want(1, 5.0)
    assert (1, 1, 0) == (first.has, second.has, third.has)
    first.want(0, 7.0)
    assert (0, 1, 1) == (first.has, second.has, third.has)
    assert (0.0, 4.0, 5.0) == tuple(pool.share.waited_s for pool in (first, second, third))


def test_a_wait_that_lasts_to_the_end_counts() -> None:
    gpus = Gpus(1)
    pool = Pool(gpus, 2)
    pool.want(1, 3.0)
    pool.share.close(10.0)
    assert 7.0 == pool.share.waited_s


def test_what_is_too_little_for_one_goes_to_the_next() -> None:
    gpus = Gpus(4)
    small, large = Pool(gpus, 1), Pool(gpus, 4)
    small.want(4, 0.0)
    large.want(1, 1.0)
    small.want(3, 2.0)
    small.want(4, 3.0)
    assert (4, 0) == (small.has, large.has)
