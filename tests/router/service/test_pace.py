"""How a router spreads its messages over its streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from cluster.clock import ManualClock
from cluster.settings import MergingSettings
from router.service.pace import Pace, StreamPace


class Streams:
    """Is a pace on a clock that is turned by hand."""

    def __init__(self, exits: ExitStack) -> None:
        self.clock = ManualClock()
        self.pace = Pace(MergingSettings(messages_per_s=1000, at_most_s=0.05), self.clock.monotonic)
        self._exits = exits

    def open(self, asked_s: float | None = None, *, begun: bool = True) -> StreamPace:
        stream = self._exits.enter_context(self.pace.stream(asked_s))
        if begun:
            stream.wrote()
        return stream


@pytest.fixture
def streams() -> Iterator[Streams]:
    with ExitStack() as exits:
        yield Streams(exits)


def test_each_stream_has_its_share_of_the_messages(streams: Streams) -> None:
    first, *_ = [streams.open() for _ in range(20)]
    assert first.rest_s() == pytest.approx(0.02)
    streams.clock.advance(0.015)
    assert first.rest_s() == pytest.approx(0.005)
    streams.clock.advance(0.1)
    assert first.rest_s() < 0


def test_no_token_waits_longer_than_the_bound(streams: Streams) -> None:
    first, *_ = [streams.open() for _ in range(500)]
    assert first.rest_s() == pytest.approx(0.05)


def test_a_first_token_never_waits(streams: Streams) -> None:
    for _ in range(500):
        streams.open()
    assert streams.open(begun=False).rest_s() == 0
    assert streams.open(10.0, begun=False).rest_s() == 0


def test_what_the_client_asks_for_holds(streams: Streams) -> None:
    for _ in range(500):
        streams.open()
    assert streams.open(0.0).rest_s() <= 0
    assert streams.open(0.2).rest_s() == pytest.approx(0.2)


def test_only_streams_with_output_count(streams: Streams) -> None:
    for _ in range(100):
        streams.open(begun=False)
    assert streams.open().rest_s() == pytest.approx(0.001)
    with ExitStack() as others:
        for _ in range(9):
            others.enter_context(streams.pace.stream(None)).wrote()
        assert streams.pace.interval_s == pytest.approx(0.010)
    assert streams.pace.interval_s == pytest.approx(0.001)
