"""Every invariant is shown to fail: hand-written histories that break one each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.checker import Bounds, check, longest_silence_s, recovery_s
from tests.chaos.history import (
    Accepted,
    Attempted,
    Bill,
    Cancelled,
    Decode,
    Event,
    Failed,
    FaultRecord,
    Finished,
    History,
    Idle,
    QueueSample,
    Request,
    Tokens,
    read_journal,
)

GOLDEN = tuple(range(100, 110))
OTHER = tuple(range(200, 210))
DONE = Finished(2.0, "length", 10, exact=True, attempts=1)


def good(name: str = "a", golden: tuple[int, ...] = GOLDEN, request_id: str = "r1") -> Request:
    """Return a request that went well."""
    events: list[Event] = [
        Attempted(1.0, restart=True),
        Accepted(1.1, request_id),
        Tokens(1.2, 0, golden[:4]),
        Tokens(1.3, 4, golden[4:]),
        DONE,
    ]
    return Request(name, golden, 5.0, events=events)


def history(*requests: Request, **more: object) -> History:
    """Return a history in which nothing else is wrong."""
    return History(list(requests), **{"idle": Idle(), **more})  # type: ignore[arg-type]


def broken(found: History, bounds: Bounds | None = None) -> set[str]:
    """Return the invariants that a history breaks."""
    return {violation.invariant for violation in check(found, bounds or Bounds())}


def changed(at: int, *events: Event, base: Request | None = None) -> Request:
    """Return a request that went well but for the event at this place, which others take."""
    request = base or good()
    request.events[at : at + 1] = events
    return request


def test_gpu_time_must_add_up_where_that_is_stated() -> None:
    stated = Bounds(unexplained=0.01)
    for bill, wrong in (
        (None, True),
        (Bill(100.0, 100.0, 50.0, 0.0), True),
        (Bill(100.0, 98.0, 50.0, 1.0), True),
        (Bill(100.0, 102.0, 50.0, 1.0), True),
        (Bill(100.0, 99.5, 50.0, 1.0), False),
    ):
        assert ({"I9"} if wrong else set()) == broken(history(good(), bill=bill), stated)
    assert set() == broken(history(good()))


def test_a_good_history_breaks_nothing() -> None:
    two = history(good(), good("b", OTHER, "r2"), decodes=[Decode("r1", "x", "A", 1.0, 2.0)])
    assert set() == broken(two)


@pytest.mark.parametrize(
    ("why", "request_"),
    [
        ("never ended", changed(4)),
        ("ended twice", changed(4, DONE, DONE)),
        ("went on after its end", changed(3, DONE, Tokens(2.5, 4, GOLDEN[4:]))),
        ("ended long after its deadline", changed(4, replace(DONE, at=99.0))),
    ],
)
def test_i1_one_end_in_time(why: str, request_: Request) -> None:
    assert "I1" in broken(history(request_)), why


def test_i1_something_must_have_gone_well() -> None:
    assert "I1" in broken(history())


@pytest.mark.parametrize(
    ("why", "request_"),
    [
        ("lost", changed(3, Tokens(1.3, 5, GOLDEN[5:]))),
        ("repeated", changed(3, Tokens(1.3, 3, GOLDEN[3:]))),
        ("reordered", changed(2, Tokens(1.2, 4, GOLDEN[4:]))),
        ("wrong", changed(3, Tokens(1.3, 4, (*GOLDEN[4:9], 7)))),
        ("short", changed(3, Tokens(1.3, 4, GOLDEN[4:9]))),
        ("miscounted", changed(4, replace(DONE, output_tokens=9))),
        ("not exact", changed(4, replace(DONE, exact=False))),
    ],
)
def test_i2_whole_streams(why: str, request_: Request) -> None:
    assert {"I2"} == broken(history(request_)), why


def test_i2_a_call_that_starts_again_may_repeat_everything() -> None:
    request = good()
    request.events[3:3] = [Failed(1.25, "UNAVAILABLE"), Attempted(1.26, restart=True), Tokens(1.27, 0, GOLDEN[:4])]
    assert set() == broken(history(request), Bounds(call_codes=frozenset({"UNAVAILABLE"})))
    request.events[4] = Attempted(1.26)
    assert {"I2"} == broken(history(request), Bounds(call_codes=frozenset({"UNAVAILABLE"})))


def test_i3_one_engine_at_a_time() -> None:
    twice = [Decode("r1", "x", "A", 1.0, 5.0), Decode("r1", "y", "B", 2.0, 6.0)]
    assert {"I3"} == broken(history(good(), decodes=twice), Bounds(max_decodes=2))
    # One of the processes was stopped meanwhile.
    paused = history(good(), decodes=twice, pauses={"A": [(2.0, 9.0)]})
    assert set() == broken(paused, Bounds(max_decodes=2))
    assert {"I3"} == broken(paused, Bounds(max_decodes=1))


def test_i4_no_mixing() -> None:
    mixed = changed(3, Tokens(1.3, 4, OTHER[2:8]))
    assert {"I2", "I4"} == broken(history(mixed, good("b", OTHER, "r2")))
    assert {"I4"} == broken(history(good(), good("b", OTHER, "r1")))


@pytest.mark.parametrize(
    "idle", [None, Idle(keys={"slots": 1}), Idle(open_calls={"router-0": 1.0}), Idle(decoding=("r1#x",))]
)
def test_i5_nothing_is_left(idle: Idle | None) -> None:
    assert {"I5"} == broken(history(good(), idle=idle))


def test_i6_bounds_and_shares() -> None:
    assert {"I6"} == broken(history(good(), samples=[QueueSample(1.0, 6)]), Bounds(max_waiting=5))
    crowd = [Decode(f"r{n}", "x", "A", 1.0, 2.0) for n in range(3)]
    assert {"I6"} == broken(history(good(), decodes=crowd), Bounds(max_running=2))
    assert {"I6"} == broken(history(good()), Bounds(min_share={"small": 0.4}))


FAULT = FaultRecord("kill", 1.21, "pid 1 is gone")


def test_i7_recovery_in_time() -> None:
    late = changed(3, Tokens(9.0, 4, GOLDEN[4:]))
    late.events[4] = replace(DONE, at=9.1)
    late.deadline_s = 20.0
    disturbed = history(late, faults=[FAULT])
    assert 7.79 == pytest.approx(recovery_s(disturbed, 1.0))
    assert {"I7"} == broken(disturbed, Bounds(recovery_s=2.0))
    healed = history(late, faults=[FAULT, FaultRecord("start", 8.0, "pid 2 is ready", heals=True)])
    assert set() == broken(healed, Bounds(recovery_s=2.0))


def test_i7_silence_while_something_is_broken() -> None:
    """What is over before the last heal is no recovery, and may still be too long."""
    late = changed(3, Tokens(9.0, 4, GOLDEN[4:]))
    late.events[4] = replace(DONE, at=9.1)
    late.deadline_s = 20.0
    healed = history(late, faults=[FAULT, FaultRecord("start", 9.5, "pid 2 is ready", heals=True)])
    silent_s = longest_silence_s(healed)
    assert set() == broken(healed, Bounds(recovery_s=0.0, silence_s=silent_s))
    assert {"I7"} == broken(healed, Bounds(recovery_s=0.0, silence_s=silent_s - 0.1))


def test_a_time_in_which_the_loop_stood_still_is_no_silence() -> None:
    """The machine was halted, or clients and proxies had no CPU: 2.8 of these 7.7 s."""
    late = changed(3, Tokens(9.0, 4, GOLDEN[4:]))
    late.events[4] = replace(DONE, at=9.1)
    stood = [(0.0, 1.25), (2.0, 4.75)]
    halted = history(late, faults=[FAULT], standstills=stood)
    assert longest_silence_s(halted) == pytest.approx(9.0 - 1.2 - 2.8)
    assert recovery_s(halted, 4.9) == pytest.approx(9.0 - 1.21 - 2.79)
    assert recovery_s(halted, 5.1) == 0.0
    assert set() == broken(halted, Bounds(recovery_s=5.1, silence_s=5.1))
    assert {"I7"} == broken(halted, Bounds(recovery_s=4.9))
    assert {"I1"} == broken(history(late, standstills=stood[:1])), "8.1 s are more than its deadline and some grace"


def test_i7_engines_that_die_and_the_requests_that_kill_them() -> None:
    stated = Bounds(max_deaths=2, killers_end=("FAILED_PRECONDITION", "QUARANTINED"))
    killer = Failed(1.0, "FAILED_PRECONDITION", "QUARANTINED", final=True)
    assert set() == broken(history(good(), deaths=2, killers=[killer]), stated)
    assert {"I7"} == broken(history(good(), deaths=3, killers=[killer]), stated)
    assert {"I7"} == broken(history(good(), killers=[replace(killer, code="ABORTED")]), stated)


def failing(failure: Failed) -> History:
    """Return a good request, and one that fails."""
    return history(good(), Request("b", OTHER, 5.0, events=[Attempted(1.0, restart=True), failure]))


def test_i7_only_stated_errors() -> None:
    final = Failed(1.1, "UNAVAILABLE", "QUEUE_AWAY", final=True)
    stated = Bounds(final_codes=frozenset({"UNAVAILABLE"}))
    assert {"I7"} == broken(failing(final))
    assert set() == broken(failing(final), stated)
    assert {"I7"} == broken(failing(final), replace(stated, retry_info=True))
    assert set() == broken(failing(replace(final, retry_after_s=1.0)), replace(stated, retry_info=True))
    assert {"I7"} == broken(failing(replace(final, at=4.0)), replace(stated, fail_fast_s=1.0))


def test_i8_faults_are_proven() -> None:
    assert {"I8"} == broken(history(good(), faults=[replace(FAULT, proof="")]))


def test_a_client_that_gives_up_is_no_failure() -> None:
    request = changed(3, Cancelled(1.25))
    del request.events[4]
    assert set() == broken(history(request, good("b", OTHER, "r2")))


def test_a_journal_tells_what_was_decoded_and_what_still_is(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    lines = [
        {"at": 1.0, "what": "start", "id": "warm-up-1", "prior": 0},
        {"at": 1.1, "what": "end", "id": "warm-up-1", "reason": "length", "tokens": 1},
        {"at": 2.0, "what": "start", "id": "r1#a", "prior": 0},
        {"at": 3.0, "what": "end", "id": "r1#a", "reason": "length", "tokens": 9},
        {"at": 4.0, "what": "start", "id": "r2#b", "prior": 5},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + '\n{"at": 5.0, "wh', encoding="utf-8")

    ended = Decode("r1", "a", "A", 2.0, 3.0, 0, "length")
    assert ([ended, Decode("r2", "b", "A", 4.0, 6.0, 5, "open")], ["r2#b"]) == read_journal(path, "A", 0.0, None, 6.0)
    assert ([Decode("r2", "b", "A", 4.0, 4.5, 5, "killed")], []) == read_journal(path, "A", 3.5, 4.5, 6.0)
