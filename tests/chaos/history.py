"""What happened in a run: as clients saw it, as engines noted it, and what was done to the cluster. All times are
monotonic seconds.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Attempted:
    """Says that the client called a router."""

    at: float
    restart: bool = False
    """From the first token, not behind those that the client has."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """Says that a router named the request: it is queued or started."""

    at: float
    request_id: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """Output that arrived."""

    at: float
    offset: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Resumed:
    """Says that the cluster announced a break."""

    at: float
    exact: bool


@dataclass(frozen=True, slots=True)
class Finished:
    """An end that says OK."""

    at: float
    reason: str
    output_tokens: int
    exact: bool
    attempts: int
    router_id: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """An end that says otherwise."""

    at: float
    code: str
    reason: str = ""
    retry_after_s: float | None = None
    final: bool = False
    """The client gives up."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Says that the client itself stopped."""

    at: float


Event = Attempted | Accepted | Tokens | Resumed | Finished | Failed | Cancelled


@dataclass(slots=True)
class Request:
    """One request of one client, with all its calls."""

    name: str
    golden: tuple[int, ...]
    """The output that an undisturbed run gives."""
    deadline_s: float
    """From the first call; what the client is ready to wait."""
    tenant: str = ""
    events: list[Event] = field(default_factory=list)
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Idempotency key. Runs share clusters, and routers remember keys for hours: a name is used in each run."""

    @property
    def sent_at(self) -> float:
        """When it was first sent."""
        return self.events[0].at

    @property
    def ended_at(self) -> float | None:
        """When the client was through with it; None while it is open."""
        last = self.events[-1]
        over = isinstance(last, Finished | Cancelled) or (isinstance(last, Failed) and last.final)
        return last.at if over else None

    @property
    def finished(self) -> bool:
        """Whether it ended OK."""
        return isinstance(self.events[-1], Finished)

    @property
    def ids(self) -> frozenset[str]:
        """The names that the cluster gave it."""
        return frozenset(event.request_id for event in self.events if isinstance(event, Accepted))


@dataclass(frozen=True, slots=True)
class Decode:
    """One sequence in one engine."""

    request_id: str
    attempt: str
    replica: str
    began_at: float
    ended_at: float
    """The process' death where that came first."""
    prior: int = 0
    """Tokens that it went on from."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """A fault as it was done."""

    name: str
    at: float
    proof: str
    """What shows that it really happened; empty when nothing does."""
    heals: bool = False
    """It ends another one."""


@dataclass(frozen=True, slots=True)
class Idle:
    """What was left when all clients had gone."""

    keys: Mapping[str, int] = field(default_factory=dict)
    """Short name of a queue key to what it still held, where that should be nothing."""
    open_calls: Mapping[str, float] = field(default_factory=dict)
    """Router to generations that it has open."""
    decoding: Sequence[str] = ()
    """Sequences that live engines still decode."""

    @property
    def clean(self) -> bool:
        """Whether nothing was left."""
        return not self.keys and not any(self.open_calls.values()) and not self.decoding


@dataclass(frozen=True, slots=True)
class QueueSample:
    """The queue at a moment."""

    at: float
    waiting: int


class Bill(NamedTuple):
    """GPU-seconds by kind."""

    total: float
    """Time of the replicas' processes."""
    explained: float
    """Sum of all kinds."""
    requests: float
    lost: float


@dataclass(slots=True)
class History:
    """One run."""

    requests: list[Request] = field(default_factory=list)
    decodes: list[Decode] = field(default_factory=list)
    faults: list[FaultRecord] = field(default_factory=list)
    samples: list[QueueSample] = field(default_factory=list)
    killers: list[Failed] = field(default_factory=list)
    """How requests that kill engines ended."""
    deaths: int = 0
    """Engines that died, but for those that were killed with their replicas."""
    pauses: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Replica to the times in which its process was stopped, so that it decoded nothing."""
    idle: Idle | None = None
    ended_at: float = 0.0
    bill: Bill | None = None
    """GPU time of the run, where its scenario asks for it."""
    notes: dict[str, float] = field(default_factory=dict)
    """Further figures of a scenario's own."""
    standstills: list[tuple[float, float]] = field(default_factory=list)
    """Times in which the loop of clients and proxies stood still. All links of the cluster go through these proxies."""

    def running_s(self, began: float, ended: float) -> float:
        """Return the seconds of a time in which that loop ran. A halt of the machine is no silence of the cluster."""
        stood = (min(ended, end) - max(began, begin) for begin, end in self.standstills)
        return ended - began - sum(seconds for seconds in stood if seconds > 0)


def read_journal(
    path: Path, replica: str, since: float, died_at: float | None, now: float
) -> tuple[list[Decode], list[str]]:
    """Read what an engine noted since a moment: what it decoded, and what it still decodes."""
    open_since: dict[str, tuple[float, int]] = {}
    decodes: list[Decode] = []

    def add(sequence_id: str, ended_at: float, reason: str) -> None:
        began_at, prior = open_since.pop(sequence_id)
        request_id, _, attempt = sequence_id.partition("#")
        if ended_at >= since and attempt:  # A replica's own warm-up belongs to no attempt.
            decodes.append(Decode(request_id, attempt, replica, began_at, ended_at, prior, reason))

    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            # The process was killed while it wrote.
            continue
        if entry["what"] == "start":
            open_since[entry["id"]] = (entry["at"], entry["prior"])
        elif entry["id"] in open_since:
            add(entry["id"], entry["at"], entry["reason"])
    still = [] if died_at is not None else list(open_since)
    for sequence_id in list(open_since):
        add(sequence_id, now if died_at is None else died_at, "open" if died_at is None else "killed")
    return decodes, still
