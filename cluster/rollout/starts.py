"""Which revision a replica that starts gets. Pure: the caller stores the result, or tries again."""

from __future__ import annotations

from dataclasses import replace

from cluster.rollout.record import Revision, Rollout, StartClaim, Trouble
from penstock.values.admin.rollout import RolloutState


def claim(rollout: Rollout, replica_id: str, place: int, now_ms: int) -> tuple[Rollout, Revision]:
    """Give a start its revision. Return the record that has to be stored first; the same one where there is no need.

    Args:
        rollout: the record as stored now.
        replica_id: the replica that starts.
        place: its rank within the pool.
        now_ms: pool time.
    """
    if not rollout.state.active:
        return rollout, rollout.in_force
    found = _without_predecessor(rollout, replica_id, place, now_ms)
    # Its own claim counts not: the answer to its first try may be lost.
    others = [one for name, one in found.claims.items() if name != replica_id]
    used = sum(one.revision == found.new.number for one in others)
    wanted = found.state is not RolloutState.GOING_BACK and len(found.failures) < found.rules.attempts
    new = wanted and used < found.allowed
    revision = found.new if new else found.old
    claims = {**found.claims, replica_id: StartClaim(revision.number, now_ms, place)}
    found = replace(found, claims=claims)
    return found.told(now_ms, f"{replica_id} starts with revision {revision.number}"), revision


def give_up(rollout: Rollout, replica_id: str, why: str, now_ms: int) -> Rollout:
    """Note that a start failed."""
    mine = rollout.claims.get(replica_id)
    if mine is None:
        return rollout
    found = replace(rollout, claims={name: one for name, one in rollout.claims.items() if name != replica_id})
    if mine.revision != rollout.new.number:
        return found.told(now_ms, f"{replica_id} of revision {mine.revision} did not start: {why}")
    return found.failed(now_ms, f"{replica_id} of revision {mine.revision} did not start: {why}", Trouble.START)


def _without_predecessor(rollout: Rollout, replica_id: str, place: int, now_ms: int) -> Rollout:
    """Drop a start at the same place that ended without a word: it was killed, or its machine went."""
    found = rollout
    for name, one in rollout.claims.items():
        if one.place == place and not one.seen and name != replica_id:
            found = give_up(found, name, "it ended without a word", now_ms)
    return found
