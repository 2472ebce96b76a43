"""Every error that Penstock raises on purpose.

PenstockError
├── RequestError                    the client can fix or repeat the request
│   ├── UnauthenticatedError        the caller gave no credentials, or none that are valid
│   ├── KeyRevokedError             the key was revoked while the call ran, with what it had begun
│   ├── TooManyAttemptsError        the address sent too many wrong keys; carries when to retry
│   ├── PermissionDeniedError       the caller may not do this
│   ├── InvalidRequestError         fields are wrong; carries one violation per field
│   ├── ModelNotFoundError          no pool has this name
│   ├── RequestNotFoundError        no request has this id or key, or it is another tenant's
│   ├── JobNotFoundError            no job has this id, or it is another tenant's
│   ├── FileUnknownError            no file has this id, or it is another tenant's
│   ├── FileTooLargeError           the file of an upload is larger than the limit
│   ├── BatchUnknownError           no batch has this id, or it is another tenant's
│   ├── JobResultsLostError         Redis lost results of the job
│   ├── JobExistsError              the tenant's key belongs to a job with other content
│   ├── JobLimitError               a bound on stored jobs is reached; names it
│   ├── AdapterInUseError           requests use the adapter that is to be deleted
│   ├── RegistryConflictError       somebody else changed the entry meanwhile
│   ├── RolloutStateError           the state of the pool's roll-out does not allow the order
│   ├── AnnouncementLimitError      a bound on announced load is reached; names it
│   ├── AnnouncementNotFoundError   no announcement has this id, or it is another tenant's
│   ├── ResponseNotFoundError       no stored response has this id, or it is another tenant's
│   ├── ResponseLimitError          the tenant's running responses take all that it may store
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
│   ├── IssuerUnavailableError      the key of a token is still to be fetched from its issuer
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
    ├── FetchGivenUpError           a download of weights made no progress for too long
    └── TraceError                  a recorded load cannot be read; carries file, line, field and value

Errors hold data, and their sentence is composed from it. `reason` is the stable word that clients and metrics see,
`remedy` what to do about it.
"""

from cluster.errors.announced import AnnouncementLimitError, AnnouncementNotFoundError
from cluster.errors.registry import AdapterInUseError, KeyRevokedError, RegistryConflictError
from cluster.errors.requests import (
    BatchUnknownError,
    CancelledError,
    DeadlineError,
    FileTooLargeError,
    FileUnknownError,
    InvalidRequestError,
    JobExistsError,
    JobLimitError,
    JobNotFoundError,
    JobResultsLostError,
    KeyReusedError,
    ModelNotFoundError,
    NotInTimeError,
    PermissionDeniedError,
    QuarantinedError,
    QueueFullError,
    QueueTimeoutError,
    QuotaExceededError,
    RequestError,
    RequestNotFoundError,
    ResponseLimitError,
    ResponseNotFoundError,
    SlowReaderError,
    TakenOverError,
    TooManyAttemptsError,
    UnauthenticatedError,
)
from cluster.errors.rollout import RolloutStateError
from cluster.errors.root import PenstockError
from cluster.errors.serving import (
    ActuatorError,
    EngineDeadError,
    EngineError,
    EngineRequestError,
    EngineStartError,
    GenerationFailedError,
    GeneratorError,
    IssuerUnavailableError,
    JobLeaseLostError,
    LeadershipLostError,
    LinkError,
    LinkLostError,
    LinkRefusedError,
    ModelChangedError,
    NoReplicaError,
    QueueUnavailableError,
    ShuttingDownError,
    UnavailableError,
)
from cluster.errors.setup import (
    BootstrapError,
    FetchGivenUpError,
    SettingsError,
    SetupError,
    TraceError,
    plain_reason,
)

__all__ = [
    "ActuatorError",
    "AdapterInUseError",
    "AnnouncementLimitError",
    "AnnouncementNotFoundError",
    "BatchUnknownError",
    "BootstrapError",
    "CancelledError",
    "DeadlineError",
    "EngineDeadError",
    "EngineError",
    "EngineRequestError",
    "EngineStartError",
    "FetchGivenUpError",
    "FileTooLargeError",
    "FileUnknownError",
    "GenerationFailedError",
    "GeneratorError",
    "InvalidRequestError",
    "IssuerUnavailableError",
    "JobExistsError",
    "JobLeaseLostError",
    "JobLimitError",
    "JobNotFoundError",
    "JobResultsLostError",
    "KeyReusedError",
    "KeyRevokedError",
    "LeadershipLostError",
    "LinkError",
    "LinkLostError",
    "LinkRefusedError",
    "ModelChangedError",
    "ModelNotFoundError",
    "NoReplicaError",
    "NotInTimeError",
    "PenstockError",
    "PermissionDeniedError",
    "QuarantinedError",
    "QueueFullError",
    "QueueTimeoutError",
    "QueueUnavailableError",
    "QuotaExceededError",
    "RegistryConflictError",
    "RequestError",
    "RequestNotFoundError",
    "ResponseLimitError",
    "ResponseNotFoundError",
    "RolloutStateError",
    "SettingsError",
    "SetupError",
    "ShuttingDownError",
    "SlowReaderError",
    "TakenOverError",
    "TooManyAttemptsError",
    "TraceError",
    "UnauthenticatedError",
    "UnavailableError",
    "plain_reason",
]
