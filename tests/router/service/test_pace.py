"""How many tokens share a message."""

from __future__ import annotations

import pytest

from cluster.clock import ManualClock
from cluster.settings import MergingSettings
from router.service.pace import AT_ONCE, NEVER, Collecting, Pace, StreamPace


class Router:
    """Is a pace on a clock that is turned by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.pace = Pace(MergingSettings(tokens_per_s=1000, at_most_s=0.1), self.clock.monotonic)

    def serve(self, tokens_per_s: float, seconds: float = 8.0) -> None:
        """Let other streams have tokens."""
        other = StreamPace(self.pace, 0.0)
        for _ in range(round(seconds / 0.01)):
            self.clock.advance(0.01)
            other.wrote(round(tokens_per_s * 0.01))

    def stream(self, itl_s: float, asked_s: float | None = None) -> Collecting:
        """Return what a stream does after its second token."""
        stream = StreamPace(self.pace, asked_s)
        stream.wrote(1)
        self.clock.advance(itl_s)
        return stream.wrote(1)


@pytest.mark.parametrize(("tokens_per_s", "together"), [(900, 1), (1100, 2), (1200, 3), (1400, 5)])
def test_each_eighth_too_many_lets_one_token_more_share_a_message(tokens_per_s: int, together: int) -> None:
    router = Router()
    router.serve(tokens_per_s)
    assert together == router.stream(0.01).tokens


@pytest.mark.parametrize(("itl_s", "together"), [(0.03, 4), (0.045, 3), (0.09, 2), (0.11, 1)])
def test_no_token_waits_longer_than_allowed(itl_s: float, together: int) -> None:
    router = Router()
    router.serve(5000)
    assert together == router.stream(itl_s).tokens


def test_a_pause_between_bursts_changes_nothing() -> None:
    router = Router()
    router.serve(3000)
    router.clock.advance(0.4)
    router.serve(3000, 0.1)
    assert 1 < router.stream(0.01).tokens


def test_what_was_busy_and_is_not_any_more_sends_every_token() -> None:
    router = Router()
    router.serve(3900)
    router.clock.advance(60.0)
    assert AT_ONCE == router.stream(0.01)


def test_a_short_burst_does_not_merge_yet() -> None:
    router = Router()
    router.serve(800)
    router.serve(1500, 0.5)
    assert AT_ONCE == router.stream(0.01)


def test_first_and_second_token_never_wait() -> None:
    router = Router()
    router.serve(3900)
    assert AT_ONCE == StreamPace(router.pace, None).wrote(1)


def test_what_the_client_asks_for_holds() -> None:
    router = Router()
    router.serve(3900)
    assert AT_ONCE == router.stream(0.01, 0.0)
    assert Collecting(NEVER, 0.2, from_now=True) == router.stream(0.01, 0.2)
