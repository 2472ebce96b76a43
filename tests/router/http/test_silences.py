"""Comments of silent streams: one timer serves all streams of a server, a part of them in each turn."""

from __future__ import annotations

from typing import cast

import pytest

from router.http import event_stream
from router.http.event_stream import ROWS, EventStream, Silences
from tests.support.waiting import until


class Looked:
    """A stream that notes the looks at it."""

    def __init__(self, looks: list[Looked]) -> None:
        self._looks = looks

    def keep_alive(self) -> None:
        self._looks.append(self)


async def test_every_stream_is_looked_at_once_in_each_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "SILENCE_S", 0.1)
    silences, looks = Silences(), list[Looked]()
    streams = [Looked(looks) for _ in range(2 * ROWS + 1)]
    rows = [silences.add(cast("EventStream", stream)) for stream in streams]
    assert {2, 3} == set(map(len, rows))
    await until(lambda: len(looks) >= 2 * len(streams))
    first, second = looks[: len(streams)], looks[len(streams) : 2 * len(streams)]
    assert set(streams) == set(first) == set(second)
    for stream, row in zip(streams, rows, strict=True):
        silences.discard(cast("EventStream", stream), row)
    assert 0 == len(silences)


async def test_no_timer_runs_without_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "SILENCE_S", 0.01)
    silences, looks = Silences(), list[Looked]()
    for _ in range(3):
        stream = cast("EventStream", Looked(looks))
        row = silences.add(stream)
        seen = len(looks)
        await until(lambda seen=seen: len(looks) > seen)  # type: ignore[misc]
        silences.discard(stream, row)
        assert silences._timer is not None
        assert silences._timer.cancelled()
    assert [] == [set_ for set_ in silences._rows if set_]


class Broken(Looked):
    """A stream at which no look succeeds."""

    def keep_alive(self) -> None:
        super().keep_alive()
        raise ValueError("no transport")


async def test_a_stream_that_fails_ends_no_other_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "SILENCE_S", 0.1)
    silences, looks = Silences(), list[Looked]()
    streams = [(Broken if number % 5 == 0 else Looked)(looks) for number in range(3 * ROWS)]
    for stream in streams:
        silences.add(cast("EventStream", stream))
    await until(lambda: len(looks) >= 2 * len(streams))
    assert set(streams) == set(looks[: len(streams)])
    assert silences._timer is not None
    silences._timer.cancel()
