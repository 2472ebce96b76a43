"""Every error that Penstock raises on purpose.

PenstockError
├── RequestError                    the client can fix or repeat the request
│   ├── UnauthenticatedError        the caller gave no credentials, or none that are valid
│   ├── PermissionDeniedError       the caller may not do this
│   ├── InvalidRequestError         fields are wrong; carries one violation per field
│   ├── ModelNotFoundError          no pool has this name
│   ├── RequestNotFoundError        no request has this id or key, or it is another tenant's
│   ├── JobNotFoundError            no job has this id, or it is another tenant's
│   ├── JobExistsError              the tenant's key belongs to a job with other content
│   ├── JobLimitError               a bound on stored jobs is reached; names it
│   ├── QueueFullError              the queue, or the tenant's part of it, is full; carries when to retry
│   ├── QuotaExceededError          the tenant's quota does not allow it; carries when to retry
│   ├── NotInTimeError              the request would not start or end in time; carries when to retry
│   ├── KeyReusedError              the idempotency key belongs to a different request
│   ├── QuarantinedError            engines died under this request
│   ├── TakenOverError              another call of the client took the stream over
│   ├── SlowReaderError             the client leaves too much of its output unread
│   ├── QueueTimeoutError           the request waited longer than it may
│   ├── DeadlineError               the call's deadline passed
│   └── CancelledError              the request was cancelled by its client or an operator
├── UnavailableError                a later retry may succeed; carries when to retry
│   ├── QueueUnavailableError       Redis does not answer
│   ├── ModelChangedError           the pool's model changed while the request waited; send it anew
│   ├── NoReplicaError              the pool never had a replica, or this router reaches none of them
│   └── ShuttingDownError           this process is draining
├── LeadershipLostError             another autoscaler leads the pool
├── ActuatorError                   the platform that runs the replicas did not accept a number
├── JobLeaseLostError               another router feeds the job, or it has ended
├── GenerationFailedError           an engine failed and the request could not continue
├── LinkError                       the stream between a router and a replica
│   ├── LinkRefusedError            wrong secret or protocol version
│   └── LinkLostError               the peer is gone or silent
├── GeneratorError                  the load generator cannot run, or died
├── EngineError                     the engine process
│   ├── EngineStartError            the engine did not come up, or failed its self-test
│   ├── EngineDeadError             the engine died; the replica must be replaced
│   └── EngineRequestError          the engine refuses one request
└── SetupError                      settings or environment, found before anything serves
    ├── SettingsError               a setting is unknown, missing or out of range
    ├── BootstrapError              a component of a local cluster did not start, or has ended
    └── TraceError                  a recorded load cannot be read; carries file, line, field and value

Errors hold data, and their sentence is composed from it. `reason` is the stable word that clients and metrics see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from cluster.plural import counted
from penstock.models import FieldViolation


class PenstockError(Exception):
    """Root of all errors raised on purpose."""

    reason: ClassVar[str] = "INTERNAL"


# --- errors that the client can fix or retry --------------------------------------------------------------------------


class RequestError(PenstockError):
    """A request that is wrong or cannot be served as asked."""

    reason = "BAD_REQUEST"


class InvalidRequestError(RequestError):
    """Fields that are missing, out of range, or ask for a feature that the pool's engines do not have."""

    reason = "INVALID_REQUEST"

    def __init__(self, violations: Sequence[FieldViolation]) -> None:
        self.violations = tuple(violations)
        super().__init__("; ".join(f"{v.field}: {v.description}" for v in self.violations))

    @classmethod
    def of(cls, field: str, description: str) -> InvalidRequestError:
        return cls([FieldViolation(field, description)])


class UnauthenticatedError(RequestError):
    """A call without credentials, or with some that are not valid now. Never contains the credentials."""

    reason = "UNAUTHENTICATED"

    def __init__(self, detail: str) -> None:
        self.detail = detail
        super().__init__(detail)


class PermissionDeniedError(RequestError):
    """A request of a known caller for something that it may not use."""

    reason = "PERMISSION_DENIED"

    def __init__(self, tenant: str, subject: str, value: str, allowed: Sequence[str]) -> None:
        """`subject` is the kind of restriction ("model", "class", "method"), `value` the requested one."""
        self.tenant = tenant
        self.subject = subject
        self.value = value
        self.allowed = tuple(allowed)
        super().__init__(
            f"{subject} {value!r} is not allowed for this caller (tenant {tenant!r}); "
            f"allowed: {', '.join(allowed) or 'none'}"
        )


class ModelNotFoundError(RequestError):
    """A model name that no pool has."""

    reason = "MODEL_NOT_FOUND"

    def __init__(self, model: str, known: Sequence[str]) -> None:
        self.model = model
        self.known = tuple(known)
        super().__init__(f"model {model!r} is not served here; known models: {', '.join(known) or 'none'}")


class RequestNotFoundError(RequestError):
    """An id or key that no live request of this tenant has."""

    reason = "REQUEST_NOT_FOUND"

    def __init__(self, target: str) -> None:
        self.target = target
        super().__init__(f"no live request {target!r}")


class JobNotFoundError(RequestError):
    """An id that no job of this tenant has."""

    reason = "JOB_NOT_FOUND"

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"no job {job_id!r}")


class JobExistsError(RequestError):
    """A job submitted under a key that belongs to a job with other content."""

    reason = "JOB_KEY_REUSED"

    def __init__(self, key: str, job_id: str) -> None:
        self.key = key
        self.job_id = job_id
        super().__init__(f"idempotency_key {key!r} belongs to job {job_id}, whose content is not the same")


class JobLimitError(RequestError):
    """A submission that would exceed a bound on stored jobs, items or bytes."""

    reason = "JOB_LIMIT"

    def __init__(self, what: str, limit: int) -> None:
        self.what = what
        self.limit = limit
        super().__init__(f"the job would exceed {what} = {limit:,} of what is stored; delete jobs that have ended")


class QueueFullError(RequestError):
    """Refusal of a request because the pool's queue, or the tenant's part of it, is full."""

    reason = "QUEUE_FULL"

    def __init__(self, pool: str, limit: int, retry_after_s: float, tenant: str = "") -> None:
        """`tenant` is set where only this tenant's part of the queue is full."""
        self.pool = pool
        self.limit = limit
        self.retry_after_s = retry_after_s
        self.tenant = tenant
        whose = f" of tenant {tenant!r}" if tenant else ""
        waiting = counted(limit, f"request{whose} already waits", f"requests{whose} already wait")
        super().__init__(f"{waiting} for {pool!r}; retry in {retry_after_s:.1f} s")


class QuotaExceededError(RequestError):
    """A request that the tenant's quota does not allow."""

    reason = "QUOTA_EXCEEDED"

    def __init__(
        self, pool: str, tenant: str, quota: str, limit: int, retry_after_s: float | None, asked: int = 0
    ) -> None:
        """`quota` names the setting. `retry_after_s` is None for a request that the quota can never allow; `asked` is
        then the amount that the request needs.
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
    """A request that would not start, or not end, in the time that its client gives it."""

    reason = "NOT_IN_TIME"

    def __init__(self, bound: str, wait_s: float, bound_s: float, retry_after_s: float | None) -> None:
        """`bound`: "queue_timeout" or "deadline"; "ttft_p99_s" in a pool that sheds load because it can't have more
        replicas. `retry_after_s`: None where a later start would not help.
        """
        self.bound = bound
        self.wait_s = wait_s
        self.bound_s = bound_s
        self.retry_after_s = retry_after_s
        when = "whenever it starts" if retry_after_s is None else f"retry in {retry_after_s:.1f} s"
        super().__init__(f"{bound}: {_seconds(bound_s)} is less than the estimated {_seconds(wait_s)}; {when}")


class KeyReusedError(RequestError):
    """An idempotency key that was first used with another request."""

    reason = "IDEMPOTENCY_KEY_REUSED"

    def __init__(self, key: str, request_id: str) -> None:
        self.key = key
        self.request_id = request_id
        super().__init__(f"idempotency_key {key!r} belongs to another request, {request_id}")


class TakenOverError(RequestError):
    """A call whose request another call of the same client took over."""

    reason = "TAKEN_OVER"

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        super().__init__(f"another call with the same idempotency key or resume token took over {request_id}")


class SlowReaderError(RequestError):
    """A call whose client reads so slowly that its output would fill the router's memory."""

    reason = "SLOW_READER"

    def __init__(self, unread_bytes: int, limit_bytes: int) -> None:
        """Both numbers of bytes are estimates; `limit_bytes` is the exceeded bound, of one stream or of all."""
        self.unread_bytes = unread_bytes
        self.limit_bytes = limit_bytes
        super().__init__(
            f"the client left {unread_bytes >> 10} KiB of its output unread; at most {limit_bytes >> 10} KiB are kept"
        )


class QuarantinedError(RequestError):
    """A request that killed engines, or a repeat of it while it is refused."""

    reason = "QUARANTINED"

    def __init__(self, incident: str, retry_after_s: float) -> None:
        """`incident` is the id of the finding in the router's log."""
        self.incident = incident
        self.retry_after_s = retry_after_s
        super().__init__(
            f"engines died under this request, so it is turned away for {retry_after_s:.0f} s; incident {incident}"
        )


class QueueTimeoutError(RequestError):
    """A request that could not start within its queue_timeout."""

    reason = "QUEUE_TIMEOUT"

    def __init__(self, waited_s: float, limit_s: float | None = None) -> None:
        """`limit_s`: None where another call of the request set the limit."""
        self.waited_s = waited_s
        self.limit_s = limit_s
        within = "in time" if limit_s is None else f"within {_seconds(limit_s)}"
        super().__init__(f"queue_timeout: the request waited {_seconds(waited_s)} and could not start {within}")


class DeadlineError(RequestError):
    """A call whose deadline passed before the end of the output."""

    reason = "DEADLINE"

    def __init__(self) -> None:
        super().__init__("the deadline passed before the output was complete")


class CancelledError(RequestError):
    """A request that was cancelled by its client or an operator."""

    reason = "CANCELLED"

    def __init__(self) -> None:
        super().__init__("the request was cancelled")


# --- errors that may go away ------------------------------------------------------------------------------------------


class UnavailableError(PenstockError):
    """A request that the cluster cannot take now but may take soon."""

    reason = "UNAVAILABLE"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class QueueUnavailableError(UnavailableError):
    """Failure of Redis to answer."""

    reason = "QUEUE_UNAVAILABLE"


class ModelChangedError(UnavailableError):
    """A request that waited while its pool got a model with another tokenizer, in which its ids mean another text.
    Nothing was delivered.
    """

    reason = "MODEL_CHANGED"

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        super().__init__(f"the pool's model changed while {request_id} waited; send it again for the new one")


class NoReplicaError(UnavailableError):
    """A pool of which no replica has ever reported, so that the prompt cannot be tokenized; or a router that reaches
    none of the replicas that take work.
    """

    reason = "NO_REPLICA"


class ShuttingDownError(UnavailableError):
    """A process that is draining."""

    reason = "SHUTTING_DOWN"


class LeadershipLostError(PenstockError):
    """A write that only the leader may do, tried by an autoscaler that no longer leads."""

    reason = "LEADERSHIP_LOST"

    def __init__(self, pool: str, fence: int) -> None:
        self.pool = pool
        self.fence = fence
        super().__init__(f"pool {pool!r} is led by another autoscaler than the one of fence {fence}")


class ActuatorError(PenstockError):
    """Failure to read or set the number of replicas."""

    reason = "ACTUATOR"

    def __init__(self, pool: str, detail: str) -> None:
        self.pool = pool
        self.detail = detail
        super().__init__(f"replicas of pool {pool!r}: {detail}")


class JobLeaseLostError(PenstockError):
    """A feeder's loss of its job, which has another feeder, has ended, or is gone."""

    reason = "JOB_LEASE_LOST"

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id} is not fed from here any more")


class GenerationFailedError(PenstockError):
    """A request whose engine failed and that could not continue elsewhere."""

    reason = "GENERATION_FAILED"

    def __init__(
        self, request_id: str, delivered_tokens: int, attempts: int = 1, prompt_tokens: int = 0, detail: str = ""
    ) -> None:
        """`delivered_tokens` and `prompt_tokens` are the usage so far; `attempts` is the number of lost attempts.
        `detail` is the reason why the request could not continue; empty where it is not known.
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
    """Root of failures of the inner stream."""

    reason = "LINK"


class LinkRefusedError(LinkError):
    """A peer that does not know the cluster secret or speaks no common version."""

    reason = "LINK_REFUSED"


class LinkLostError(LinkError):
    """A peer that is gone or silent."""

    reason = "LINK_LOST"


class GeneratorError(PenstockError):
    """A load generator that cannot reach the cluster, does not answer, or died."""

    reason = "GENERATOR"


# --- the engine process -----------------------------------------------------------------------------------------------


class EngineError(PenstockError):
    """Root of engine failures."""

    reason = "ENGINE"


class EngineStartError(EngineError):
    """An engine that does not come up or fails its self-test."""

    reason = "ENGINE_START"


class EngineDeadError(EngineError):
    """An engine process that died; only a new replica helps."""

    reason = "ENGINE_DEAD"


class EngineRequestError(EngineError):
    """A request that the engine refuses."""

    reason = "ENGINE_REQUEST"


# --- found before anything serves -------------------------------------------------------------------------------------


class SetupError(PenstockError):
    """Root of errors in settings and environment."""

    reason = "SETUP"


class SettingsError(SetupError):
    """A setting that is unknown, missing or out of range."""

    reason = "SETTINGS"


class BootstrapError(SetupError):
    """A component of a local cluster that did not start, or has ended."""

    reason = "BOOTSTRAP"

    def __init__(self, component: str, detail: str, *, ended: bool = False) -> None:
        """`ended`: whether the component had started before."""
        self.component = component
        self.detail = detail
        super().__init__(f"{component} {'ended' if ended else 'did not start'}: {detail}")


class TraceError(SetupError):
    """A trace file that has no known format or has a wrong value."""

    reason = "TRACE"

    def __init__(self, file: str, line: int, field: str, problem: str) -> None:
        """`line`: 1 is the first, 0 is the file as a whole. `field`: empty where no single field is wrong."""
        self.file = file
        self.line = line
        self.field = field
        self.problem = problem
        where = ": ".join(part for part in (file, f"line {line}" if line else "", field) if part)
        super().__init__(f"{where}: {problem}")


def plain_reason(error: Exception) -> str:
    """Return why a file could not be read, for a message that names it: Python's own text repeats the name."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1.0 else f"{value:.2g} s"
