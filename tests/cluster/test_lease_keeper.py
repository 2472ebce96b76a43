"""A thread keeps the lease of a busy event loop, but not of one that stands still."""

from __future__ import annotations

import time
from unittest.mock import PropertyMock

import pytest

from cluster.lease_keeper import LeaseKeeper
from tests.support.waiting import until, until_sync

PERIOD_S, LEASE_S = 0.05, 0.4


class Beats:
    """Notes when heartbeats were sent."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.replies = 0

    async def beat(self) -> int:
        self.at.append(time.monotonic())
        return 1

    def on_reply(self, _reply: int) -> None:
        self.replies += 1

    async def close(self) -> None:
        pass

    def keeper(self, lease_s: float = LEASE_S) -> LeaseKeeper[int]:
        return LeaseKeeper("test", self.beat, self.on_reply, self.close, period_s=PERIOD_S, lease_s=lease_s)


async def test_a_loop_that_is_busy_for_less_than_the_lease_keeps_it() -> None:
    beats = Beats()
    keeper = beats.keeper(lease_s=600.0)
    await keeper.start()
    began = time.monotonic()
    # The loop stands still on purpose.
    until_sync(lambda: sum(at > began for at in beats.at) >= 2)
    assert keeper.held
    await until(lambda: keeper.longest_lag_s > 0)
    await keeper.stop()


@pytest.mark.slow
async def test_a_loop_that_stands_still_loses_the_lease_and_gets_it_back() -> None:
    beats = Beats()
    keeper = beats.keeper()
    await keeper.start()
    await until(lambda: beats.replies > 1)
    # The loop stands still on purpose.
    until_sync(lambda: keeper.lag_s > 2 * LEASE_S and not keeper.held)
    sent = len(beats.at)
    time.sleep(4 * PERIOD_S)  # noqa: ASYNC251
    assert sent == len(beats.at)
    await until(lambda: keeper.held and keeper.lag_s == 0)
    assert keeper.longest_lag_s >= LEASE_S
    await keeper.stop()


def test_the_times_add_up_in_which_a_loop_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest would not tell many from one."""
    keeper = Beats().keeper()
    for lag_s in (0.2, 3.5, 0.5, 3.0):
        monkeypatch.setattr(LeaseKeeper, "lag_s", lag_s)
        keeper._answer()

    assert (3.5, 7.0) == (keeper.longest_lag_s, keeper.stalled_s)


async def test_a_heartbeat_that_goes_wrong_in_a_way_nobody_thought_of_is_not_the_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    beats = Beats()

    async def stumble() -> int:
        await beats.beat()
        if len(beats.at) == 1:
            raise RuntimeError("dictionary changed size during iteration")
        return 1

    keeper = LeaseKeeper("test", stumble, beats.on_reply, beats.close, period_s=PERIOD_S, lease_s=LEASE_S)
    await keeper.start()
    await until(lambda: beats.replies > 0 and keeper.held)
    assert "lease.beat_failed" in caplog.messages
    await keeper.stop()


async def test_a_failure_that_repeats_is_told_with_its_traceback_once(caplog: pytest.LogCaptureFixture) -> None:
    beats = Beats()

    async def stumble() -> int:
        await beats.beat()
        raise RuntimeError("first" if len(beats.at) < 4 else "second")

    keeper = LeaseKeeper("test", stumble, beats.on_reply, beats.close, period_s=PERIOD_S, lease_s=LEASE_S)
    await keeper.start()
    await until(lambda: len(beats.at) >= 6)
    await keeper.stop()
    told = [record for record in caplog.records if record.message == "lease.beat_failed"]
    assert len(told) >= 5
    assert {"RuntimeError: first", "RuntimeError: second"} == {vars(record)["error"] for record in told}
    assert 2 == len([record for record in told if record.exc_info])


async def test_an_answer_between_two_looks_of_the_thread_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread would never renew the lease again."""
    keeper = Beats().keeper()
    asked = PropertyMock(side_effect=[time.monotonic() - 0.1, None])
    monkeypatch.setattr(LeaseKeeper, "_asked_at", asked, raising=False)
    assert keeper.lag_s >= 0.1
