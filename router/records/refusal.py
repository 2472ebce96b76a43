"""Requests that are refused before they are in line. They have no record, only a span where traces are on."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.errors import GenerationFailedError, NotInTimeError, PenstockError, QueueFullError, UnavailableError
from cluster.telemetry.tracing.context import RequestTrace
from cluster.telemetry.tracing.span import Span, SpanKind

_OF_THE_CLUSTER = (UnavailableError, QueueFullError, NotInTimeError, GenerationFailedError)
"""Refusals that a larger or healthier cluster would not need."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that was refused."""

    model: str
    tenant: str
    arrived_at: float
    """Monotonic seconds."""
    error: PenstockError
    operation: str
    """Name of what it asked for, as `genai` has them."""

    @property
    def of_the_cluster(self) -> bool:
        """Whether the cluster is the reason, and not the request or its quota."""
        return isinstance(self.error, _OF_THE_CLUSTER)


def span_of_refusal(refused: Refused, trace: RequestTrace, start_ns: int, end_ns: int) -> Span:
    """Return the one span of a request that was refused."""
    return Span(
        name=f"{refused.operation} {refused.model}",
        trace_id=trace.own.trace_id,
        span_id=trace.own.span_id,
        parent_id="" if trace.parent is None else trace.parent.span_id,
        start_ns=start_ns,
        end_ns=end_ns,
        kind=SpanKind.SERVER,
        attributes={
            "gen_ai.operation.name": refused.operation,
            "gen_ai.provider.name": "penstock",
            "gen_ai.request.model": refused.model,
            "penstock.tenant": refused.tenant,
            "error.type": refused.error.reason,
        },
        error=str(refused.error),
        state=trace.own.state,
    )
