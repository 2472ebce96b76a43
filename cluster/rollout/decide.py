"""The next step of a roll-out, from its record and what the pool's registry shows. Pure.

At most one replica changes at a time: it finishes its requests and ends, the platform starts another one in its place,
which joins and is judged. Only then the next one follows. A replica that is missing for another reason comes first: its
successor takes the new revision, and no other gives way meanwhile. So the pool never lacks more than one replica
because of a roll-out, and never has more than its number and the surge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cluster.plural import counted
from cluster.rollout.judge import Finding, Member, judge, late_share
from cluster.rollout.record import Rollout, Trouble
from penstock.values.admin.rollout import RolloutState

_TROUBLES = {Finding.FAILING: Trouble.REQUESTS, Finding.LATE: Trouble.SLO}


@dataclass(frozen=True, slots=True)
class Seen:
    """A pool as its registry shows it."""

    at_ms: int
    """Pool time."""
    members: Sequence[Member]
    """Replicas with a live lease."""


def decide(rollout: Rollout, seen: Seen) -> Rollout:
    """Return the record after the next step; the same one where there is nothing to do."""
    if not rollout.state.active:
        return rollout
    found = _counted(_up_to(rollout, seen.at_ms), seen)
    if found.state is RolloutState.ROLLING:
        found = _judged(found, seen)
    match found.state:
        case RolloutState.ROLLING:
            return _forward(found, seen)
        case RolloutState.GOING_BACK:
            return _backward(found, seen)
        case _:
            return found


def _up_to(rollout: Rollout, at_ms: int) -> Rollout:
    """Return the record with no time after this one that anything waits for: the store's clock may have been set
    back.
    """
    if all(one.at_ms <= at_ms for one in rollout.claims.values()) and (rollout.vacant_ms or 0) <= at_ms:
        return rollout
    claims = {name: replace(one, at_ms=min(one.at_ms, at_ms)) for name, one in rollout.claims.items()}
    vacant_ms = None if rollout.vacant_ms is None else min(rollout.vacant_ms, at_ms)
    return replace(rollout, claims=claims, vacant_ms=vacant_ms)


def hold(rollout: Rollout, at_ms: int, who: str) -> Rollout:
    """Stop a roll-out where it is. A replica that gives way already is still replaced."""
    if rollout.state is not RolloutState.ROLLING:
        return rollout
    return replace(rollout, state=RolloutState.HELD).told(at_ms, f"stopped by {who}")


def go_on(rollout: Rollout, at_ms: int, who: str) -> Rollout:
    """Continue a roll-out that was stopped."""
    if rollout.state is not RolloutState.HELD:
        return rollout
    return replace(rollout, state=RolloutState.ROLLING).told(at_ms, f"continued by {who}")


def go_back(rollout: Rollout, at_ms: int, why: str, trouble: Trouble | None = None) -> Rollout:
    """Begin to bring the old revision back. `trouble`: what is wrong, where no failure was noted."""
    if rollout.state not in (RolloutState.ROLLING, RolloutState.HELD):
        return rollout
    troubles = rollout.troubles if trouble is None else (*rollout.troubles, trouble)
    found = replace(rollout, troubles=troubles, allowed=0, passed=(), vacant_ms=None)
    back = replace(found, state=RolloutState.GOING_BACK, reason=why)
    return back.told(at_ms, f"goes back to revision {rollout.old.number}: {why}")


def resized(rollout: Rollout, replicas: int, at_ms: int) -> Rollout:
    """Give the pool another number of replicas, which an operator has set."""
    if not rollout.state.active or replicas == rollout.size:
        return rollout
    return replace(rollout, size=replicas, vacant_ms=None).told(
        at_ms, f"the pool has {counted(replicas, 'replica')} from now on"
    )


def _counted(rollout: Rollout, seen: Seen) -> Rollout:
    """Compare starts and orders with who is there."""
    here = {one.replica_id: one for one in seen.members}
    found, ended, trouble = rollout, list[str](), Trouble.START
    for name, one in rollout.claims.items():
        member = here.get(name)
        late = seen.at_ms - one.at_ms > rollout.rules.start_timeout_s * 1000
        if member is not None:
            now = replace(one, seen=True, leaving=one.leaving or member.leaving)
            if now != one:
                found = replace(found, claims={**found.claims, name: now})
        elif one.seen or late:
            found = replace(found, claims={key: each for key, each in found.claims.items() if key != name})
            if one.revision == rollout.new.number and not (one.leaving or name in rollout.retiring):
                why = "ended" if one.seen else f"did not start within {rollout.rules.start_timeout_s:.0f} s"
                ended.append(f"{name} of revision {one.revision} {why}")
                trouble = Trouble.ENDED if one.seen else trouble
    # In a pool that had more than it should, the platform has removed those that were too many.
    before = len(here) + sum(one.seen and name not in here for name, one in rollout.claims.items())
    if ended and before <= rollout.size + rollout.extra:
        # One failure, however many: those that end together had one cause, such as a restart of the cluster.
        found = found.failed(seen.at_ms, "; ".join(ended), trouble)
    gone = [name for name in found.retiring if name not in here]
    if gone:
        found = replace(found, retiring=tuple(name for name in found.retiring if name in here))
        found = found.told(seen.at_ms, f"{', '.join(gone)} ended")
    return _sized(found, seen)


def _sized(rollout: Rollout, seen: Seen) -> Rollout:
    """Note since when replicas are missing that nobody starts. After long enough the pool counts as smaller."""
    missing = _missing(rollout, seen)
    if missing <= 0:
        return replace(rollout, vacant_ms=None)
    if rollout.vacant_ms is None:
        return replace(rollout, vacant_ms=seen.at_ms)
    if _too_long(rollout, seen) and rollout.size > missing:
        return replace(rollout, size=rollout.size - missing, vacant_ms=None)
    return rollout


def _missing(rollout: Rollout, seen: Seen) -> int:
    coming = sum(not one.seen for one in rollout.claims.values())
    return rollout.size + rollout.extra - len(seen.members) - coming


def _judged(rollout: Rollout, seen: Seen) -> Rollout:
    new = rollout.new.number
    olds = [one for one in seen.members if one.revision != new]
    found = replace(rollout, late_before=round(late_share(olds, rollout.late_before), 3))
    if len(found.failures) >= found.rules.attempts:
        return go_back(found, seen.at_ms, found.failures[-1])
    passed = []
    for one in seen.members:
        if one.revision != new or one.replica_id in found.retiring:
            continue
        finding, why = judge(one, found.rules, found.late_before)
        if (trouble := _TROUBLES.get(finding)) is not None:
            return go_back(found, seen.at_ms, why, trouble)
        if one.replica_id in found.passed or (finding is Finding.GOOD and one.ready):
            passed.append(one.replica_id)
            if one.replica_id not in found.passed:
                found = found.told(seen.at_ms, f"{one.replica_id} serves well")
    return replace(found, passed=tuple(passed))


def _forward(rollout: Rollout, seen: Seen) -> Rollout:
    new = rollout.new.number
    olds = [one for one in seen.members if one.revision != new]
    news = [one for one in seen.members if one.revision == new]
    waits = rollout.retiring or any(not one.seen for one in rollout.claims.values())
    if waits or any(one.replica_id not in rollout.passed for one in news):
        return rollout
    missing = _missing(rollout, seen)
    if not olds and news and missing <= rollout.extra:
        done = replace(rollout, state=RolloutState.DONE, claims={}, passed=(), allowed=0, vacant_ms=None)
        return done.told(seen.at_ms, f"all replicas have revision {new}")
    used = sum(one.revision == new for one in rollout.claims.values())
    found = replace(rollout, allowed=used + 1)
    # Replicas that nobody starts are not waited for: the pool may have no room for its surge.
    return found if missing > 0 and not _too_long(rollout, seen) else _retire(found, seen, olds)


def _backward(rollout: Rollout, seen: Seen) -> Rollout:
    new = rollout.new.number
    news = [one for one in seen.members if one.revision == new]
    if rollout.retiring or any(not one.seen for one in rollout.claims.values()):
        return rollout
    if _missing(rollout, seen) > rollout.extra and not _too_long(rollout, seen):
        return rollout
    if not news:
        back = replace(rollout, state=RolloutState.RETURNED, claims={}, vacant_ms=None)
        return back.told(seen.at_ms, f"all replicas have revision {rollout.old.number} again")
    return _retire(rollout, seen, news)


def _too_long(rollout: Rollout, seen: Seen) -> bool:
    """Return whether replicas are missing for so long that they don't come back."""
    since = rollout.vacant_ms
    return since is not None and seen.at_ms - since > rollout.rules.start_timeout_s * 1000


def _retire(rollout: Rollout, seen: Seen, some: Sequence[Member]) -> Rollout:
    """Let the replica with the least work give way."""
    staying = [one for one in some if not one.leaving]
    if not staying:
        return rollout
    chosen = min(staying, key=lambda one: (one.running, one.replica_id))
    found = replace(rollout, retiring=(chosen.replica_id,))
    return found.told(seen.at_ms, f"{chosen.replica_id} of revision {chosen.revision} finishes its requests and ends")
