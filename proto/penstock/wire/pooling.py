"""Conversion of what models make of their input."""

from __future__ import annotations

from penstock.models import ModelTask, PoolingFeatures
from penstock.v1 import inference_pb2, types_pb2

_TASK_TO_WIRE = {
    ModelTask.GENERATE: types_pb2.MODEL_TASK_GENERATE,
    ModelTask.EMBED: types_pb2.MODEL_TASK_EMBED,
    ModelTask.CLASSIFY: types_pb2.MODEL_TASK_CLASSIFY,
}
_TASK_FROM_WIRE = {number: task for task, number in _TASK_TO_WIRE.items()}


def model_task_to_wire(task: ModelTask) -> types_pb2.ModelTask.ValueType:
    return _TASK_TO_WIRE[task]


def model_task_from_wire(number: types_pb2.ModelTask.ValueType) -> ModelTask | None:
    """Convert a task; None where it is not known."""
    return _TASK_FROM_WIRE.get(number)


def pooling_to_wire(features: PoolingFeatures) -> inference_pb2.PoolingFeatures:
    return inference_pb2.PoolingFeatures(
        size=features.size,
        shorter_vectors=features.shorter_vectors,
        dimensions=features.dimensions,
        labels=features.labels,
    )


def pooling_from_wire(wire: inference_pb2.PoolingFeatures) -> PoolingFeatures:
    return PoolingFeatures(wire.size, wire.shorter_vectors, tuple(wire.dimensions), tuple(wire.labels))
