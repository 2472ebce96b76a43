"""A long run forgets its requests and still sees everything that is wrong."""

from __future__ import annotations

from tests.chaos.checker import Bounds, check, pace_s
from tests.chaos.history import (
    Attempted,
    Cancelled,
    Event,
    Failed,
    FaultRecord,
    Finished,
    History,
    Idle,
    Request,
    Tokens,
)
from tests.chaos.tally import SLACK_BYTES, Episode, Tally

GOLDEN = tuple(range(100, 110))


def request(name: str, *events: Event) -> Request:
    return Request(name, GOLDEN, 5.0, events=[Attempted(1.0, restart=True), *events])


def whole(name: str, ids: tuple[int, ...] = GOLDEN, at: float = 1.5) -> Request:
    return request(name, Tokens(at, 0, ids), Finished(at, "length", 10, exact=True, attempts=1))


def test_requests_are_judged_once_they_end_and_then_forgotten() -> None:
    tally, history = Tally(Bounds()), History()
    history.requests += [whole("a"), request("open", Tokens(1.2, 0, GOLDEN[:3])), request("b", Cancelled(1.1))]
    tally.fold(history)
    tally.fold(history)

    assert ["open"] == [each.name for each in history.requests]
    assert (2, 1, 1, 10) == (tally.requests, tally.finished, tally.cancelled, tally.tokens)
    assert not tally.kinds


def test_what_is_wrong_is_counted_and_a_few_are_named() -> None:
    tally = Tally(Bounds())
    tally.fold(History(requests=[whole(f"r{number}", GOLDEN[::-1]) for number in range(50)]))
    tally.fold(History(requests=[request("lost", Failed(2.0, "INTERNAL", final=True))]))
    tally.prove([FaultRecord("kill x", 1.0, "")])

    assert {"I2": 50, "I7": 1, "I8": 1} == dict(tally.kinds)
    assert 20 == len(tally.violations)


def test_silence_and_failed_calls_belong_to_the_fault_before_them() -> None:
    tally = Tally(Bounds(call_codes=frozenset({"UNAVAILABLE"})))
    tally.episodes += [Episode("kill", 10.0), Episode("flush", 20.0), Episode("kill", 30.0)]
    again = Failed(31.0, "UNAVAILABLE")
    tally.fold(History(requests=[whole("early", at=5.0), request("late", again, Attempted(31.1), Cancelled(33.0))]))

    assert [("nothing broken yet", 1, 4.0, 0), ("kill", 2, 32.0, 1), ("flush", 1, 0.0, 0)] == tally.by_fault()


def test_memory_that_grows_is_blamed_and_a_warm_up_is_not() -> None:
    tally = Tally(Bounds())
    for number in range(40):
        warm = 100_000_000 if number >= 8 else 50_000_000
        leak = 100_000_000 + number * SLACK_BYTES // 8
        tally.note_memory({"warm": warm, "leak": leak})
    tally.judge_memory()

    assert ["leak"] == [str(violation).split()[1] for violation in tally.violations]
    assert (100.0, 100.0) == tally.quarters()["warm"]


def test_neighbours_that_slow_down_break_a_bound() -> None:
    steady = [Tokens(1.0 + 0.02 * index, index, (GOLDEN[0],)) for index in range(100)]
    slowed = [Tokens(3.0 + 0.30 * index, 100 + index, (GOLDEN[0],)) for index in range(100)]
    stream = Request("a", (GOLDEN[0],) * 200, 60.0, events=[Attempted(1.0, restart=True), *steady, *slowed])
    stream.events.append(Finished(34.0, "length", 200, exact=True, attempts=1))
    history = History([stream], faults=[FaultRecord("flood", 2.99, "seen")], idle=Idle())

    before, after = pace_s(history) or (0.0, 0.0)
    assert (20, 300) == (round(before * 1e3), round(after * 1e3))
    assert {"I7"} == {v.invariant for v in check(history, Bounds(pace_ratio=3.0))}
    assert [] == check(history, Bounds(pace_ratio=20.0))
