"""The Python client: plain values in and out, for asyncio and for threads. Needs the base install only.

from router.client import Client, Sampling

with Client("127.0.0.1:50051") as client:
print(client.generate("demo", "What is a KV cache?", Sampling(max_tokens=64)).text)
"""

from cluster.control.decision import Counterfactual, Relief, Step
from cluster.control.slo import ClassSlo, OperatingPoint
from cluster.errors import FieldViolation
from cluster.models import (
    Capabilities,
    FinishReason,
    PositionLogprobs,
    ReplicaState,
    RequestClass,
    StructuredOutput,
    TokenLogprob,
)
from router.client.aio import AsyncClient
from router.client.aio_stream import AsyncStream
from router.client.batch_fields import BatchFileError
from router.client.batch_input import Batch, BatchLine, read_batch, read_line
from router.client.batch_output import result_line, result_object
from router.client.connection import CHANNEL_OPTIONS, DEFAULT_TARGET, Tls
from router.client.credentials import ApiKey
from router.client.decisions import ClassDemand, Decision, DecisionList
from router.client.errors import (
    AlreadyExistsError,
    CancelledError,
    DeadlineExceededError,
    ErrorDetails,
    GenerationFailedError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PenstockClientError,
    PermissionDeniedError,
    QueueFullError,
    QuotaExceededError,
    TakenOverError,
    UnauthenticatedError,
    UnavailableError,
)
from router.client.events import ChoiceEnd, Delta, Event, Finished, Queued, Resumed, Started
from router.client.jobs import Job, JobItem, JobItemError, JobPage, JobResult, JobState, JobTotals, JobUpdate
from router.client.requests import (
    GenerateOptions,
    Message,
    Prompt,
    ResumePoint,
    Sampling,
    grammar,
    json_schema,
    one_of,
    regex,
)
from router.client.results import (
    AttemptReceipt,
    Choice,
    ClusterStatus,
    Completion,
    ModelDescription,
    PoolStatus,
    Receipt,
    ReplicaStatus,
    TokenCount,
    Usage,
    UsageLine,
    UsageReport,
)
from router.client.retry import RetryPolicy
from router.client.sync import Client, Stream

__all__ = [
    "CHANNEL_OPTIONS",
    "DEFAULT_TARGET",
    "AlreadyExistsError",
    "ApiKey",
    "AsyncClient",
    "AsyncStream",
    "AttemptReceipt",
    "Batch",
    "BatchFileError",
    "BatchLine",
    "CancelledError",
    "Capabilities",
    "Choice",
    "ChoiceEnd",
    "ClassDemand",
    "ClassSlo",
    "Client",
    "ClusterStatus",
    "Completion",
    "Counterfactual",
    "DeadlineExceededError",
    "Decision",
    "DecisionList",
    "Delta",
    "ErrorDetails",
    "Event",
    "FieldViolation",
    "FinishReason",
    "Finished",
    "GenerateOptions",
    "GenerationFailedError",
    "InternalError",
    "InvalidArgumentError",
    "Job",
    "JobItem",
    "JobItemError",
    "JobPage",
    "JobResult",
    "JobState",
    "JobTotals",
    "JobUpdate",
    "Message",
    "ModelDescription",
    "NotFoundError",
    "OperatingPoint",
    "PenstockClientError",
    "PermissionDeniedError",
    "PoolStatus",
    "PositionLogprobs",
    "Prompt",
    "QueueFullError",
    "Queued",
    "QuotaExceededError",
    "Receipt",
    "Relief",
    "ReplicaState",
    "ReplicaStatus",
    "RequestClass",
    "ResumePoint",
    "Resumed",
    "RetryPolicy",
    "Sampling",
    "Started",
    "Step",
    "Stream",
    "StructuredOutput",
    "TakenOverError",
    "Tls",
    "TokenCount",
    "TokenLogprob",
    "UnauthenticatedError",
    "UnavailableError",
    "Usage",
    "UsageLine",
    "UsageReport",
    "grammar",
    "json_schema",
    "one_of",
    "read_batch",
    "read_line",
    "regex",
    "result_line",
    "result_object",
]
