"""Judgement of a new replica by what it has served. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from cluster.rollout.record import RolloutRules

FEWEST = 3
"""Failed or late requests below which nothing is concluded. One bad request happens to any replica."""
LONGEST = 5
"""Times of `judge_s` for which a replica is watched whose few requests say nothing yet."""


@dataclass(frozen=True, slots=True)
class Member:
    """A replica of the pool, as the registry has it."""

    replica_id: str
    revision: int
    ready: bool
    """Whether it takes work."""
    leaving: bool = False
    """Whether it drains because it was told to."""
    up_s: float = 0.0
    """Time since it takes work."""
    running: int = 0
    """Requests that run on it."""
    ended: int = 0
    """Requests that ended on it, like the next two since its start."""
    failed: int = 0
    """Those that failed."""
    late: int = 0
    """Those that missed a latency target of the pool."""


class Finding(enum.Enum):
    """Result of a judgement."""

    OPEN = "open"
    GOOD = "good"
    FAILING = "failing"
    """Too many of its requests fail."""
    LATE = "late"
    """Too many of its requests miss a latency target."""


def judge(member: Member, rules: RolloutRules, late_before: float) -> tuple[Finding, str]:
    """Judge a replica of the new revision. Return the finding, with the reason of a bad one.

    Args:
        member: the new replica.
        rules: limits of the roll-out.
        late_before: part of the old replicas' requests that missed a latency target.
    """
    name, ended = f"{member.replica_id} of revision {member.revision}", max(1, member.ended)
    if member.failed >= FEWEST and member.failed / ended > rules.max_failed:
        limit = f"{100 * rules.max_failed:g} %"
        return Finding.FAILING, f"{member.failed} of {member.ended} requests failed on {name}, more than {limit}"
    most_late = min(1.0, rules.max_late + late_before)
    if member.late >= FEWEST and member.late / ended > most_late:
        limit = f"{100 * most_late:.3g} %"
        return Finding.LATE, f"{member.late} of {member.ended} requests missed the SLO on {name}, more than {limit}"
    # Few requests that look bad, or run and have not ended, say nothing yet.
    doubt = member.failed / ended > rules.max_failed or member.late / ended > most_late
    doubt = doubt or (member.running > 0 and member.ended < FEWEST)
    enough_s = rules.judge_s * (LONGEST if doubt else 1)
    return (Finding.GOOD if member.up_s >= enough_s else Finding.OPEN), ""


def late_share(members: Iterable[Member], known: float) -> float:
    """Return the part of the replicas' requests that missed a latency target; `known` before there are enough."""
    all_of = list(members)
    ended = sum(one.ended for one in all_of)
    return sum(one.late for one in all_of) / ended if ended >= 10 * FEWEST else known
