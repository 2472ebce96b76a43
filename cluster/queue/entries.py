"""What passes through the waiting room: entries, grants, quotas, kept keys and what is charged."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from penstock.models import RequestClass

MAX_CHOICES = 16
"""Most choices of one request."""

RETRY_FULL_S = 1.0
"""When clients may come again to a full line, seconds."""


def choice_ids(request_id: str) -> tuple[str, ...]:
    """Name the entries that a request of several choices may have; a request of one has its own id."""
    return tuple(f"{request_id}/{index}" for index in range(MAX_CHOICES))


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Are the constants of a pool, the same at every router."""

    lease_ms: int = 4_000
    attach_grace_ms: int = 5_000
    """How long a dead router's waiting entries keep their place, and a broken link's output is kept."""
    max_waiting: int = 100_000
    lookahead: int = 16
    """How many candidates `fill` looks at, and how often one may be passed over: by those that prefer the replica or
    fit there, and, where it is late, by those that are not."""
    grant_heartbeats: int = 3
    """A grant that its router has not listed as started after so many heartbeats is revoked."""
    class_shares: tuple[float, float, float] = (0.0, 0.2, 0.05)
    """Reserved part of the served tokens per RequestClass; the rest goes to the most urgent class."""
    preempt_after_ms: int = 500
    """BATCH gives way where INTERACTIVE waited so long; 0 is never."""
    preempt_quantum_ms: int = 2_000
    """A sequence runs at least so long before it gives way."""
    max_preemptions: int = 2
    """A request gives way at most so often."""
    result_ms: int = 600_000
    """How long the result of a request with a client key is kept; 0 keeps none."""
    max_result_bytes: int = 256 << 20
    """Of all kept results together; the oldest go first."""
    ledger_days: int = 62
    """Days of which the ledger is kept, today included; 0 keeps none."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Is what a tenant may use of a pool; 0 is no bound."""

    tokens_per_minute: int = 0
    """Prompt and output tokens. The bucket holds one minute's worth."""
    requests_per_minute: int = 0
    concurrency: int = 0
    """Requests that wait or run at a time."""
    strict: bool = False
    """Reserve all that a request may produce, and return nothing: what is granted in any T minutes never passes
    (1 + T) x tokens_per_minute. Otherwise what is likely is reserved and corrected at the end, debt allowed."""
    max_waiting: int = 0
    """Requests of one class that wait at a time."""


NO_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """Is what the queue knows of a request: about 200 bytes, never the prompt."""

    request_id: str
    """Minted by the router, unguessable. [A-Za-z0-9._/-] only."""
    attempt_base: str
    """Random, from the owner; the queue appends its own number per grant."""
    tenant: str
    request_class: RequestClass
    prompt_tokens: int
    expected_tokens: int
    """Estimated output tokens; what the tenant is charged at the grant, corrected at release."""
    kv_tokens: int
    """Estimated KV cache use in tokens; must fit the replica's KV window."""
    start_within_ms: int = 0
    """Not granted later than this after submit; 0 is no bound."""
    late_after_ms: int = 0
    """Waiting for longer than this after submit, it lets those of its class and tenant pass that do not; 0 is never.
    Who has missed what its class is promised gains little from its place in front, and makes others miss it too."""
    client_key: str = ""
    """The client's idempotency key, unique per tenant; empty for none."""
    preferred_replicas: tuple[str, ...] = ()
    weight: float = 1.0
    """The tenant's share weight, at least 0.001."""
    resume: bool = False
    """Comes back from a failed attempt: head of its tenant's list, not charged again."""
    max_tokens: int = 0
    """The most output tokens it may produce; for quotas."""
    quota: Quota = NO_QUOTA
    choices: int = 1
    """How many of its request's choices it takes a part of the quota for: all of them or none, so that none is let in
    for nothing. 0 is one that an earlier entry has taken its part for."""
    digest: str = ""
    """Identifies what the client asked for, in one digest or in two, "exact/plain": of the bytes that came, and with
    defaults left out. A client key goes with one of either."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Is a slot on a replica for one attempt."""

    request_id: str
    attempt: str
    replica_id: str


@dataclass(frozen=True, slots=True)
class Order:
    """Tells an owner what to do with one of its requests; asked for by another router or by `fill`."""

    request_id: str
    kind: str
    """"cancel"; "expired"; "preempt": give way and `requeue`; "moved": another router adopted it."""


@dataclass(frozen=True, slots=True)
class KnownRequest:
    """Is the request that a client key already belongs to; it runs, or has ended not long ago."""

    request_id: str
    """Without the number of a choice."""
    result: bytes | None
    """As given to `finish_key`; None while it runs, or when there is none."""
    live: bool = True
    """Whether one of its choices waits or runs."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """Answers `submit`: a grant when there was room and nobody ahead, else the place in line."""

    grant: Grant | None
    position: int
    """Waiting entries ahead; 0 when granted."""
    known: KnownRequest | None = None
    """Nothing was submitted: the client key belongs to this request."""
    marks: int = 0
    """As `Marks.count`."""
    elsewhere: bool = False
    """Nothing was submitted: another router has this request."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Says that a content kills engines."""

    content: bytes
    """A digest of it, not empty."""
    incident: str
    left_ms: int
    """How long it still stays marked, at least 0."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Are the contents of a pool that kill engines."""

    count: int
    """Counts the writes: who knows the marks of one count, knows all."""
    marks: tuple[Mark, ...]
    """By content."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """Answers `adopt`: where the entry is."""

    grant: Grant | None
    """Its slot."""
    position: int
    started: bool = False
    """Whether the attempt of `grant` is known to run."""
    age_ms: int = 0
    """How long ago it was submitted, by pool time; again, where the store had forgotten it."""


class Where(enum.Enum):
    """Says where the store has an entry."""

    LINE = "line"
    """It waits, or is parked."""
    GRANT = "grant"
    """It has a slot, and nobody said that its attempt began."""
    SLOT = "slot"
    """Its attempt runs."""
    MAIL = "mail"
    """Its owner has an order to answer, or the news that another router adopted it."""


@dataclass(frozen=True, slots=True)
class Holding:
    """Is what the store has on record as a router's own. One entry may be listed twice: in its slot and in the mail."""

    request_id: str
    where: Where
    attempt: str = ""
    """Where it has a slot."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """Is a page of what the store has on record as a router's own."""

    page: tuple[Holding, ...] = ()
    last: bytes = b""
    """Where the next page begins; empty where there is none."""


@dataclass(frozen=True, slots=True)
class Mail:
    """Is everything the queue wants a router to know."""

    grants: tuple[Grant, ...] = ()
    orders: tuple[Order, ...] = ()


@dataclass(frozen=True, slots=True)
class Settlement:
    """Is what an attempt really used; corrects the tenant's charge and goes into the ledger."""

    output_tokens: int
    """Of all attempts of the entry."""
    requests: int = 0
    """1 in the entry that stands for its request in the ledger."""
    prompt_tokens: int = 0
    """As they count in the ledger: once per request."""
    cached_tokens: int = 0
    gpu_seconds: float = 0.0
    """Of this attempt."""
    cost: float = 0.0
    """Of this attempt, in the currency of the settings."""


@dataclass(frozen=True, slots=True)
class UsageLine:
    """Is what a tenant used on one day of pool time."""

    day: int
    """Days since 1970-01-01."""
    tenant: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    gpu_seconds: float
    cost: float
