"""Roll-outs: changes of a pool's model or engine settings, one replica at a time."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.v1 import rollout_pb2
from penstock.values.fields import content_of
from penstock.wire import duration_from_wire, moment_from_wire


class RolloutState(enum.StrEnum):
    """State of a roll-out. Clusters store the values."""

    ROLLING = "rolling"
    """Replicas change to the new revision, one at a time."""
    HELD = "held"
    """An operator has stopped it. No replica changes."""
    GOING_BACK = "going back"
    """Replicas of the new revision give way to the old one, one at a time."""
    DONE = "done"
    """All replicas have the new revision."""
    RETURNED = "returned"
    """All replicas have the old revision again."""

    @property
    def active(self) -> bool:
        """Whether it goes on: replicas of two revisions may run."""
        return self in (RolloutState.ROLLING, RolloutState.HELD, RolloutState.GOING_BACK)


_STATES = {
    rollout_pb2.ROLLOUT_STATE_ROLLING: RolloutState.ROLLING,
    rollout_pb2.ROLLOUT_STATE_HELD: RolloutState.HELD,
    rollout_pb2.ROLLOUT_STATE_GOING_BACK: RolloutState.GOING_BACK,
    rollout_pb2.ROLLOUT_STATE_DONE: RolloutState.DONE,
    rollout_pb2.ROLLOUT_STATE_RETURNED: RolloutState.RETURNED,
}


class RolloutAction(enum.StrEnum):
    """Order to a roll-out."""

    STOP = "stop"
    """Stop it where it is."""
    GO_ON = "go on"
    """Continue one that was stopped."""
    GO_BACK = "go back"
    """Bring the old revision back; after one that is done, the revision before."""

    def to_proto(self) -> rollout_pb2.RolloutAction.ValueType:
        return {
            RolloutAction.STOP: rollout_pb2.ROLLOUT_ACTION_STOP,
            RolloutAction.GO_ON: rollout_pb2.ROLLOUT_ACTION_GO_ON,
            RolloutAction.GO_BACK: rollout_pb2.ROLLOUT_ACTION_GO_BACK,
        }[self]


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """One step of a roll-out."""

    at: datetime.datetime
    """UTC, by the clock of Redis."""
    text: str


@dataclass(frozen=True, slots=True)
class RolloutReplica:
    """A replica of the pool during a roll-out."""

    replica_id: str
    revision: int
    ready: bool
    """Whether it takes work."""
    passed: bool
    """Whether it was found to serve well."""
    retiring: bool
    """Whether it finishes its requests to give way to another revision."""
    ended: int
    """Requests that have ended on it, like the next two."""
    failed: int
    late: int
    """Those that missed a latency target of the pool."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A pool's newest roll-out."""

    pool: str
    state: RolloutState
    old_revision: int
    """Number of the revision before; 0 for the pool's own settings."""
    new_revision: int
    old_changes: Mapping[str, Any]
    """Settings of the old revision that differ from the pool's own, like the next ones."""
    new_changes: Mapping[str, Any]
    size: int
    """Replicas that the pool should have."""
    surge: int
    """Replicas that it may have beyond that meanwhile."""
    judge_s: float
    """Seconds for which a new replica must serve well."""
    reason: str
    """Reason why it goes back, or went back; empty otherwise."""
    failures: tuple[str, ...]
    """Reasons of new replicas that failed."""
    steps: tuple[RolloutStep, ...]
    """Newest steps, oldest first."""
    replicas: tuple[RolloutReplica, ...]
    by: str
    """Tenant of the admin who began it."""
    began_at: datetime.datetime
    """UTC, by the clock of Redis."""

    @classmethod
    def from_proto(cls, found: rollout_pb2.Rollout) -> Rollout:
        return cls(
            pool=found.pool,
            state=_STATES.get(found.state, RolloutState.ROLLING),
            old_revision=found.old_revision,
            new_revision=found.new_revision,
            old_changes=content_of(found.old_changes),
            new_changes=content_of(found.new_changes),
            size=found.size,
            surge=found.surge,
            judge_s=duration_from_wire(found.judge),
            reason=found.reason,
            failures=tuple(found.failures),
            steps=tuple(RolloutStep(moment_from_wire(step.at_ms), step.text) for step in found.steps),
            replicas=tuple(
                RolloutReplica(
                    *(one.replica_id, one.revision, one.ready, one.passed, one.retiring),
                    *(one.ended, one.failed, one.late),
                )
                for one in found.replicas
            ),
            by=found.by,
            began_at=moment_from_wire(found.began_at_ms),
        )
