"""Conversion of work on inputs whose vectors are asked for."""

from __future__ import annotations

from cluster.models import PoolingSpec
from penstock.internal.v1 import replica_pb2 as pb
from penstock.models import ModelTask
from penstock.wire import model_task_from_wire, model_task_to_wire


def pooling_to_start(spec: PoolingSpec) -> pb.Pooling:
    return pb.Pooling(
        task=model_task_to_wire(spec.task),
        lengths=spec.lengths,
        dimensions=spec.dimensions,
        activation=spec.activation,
        second_at=spec.second_at,
    )


def pooling_from_start(wire: pb.Pooling) -> PoolingSpec:
    """Convert work. A task that this build does not know becomes GENERATE, which engines refuse for it."""
    return PoolingSpec(
        task=model_task_from_wire(wire.task) or ModelTask.GENERATE,
        lengths=tuple(wire.lengths),
        dimensions=wire.dimensions if wire.HasField("dimensions") else None,
        activation=wire.activation if wire.HasField("activation") else None,
        second_at=tuple(wire.second_at),
    )
