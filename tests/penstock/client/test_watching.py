"""A watch over all its connections: each result once, and patience instead of a number of attempts."""

from __future__ import annotations

import random
import socket

import grpc
import pytest

from penstock.client import Client, InternalError, NotFoundError, RetryPolicy, UnavailableError
from penstock.client.watching import WatchState
from penstock.v1 import jobs_pb2
from penstock.values.errors import ErrorDetails


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def longest(low: float, high: float) -> float:
    return max(low, high)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def state(clock: Clock) -> WatchState:
    return WatchState("demo.1", b"", False, 10.0, now=clock, uniform=longest)


def news(*indexes: int, token: bytes = b"t", rewound: bool = False, ended: bool = False) -> jobs_pb2.WatchJobResponse:
    job = jobs_pb2.Job(state=jobs_pb2.JOB_STATE_SUCCEEDED if ended else jobs_pb2.JOB_STATE_RUNNING)
    results = [jobs_pb2.JobResult(index=index) for index in indexes]
    return jobs_pb2.WatchJobResponse(job=job, results=results, resume_token=token, rewound=rewound)


def unavailable(retry_after: float | None = None) -> UnavailableError:
    return UnavailableError("gone", grpc.StatusCode.UNAVAILABLE, ErrorDetails(retry_after=retry_after))


def test_the_next_connection_goes_on_behind_the_last_message(state: WatchState) -> None:
    assert b"" == state.request().resume_token
    state.accept(news(0, token=b"one"))
    state.accept(news(1, token=b"two"))
    assert b"two" == state.request().resume_token


def test_results_that_come_again_after_a_rewind_are_left_out(state: WatchState) -> None:
    state.accept(news(3, 1, 2))
    update = state.accept(news(3, 4, 1, rewound=True))
    assert [4] == [result.index for result in update.results]
    assert update.rewound


def test_waits_grow_and_begin_again_after_news(state: WatchState) -> None:
    waits = [state.failed(unavailable()) for _ in range(7)]
    assert [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0] == waits
    assert 7.0 == state.failed(unavailable(retry_after=5.0))
    state.accept(news())
    assert 0.1 == state.failed(unavailable())


def test_an_outage_of_hours_ends_no_watch_that_is_patient(clock: Clock) -> None:
    state = WatchState("demo.1", b"", False, 1e6, now=clock, uniform=longest)
    assert 2.0 == [state.failed(unavailable()) for _ in range(5_000)][-1]


def test_watches_that_break_together_come_back_apart(clock: Clock) -> None:
    """Also where the router asks all of them for the same wait; and none comes back at once."""
    seeds = [random.Random(seed).uniform for seed in range(50)]
    watches = [WatchState("demo.1", b"", False, 10.0, now=clock, uniform=uniform) for uniform in seeds]
    for asked in (None, 3.0):
        waits = [watch.failed(unavailable(asked)) or 0.0 for watch in watches]
        assert 50 == len(set(waits))
        assert min(waits) >= (asked or 0.0) + 0.05


def test_patience_counts_from_the_first_failure(state: WatchState, clock: Clock) -> None:
    state.accept(news())
    clock.now = 5_000.0
    assert state.failed(unavailable()) is not None
    clock.now = 5_010.0
    assert state.failed(unavailable()) is not None
    state.accept(news())
    clock.now = 5_011.0
    assert state.failed(unavailable()) is not None
    clock.now = 5_021.1
    assert state.failed(unavailable()) is None


def test_other_errors_are_final(state: WatchState) -> None:
    assert state.failed(NotFoundError("no job", grpc.StatusCode.NOT_FOUND)) is None


def test_a_stream_that_ends_before_its_job_breaks_the_protocol(state: WatchState) -> None:
    state.accept(news(0))
    with pytest.raises(InternalError, match="before the job did"):
        state.closed()
    state.accept(news(ended=True))
    state.closed()
    assert state.ended


def test_who_shows_what_goes_on_hears_why_a_watch_waits(clock: Clock) -> None:
    heard: list[tuple[float, str]] = []
    state = WatchState(
        "demo.1",
        b"",
        False,
        10.0,
        on_wait=lambda seconds, why: heard.append((seconds, str(why))),
        now=clock,
        uniform=longest,
    )
    state.failed(unavailable(1.5))
    clock.now += 11.0
    state.failed(unavailable())
    assert [(1.6, "gone")] == heard


def test_the_client_says_why_a_watch_waits() -> None:
    heard: list[str] = []
    with socket.socket() as taken:
        # Bound and not listening: nobody answers, and nobody else can take the port.
        taken.bind(("127.0.0.1", 0))
        retry = RetryPolicy(on_wait=lambda _seconds, why: heard.append(type(why).__name__))
        with Client(f"127.0.0.1:{taken.getsockname()[1]}", retry=retry) as client, pytest.raises(UnavailableError):
            list(client.watch_job("demo.1", patience=0.05))
    assert {"UnavailableError"} == set(heard)
