"""Longer requests are told from chance."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import pytest

from cluster.control.lengths import longer_work
from cluster.control.load import LoadRules, Need

TICK_S = 15.0
RULES = LoadRules()


def ticks(
    rnd: random.Random, seconds: float, mean_work: Callable[[float], float], per_s: float = 2.0
) -> Iterator[tuple[Need, ...]]:
    """Draw requests that come in groups, with work that scatters as an exponential, and yield what each tick knows."""
    needs: list[Need] = []
    work = requests = at = 0.0
    kept = math.exp(-TICK_S / RULES.rate_window_s)
    while at < seconds:
        at += TICK_S
        groups = rnd.gammavariate(4.0, 0.25) * per_s * TICK_S
        count = sum(1 for _ in _poisson(rnd, groups))
        came = sum(rnd.expovariate(1.0) * mean_work(at) for _ in range(count))
        work = kept * work + (1 - kept) * came / TICK_S
        requests = kept * requests + (1 - kept) * count / TICK_S
        needs.append(Need(at, work, 1, requests))
        yield tuple(needs)


def _poisson(rnd: random.Random, mean: float) -> Iterator[None]:
    left = mean - rnd.expovariate(1.0)
    while left > 0:
        yield None
        left -= rnd.expovariate(1.0)


def found(needs: tuple[Need, ...], rules: LoadRules = RULES) -> float | None:
    *earlier, now = needs
    return longer_work(now.work, now.requests, earlier, now.at, rules)


@pytest.mark.parametrize("seed", range(5))
def test_requests_twice_as_long_show_within_a_minute_and_a_half(seed: int) -> None:
    longer_at = 900.0
    seen = {
        needs[-1].at: found(needs)
        for needs in ticks(random.Random(seed), 1_080.0, lambda at: 2.0 if at > longer_at else 1.0)
        if needs[-1].at > longer_at
    }
    first = next(at for at, work in seen.items() if work is not None)

    assert first <= longer_at + 90.0
    assert seen[longer_at + 150.0] == pytest.approx(2.0, rel=0.3)


def test_more_requests_are_no_longer_requests() -> None:
    """What came is told apart from how much of it came: thrice as many say nothing here."""
    for needs in ticks(random.Random(1), 900.0, lambda _: 1.0):
        last = needs
    *earlier, now = last
    crowd = [
        *earlier,
        *(Need(now.at + TICK_S * n, 3 * now.work, 1, 3 * now.requests) for n in range(1, 9)),
    ]
    assert None is longer_work(3 * now.work, 3 * now.requests, crowd, crowd[-1].at + TICK_S, RULES)


def test_chance_is_seldom_taken_for_a_change() -> None:
    looks = [
        found(needs)
        for seed in range(20)
        for needs in ticks(random.Random(seed), 1_800.0, lambda _: 1.0)
        if needs[-1].at > RULES.known_after_s
    ]
    assert len(looks) >= 1_900
    assert sum(each is not None for each in looks) <= 0.005 * len(looks)


def test_few_requests_say_nothing() -> None:
    rare = list(ticks(random.Random(3), 1_200.0, lambda at: 4.0 if at > 1_000.0 else 1.0, per_s=0.03))
    assert all(found(needs) is None for needs in rare)


def test_it_can_be_switched_off_and_needs_the_counts() -> None:
    *_, needs = ticks(random.Random(4), 990.0, lambda at: 3.0 if at > 900.0 else 1.0)
    assert found(needs) is not None
    assert None is found(needs, LoadRules(lengths_s=0.0))
    unknown = tuple(Need(each.at, each.work, each.replicas) for each in needs[:-1])
    assert None is longer_work(needs[-1].work, needs[-1].requests, unknown, needs[-1].at, RULES)
