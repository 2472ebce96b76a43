"""The number of replicas while a roll-out goes on."""

from __future__ import annotations

from dataclasses import replace

from cluster.rollout.changes import base_of, rules_of
from cluster.rollout.record import Revision, Rollout
from penstock.values.admin.rollout import RolloutState
from tests.cluster.autoscaler.conftest import Backend
from tests.cluster.autoscaler.scaled_pool import Site, both


@both
async def test_the_number_stays_and_has_the_surge_until_the_roll_out_is_over(backend: Backend) -> None:
    site = Site(backend, replicas=3, min_replicas=1)
    scaler, store = site.scaler(), backend.rollout()
    rules = replace(rules_of(site.settings), surge=1)
    rolling = Rollout(base_of(site.settings), Revision(), Revision(1, {"model": "x"}), rules, size=3)
    await store.put(0, 1, rolling.to_bytes())

    # One is missing because it changes. Neither this nor the lack of requests moves the number.
    site.platform.names = None
    made = await site.run(scaler, 20)
    assert {4} == {record.replicas for record in made}
    assert [4] == site.platform.told

    done = replace(rolling, state=RolloutState.DONE)
    await store.put(1, 2, done.to_bytes())
    made = await site.run(scaler, 20)
    assert made[-1].replicas < 4


async def test_a_schedule_waits_for_the_end_of_a_roll_out_and_the_decision_says_so(local: Backend) -> None:
    due = {"start": "00:00", "end": "24:00", "min_replicas": 9}
    site = Site(local, replicas=3, schedule=[due])
    scaler, store = site.scaler(), local.rollout()
    rolling = Rollout(base_of(site.settings), Revision(), Revision(1, {"model": "x"}), rules_of(site.settings), size=3)
    await store.put(0, 1, rolling.to_bytes())
    [*_, made] = await site.run(scaler, 10, rate=1.0)
    assert (3, "a roll-out goes on, and keeps the number") == (made.replicas, made.reason)
    hours = scaler._leader_state.hours
    assert hours is not None
    # It is over long before the plan of the next hours is.
    assert {9} == {point.planned for point in hours.points[1:]}

    await store.put(1, 2, replace(rolling, state=RolloutState.HELD).to_bytes())
    [made] = await site.run(scaler, 1, rate=1.0)
    assert 9 == made.replicas


async def test_the_drain_of_a_replica_that_gives_way_is_no_part_of_a_cold_start(local: Backend) -> None:
    site = Site(local, replicas=3, min_replicas=3, start_timeout_s=100.0)
    scaler, store = site.scaler(), local.rollout()
    rolling = Rollout(base_of(site.settings), Revision(), Revision(1, {"model": "x"}), rules_of(site.settings), size=3)
    await store.put(0, 1, rolling.to_bytes())
    await site.run(scaler, 2, rate=1.0)
    # It is gone from what takes work while it drains. The next one starts after that.
    site.cold_s = 200.0
    for _ in range(3):
        site.ready.pop(0)
        made = await site.run(scaler, 15, rate=1.0)
        assert [] == [alarm for record in made for alarm in record.alarms]
    assert 3 == len(site.ready)
    # The last one comes between two ticks, and ends the roll-out.
    site.ready.pop(0)
    await site.run(scaler, 13, rate=1.0)
    assert 2 == len(site.ready)
    await site.live(12.0)
    assert 3 == len(site.ready)
    await store.put(1, 2, replace(rolling, state=RolloutState.DONE).to_bytes())
    await site.run(scaler, 1, rate=1.0)
    assert (0, ()) == (scaler._leader_state.starts.failed, scaler._leader_state.starts.samples)
