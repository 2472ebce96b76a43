"""Errors of requests that their client can correct or repeat."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from cluster.errors.root import PenstockError
from cluster.plural import counted
from penstock.models import FieldViolation


class RequestError(PenstockError):
    """A request that is wrong or cannot be served as asked."""

    reason = "BAD_REQUEST"
    remedy = "Correct the request."


class InvalidRequestError(RequestError):
    """Fields that are missing, out of range, or ask for a feature that the pool's engines do not have."""

    reason = "INVALID_REQUEST"
    remedy = "Correct the fields that the error names; it has each one's limit and value."

    def __init__(self, violations: Sequence[FieldViolation]) -> None:
        self.violations = tuple(violations)
        super().__init__(
            "; ".join(f"{v.field}: {v.description}" if v.field else v.description for v in self.violations)
        )

    @classmethod
    def of(cls, field: str, description: str) -> InvalidRequestError:
        return cls([FieldViolation(field, description)])


class UnauthenticatedError(RequestError):
    """A call without credentials, or with some that are not valid now. Never contains the credentials."""

    reason = "UNAUTHENTICATED"
    remedy = (
        "Send `authorization: Bearer <key or token>` with a key or token that is valid now, or a client certificate "
        "that the router knows."
    )

    def __init__(self, detail: str) -> None:
        self.detail = detail
        super().__init__(detail)


class TooManyAttemptsError(RequestError):
    """A key or token from an address that sent too many wrong ones lately. It was not looked at."""

    reason = "TOO_MANY_ATTEMPTS"
    remedy = (
        "Try again after the time in the error's `RetryInfo`, with a right key. Operators: `auth.failures_per_minute` "
        "sets the limit."
    )

    def __init__(self, limit: int, retry_after_s: float) -> None:
        self.limit = limit
        self.retry_after_s = retry_after_s
        super().__init__(
            f"too many wrong keys or tokens came from this address: at most {limit} a minute are looked at"
        )


class PermissionDeniedError(RequestError):
    """A request of a known caller for something that it may not use."""

    reason = "PERMISSION_DENIED"
    remedy = "Use what the error lists as allowed, or ask your operator for a key that may do this."

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
    remedy = "Use a name that the error lists. `ListModels` lists them too."

    def __init__(self, model: str, known: Sequence[str], *, removed: bool = False) -> None:
        """`removed`: whether it is being removed, and only serves what it has."""
        self.model = model
        self.known = tuple(known)
        why = "is being removed and takes no new requests" if removed else "is not served here"
        super().__init__(f"model {model!r} {why}; known models: {', '.join(known) or 'none'}")


class RequestNotFoundError(RequestError):
    """An id or key that no live request of this tenant has, or an id without a record of an ended one."""

    reason = "REQUEST_NOT_FOUND"
    remedy = "Check the id or key. If the request has ended, send it anew. A pool keeps records of its newest requests."

    def __init__(self, target: str, *, ended: bool = False) -> None:
        """`ended`: whether the record of an ended request was asked for."""
        self.target = target
        super().__init__(f"no record of an ended request {target!r}" if ended else f"no live request {target!r}")


class JobNotFoundError(RequestError):
    """An id that no job of this tenant has."""

    reason = "JOB_NOT_FOUND"
    remedy = "Check the id. `ListJobs` lists your jobs; a job is deleted `jobs.ttl_s` after its end."

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"no job {job_id!r}")


class FileUnknownError(RequestError):
    """An id that no file of this tenant has."""

    reason = "FILE_NOT_FOUND"
    remedy = "Check the id. Files expire, and those of a batch's results go with the batch."

    def __init__(self, file_id: str, field: str = "") -> None:
        self.file_id = file_id
        self.field = field
        """Field of the request that has the id; empty where the path has it."""
        super().__init__(f"{field}: no file {file_id!r}" if field else f"no file {file_id!r}")


class FileTooLargeError(RequestError):
    """An upload of a file that is larger than the limit."""

    reason = "FILE_TOO_LARGE"
    remedy = "Split the file, or raise `router.http.max_file_mb`."

    def __init__(self, limit_mb: int) -> None:
        self.limit_mb = limit_mb
        super().__init__(f"file: must have at most {limit_mb:,} MiB (router.http.max_file_mb)")


class BatchUnknownError(RequestError):
    """An id that no batch of this tenant has."""

    reason = "BATCH_NOT_FOUND"
    remedy = "Check the id. A batch is deleted `jobs.ttl_s` after its end."

    def __init__(self, batch_id: str) -> None:
        self.batch_id = batch_id
        super().__init__(f"no batch {batch_id!r}")


class JobExistsError(RequestError):
    """A job submitted under a key that belongs to a job with other content."""

    reason = "JOB_KEY_REUSED"
    remedy = "Use another key for other content, or read the job that the error names."

    def __init__(self, key: str, job_id: str) -> None:
        self.key = key
        self.job_id = job_id
        super().__init__(f"idempotency_key {key!r} belongs to job {job_id}, whose content is not the same")


class JobResultsLostError(RequestError):
    """Results of a job that the store lost, by an eviction or a deletion."""

    reason = "JOB_RESULTS_LOST"
    remedy = "Submit the job again. Redis should have `maxmemory-policy noeviction`."

    def __init__(self, job_id: str, results: int, left: int) -> None:
        self.job_id = job_id
        self.results = results
        self.left = left
        super().__init__(f"Redis lost results of job {job_id}: {left:,} of {results:,} are left; submit it again")


class JobLimitError(RequestError):
    """A submission that would exceed a bound on stored jobs, items or bytes."""

    reason = "JOB_LIMIT"
    remedy = "Delete jobs that have ended and files, or submit less at once."

    def __init__(self, what: str, limit: int) -> None:
        self.what = what
        self.limit = limit
        super().__init__(f"the job would exceed {what} = {limit:,} of what is stored; delete jobs that have ended")


class ResponseNotFoundError(RequestError):
    """An id that no stored response of this tenant has."""

    reason = "RESPONSE_NOT_FOUND"
    remedy = (
        "Check the id. A response is kept if `store` is not false, for `router.http.responses_ttl_s`, unless its "
        "tenant stores so many newer ones that it must go."
    )

    def __init__(self, response_id: str) -> None:
        self.response_id = response_id
        super().__init__(f"no response {response_id[:80]!r}")


class ResponseLimitError(RequestError):
    """Refusal of a response because those of its tenant that run take all that it may store."""

    reason = "RESPONSE_LIMIT"
    remedy = "Wait until some have ended, or send `store: false`."

    def __init__(self, responses: int, stored_bytes: int) -> None:
        self.responses = responses
        self.stored_bytes = stored_bytes
        super().__init__(
            f"responses that run take all that may be stored: {responses:,} responses, {stored_bytes:,} bytes"
        )


class QueueFullError(RequestError):
    """Refusal of a request because the pool's queue, or the tenant's part of it, is full."""

    reason = "QUEUE_FULL"
    remedy = "Wait for the time in the error's `RetryInfo`, then try again."

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
    remedy = (
        "Wait for the time in the error's `RetryInfo`. Without one, this request alone exceeds the quota: ask for "
        "less. A budget renews with the next day or month in UTC; before that, an operator can raise it."
    )

    def __init__(
        self,
        pool: str,
        tenant: str,
        quota: str,
        limit: float,
        retry_after_s: float | None,
        asked: int = 0,
        *,
        used: float | None = None,
    ) -> None:
        """`quota` names the setting. `retry_after_s` is None for a request that the quota can never allow; `asked` is
        then the amount that the request needs. `used`: of a budget, which renews after `retry_after_s`.
        """
        self.used = used
        self.pool = pool
        self.asked = asked
        self.tenant = tenant
        self.quota = quota
        self.limit = limit
        self.retry_after_s = retry_after_s
        name = quota.replace("_", " ")
        if used is not None:
            renews = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=retry_after_s or 0.0, minutes=0.5)
            text = f"tenant {tenant!r} has used {used:.6g} of its {limit:g} {name} of {pool!r}"
            super().__init__(f"{text}; the budget renews at {renews:%Y-%m-%d %H:%M} UTC")
            return
        when = f"this one alone asks for {asked}" if retry_after_s is None else f"retry in {retry_after_s:.1f} s"
        most = f"have {limit} requests at once in" if quota == "concurrency" else f"use {limit} {name} of"
        super().__init__(f"tenant {tenant!r} may {most} {pool!r}; {when}")


class NotInTimeError(RequestError):
    """A request that would not start, or not end, in the time that its client gives it."""

    reason = "NOT_IN_TIME"
    remedy = (
        "Wait for the time in the error's `RetryInfo`. Without one, allow more time: the request would be too late "
        "whenever it starts."
    )

    def __init__(self, bound: str, wait_s: float, bound_s: float, retry_after_s: float | None) -> None:
        """`bound`: "queue_timeout" or "deadline"; "ttft_p99_s" in a pool that sheds load because it can't have more
        replicas. `retry_after_s`: None where a later start would not help.
        """
        self.bound = bound
        self.wait_s = wait_s
        self.bound_s = bound_s
        self.retry_after_s = retry_after_s
        when = "it would be too late whenever it starts" if retry_after_s is None else f"retry in {retry_after_s:.1f} s"
        less, more = _apart(max(0.0, bound_s), wait_s)
        super().__init__(f"{bound}: {less} is less than the estimated {more}; {when}")


class KeyReusedError(RequestError):
    """An idempotency key that was first used with another request."""

    reason = "IDEMPOTENCY_KEY_REUSED"
    remedy = "Use a new key for a different request."

    def __init__(self, key: str, request_id: str) -> None:
        self.key = key
        self.request_id = request_id
        super().__init__(f"the idempotency key {key!r} belongs to another request, {request_id}; use a new one")


class TakenOverError(RequestError):
    """A call whose request another call of the same client took over."""

    reason = "TAKEN_OVER"
    remedy = "Read the call that took over. If it is not yours, look for a second client with the same key or token."

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        super().__init__(f"another call with the same idempotency key or resume token took over {request_id}")


class SlowReaderError(RequestError):
    """A call whose client reads so slowly that its output would fill the router's memory."""

    reason = "SLOW_READER"
    remedy = "Read the stream faster, or set `flush_interval` for fewer events."

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
    remedy = "Do not repeat the request: this content has killed engines. Tell your operator the incident id."

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
    remedy = "Allow a longer `queue_timeout`, or try again when the cluster has less to do."

    def __init__(self, waited_s: float, limit_s: float | None = None) -> None:
        """`limit_s`: None where another call of the request set the limit."""
        self.waited_s = waited_s
        self.limit_s = limit_s
        within = "in time" if limit_s is None else f"within {_seconds(limit_s)}"
        super().__init__(f"queue_timeout: the request waited {_seconds(waited_s)} and could not start {within}")


class DeadlineError(RequestError):
    """A call whose deadline passed before the end of the output."""

    reason = "DEADLINE"
    remedy = "Set a later deadline, or ask for fewer tokens."

    def __init__(self) -> None:
        super().__init__("the deadline passed before the output was complete")


class CancelledError(RequestError):
    """A request that was cancelled by its client or an operator."""

    reason = "CANCELLED"
    remedy = "Nothing. The client or an operator ended the request."

    def __init__(self) -> None:
        super().__init__("the request was cancelled")


def _seconds(value: float) -> str:
    # From 0.995 on, two digits of a smaller number would be those of 1.
    return f"{value:.1f} s" if value >= 0.995 else f"{value:.2g} s"


def _apart(less: float, more: float) -> tuple[str, str]:
    """Write two times with as many digits as tell them apart."""
    if less >= more or _seconds(less) != _seconds(more):
        return _seconds(less), _seconds(more)
    digits = next((each for each in range(3, 17) if f"{less:.{each}g}" != f"{more:.{each}g}"), 17)
    return f"{less:.{digits}g} s", f"{more:.{digits}g} s"
