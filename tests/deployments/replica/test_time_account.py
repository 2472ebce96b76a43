"""A replica's wall time by kind."""

from __future__ import annotations

from cluster.models import EngineStats
from cluster.queue.heartbeats import ReplicaTimes
from deployments.replica.time_account import TimeAccount

GPUS, PRICE = 4, 0.25


def stats(busy: float, ended: float = 0.0, live: float = 0.0, open_s: float = 0.0) -> EngineStats:
    return EngineStats(busy_s=busy, ended_gpu_s=ended, live_gpu_s=live, open_s=open_s)


def test_a_start_is_all_there_is_until_it_is_over() -> None:
    account = TimeAccount(100.0, GPUS, PRICE)
    # The first token of the self-test is a part of the start.
    assert ReplicaTimes(GPUS, PRICE, total=40.0, starting=40.0) == account.read(110.0, stats(2.0, ended=8.0))


def test_steps_are_neither_idle_nor_charged_before_the_replica_took_work() -> None:
    account = TimeAccount(100.0, GPUS, PRICE)
    account.ready(110.0, stats(2.0, ended=8.0))
    # 20 s later: 5 s of steps, 16 GPU-seconds of what ended, 4 of what runs, and a step that began 1 s ago.
    found = account.read(130.0, stats(7.0, ended=24.0, live=4.0, open_s=1.0))
    assert ReplicaTimes(GPUS, PRICE, total=120.0, starting=40.0, idle=56.0, ended=16.0, running=8.0) == found
    assert found.total == found.starting + found.idle + found.ended + found.running


def test_spare_time_after_the_begin_of_a_drain_is_no_idle_time() -> None:
    account = TimeAccount(0.0, GPUS, PRICE)
    account.ready(10.0, stats(0.0))
    account.drain(20.0, stats(4.0, ended=16.0))
    account.drain(25.0, stats(6.0, ended=24.0))
    found = account.read(30.0, stats(9.0, ended=36.0))
    assert ReplicaTimes(GPUS, PRICE, total=120.0, starting=40.0, idle=24.0, draining=20.0, ended=36.0) == found


def test_a_drain_before_the_replica_took_work_is_still_a_start() -> None:
    account = TimeAccount(0.0, GPUS, PRICE)
    account.drain(5.0, stats(0.0))
    assert ReplicaTimes(GPUS, PRICE, total=40.0, starting=40.0) == account.read(10.0, stats(0.0))


def test_a_standby_has_its_own_time_and_what_it_still_runs_counts_as_before() -> None:
    account = TimeAccount(0.0, GPUS, PRICE)
    account.ready(10.0, stats(0.0))
    account.stand_by(20.0, stats(4.0, ended=16.0))
    account.stand_by(22.0, stats(5.0, ended=20.0))
    found = account.read(30.0, stats(6.0, ended=24.0))
    # Six seconds idle, two of steps in the standby, eight without.
    assert ReplicaTimes(GPUS, PRICE, total=120.0, starting=40.0, idle=24.0, ended=24.0, standby=32.0) == found
    account.serve(31.0, stats(6.0, ended=24.0))
    account.serve(33.0, stats(6.0, ended=24.0))
    later = account.read(36.0, stats(6.0, ended=24.0))
    assert ReplicaTimes(GPUS, PRICE, total=144.0, starting=40.0, idle=44.0, ended=24.0, standby=36.0) == later


def test_a_standby_that_is_stopped_drains() -> None:
    account = TimeAccount(0.0, GPUS, PRICE)
    account.ready(10.0, stats(0.0))
    account.stand_by(20.0, stats(0.0))
    account.drain(25.0, stats(0.0))
    account.stand_by(26.0, stats(0.0))
    found = account.read(30.0, stats(0.0))
    assert ReplicaTimes(GPUS, PRICE, total=120.0, starting=40.0, idle=40.0, draining=20.0, standby=20.0) == found


def test_a_standby_before_the_replica_took_work_is_still_a_start() -> None:
    account = TimeAccount(0.0, GPUS, PRICE)
    account.stand_by(5.0, stats(0.0))
    account.serve(6.0, stats(0.0))
    assert ReplicaTimes(GPUS, PRICE, total=40.0, starting=40.0) == account.read(10.0, stats(0.0))
