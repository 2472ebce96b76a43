"""Standbys of a simulated pool: they sleep, wake, and cost what they cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.standby.rule import StandbyLimits
from loadtest.simulate.autoscalers.contract import PoolSnapshot
from loadtest.simulate.pool.outcome import RequestEnd, SimulatedRun
from loadtest.simulate.pool.simulation import Simulation
from loadtest.simulate.setup import Setup
from loadtest.traces import TraceRequest
from penstock.models import ReplicaState
from tests.loadtest.simulate.pool.test_simulation import ENGINE, Planned, draw_trace

WAKE_S, COLD_S = 20.0, 180.0
SETUP = Setup(ENGINE, replicas=2, min_replicas=1, cold_start_s=COLD_S, standby=StandbyLimits(most=4, wake_s=WAKE_S))


class Holder(Planned):
    """Names the replicas that serve, and those that stand by, by the time."""

    def __init__(self, standby: int, *plan: tuple[float, int]) -> None:
        super().__init__(*plan)
        self._all = standby + plan[0][1]
        self.standby = 0

    def decide(self, snapshot: PoolSnapshot) -> int:
        wanted = super().decide(snapshot)
        self.standby = max(0, self._all - wanted)
        return wanted


def serve(policy: Planned, setup: Setup = SETUP, seconds: float = 600.0) -> SimulatedRun:
    trace = draw_trace(300)
    spread = [replace(each, arrival_s=seconds * each.number / len(trace)) for each in trace]
    return Simulation(spread, setup, slow=policy).run()


def states(policy: Planned, at: float) -> list[ReplicaState]:
    """Return the replicas' states at the first look from a time on."""
    return [one.state for one in next(seen for seen in policy.seen if seen.now_s >= at).replicas]


def test_the_newest_sleeps_and_wakes_within_its_time() -> None:
    policy = Holder(0, (0.0, 2), (100.0, 1), (300.0, 2))
    run = serve(policy)
    ready, standby = ReplicaState.READY, ReplicaState.STANDBY
    assert [ready, standby] == states(policy, 150.0)
    assert [ready, standby] == states(policy, 300.0)
    assert [ready, ready] == states(policy, 300.0 + WAKE_S + SETUP.slow_period_s)
    assert {RequestEnd.COMPLETED} == {each.end for each in run.outcomes}
    assert 2 == len(run.fleet.members)


def test_without_standbys_it_goes_and_another_one_starts() -> None:
    policy = Planned((0.0, 2), (100.0, 1), (300.0, 2))
    serve(policy)
    assert [ReplicaState.READY] == states(policy, 150.0)
    assert [ReplicaState.READY, ReplicaState.STARTING] == states(policy, 350.0)


def test_hours_asleep_are_those_between_the_orders() -> None:
    policy = Holder(0, (0.0, 2), (100.0, 1), (300.0, 2))
    run = serve(policy)
    # Decisions come every 15 s, and requests that run end first.
    assert pytest.approx(195.0, abs=10.0) == 3600 * run.fleet.asleep_hours(600.0)
    assert pytest.approx(1200.0) == 3600 * run.fleet.hours(600.0)
    assert 0.0 == run.fleet.asleep_hours(90.0)
    assert pytest.approx(50.0) == 3600 * run.fleet.asleep_hours(250.0, 200.0)


def test_standbys_go_first_when_fewer_are_wanted() -> None:
    policy = Holder(0, (0.0, 2), (100.0, 1))
    serve(policy)
    oldest = policy.seen[0].replicas[0].replica_id
    policy.seen.clear()

    class Ending(Holder):
        def decide(self, snapshot: PoolSnapshot) -> int:
            wanted = super().decide(snapshot)
            self.standby = self.standby if snapshot.now_s < 300.0 else 0
            return wanted

    ending = Ending(0, (0.0, 2), (100.0, 1))
    serve(ending)
    last = ending.seen[-1].replicas
    assert [oldest] == [one.replica_id for one in last]
    assert [ReplicaState.READY] == [one.state for one in last]


def test_a_standby_gets_no_request() -> None:
    policy = Holder(0, (0.0, 2), (60.0, 1))
    run = serve(policy)
    later = [one for seen in policy.seen if seen.now_s > 150.0 for one in seen.replicas]
    assert {0} == {one.running for one in later if one.state is ReplicaState.STANDBY}
    assert len(run.outcomes) == 300


def test_requests_without_a_serving_replica_wait_for_the_wake_up() -> None:
    """A pool may keep standbys alone."""
    trace = [TraceRequest(0, 400.0, 100, 10)]
    policy = Holder(0, (0.0, 1), (100.0, 0), (405.0, 1))
    run = Simulation(trace, replace(SETUP, replicas=1, min_replicas=0), slow=policy).run()
    [outcome] = run.outcomes
    assert RequestEnd.COMPLETED is outcome.end
    assert 5.0 + WAKE_S <= outcome.ttft_s < COLD_S
