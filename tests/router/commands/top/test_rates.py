"""Rates from counters that a router reports."""

from __future__ import annotations

from penstock.client import ClassCounters, ClusterStatus, PoolStatus, RequestClass
from router.commands.top.rates import KEPT_S, Rates
from tests.router.commands.top.status import pool, replica


def at(rates: Rates, seconds: float, found: PoolStatus) -> Rates:
    return rates.after(seconds, ClusterStatus((found,), "", ""))


def with_tokens(tokens: int) -> PoolStatus:
    return pool("demo", replica(output_tokens=tokens))


def test_one_look_gives_no_rate() -> None:
    found = with_tokens(5)
    rates = at(Rates(), 0.0, found)
    assert (None, None, None) == (rates.tokens(found), rates.tokens(found, "demo-r0"), rates.met(found))


def test_rates_are_taken_over_five_seconds() -> None:
    rates = Rates()
    for second in range(20):
        rates = at(rates, second, with_tokens(1_000 if second < 10 else 1_000 + 100 * (second - 9)))
    assert 100.0 == rates.tokens(with_tokens(0), "demo-r0")


def test_a_counter_that_began_again_counts_from_there() -> None:
    rates = at(at(at(Rates(), 0.0, with_tokens(900)), 1.0, with_tokens(1_000)), 2.0, with_tokens(30))
    assert 50.0 == rates.tokens(with_tokens(30), "demo-r0")


def test_the_rate_of_a_pool_is_that_of_its_replicas() -> None:
    first = pool("demo", replica("a", output_tokens=0), replica("b", output_tokens=0))
    second = pool("demo", replica("a", output_tokens=20), replica("b", output_tokens=10), replica("new"))
    rates = at(at(Rates(), 0.0, first), 2.0, second)
    assert 15.0 == rates.tokens(second)


def test_a_pool_without_replicas_makes_no_tokens() -> None:
    assert 0 == at(Rates(), 0.0, pool("demo")).tokens(pool("demo"))


def test_the_share_within_the_slo_is_that_of_the_last_minute() -> None:
    def counted(judged: int, met: int) -> PoolStatus:
        return pool("demo", classes=(ClassCounters(RequestClass.BATCH, judged, judged, met),))

    rates = at(at(Rates(), 0.0, counted(100, 0)), 1.0, counted(110, 9))
    assert 0.9 == rates.met(counted(0, 0))
    assert 0.9 == rates.met(counted(0, 0), RequestClass.BATCH)
    assert rates.met(counted(0, 0), RequestClass.INTERACTIVE) is None
    later = at(at(rates, KEPT_S + 2, counted(110, 9)), KEPT_S + 3, counted(112, 10))
    assert 0.5 == later.met(counted(0, 0))


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    rates = Rates()
    for second in range(500):
        rates = at(rates, second, with_tokens(second))
    assert KEPT_S + 1 == len(rates.samples)
