"""Longer requests are told from chance."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from cluster.control.length_shift import enough_came, longer_work
from cluster.control.load_forecast import LoadRules, Need
from cluster.control.step_model import Shape

TICK_S = 15.0
RULES = LoadRules()
Draw = Callable[[random.Random, float], float]
"""A request's work, from a source of chance and the time."""


def alike(rnd: random.Random, _at: float) -> float:
    return rnd.expovariate(1.0)


def mixed(rnd: random.Random, _at: float) -> float:
    """Draw mostly short ones, and a few that are as much work together: variance over mean squared is 3.3."""
    return 1.0 if rnd.random() < 0.05 else 0.055


def doubled_at(longer_at: float, times: float = 2.0) -> Draw:
    return lambda rnd, at: rnd.expovariate(1.0) * (times if at > longer_at else 1.0)


def ticks(rnd: random.Random, seconds: float, work_of: Draw, per_s: Callable[[float], float]) -> Iterator[list[Need]]:
    """Draw requests that come in groups, and yield what each tick knows."""
    needs: list[Need] = []
    work = requests = at = 0.0
    kept = math.exp(-TICK_S / RULES.rate_window_s)
    while at < seconds:
        at += TICK_S
        expected = rnd.gammavariate(4.0, 0.25) * per_s(at) * TICK_S
        count, left = 0, expected - rnd.expovariate(1.0)
        while left > 0:
            count, left = count + 1, left - rnd.expovariate(1.0)
        came = sum(work_of(rnd, at) for _ in range(count))
        work = kept * work + (1 - kept) * came / TICK_S
        requests = kept * requests + (1 - kept) * count / TICK_S
        needs.append(Need(at, work, 1, requests, Shape(1.0, work / max(1e-9, requests))))
        yield list(needs)


def found(needs: Sequence[Need], rules: LoadRules = RULES) -> float | None:
    lately = needs[-12:]
    return longer_work(needs[-1], sum(each.requests for each in lately) / len(lately), needs[:-1], price, rules)


def price(shape: Shape) -> float:
    """Take a token for a second of work, so that a mean length says what a request asks for."""
    return shape.output_tokens


def two_per_s(_at: float) -> float:
    return 2.0


@pytest.mark.parametrize("seed", range(5))
def test_requests_twice_as_long_show_within_a_minute_and_a_half(seed: int) -> None:
    longer_at = 900.0
    seen = {
        needs[-1].at: found(needs)
        for needs in ticks(random.Random(seed), 1_080.0, doubled_at(longer_at), two_per_s)
        if needs[-1].at > longer_at
    }
    first = next(at for at, work in seen.items() if work is not None)

    assert first <= longer_at + 90.0
    assert seen[longer_at + 150.0] == pytest.approx(4.0, rel=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("work_of", [alike, mixed])
def test_chance_is_seldom_taken_for_a_change(work_of: Draw) -> None:
    looks = [
        found(needs)
        for seed in range(20)
        for needs in ticks(random.Random(seed), 1_800.0, work_of, two_per_s)
        if needs[-1].at > RULES.known_after_s
    ]
    assert len(looks) >= 1_900
    assert sum(each is not None for each in looks) <= 0.005 * len(looks)


def test_more_requests_are_no_longer_ones() -> None:
    crowds = list(ticks(random.Random(1), 1_200.0, alike, lambda at: 6.0 if at > 900.0 else 2.0))
    assert all(found(needs) is None for needs in crowds)


def test_where_the_short_ones_stop_the_rest_is_no_more_work() -> None:
    """Each is longer on average then, and fewer come: what is found is what they really are, or nothing."""

    def long_ones(rnd: random.Random, at: float) -> float:
        return 4.0 if at > 900.0 or rnd.random() < 0.05 else 0.2

    *_, last = ticks(random.Random(2), 990.0, long_ones, lambda at: 2.0 if at > 900.0 else 40.0)
    work = found(last)
    assert work is None or work < 1.5 * 2.0 * 4.0


def test_few_requests_say_nothing() -> None:
    rare = list(ticks(random.Random(3), 1_200.0, doubled_at(1_000.0, 4.0), lambda _: 0.03))
    assert all(found(needs) is None for needs in rare)


def test_it_can_be_switched_off_and_stands_ticks_that_know_less() -> None:
    *_, needs = ticks(random.Random(5), 990.0, doubled_at(900.0, 3.0), two_per_s)
    assert found(needs) is not None
    assert found(needs, LoadRules(lengths_s=0.0)) is None
    unknown = [Need(each.at, each.work, each.replicas) for each in needs[:-1]]
    assert longer_work(needs[-1], 2.0, unknown, price, RULES) is None
    # A clock that stood still.
    *earlier, now = needs
    assert longer_work(now, 2.0, [*earlier, earlier[-1]], price, RULES) == longer_work(now, 2.0, earlier, price, RULES)


@pytest.mark.parametrize("per_s", [0.01, 0.05, 0.1, 0.5])
def test_too_few_requests_are_told_before_they_are_priced(per_s: float) -> None:
    """On a trace of weeks with few requests, prices took two thirds of a simulation."""
    told = set()
    for needs in ticks(random.Random(1), 4000.0, doubled_at(2000.0, 20.0), lambda _: per_s):
        enough = enough_came(needs[-1], needs[:-1], RULES)
        told.add(enough)
        assert enough or found(needs) is None
    assert told == {False, per_s > 0.01}
