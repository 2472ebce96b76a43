"""Steps of a roll-out, from the record and what the registry shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.rollout.changes import base_of
from cluster.rollout.decide import Seen, decide, go_back, go_on, hold, resized
from cluster.rollout.judge import Member
from cluster.rollout.record import Rollout, Trouble
from cluster.rollout.starts import claim
from cluster.settings import PoolSettings, VllmSettings
from penstock.values.admin.rollout import RolloutState
from tests.cluster.rollout.fleet import NEW, OLD, Fleet, rollout


@pytest.mark.parametrize("size", [1, 2, 5])
def test_replicas_change_one_at_a_time(size: int) -> None:
    fleet = Fleet(rollout(size))
    assert RolloutState.DONE is fleet.run(400).state
    assert [NEW.number] * size == fleet.revisions
    assert size - 1 == fleet.fewest
    assert size == fleet.most
    assert 1 == fleet.most_new


def test_with_a_surge_the_pool_lacks_no_replica() -> None:
    fleet = Fleet(rollout(3, surge=1))
    assert RolloutState.DONE is fleet.run(400).state
    fleet.step()
    assert [NEW.number] * 3 == fleet.revisions
    assert 3 == fleet.fewest
    assert 4 == fleet.most
    assert 1 == fleet.most_new


def test_with_a_surge_it_goes_back_without_a_start_that_nobody_hears_of_again() -> None:
    fleet = Fleet(rollout(3, surge=1), start_s=10)
    fleet.run(60, lambda _: bool(fleet.starting))
    fleet.record = go_back(fleet.record, fleet.at_ms, "asked for by ops")
    assert RolloutState.RETURNED is fleet.run(50).state
    assert {OLD.number} == set(fleet.revisions)
    assert 3 == fleet.fewest
    assert 4 == fleet.most


def test_a_new_revision_that_does_not_start_goes_back_after_its_attempts() -> None:
    fleet = Fleet(rollout(3), fails=lambda revision: revision == NEW.number)
    found = fleet.run(400)
    assert RolloutState.RETURNED is found.state
    assert "did not start: out of memory" in found.reason
    assert 2 == len(found.failures)
    assert (Trouble.START, Trouble.START) == found.troubles
    assert [OLD.number] * 3 == fleet.revisions
    assert 2 == fleet.fewest


@pytest.mark.parametrize("bad", ["failed", "late"])
def test_a_new_revision_that_serves_badly_goes_back(bad: str) -> None:
    def serve(member: Member) -> Member:
        wrong = {bad: member.ended // 4} if member.revision == NEW.number else {}
        return replace(member, ended=member.ended + 10, **wrong)

    fleet = Fleet(rollout(3, judge_s=20), serves=serve)
    found = fleet.run(400)
    assert RolloutState.RETURNED is found.state
    assert {"failed": "failed on", "late": "missed the SLO"}[bad] in found.reason
    assert ({"failed": Trouble.REQUESTS, "late": Trouble.SLO}[bad],) == found.troubles
    assert [OLD.number] * 3 == fleet.revisions
    assert 1 == fleet.most_new


def test_a_new_revision_as_late_as_the_old_one_is_not_blamed() -> None:
    def serve(member: Member) -> Member:
        return replace(member, ended=member.ended + 10, late=member.late + 3)

    fleet = Fleet(rollout(3), serves=serve)
    assert RolloutState.DONE is fleet.run(400).state


def test_a_start_that_was_killed_is_tried_again() -> None:
    fleet = Fleet(rollout(3))
    fleet.run(60, lambda _: bool(fleet.starting))
    fleet.kill(next(iter(fleet.starting)))
    assert RolloutState.DONE is fleet.run(400).state
    assert 1 == len(fleet.record.failures)
    assert (Trouble.START,) == fleet.record.troubles
    assert 2 == fleet.fewest


def test_new_replicas_that_die_again_and_again_end_the_roll_out() -> None:
    fleet = Fleet(rollout(3, judge_s=20))
    for _ in range(2):
        fleet.run(90, lambda _: NEW.number in fleet.revisions)
        fleet.kill(fleet.revisions.index(NEW.number))
    found = fleet.run(400)
    assert (Trouble.ENDED, Trouble.ENDED) == found.troubles
    assert RolloutState.RETURNED is found.state
    assert "ended" in found.reason


def test_new_replicas_that_end_together_are_one_failure() -> None:
    """As after a restart of the whole cluster."""
    fleet = Fleet(rollout(4))
    fleet.run(200, lambda found: len(found.passed) == 2)
    for place in range(4):
        fleet.kill(place)
    assert RolloutState.DONE is fleet.run(400).state
    assert 1 == len(fleet.record.failures)
    assert [NEW.number] * 4 == fleet.revisions


def test_a_pool_without_room_for_its_surge_changes_one_at_a_time() -> None:
    fleet = Fleet(rollout(1, surge=1))
    fleet._move = lambda place, move=fleet._move: move(place) if place < 1 else None  # type: ignore[method-assign]
    assert RolloutState.DONE is fleet.run(600).state
    assert [NEW.number] == fleet.revisions


def test_a_start_whose_claim_was_not_answered_gets_the_same_revision_again() -> None:
    record, first = claim(rollout(2), "demo-1", 0, 1_000)
    assert NEW == first
    assert NEW == claim(record, "demo-1", 0, 2_000)[1]
    assert OLD == claim(record, "demo-2", 1, 2_000)[1]


def test_a_release_with_other_defaults_keeps_the_revision() -> None:
    plain, named = PoolSettings(model="m"), PoolSettings(model="m", vllm={"max_num_seqs": VllmSettings().max_num_seqs})
    assert base_of(plain) == base_of(named)
    assert base_of(plain) != base_of(PoolSettings(model="m", vllm={"max_num_seqs": 7}))


def test_an_old_replica_that_dies_gets_the_new_revision_and_no_other_gives_way() -> None:
    fleet = Fleet(rollout(3))
    fleet.kill(1)
    assert RolloutState.DONE is fleet.run(400).state
    assert 2 == fleet.fewest
    assert 1 == fleet.most_new


def test_a_roll_out_that_is_stopped_changes_nothing_until_it_goes_on() -> None:
    fleet = Fleet(rollout(4))
    fleet.run(60, lambda found: len(found.passed) == 1)
    fleet.record = hold(fleet.record, fleet.at_ms, "ops")
    for _ in range(60):
        fleet.step()
    assert RolloutState.HELD is fleet.record.state
    held = sorted(fleet.revisions)
    for _ in range(60):
        fleet.step()
    assert held == sorted(fleet.revisions)
    assert OLD.number in held
    assert NEW.number in held
    fleet.record = go_on(fleet.record, fleet.at_ms, "ops")
    assert RolloutState.DONE is fleet.run(400).state


@pytest.mark.parametrize("after_s", range(0, 60, 7))
def test_it_can_go_back_at_any_time(after_s: int) -> None:
    fleet = Fleet(rollout(3))
    for _ in range(after_s):
        fleet.step()
    fleet.record = go_back(fleet.record, fleet.at_ms, "asked for by ops")
    if fleet.record.state is RolloutState.DONE:
        return
    assert RolloutState.RETURNED is fleet.run(400).state
    assert [OLD.number] * 3 == fleet.revisions
    assert fleet.fewest >= 2


def test_a_pool_without_replicas_comes_up_with_the_new_revision() -> None:
    """So a roll-out mends a pool whose own settings can't start."""
    fleet = Fleet(rollout(1))
    fleet.kill(0)
    assert RolloutState.DONE is fleet.run(400).state
    assert [NEW.number] == fleet.revisions


def test_a_pool_that_became_smaller_does_not_wait_for_ever() -> None:
    fleet = Fleet(rollout(3))
    fleet.step()
    fleet.record = replace(fleet.record, size=4)
    fleet._move = lambda place, move=fleet._move: move(place) if place < 3 else None  # type: ignore[method-assign]
    assert RolloutState.DONE is fleet.run(600).state
    assert [NEW.number] * 3 == fleet.revisions


@pytest.mark.parametrize("now", [2, 6])
def test_a_number_that_is_changed_meanwhile_is_that_of_the_roll_out(now: int) -> None:
    fleet = Fleet(rollout(4))
    fleet.run(60, lambda found: bool(found.passed))
    fleet.record = resized(fleet.record, now, fleet.at_ms)
    fleet.fewest = 10**9
    assert RolloutState.DONE is fleet.run(400).state
    assert [NEW.number] * now == fleet.revisions
    assert (min(now, 4) - 1, ()) == (fleet.fewest, fleet.record.failures)


@pytest.mark.parametrize(("to", "failures"), [(2, 0), (3, 1)])
def test_a_new_replica_that_is_too_many_is_no_failure(to: int, failures: int) -> None:
    """The platform removes the newest one first. An idle one ends before anybody sees that it drains."""
    olds = [Member(name, OLD.number, ready=True) for name in ("a", "b")]
    record, _ = claim(rollout(3, attempts=1), "c", 2, 0)
    record = decide(record, Seen(1_000, [*olds, Member("c", NEW.number, ready=True)]))
    record = decide(resized(record, to, 1_500), Seen(2_000, olds))
    assert failures == len(record.failures)
    assert (RolloutState.GOING_BACK if failures else RolloutState.ROLLING) is record.state


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 6),
    surge=st.integers(0, 1),
    start_s=st.integers(1, 12),
    drain_s=st.integers(1, 12),
    kills=st.lists(st.tuples(st.integers(1, 120), st.integers(0, 6)), max_size=4),
    back_at=st.none() | st.integers(1, 100),
)
def test_it_ends_with_one_revision_and_never_has_too_many(
    size: int, surge: int, start_s: int, drain_s: int, kills: list[tuple[int, int]], back_at: int | None
) -> None:
    fleet = Fleet(rollout(size, surge=surge), start_s=start_s, drain_s=drain_s)
    for second in range(2_000):
        for at, place in kills:
            if at == second:
                fleet.kill(place)
        if back_at == second:
            fleet.record = go_back(fleet.record, fleet.at_ms, "asked for")
        if not fleet.record.state.active and second > 120:
            break
        fleet.step()
        assert fleet.most <= size + surge
        # The record is all that a successor needs.
        fleet.record = Rollout.from_bytes(fleet.record.to_bytes())
    assert not fleet.record.state.active
    for _ in range(60):
        fleet.step()
    assert [fleet.record.in_force.number] * size == fleet.revisions


BACK_MS = 3_600_000


def test_a_clock_that_is_set_back_hides_no_start_that_hangs() -> None:
    fleet = Fleet(rollout(3, start_timeout_s=20.0), at_ms=100_000_000)
    fleet.run(60, lambda found: bool(found.claims))
    ((place, (name, revision, since)),) = fleet.starting.items()
    fleet.starting[place] = (name, revision, since + 10**12)
    fleet.at_ms -= BACK_MS
    fleet.run(40, lambda found: bool(found.failures))


def test_a_clock_that_is_set_back_makes_nobody_wait_for_replicas_that_do_not_come() -> None:
    missing = replace(rollout(3), vacant_ms=100_000_000)
    two = [Member(name, OLD.number, ready=True) for name in "ab"]
    before = decide(missing, Seen(100_000_000 - BACK_MS, two))
    assert 2 == decide(before, Seen(100_000_000 - BACK_MS + 61_000, two)).size
