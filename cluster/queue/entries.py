"""Values of the queue: entries, grants, quotas, kept client keys and usage."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from penstock.models import RequestClass

MAX_CHOICES = 16
"""Most choices of one request."""

RETRY_FULL_S = 1.0
"""After how many seconds clients may retry when the queue is full."""


def choice_ids(request_id: str) -> tuple[str, ...]:
    """Return the entry ids that a request with several choices may have. With one choice the entry has the request's
    own id.
    """
    return tuple(f"{request_id}/{index}" for index in range(MAX_CHOICES))


def sibling_ids(entry_id: str) -> tuple[str, ...]:
    """Return the entry ids that the request of this entry may have; its own if it has one choice."""
    request_id, of_several, _ = entry_id.rpartition("/")
    return choice_ids(request_id) if of_several else (entry_id,)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits of a pool's queue, the same at every router."""

    lease_ms: int = 4_000
    attach_grace_ms: int = 5_000
    """How long a dead router's waiting entries keep their place, and output of a broken link is kept."""
    max_waiting: int = 100_000
    lookahead: int = 16
    """Number of candidates that `fill` looks at, and the most times that one entry may be passed over: by entries that
    prefer the replica or fit there, and, if it is late, by entries that are not."""
    grant_heartbeats: int = 3
    """Heartbeats of a router after which a grant that it has not listed as started is revoked."""
    class_shares: tuple[float, float, float] = (0.0, 0.2, 0.05)
    """Reserved part of the served tokens per RequestClass; the rest goes to the most urgent class."""
    preempt_after_ms: int = 500
    """Wait of an INTERACTIVE entry after which BATCH sequences give way; 0 is never."""
    preempt_quantum_ms: int = 2_000
    """Least run time of a sequence before it may give way."""
    max_preemptions: int = 2
    """Most times that a request gives way."""
    result_ms: int = 600_000
    """How long the result of a request with a client key is kept; 0 keeps none."""
    max_result_bytes: int = 256 << 20
    """Bytes of all kept results together; the oldest go first."""
    ledger_days: int = 62
    """Days that the ledger covers, today included; 0 keeps none."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits on a tenant's use of a pool; 0 is no bound."""

    tokens_per_minute: int = 0
    """Prompt and output tokens. The bucket holds one minute's worth."""
    requests_per_minute: int = 0
    concurrency: int = 0
    """Requests that wait or run at a time."""
    strict: bool = False
    """Whether to reserve all that a request may produce and return nothing: grants in any T minutes never exceed
    (1 + T) x tokens_per_minute. Otherwise the likely output is reserved and corrected at the end; debt is allowed."""
    max_waiting: int = 0
    """Requests of one class that wait at a time."""
    cost_per_day: float = 0.0
    """Charges by the ledger per day of pool time, after which requests are refused."""
    cost_per_month: float = 0.0
    """Charges by the ledger per calendar month of pool time."""
    warn_at: float = 0.8
    """Used part of a budget from which there are warnings. The queue does not use it."""


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """Use of a tenant's budget when a request was let in."""

    budget: str
    """"cost_per_day" or "cost_per_month"."""
    used: float
    limit: float
    renews_ms: int
    """Time until the next day or month."""

    @property
    def share(self) -> float:
        """Used part of the budget."""
        return self.used / self.limit


NO_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """The queue's view of a request: about 200 bytes, never the prompt."""

    request_id: str
    """Minted by the router, unguessable. [A-Za-z0-9._/-] only."""
    attempt_base: str
    """Random part of attempt ids, from the owner; the queue appends a number per grant."""
    tenant: str
    request_class: RequestClass
    prompt_tokens: int
    expected_tokens: int
    """Estimated output tokens: charged to the tenant at the grant, corrected at release."""
    kv_tokens: int
    """Estimated KV cache use in tokens; must fit the replica's KV window."""
    start_within_ms: int = 0
    """Time after submit within which it must be granted; 0 is no bound."""
    late_after_ms: int = 0
    """Time after submit from which it is late: it lets entries of its class and tenant pass that are not; 0 is never.
    An entry that has missed its class's SLO gains little from a place in front, and would make others miss it too."""
    client_key: str = ""
    """Idempotency key of the client, unique per tenant; empty for none."""
    preferred_replicas: tuple[str, ...] = ()
    weight: float = 1.0
    """Weight of the tenant's share, at least 0.001."""
    resume: bool = False
    """Whether it returns from a failed attempt: it goes to the head of its tenant's list and is not charged again."""
    max_tokens: int = 0
    """Most output tokens that it may produce; for quotas."""
    quota: Quota = NO_QUOTA
    choices: int = 1
    """Number of the request's choices that it takes quota for: all of them, so that none is let in whose request cannot
    be whole, or 0 if an earlier entry has taken its part."""
    digest: str = ""
    """Identity of what the client asked for: one digest, or two as "exact/plain". Exact is of the bytes received, plain
    leaves defaults out. A client key matches if either matches. All choices of a request with a key have it; empty
    without a key."""
    trace: str = ""
    """Span of its request, ids of trace and span with a hyphen between them; empty for none."""
    tokenizer: str = ""
    """Digest of the tokenizer whose token ids the client named; empty where it named none."""

    @property
    def of_request(self) -> str:
        """Id of its request, as clients know it: without the number of the choice."""
        return self.request_id.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Grant:
    """Slot on a replica for one attempt."""

    request_id: str
    attempt: str
    replica_id: str
    cell: int = field(default=0, compare=False)
    """Cell that granted it, where a heartbeat brought it."""


@dataclass(frozen=True, slots=True)
class Order:
    """Instruction to an owner about one of its requests; comes from another router or from the queue itself."""

    request_id: str
    kind: str
    """"cancel", with all choices of the request; "expired"; "preempt": give way and `requeue`; "moved": another router
    adopted it.
    """


@dataclass(frozen=True, slots=True)
class KnownRequest:
    """Request that a client key belongs to already; it runs, or ended a short time ago."""

    request_id: str
    """Id without the number of a choice."""
    result: bytes | None
    """Result as given to `finish_key`; None while it runs, or if there is none."""
    live: bool = True
    """Whether one of its choices waits or runs."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """Answer of `submit`: a grant if there was room and no entry ahead, else the place in line."""

    grant: Grant | None
    position: int
    """Waiting entries ahead; 0 when granted."""
    known: KnownRequest | None = None
    """Request that the client key belongs to; nothing was submitted then."""
    marks: int = 0
    """As `Marks.count`."""
    elsewhere: bool = False
    """Whether another router has this request; nothing was submitted then."""
    budget: BudgetUse | None = None
    """The tenant's budget of which the greatest part is used; None without a budget."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Mark on a content that kills engines."""

    content: bytes
    """Digest of the content, not empty."""
    incident: str
    left_ms: int
    """How long it stays marked, at least 0."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Contents of a pool that kill engines."""

    count: int
    """Number of writes so far. A router that has read the marks at this count has all of them."""
    marks: tuple[Mark, ...]
    """Marks, sorted by content."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """Answer of `adopt`: where the entry is."""

    grant: Grant | None
    """Its slot; None while it waits."""
    position: int
    started: bool = False
    """Whether the attempt of `grant` is known to run."""
    age_ms: int = 0
    """Pool time since it was submitted; since it was submitted again, if the store had forgotten it."""
    trace: str = ""
    tokenizer: str = ""
    """Both as in the entry."""


class Where(enum.Enum):
    """Place where the store has an entry."""

    LINE = "line"
    """It waits, or is parked."""
    GRANT = "grant"
    """It has a slot, and its attempt is not known to run."""
    SLOT = "slot"
    """Its attempt runs."""
    MAIL = "mail"
    """Its owner has to answer an order, or has to learn that another router adopted it."""


@dataclass(frozen=True, slots=True)
class Holding:
    """One record of the store about a router's entry. An entry may have two: for its slot and for its mail."""

    request_id: str
    where: Where
    attempt: str = ""
    """Attempt of an entry that has a slot."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """One page of what the store has on record for a router."""

    page: tuple[Holding, ...] = ()
    last: bytes = b""
    """Where the next page begins; empty if there is none."""


@dataclass(frozen=True, slots=True)
class Mail:
    """Everything that the queue has to tell a router."""

    grants: tuple[Grant, ...] = ()
    orders: tuple[Order, ...] = ()


@dataclass(frozen=True, slots=True)
class Settlement:
    """Real use of an attempt; corrects the tenant's charge and goes into the ledger."""

    output_tokens: int
    """Output tokens of all attempts of the entry."""
    requests: int = 0
    """1 for the entry that stands for its request in the ledger, else 0."""
    prompt_tokens: int = 0
    """Prompt tokens for the ledger, where they count once per request."""
    cached_tokens: int = 0
    gpu_seconds: float = 0.0
    """GPU-seconds of this attempt."""
    cost: float = 0.0
    """Cost of this attempt, in the currency of the settings."""


@dataclass(frozen=True, slots=True)
class HourUse:
    """Use by one tenant in one hour."""

    hour: int
    """Hour of the day, 0 to 23."""
    requests: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    gpu_seconds: float
    cost: float


@dataclass(frozen=True, slots=True)
class UsageLine:
    """Use by one tenant on one day of pool time."""

    day: int
    """Days since 1970-01-01."""
    tenant: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    gpu_seconds: float
    cost: float
    hours: tuple[HourUse, ...] = ()
    """The same by hour, in order; empty for old days."""


@dataclass(frozen=True, slots=True)
class GpuTime:
    """GPU time of one kind, and its price."""

    gpu_seconds: float
    cost: float


@dataclass(frozen=True, slots=True)
class CostLine:
    """GPU time of a pool in one hour of pool time, by kind. The kinds add up to `total`, unless a count is wrong."""

    hour: int
    """Hours since 1970-01-01."""
    total: GpuTime
    """Wall time of the replicas times their GPUs."""
    requests: GpuTime
    """Use that routers settled: the GPU-seconds of receipts."""
    starting: GpuTime
    idle: GpuTime
    draining: GpuTime
    lost: GpuTime
    """Use by attempts whose end no router settled, and time of dead replicas until their lease ended. Negative where an
    end that was counted as lost was settled in a later hour."""
    running: GpuTime
    """Use by attempts that had not ended, less that of the hours before. Negative where more ended than began."""
    standby: GpuTime
    charged: float
    """Charges to tenants, by the pool's prices."""

    @property
    def parts(self) -> tuple[GpuTime, ...]:
        """Kinds that add up to `total`."""
        return (self.requests, self.starting, self.idle, self.draining, self.lost, self.running, self.standby)
