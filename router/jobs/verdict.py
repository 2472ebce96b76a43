"""Verdict on an item's failed execution: it runs again, or the error is its result. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]  # no py.typed marker

from cluster.errors import ModelChangedError
from penstock.wire import duration_from_wire

MAX_WAIT_S = 60.0
"""Longest wait before an item's next try, even if it was told to wait longer: a quota may be raised meanwhile."""
FAILURE_WAIT_S = 0.5
"""Wait after a failure inside the cluster, so that a replica can be replaced."""


@dataclass(frozen=True, slots=True)
class Again:
    """Verdict that the item should run again."""

    after_s: float
    counted: bool
    """Whether the failure counts against the bound on attempts. A refusal for now never does."""


@dataclass(frozen=True, slots=True)
class Final:
    """Verdict that the error is the item's result."""


def judge(status: status_pb2.Status, *, names_ids: bool = False) -> Again | Final:
    """Judge the status that a call of Generate would have ended with. `names_ids`: the item has token ids, which mean
    another text to another model.
    """
    wait = _retry_delay(status.details)
    if names_ids and _reason(status.details) == ModelChangedError.reason:
        return Final()
    match status.code:
        case code_pb2.UNAVAILABLE:
            return Again(min(MAX_WAIT_S, 1.0 if wait is None else wait), counted=False)
        case code_pb2.RESOURCE_EXHAUSTED if wait is not None:
            return Again(min(MAX_WAIT_S, wait), counted=False)
        case code_pb2.ABORTED | code_pb2.INTERNAL | code_pb2.UNKNOWN:
            return Again(FAILURE_WAIT_S, counted=True)
        case _:
            # Wrong input, a cancel by its tenant, or a size that no bound allows: another try does not change that.
            return Final()


def _reason(details: list[AnyMessage]) -> str:
    info = error_details_pb2.ErrorInfo()
    return next((info.reason for detail in details if detail.Unpack(info)), "")


def _retry_delay(details: list[AnyMessage]) -> float | None:
    retry = error_details_pb2.RetryInfo()
    return next((duration_from_wire(retry.retry_delay) for detail in details if detail.Unpack(retry)), None)
