"""How many tokens share a message."""

from __future__ import annotations

import pytest

from cluster.clock import ManualClock
from cluster.settings import MergingSettings
from router.service.pace import NEVER, Pace, StreamPace


class Router:
    """Is a pace on a clock that is turned by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.pace = Pace(MergingSettings(messages_per_s=1000, at_most_s=0.05), self.clock.monotonic)

    def stream(self, asked_s: float | None = None) -> StreamPace:
        """Open a stream that has had its first token."""
        stream = StreamPace(self.pace, asked_s)
        stream.wrote(1)
        return stream

    def serve(self, tokens_per_s: float, seconds: float = 2.0) -> None:
        """Let other streams have tokens."""
        other = self.stream()
        for _ in range(round(seconds / 0.01)):
            self.clock.advance(0.01)
            other.wrote(round(tokens_per_s * 0.01))


@pytest.mark.parametrize(("tokens_per_s", "together"), [(900, 1), (1800, 2), (3900, 4)])
def test_so_many_tokens_share_a_message_that_messages_stay_in_their_bound(tokens_per_s: int, together: int) -> None:
    router = Router()
    router.serve(tokens_per_s)
    assert (0.05, together) == router.stream().wait()


def test_what_was_busy_and_is_not_any_more_sends_every_token() -> None:
    router = Router()
    router.serve(3900)
    router.clock.advance(60.0)
    assert 1 == router.stream().wait()[1]


def test_a_first_token_never_waits() -> None:
    router = Router()
    router.serve(3900)
    assert 1 == StreamPace(router.pace, None).wait()[1]
    assert 1 == StreamPace(router.pace, 10.0).wait()[1]


def test_what_the_client_asks_for_holds() -> None:
    router = Router()
    router.serve(3900)
    assert 1 == router.stream(0.0).wait()[1]
    slow = router.stream(0.2)
    router.clock.advance(0.05)
    assert (pytest.approx(0.15), NEVER) == slow.wait()
