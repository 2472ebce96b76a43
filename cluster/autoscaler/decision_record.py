"""A decision as it is stored and shown: its inputs, its result and the reasons."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from cluster.control.replica_policy import SlowDecision
from cluster.control.settings import ControlMode
from cluster.control.snapshot import ClassDemand, GroupSnapshot
from penstock.models import RequestClass
from penstock.values.steps import Counterfactual, Relief, Step

_NUMBER = re.compile(r"\b\d+(?:\.\d+)?\b")


@dataclass(frozen=True, slots=True)
class DemandRecord:
    """Demand of one class."""

    request_class: RequestClass
    rate: float
    """Requests per second."""
    prompt_tokens: float
    """Mean per request, like the next two."""
    cached_tokens: float
    output_tokens: float
    queued: int
    oldest_wait_s: float
    deadline_s: float | None = None
    """Time within which the queued work must be done; None for requests that clients wait for."""

    @classmethod
    def of(cls, seen: ClassDemand) -> DemandRecord:
        shape = seen.shape
        tokens = (shape.prompt_tokens, shape.cached_tokens, shape.output_tokens)
        return cls(seen.request_class, seen.rate, *tokens, seen.queued, seen.oldest_wait_s, seen.deadline_s)


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One decision, with its inputs."""

    at_ms: int
    """Pool time, which is Redis' clock."""
    leader: str
    fence: int
    mode: ControlMode
    """Only `active` decisions are carried out."""
    before: int
    """Replicas that the platform was last told to have, without those that were to stand by."""
    replicas: int
    needed: int
    """Replicas needed, before hysteresis and rails."""
    relief: Relief
    reason: str
    steps: tuple[Step, ...]
    counterfactuals: tuple[Counterfactual, ...]
    alarms: tuple[str, ...]
    ready: int
    starting: int
    draining: int
    running: float
    waiting: float
    kv_usage: float
    age_s: float
    cold_start_s: float
    failed_starts: int
    attainment: float | None
    demands: tuple[DemandRecord, ...]
    standby: int = 0
    """Replicas that are to stand by beside `replicas`."""
    standing_by: int = 0
    """Replicas that stood by and could be woken."""
    work: float | None = None
    """Replica-seconds of work that arrived per second, averaged; None without a step model."""
    gpus_per_replica: int = 1
    number: int = 0
    """Grows by one with each decision of the pool; 0 before it is stored."""

    @classmethod
    def of(
        cls,
        seen: GroupSnapshot,
        made: SlowDecision,
        *,
        leader: str,
        fence: int,
        mode: ControlMode,
        before: int,
        standby: int = 0,
    ) -> DecisionRecord:
        return cls(
            at_ms=round(seen.at * 1000),
            leader=leader,
            fence=fence,
            mode=mode,
            before=before,
            replicas=made.replicas,
            needed=made.needed,
            relief=made.relief,
            reason=made.reason,
            steps=made.steps,
            counterfactuals=made.counterfactuals,
            alarms=made.alarms,
            ready=seen.ready,
            starting=seen.starting,
            draining=seen.draining,
            running=seen.running,
            waiting=seen.waiting,
            kv_usage=seen.kv_usage,
            age_s=seen.age_s,
            cold_start_s=seen.cold_start_s,
            failed_starts=seen.failed_starts,
            attainment=seen.attainment,
            demands=tuple(map(DemandRecord.of, seen.demands)),
            standby=standby,
            standing_by=seen.standby,
            work=made.work,
            gpus_per_replica=seen.gpus_per_replica,
        )

    @property
    def total(self) -> int:
        """Replicas that the platform is to have."""
        return self.replicas + self.standby

    def to_bytes(self) -> bytes:
        """Return the record as JSON, without its number."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, text: bytes, number: int) -> DecisionRecord:
        """Read what `to_bytes` wrote.

        Raises:
            ValueError, KeyError, TypeError: the text is anything else.
        """
        fields: dict[str, Any] = json.loads(text)
        fields |= {
            "number": number,
            "mode": ControlMode(fields["mode"]),
            "relief": Relief(fields["relief"]),
            "steps": tuple(Step(**step) for step in fields["steps"]),
            "counterfactuals": tuple(Counterfactual(**one) for one in fields["counterfactuals"]),
            "alarms": tuple(fields["alarms"]),
            "demands": tuple(
                DemandRecord(**{**one, "request_class": RequestClass(one["request_class"])})
                for one in fields["demands"]
            ),
        }
        return cls(**fields)


def kinds(alarms: Iterable[str]) -> set[str]:
    """Return alarms without their numbers: an alarm whose numbers changed is not a new one."""
    return {_NUMBER.sub("", alarm) for alarm in alarms}
