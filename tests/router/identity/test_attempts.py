"""Wrong keys and tokens are looked at so often per address; right ones always."""

from __future__ import annotations

import pytest

from cluster.clock import ManualClock
from router.identity.attempts import MAX_ADDRESSES, MAX_RIGHT, RIGHT_S, Attempts

MINE, OTHER = "192.0.2.1", "192.0.2.2"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def fail(attempts: Attempts, address: str, times: int) -> None:
    for number in range(times):
        attempts.failed(address, f"wrong {number}")


def test_an_address_that_failed_too_often_waits_and_others_do_not(clock: ManualClock) -> None:
    attempts = Attempts(6, clock)
    fail(attempts, MINE, 5)
    assert 0 == attempts.wait_s(MINE, "x")
    fail(attempts, MINE, 1)
    assert (10, 0) == (attempts.wait_s(MINE, "x"), attempts.wait_s(OTHER, "x"))
    clock.advance(9)
    assert 1 == pytest.approx(attempts.wait_s(MINE, "x"))
    clock.advance(1)
    assert 0 == attempts.wait_s(MINE, "x")
    assert 2 == attempts.blocked


def test_six_a_minute_are_looked_at_however_many_come(clock: ManualClock) -> None:
    attempts, looked_at = Attempts(6, clock), 0
    for number in range(3_000):
        clock.advance(0.1)
        if not attempts.wait_s(MINE, f"{number}"):
            looked_at += 1
            attempts.failed(MINE, f"{number}")
    # Five minutes, and the bucket that was full at the begin.
    assert 35 <= looked_at <= 36


def test_credentials_that_were_right_lately_pass_until_they_are_wrong(clock: ManualClock) -> None:
    """Many clients may share a proxy's address with a bad one."""
    attempts = Attempts(6, clock)
    attempts.succeeded("right")
    fail(attempts, MINE, 100)
    assert 0 == attempts.wait_s(MINE, "right") < attempts.wait_s(MINE, "wrong")
    attempts.failed(MINE, "right")
    assert attempts.wait_s(MINE, "right") > 0
    attempts.succeeded("old")
    clock.advance(RIGHT_S)
    fail(attempts, MINE, 6)
    assert attempts.wait_s(MINE, "old") > 0


def test_a_subscribers_ipv6_addresses_count_as_one(clock: ManualClock) -> None:
    attempts = Attempts(2, clock)
    fail(attempts, "2001:db8::1", 1)
    fail(attempts, "2001:db8::ffff:2%eth0", 1)
    assert attempts.wait_s("2001:db8::3", "x") > 0
    assert 0 == attempts.wait_s("2001:db8:0:1::3", "x")
    fail(attempts, "::ffff:192.0.2.1", 2)
    assert attempts.wait_s(MINE, "x") > 0


def test_memory_is_bounded_and_comes_back(clock: ManualClock) -> None:
    attempts = Attempts(60, clock)
    for number in range(MAX_ADDRESSES + 500):
        attempts.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", "x")
    for number in range(MAX_RIGHT + 500):
        attempts.succeeded(f"key {number}")
    assert (MAX_ADDRESSES, MAX_RIGHT) == (len(attempts._full_at), len(attempts._right))
    assert not attempts.quiet
    clock.advance(1)
    assert attempts.quiet
    assert 0 == len(attempts._full_at)


def test_no_limit_and_callers_without_an_address_never_wait(clock: ManualClock) -> None:
    off, on = Attempts(0, clock), Attempts(1, clock)
    fail(off, MINE, 100)
    fail(on, "", 100)
    assert off.quiet
    assert on.quiet
