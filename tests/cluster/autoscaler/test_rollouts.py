"""The number of replicas while a roll-out goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.rollout.changes import base_of, rules_of
from cluster.rollout.record import Revision, Rollout
from penstock.values.admin.rollout import RolloutState
from tests.cluster.autoscaler.conftest import Backend
from tests.cluster.autoscaler.scaled_pool import Site, both, names


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


RATE = 150.0
"""Requests per second that keep ten replicas."""


async def _grown(local: Backend, **autoscale: object) -> Site:
    """Return a pool whose ten replicas just do."""
    site = Site(local, 10, **autoscale)
    made = await site.run(site.scaler("before"), 60, RATE)
    assert {10} == {one.replicas for one in made[-20:]}
    assert made[-1].needed == 10
    return site


async def _begun(site: Site, surge: int, size: int) -> Rollout:
    rules = replace(rules_of(site.settings), surge=surge)
    rolling = Rollout(base_of(site.settings), Revision(), Revision(1, {"model": "x"}), rules, size=size)
    await site.backend.rollout().put(0, 1, rolling.to_bytes())
    return rolling


async def _ended(site: Site, rolling: Rollout, state: RolloutState = RolloutState.DONE) -> None:
    await site.backend.rollout().put(1, 2, replace(rolling, state=state).to_bytes())


@pytest.mark.parametrize("state", [RolloutState.DONE, RolloutState.RETURNED])
async def test_the_surge_goes_with_the_roll_out_also_where_so_few_more_would_stay(
    local: Backend, state: RolloutState
) -> None:
    site = await _grown(local)
    scaler = site.scaler("before")
    rolling = await _begun(site, 1, size=10)
    assert {11} == {one.replicas for one in await site.run(scaler, 8, RATE)}
    await _ended(site, rolling, state)
    first, *made = await site.run(scaler, 8, RATE)
    assert (11, 10, "surplus") == (first.before, first.replicas, names(first)[-1])
    assert "what a roll-out had beyond the number goes with its end" == first.reason
    assert {10} == {one.replicas for one in made}
    assert scaler._leader_state.beyond is None


async def test_a_surge_that_the_load_needs_by_now_stays(local: Backend) -> None:
    site = await _grown(local)
    scaler = site.scaler("before")
    rolling = await _begun(site, 1, size=10)
    await site.run(scaler, 40, 1.5 * RATE)
    await _ended(site, rolling)
    made = await site.run(scaler, 8, 1.5 * RATE)
    assert 11 < made[0].replicas
    assert min(one.replicas for one in made) >= 11


async def test_the_next_leader_lets_the_surge_go(local: Backend) -> None:
    site = await _grown(local)
    rolling = await _begun(site, 2, size=10)
    first = site.scaler("before")
    await site.run(first, 4, RATE)
    await first.resign()
    await _ended(site, rolling)
    [made] = await site.run(site.scaler("after"), 1, RATE)
    assert (12, 10) == (made.before, made.replicas)


async def test_the_surge_goes_once_the_platform_takes_the_number(local: Backend) -> None:
    site = await _grown(local)
    scaler = site.scaler("before")
    rolling = await _begun(site, 1, size=10)
    await site.run(scaler, 4, RATE)
    await _ended(site, rolling)
    site.platform.refuses = True
    assert {10} == {one.replicas for one in await site.run(scaler, 4, RATE)}
    site.platform.refuses = False
    assert {10} == {one.replicas for one in await site.run(scaler, 4, RATE)}
    assert 10 == site.platform.target


async def test_old_values_keep_the_surge_until_they_are_new(local: Backend) -> None:
    site = await _grown(local, standby=1, standby_least=1)
    scaler = site.scaler("before")
    await site.run(scaler, 4, RATE)
    rolling = await _begun(site, 1, size=11)
    await site.run(scaler, 4, RATE)
    await _ended(site, rolling)
    # The store was away: its leases count as live, its values are old.
    local.clock.advance(60.0)
    assert await scaler.lead()
    made = await scaler.tick()
    assert made is not None
    assert (12, 0, "stale") == (made.replicas, made.standby, names(made)[-1])
    [made] = await site.run(scaler, 1, RATE)
    assert (10, 1) == (made.replicas, made.standby)


async def test_a_pool_without_room_for_the_surge_keeps_what_it_had(local: Backend) -> None:
    """The roll-out counts the missing one out of its size after a while."""
    site = await _grown(local)
    scaler = site.scaler("before")
    rolling = await _begun(site, 1, size=10)
    site.broken = True
    await site.run(scaler, 4, RATE)
    rolling = replace(rolling, size=9)
    await site.backend.rollout().put(1, 2, rolling.to_bytes())
    await site.run(scaler, 4, RATE)
    await site.backend.rollout().put(2, 3, replace(rolling, state=RolloutState.DONE).to_bytes())
    assert {10} == {one.replicas for one in await site.run(scaler, 8, RATE)}


async def test_standbys_that_served_in_a_roll_out_stand_by_again_and_no_other_is_started(local: Backend) -> None:
    site = await _grown(local, standby=3, standby_least=1, standby_price=0.5)
    scaler = site.scaler("before")
    await site.run(scaler, 4, RATE)
    returns = scaler._leader_state.standby.returns
    rolling = await _begun(site, 1, size=11)
    assert {(12, 0)} == {(one.replicas, one.standby) for one in await site.run(scaler, 8, RATE)}
    await _ended(site, rolling)
    made = await site.run(scaler, 8, RATE)
    assert {(10, 1)} == {(one.replicas, one.standby) for one in made}
    assert 12 == max(site.platform.told)
    # That load has not gone, which would say something of how soon it comes again.
    known = scaler._leader_state.standby
    assert ((), returns) == (known.released, known.returns)


async def test_a_pool_that_lacks_the_replica_that_gave_way_last_is_no_alarm(local: Backend) -> None:
    site = Site(local, 3)
    scaler = site.scaler()
    rolling = await _begun(site, 1, size=3)
    site.platform.trouble = "UNHEALTHY: The deployments ['replica'] are UNHEALTHY."
    assert {()} == {one.alarms for one in await site.run(scaler, 2)}
    await _ended(site, rolling)
    first, second = await site.run(scaler, 2)
    assert ((), (site.platform.trouble,)) == (first.alarms, second.alarms)
