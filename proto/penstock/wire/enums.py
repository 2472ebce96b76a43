"""Conversion of enums. An enum on the wire is open: a newer peer may send a number that this build does not know."""

from __future__ import annotations

from penstock.models import DrainReason, FinishReason, ReplicaState, RequestClass
from penstock.v1 import admin_pb2, types_pb2

_CLASS_TO_WIRE = {
    RequestClass.INTERACTIVE: types_pb2.REQUEST_CLASS_INTERACTIVE,
    RequestClass.STANDARD: types_pb2.REQUEST_CLASS_STANDARD,
    RequestClass.BATCH: types_pb2.REQUEST_CLASS_BATCH,
}
_CLASS_FROM_WIRE = {number: name for name, number in _CLASS_TO_WIRE.items()}

_FINISH_TO_WIRE = {
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: types_pb2.FINISH_REASON_CANCELLED,
    FinishReason.DEADLINE: types_pb2.FINISH_REASON_DEADLINE,
    FinishReason.ERROR: types_pb2.FINISH_REASON_ERROR,
    FinishReason.TOOL_CALLS: types_pb2.FINISH_REASON_TOOL_CALLS,
}
_FINISH_FROM_WIRE = {number: name for name, number in _FINISH_TO_WIRE.items()}

_STATE_TO_WIRE = {
    ReplicaState.STARTING: admin_pb2.REPLICA_STATE_STARTING,
    ReplicaState.READY: admin_pb2.REPLICA_STATE_READY,
    ReplicaState.DRAINING: admin_pb2.REPLICA_STATE_DRAINING,
    ReplicaState.STANDBY: admin_pb2.REPLICA_STATE_STANDBY,
}
_STATE_FROM_WIRE = {number: name for name, number in _STATE_TO_WIRE.items()}

_DRAIN_TO_WIRE = {
    DrainReason.STOPPED: admin_pb2.DRAIN_REASON_STOPPED,
    DrainReason.ENGINE_LOST: admin_pb2.DRAIN_REASON_ENGINE_LOST,
    DrainReason.SUPERSEDED: admin_pb2.DRAIN_REASON_SUPERSEDED,
}
_DRAIN_FROM_WIRE = {number: name for name, number in _DRAIN_TO_WIRE.items()}


def request_class_to_wire(request_class: RequestClass) -> types_pb2.RequestClass.ValueType:
    return _CLASS_TO_WIRE[request_class]


def request_class_from_wire(number: types_pb2.RequestClass.ValueType) -> RequestClass:
    """Convert a class; unset is STANDARD.

    Raises:
        ValueError: the number is unknown. A guess could give the request an urgency that was not asked for.
    """
    if number == types_pb2.REQUEST_CLASS_UNSPECIFIED:
        return RequestClass.STANDARD
    if number not in _CLASS_FROM_WIRE:
        raise ValueError(f"unknown request class {number}")
    return _CLASS_FROM_WIRE[number]


def finish_reason_to_wire(reason: FinishReason) -> types_pb2.FinishReason.ValueType:
    return _FINISH_TO_WIRE[reason]


def finish_reason_from_wire(number: types_pb2.FinishReason.ValueType) -> FinishReason:
    """Convert a reason; an unknown number is ERROR, so that the output is not taken for complete."""
    return _FINISH_FROM_WIRE.get(number, FinishReason.ERROR)


def replica_state_to_wire(state: ReplicaState) -> admin_pb2.ReplicaState.ValueType:
    return _STATE_TO_WIRE[state]


def replica_state_from_wire(number: admin_pb2.ReplicaState.ValueType) -> ReplicaState:
    """Convert a state; an unknown number is STARTING, which takes no work."""
    return _STATE_FROM_WIRE.get(number, ReplicaState.STARTING)


def drain_reason_to_wire(reason: DrainReason | None) -> admin_pb2.DrainReason.ValueType:
    return admin_pb2.DRAIN_REASON_UNSPECIFIED if reason is None else _DRAIN_TO_WIRE[reason]


def drain_reason_from_wire(number: admin_pb2.DrainReason.ValueType) -> DrainReason | None:
    """Convert a reason; None for one that is unset, or unknown to this build."""
    return _DRAIN_FROM_WIRE.get(number)
