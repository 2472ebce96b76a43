"""Conversions between `penstock.v1` and plain values, both directions side by side.

They validate nothing: the router validates before it converts, and routers and replicas trust each other's frames.
"""

from penstock.wire.durations import duration_from_wire, duration_to_wire, moment_from_wire, set_duration
from penstock.wire.enums import (
    drain_reason_from_wire,
    drain_reason_to_wire,
    finish_reason_from_wire,
    finish_reason_to_wire,
    replica_state_from_wire,
    replica_state_to_wire,
    request_class_from_wire,
    request_class_to_wire,
)
from penstock.wire.output import LOGPROB_FLOOR, logprobs_from_wire, logprobs_to_wire
from penstock.wire.pooling import model_task_from_wire, model_task_to_wire, pooling_from_wire, pooling_to_wire
from penstock.wire.sampling import (
    capabilities_from_wire,
    capabilities_to_wire,
    clear_defaults,
    sampling_from_wire,
    sampling_to_wire,
    structured_from_wire,
    structured_to_wire,
    unenforced_from_wire,
    unenforced_to_wire,
)
from penstock.wire.tools import (
    tool_call_from_wire,
    tool_choice_from_wire,
    tool_choice_to_wire,
    tool_from_wire,
)

__all__ = [
    "LOGPROB_FLOOR",
    "capabilities_from_wire",
    "capabilities_to_wire",
    "clear_defaults",
    "drain_reason_from_wire",
    "drain_reason_to_wire",
    "duration_from_wire",
    "duration_to_wire",
    "finish_reason_from_wire",
    "finish_reason_to_wire",
    "logprobs_from_wire",
    "logprobs_to_wire",
    "model_task_from_wire",
    "model_task_to_wire",
    "moment_from_wire",
    "pooling_from_wire",
    "pooling_to_wire",
    "replica_state_from_wire",
    "replica_state_to_wire",
    "request_class_from_wire",
    "request_class_to_wire",
    "sampling_from_wire",
    "sampling_to_wire",
    "set_duration",
    "structured_from_wire",
    "structured_to_wire",
    "tool_call_from_wire",
    "tool_choice_from_wire",
    "tool_choice_to_wire",
    "tool_from_wire",
    "unenforced_from_wire",
    "unenforced_to_wire",
]
