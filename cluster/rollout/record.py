"""A roll-out as it is stored: one value that says what every replica and router has to do.

A replica reads it when it starts, to learn which revision to run, and once a second, to learn whether to give way.
Routers move it on. Nobody holds more than this record, so whoever dies, the others go on from it.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from penstock.values.admin.rollout import RolloutState

KEPT_STEPS = 40
"""Steps that a record keeps, the newest ones."""
_LONGEST = 500
"""Most characters of a reason."""


class Trouble(enum.StrEnum):
    """Kind of what went wrong with a new replica."""

    START = "start"
    """It did not start."""
    ENDED = "ended"
    """It ended without an order."""
    REQUESTS = "requests"
    """Too many of its requests failed."""
    SLO = "slo"
    """Too many of its requests missed the SLO."""


@dataclass(frozen=True, slots=True)
class Revision:
    """Settings of a pool's engines."""

    number: int = 0
    """Number, unique in the pool; 0 for the pool's own settings."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Tree of the settings that differ from the pool's own."""


@dataclass(frozen=True, slots=True)
class RolloutRules:
    """Limits of a roll-out."""

    surge: int
    """Replicas that the pool may have beyond its number meanwhile."""
    judge_s: float
    """Seconds for which a new replica must serve well before the next one changes."""
    max_failed: float
    """Part of a new replica's requests that may fail."""
    max_late: float
    """Part of a new replica's requests that may miss a latency target, beyond that of the old replicas."""
    attempts: int
    """Replicas of the new revision that may fail before it goes back. 1: the first one that fails ends it."""
    start_timeout_s: float
    """Seconds that a start may take."""
    drain_s: float
    """Seconds that a replica may take to finish its requests before it gives way."""


@dataclass(frozen=True, slots=True)
class StartClaim:
    """A start that was given a revision."""

    revision: int
    at_ms: int
    """Time of the start, in pool time."""
    place: int
    """Rank of the replica. Two replicas with the same rank do not start together."""
    seen: bool = False
    """Whether it has joined the pool."""
    leaving: bool = False
    """Whether it was seen to drain, so that its end is no failure."""


@dataclass(frozen=True, slots=True)
class StepLine:
    """One step of a roll-out, for people."""

    at_ms: int
    text: str


@dataclass(frozen=True, slots=True)
class Rollout:
    """A pool's newest roll-out."""

    base: str
    """Digest of the pool's own settings. With other settings the record does not apply."""
    old: Revision
    new: Revision
    rules: RolloutRules
    state: RolloutState = RolloutState.ROLLING
    size: int = 0
    """Replicas that the pool had at the beginning."""
    by: str = ""
    """Tenant of the admin who began it."""
    began_ms: int = 0
    allowed: int = 0
    """Replicas that may have the new revision now."""
    claims: Mapping[str, StartClaim] = field(default_factory=dict)
    """Starts since the beginning, by the replica's id, as long as the replica lives."""
    retiring: tuple[str, ...] = ()
    """Ids of replicas that have to finish their requests and end."""
    passed: tuple[str, ...] = ()
    """Ids of new replicas that serve well."""
    failures: tuple[str, ...] = ()
    """Why new replicas failed."""
    troubles: tuple[Trouble, ...] = ()
    """Kinds of what went wrong, oldest first."""
    reason: str = ""
    """Why it goes back, or went back; empty otherwise."""
    vacant_ms: int | None = None
    """Time since when replicas are missing; None while none is."""
    late_before: float = 0.0
    """Part of the old replicas' requests that missed a latency target."""
    steps: tuple[StepLine, ...] = ()
    """What happened, oldest first."""

    @property
    def in_force(self) -> Revision:
        """Revision of the pool where no roll-out goes on: what a restart of the whole pool brings back."""
        return self.new if self.state is RolloutState.DONE else self.old

    @property
    def extra(self) -> int:
        """Replicas that the pool has beyond its number now. They stay until the end: a platform that has too many
        replicas first removes one that starts, of which nobody hears again.
        """
        return self.rules.surge if self.state.active else 0

    def told(self, at_ms: int, text: str) -> Rollout:
        """Return the record with one more step."""
        return replace(self, steps=(*self.steps, StepLine(at_ms, text[:_LONGEST]))[-KEPT_STEPS:])

    @property
    def changed(self) -> int:
        """Replicas that have the new revision."""
        if not self.state.active:
            return self.size if self.state is RolloutState.DONE else 0
        return sum(one.seen and one.revision == self.new.number for one in self.claims.values())

    def failed(self, at_ms: int, why: str, trouble: Trouble) -> Rollout:
        """Return the record with one more failure of a new replica."""
        failures, troubles = (*self.failures, why[:_LONGEST]), (*self.troubles, trouble)
        return replace(self, failures=failures, troubles=troubles).told(at_ms, why)

    def to_bytes(self) -> bytes:
        """Return the record as JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> Rollout:
        """Read what `to_bytes` wrote.

        Raises:
            ValueError, KeyError, TypeError: the text is anything else.
        """
        fields: dict[str, Any] = json.loads(text)
        fields |= {
            "old": Revision(**fields["old"]),
            "new": Revision(**fields["new"]),
            "rules": RolloutRules(**fields["rules"]),
            "state": RolloutState(fields["state"]),
            "claims": {name: StartClaim(**claim) for name, claim in fields["claims"].items()},
            "steps": tuple(StepLine(**step) for step in fields["steps"]),
            **{name: tuple(fields[name]) for name in ("retiring", "passed", "failures")},
            "troubles": tuple(Trouble(each) for each in fields.get("troubles", ())),
        }
        return cls(**fields)
