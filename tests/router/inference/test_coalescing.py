"""How many tokens share a message."""

from __future__ import annotations

import pytest

from cluster.clock import ManualClock
from cluster.settings import MergingSettings
from router.inference.coalescing import AT_ONCE, NEVER, Coalescing, Collecting, StreamCoalescing


class Router:
    """A pace on a clock that is turned by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.clock.advance(1.0)
        self.pace = Coalescing(MergingSettings(streams=64, at_most_s=0.1), self.clock.monotonic)

    def serve(self, streams: int) -> list[StreamCoalescing]:
        """Let others stream."""
        others = [StreamCoalescing(self.pace, None) for _ in range(streams)]
        for other in others:
            other.wrote(1)
        return others

    def stream(self, itl_s: float, asked_s: float | None = None) -> Collecting:
        """Return what one stream more does after its second token."""
        stream = StreamCoalescing(self.pace, asked_s)
        stream.wrote(1)
        self.clock.advance(itl_s)
        return stream.wrote(1)


@pytest.mark.parametrize(("streams", "together"), [(1, 1), (63, 1), (64, 2), (79, 2), (80, 3), (128, 6)])
def test_each_quarter_too_many_lets_one_token_more_share_a_message(streams: int, together: int) -> None:
    router = Router()
    router.serve(streams - 1)
    assert together == router.stream(0.01).tokens


@pytest.mark.parametrize(("itl_s", "together"), [(0.03, 4), (0.045, 3), (0.09, 2), (0.11, 1)])
def test_no_token_waits_longer_than_allowed(itl_s: float, together: int) -> None:
    router = Router()
    router.serve(200)
    assert together == router.stream(itl_s).tokens


def test_streams_that_have_ended_or_not_begun_do_not_count() -> None:
    router = Router()
    others = router.serve(100)
    waiting = [StreamCoalescing(router.pace, None) for _ in range(100)]
    for other in [*others, *others, *waiting]:
        other.close()
    assert AT_ONCE == router.stream(0.01)
    assert 1 == router.pace.streams


def test_a_first_token_never_waits() -> None:
    router = Router()
    router.serve(200)
    assert AT_ONCE == StreamCoalescing(router.pace, None).wrote(1)


def test_what_the_client_asks_for_holds() -> None:
    router = Router()
    router.serve(200)
    assert AT_ONCE == router.stream(0.01, 0.0)
    assert Collecting(NEVER, 0.2, from_now=True) == router.stream(0.01, 0.2)
