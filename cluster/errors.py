"""Every error that Penstock raises on purpose.

PenstockError
├── RequestError                    the client can do something about it
│   ├── UnauthenticatedError        the caller did not say who it is, or did not prove it
│   ├── PermissionDeniedError       the caller may not do this
│   ├── InvalidRequestError         fields are wrong; carries one violation per field
│   ├── ModelNotFoundError          no pool has this name
│   ├── RequestNotFoundError        no request has this id or key, or it is another tenant's
│   ├── JobNotFoundError            no job has this id, or it is another tenant's
│   ├── JobExistsError              the tenant's key belongs to a job with other content
│   ├── JobLimitError               a bound on stored jobs is reached; carries which
│   ├── QueueFullError              the waiting room, or the tenant's part of it, is full; carries when to retry
│   ├── QuotaExceededError          the tenant's quota does not allow it; carries when to retry
│   ├── NotInTimeError              it would not start or end in time; carries when to retry
│   ├── KeyReusedError              the idempotency key belongs to a different request
│   ├── QuarantinedError            engines died under this request
│   ├── TakenOverError              another call of the client took the stream over
│   ├── SlowReaderError             the client leaves too much of its output unread
│   ├── QueueTimeoutError           the request waited longer than it may
│   ├── DeadlineError               the call's deadline passed
│   └── CancelledError              the request was cancelled by its client or an operator
├── UnavailableError                try again; carries when
│   ├── QueueUnavailableError       Redis does not answer
│   ├── NoReplicaError              the pool never had a replica, or this router reaches none of them
│   └── ShuttingDownError           this process is draining
├── LeadershipLostError             another autoscaler leads the pool
├── ActuatorError                   what runs the replicas did not take a number
├── JobLeaseLostError               another router feeds the job, or it has ended
├── GenerationFailedError           an engine failed and the request could not go on
├── LinkError                       the stream between a router and a replica
│   ├── LinkRefusedError            wrong secret or protocol version
│   └── LinkLostError               the peer is gone or silent
├── GeneratorError                  the load generator cannot run, or died
├── EngineError                     the engine process
│   ├── EngineStartError            it did not come up, or failed its self-test
│   ├── EngineDeadError             it died; the replica must be replaced
│   └── EngineRequestError          it refuses one request
└── SetupError                      settings or environment, found before anything serves
    ├── SettingsError               a setting is unknown, missing or out of range
    ├── BootstrapError              a component of a local cluster did not start, or has ended
    └── TraceError                  a recorded load cannot be read; carries file, line, field and value

Errors hold data; the sentence is composed from it. `reason` is the stable word that clients and metrics see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from cluster.plural import counted
from penstock.models import FieldViolation


class PenstockError(Exception):
    """Is the root of all errors raised on purpose."""

    reason: ClassVar[str] = "INTERNAL"


# --- what the client can do something about ---------------------------------------------------------------------------


class RequestError(PenstockError):
    """Is raised for a request that is wrong or cannot be served as asked."""

    reason = "BAD_REQUEST"


class InvalidRequestError(RequestError):
    """Is raised when fields are missing, out of range, or ask for what the pool's engines cannot do."""

    reason = "INVALID_REQUEST"

    def __init__(self, violations: Sequence[FieldViolation]) -> None:
        self.violations = tuple(violations)
        super().__init__("; ".join(f"{v.field}: {v.description}" for v in self.violations))

    @classmethod
    def of(cls, field: str, description: str) -> InvalidRequestError:
        """Build the error for one field."""
        return cls([FieldViolation(field, description)])


class UnauthenticatedError(RequestError):
    """Is raised for a call without credentials, or with some that are not valid now. Never carries them."""

    reason = "UNAUTHENTICATED"

    def __init__(self, detail: str) -> None:
        self.detail = detail
        super().__init__(detail)


class PermissionDeniedError(RequestError):
    """Is raised when a known caller asks for what it may not have."""

    reason = "PERMISSION_DENIED"

    def __init__(self, tenant: str, subject: str, value: str, allowed: Sequence[str]) -> None:
        """`subject` is what is restricted ("model", "class", "method"), `value` what was asked for."""
        self.tenant = tenant
        self.subject = subject
        self.value = value
        self.allowed = tuple(allowed)
        super().__init__(
            f"{subject} {value!r} is not allowed for this caller (tenant {tenant!r}); "
            f"allowed: {', '.join(allowed) or 'none'}"
        )


class ModelNotFoundError(RequestError):
    """Is raised when no pool has the model's name."""

    reason = "MODEL_NOT_FOUND"

    def __init__(self, model: str, known: Sequence[str]) -> None:
        self.model = model
        self.known = tuple(known)
        super().__init__(f"model {model!r} is not served here; known models: {', '.join(known) or 'none'}")


class RequestNotFoundError(RequestError):
    """Is raised when no live request of this tenant has the id or key."""

    reason = "REQUEST_NOT_FOUND"

    def __init__(self, target: str) -> None:
        self.target = target
        super().__init__(f"no live request {target!r}")


class JobNotFoundError(RequestError):
    """Is raised when this tenant has no job of that id."""

    reason = "JOB_NOT_FOUND"

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"no job {job_id!r}")


class JobExistsError(RequestError):
    """Is raised when a job is submitted under a key that belongs to a job with other content."""

    reason = "JOB_KEY_REUSED"

    def __init__(self, key: str, job_id: str) -> None:
        self.key = key
        self.job_id = job_id
        super().__init__(f"idempotency_key {key!r} belongs to job {job_id}, whose content is not the same")


class JobLimitError(RequestError):
    """Is raised when a submission would exceed a bound on stored jobs, items or bytes."""

    reason = "JOB_LIMIT"

    def __init__(self, what: str, limit: int) -> None:
        self.what = what
        self.limit = limit
        super().__init__(f"the job would exceed {what} = {limit:,} of what is stored; delete jobs that have ended")


class QueueFullError(RequestError):
    """Is raised when the pool's waiting room is full."""

    reason = "QUEUE_FULL"

    def __init__(self, pool: str, limit: int, retry_after_s: float, tenant: str = "") -> None:
        """`tenant` is set where only its own requests are too many."""
        self.pool = pool
        self.limit = limit
        self.retry_after_s = retry_after_s
        self.tenant = tenant
        whose = f" of tenant {tenant!r}" if tenant else ""
        waiting = counted(limit, f"request{whose} already waits", f"requests{whose} already wait")
        super().__init__(f"{waiting} for {pool!r}; retry in {retry_after_s:.1f} s")


class QuotaExceededError(RequestError):
    """Is raised when a tenant's quota does not allow a request."""

    reason = "QUOTA_EXCEEDED"

    def __init__(
        self, pool: str, tenant: str, quota: str, limit: int, retry_after_s: float | None, asked: int = 0
    ) -> None:
        """`quota` names the setting; `retry_after_s` is None for a request that the quota can never allow, and `asked`
        is what it would take then.
        """
        self.pool = pool
        self.asked = asked
        self.tenant = tenant
        self.quota = quota
        self.limit = limit
        self.retry_after_s = retry_after_s
        when = f"this one alone asks for {asked}" if retry_after_s is None else f"retry in {retry_after_s:.1f} s"
        super().__init__(f"tenant {tenant!r} may use {limit} {quota.replace('_', ' ')} of {pool!r}; {when}")


class NotInTimeError(RequestError):
    """Is raised when a request would not start, or not end, in the time that its client gives it."""

    reason = "NOT_IN_TIME"

    def __init__(self, bound: str, wait_s: float, bound_s: float, retry_after_s: float | None) -> None:
        """`bound`: "queue_timeout" or "deadline"; "ttft_p99_s" where a pool sheds that can't have more replicas.
        `retry_after_s`: None where no time is right.
        """
        self.bound = bound
        self.wait_s = wait_s
        self.bound_s = bound_s
        self.retry_after_s = retry_after_s
        when = "whenever it starts" if retry_after_s is None else f"retry in {retry_after_s:.1f} s"
        super().__init__(f"{bound}: {_seconds(bound_s)} is less than the estimated {_seconds(wait_s)}; {when}")


class KeyReusedError(RequestError):
    """Is raised when an idempotency key comes with another request than the first time."""

    reason = "IDEMPOTENCY_KEY_REUSED"

    def __init__(self, key: str, request_id: str) -> None:
        self.key = key
        self.request_id = request_id
        super().__init__(f"idempotency_key {key!r} belongs to another request, {request_id}")


class TakenOverError(RequestError):
    """Is raised in a call whose request another call of the same client took over."""

    reason = "TAKEN_OVER"

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        super().__init__(f"another call with the same idempotency key or resume token took over {request_id}")


class SlowReaderError(RequestError):
    """Is raised in a call whose client reads so slowly that its output would fill the router's memory."""

    reason = "SLOW_READER"

    def __init__(self, unread_bytes: int, limit_bytes: int) -> None:
        """The bytes are estimates; `limit_bytes` is the bound that was passed, of one stream or of all."""
        self.unread_bytes = unread_bytes
        self.limit_bytes = limit_bytes
        super().__init__(
            f"the client left {unread_bytes >> 10} KiB of its output unread; at most {limit_bytes >> 10} KiB are kept"
        )


class QuarantinedError(RequestError):
    """Is raised for a request that killed engines, and for the same one again while it is turned away."""

    reason = "QUARANTINED"

    def __init__(self, incident: str, retry_after_s: float) -> None:
        """`incident` names the finding in the router's log."""
        self.incident = incident
        self.retry_after_s = retry_after_s
        super().__init__(
            f"engines died under this request, so it is turned away for {retry_after_s:.0f} s; incident {incident}"
        )


class QueueTimeoutError(RequestError):
    """Is raised when a request could not start within its queue_timeout."""

    reason = "QUEUE_TIMEOUT"

    def __init__(self, waited_s: float, limit_s: float | None = None) -> None:
        """`limit_s`: None where another call said how long it may wait."""
        self.waited_s = waited_s
        self.limit_s = limit_s
        within = "in time" if limit_s is None else f"within {_seconds(limit_s)}"
        super().__init__(f"queue_timeout: the request waited {_seconds(waited_s)} and could not start {within}")


class DeadlineError(RequestError):
    """Is raised when the call's deadline passed before the end of the output."""

    reason = "DEADLINE"

    def __init__(self) -> None:
        super().__init__("the deadline passed before the output was complete")


class CancelledError(RequestError):
    """Is raised when the request was cancelled by its client or an operator."""

    reason = "CANCELLED"

    def __init__(self) -> None:
        super().__init__("the request was cancelled")


# --- try again --------------------------------------------------------------------------------------------------------


class UnavailableError(PenstockError):
    """Is raised when the cluster cannot take the request now but may soon."""

    reason = "UNAVAILABLE"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class QueueUnavailableError(UnavailableError):
    """Is raised when Redis does not answer."""

    reason = "QUEUE_UNAVAILABLE"


class ModelChangedError(UnavailableError):
    """Is raised when a pool got a model with another tokenizer while a request waited: its ids would mean another text.
    Nothing was delivered.
    """

    reason = "MODEL_CHANGED"

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        super().__init__(f"the pool's model changed while {request_id} waited; send it again for the new one")


class NoReplicaError(UnavailableError):
    """Is raised when no replica of the pool has ever reported, so that the prompt cannot be tokenized; and by a router
    that reaches none of those that take work.
    """

    reason = "NO_REPLICA"


class ShuttingDownError(UnavailableError):
    """Is raised by a process that is draining."""

    reason = "SHUTTING_DOWN"


class LeadershipLostError(PenstockError):
    """Is raised when an autoscaler writes what only the leader may."""

    reason = "LEADERSHIP_LOST"

    def __init__(self, pool: str, fence: int) -> None:
        self.pool = pool
        self.fence = fence
        super().__init__(f"pool {pool!r} is led by another autoscaler than the one of fence {fence}")


class ActuatorError(PenstockError):
    """Is raised when the number of replicas can't be read or set."""

    reason = "ACTUATOR"

    def __init__(self, pool: str, detail: str) -> None:
        self.pool = pool
        self.detail = detail
        super().__init__(f"replicas of pool {pool!r}: {detail}")


class JobLeaseLostError(PenstockError):
    """Is raised to a feeder whose job has another feeder, has ended, or is gone."""

    reason = "JOB_LEASE_LOST"

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id} is not fed from here any more")


class GenerationFailedError(PenstockError):
    """Is raised when an engine failed under a request that could not go on elsewhere."""

    reason = "GENERATION_FAILED"

    def __init__(
        self, request_id: str, delivered_tokens: int, attempts: int = 1, prompt_tokens: int = 0, detail: str = ""
    ) -> None:
        """`delivered_tokens` and `prompt_tokens` are the usage up to there; `attempts` were lost. `detail` says why it
        could not go on; empty where that is not known.
        """
        self.request_id = request_id
        self.delivered_tokens = delivered_tokens
        self.attempts = attempts
        self.prompt_tokens = prompt_tokens
        self.detail = detail
        super().__init__(
            f"the engine failed after {counted(delivered_tokens, 'token')} of request {request_id}; "
            f"attempts lost: {attempts}" + (f"; {detail}" if detail else "")
        )


# --- the stream between a router and a replica ------------------------------------------------------------------------


class LinkError(PenstockError):
    """Is the root of failures of the inner stream."""

    reason = "LINK"


class LinkRefusedError(LinkError):
    """Is raised when the peer does not know the cluster secret or speaks no common version."""

    reason = "LINK_REFUSED"


class LinkLostError(LinkError):
    """Is raised when the peer is gone or silent."""

    reason = "LINK_LOST"


class GeneratorError(PenstockError):
    """Is raised when the load generator cannot reach the cluster, does not answer, or died."""

    reason = "GENERATOR"


# --- the engine process -----------------------------------------------------------------------------------------------


class EngineError(PenstockError):
    """Is the root of engine failures."""

    reason = "ENGINE"


class EngineStartError(EngineError):
    """Is raised when the engine does not come up or fails its self-test."""

    reason = "ENGINE_START"


class EngineDeadError(EngineError):
    """Is raised when the engine process died; only a new replica helps."""

    reason = "ENGINE_DEAD"


class EngineRequestError(EngineError):
    """Is raised when the engine refuses one request."""

    reason = "ENGINE_REQUEST"


# --- found before anything serves -------------------------------------------------------------------------------------


class SetupError(PenstockError):
    """Is the root of errors in settings and environment."""

    reason = "SETUP"


class SettingsError(SetupError):
    """Is raised when a setting is unknown, missing or out of range."""

    reason = "SETTINGS"


class BootstrapError(SetupError):
    """Is raised when a component of a local cluster did not start, or has ended."""

    reason = "BOOTSTRAP"

    def __init__(self, component: str, detail: str, *, ended: bool = False) -> None:
        """`ended`: it had been started."""
        self.component = component
        self.detail = detail
        super().__init__(f"{component} {'ended' if ended else 'did not start'}: {detail}")


class TraceError(SetupError):
    """Is raised for a trace file that is of no known format or has a wrong value."""

    reason = "TRACE"

    def __init__(self, file: str, line: int, field: str, problem: str) -> None:
        """`line`: 1 is the first, 0 is the file as a whole. `field`: empty where no single one is wrong."""
        self.file = file
        self.line = line
        self.field = field
        self.problem = problem
        where = ": ".join(part for part in (file, f"line {line}" if line else "", field) if part)
        super().__init__(f"{where}: {problem}")


def plain_reason(error: Exception) -> str:
    """Say why a file could not be read, for a message that names it: Python's own has a number and the name again."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1.0 else f"{value:.2g} s"
