"""The events of a stream. All times are seconds."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.models import FinishReason, PositionLogprobs, ToolCallDelta, Unenforced
from penstock.v1 import inference_pb2
from penstock.values.results import Receipt, Usage
from penstock.wire import duration_from_wire, finish_reason_from_wire, logprobs_from_wire, unenforced_from_wire


@dataclass(frozen=True, slots=True)
class Queued:
    """Event of a request that waits; comes again with news of its position, about once a second in a short line."""

    request_id: str
    resume_token: bytes
    position: int
    """Number of requests ahead of it, those of more urgent classes included; an estimate where tenants take turns."""
    eta: float | None
    """Estimate of the remaining wait; None while the cluster has no estimate."""

    @classmethod
    def from_proto(cls, wire: inference_pb2.Queued) -> Queued:
        eta = duration_from_wire(wire.eta) if wire.HasField("eta") else None
        return cls(wire.request_id, wire.resume_token, wire.position, eta)


@dataclass(frozen=True, slots=True)
class Started:
    """Event of a choice that has a slot on a replica."""

    request_id: str
    resume_token: bytes
    choice_index: int
    replica_id: str
    queue_time: float
    prompt_tokens: int

    @classmethod
    def from_proto(cls, wire: inference_pb2.Started) -> Started:
        return cls(
            request_id=wire.request_id,
            resume_token=wire.resume_token,
            choice_index=wire.choice_index,
            replica_id=wire.replica_id,
            queue_time=duration_from_wire(wire.queue_time),
            prompt_tokens=wire.prompt_tokens,
        )


@dataclass(frozen=True, slots=True)
class Delta:
    """New output of one choice. Text may lag behind the tokens."""

    choice_index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...]
    offset: int
    """Number of output tokens of this choice before this delta."""
    reasoning: str = ""
    """New text of the reasoning."""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    """New output of tool calls."""
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()
    """Log probabilities of the prompt, when asked for, in the first delta of the first choice."""

    @classmethod
    def from_proto(cls, wire: inference_pb2.Delta) -> Delta:
        return cls(
            choice_index=wire.choice_index,
            text=wire.text,
            token_ids=tuple(wire.token_ids),
            logprobs=tuple(map(logprobs_from_wire, wire.logprobs)),
            offset=wire.offset,
            reasoning=wire.reasoning,
            tool_calls=tuple(ToolCallDelta(call.index, call.id, call.name, call.arguments) for call in wire.tool_calls),
            prompt_logprobs=tuple(map(logprobs_from_wire, wire.prompt_logprobs)),
        )


@dataclass(frozen=True, slots=True)
class Resumed:
    """Event of a choice that continues after a failure."""

    choice_index: int
    offset: int
    """Output token at which the next delta starts."""
    exact: bool
    """Whether the output is still what an undisturbed request would have given, up to the engine's rounding."""
    resume_token: bytes = b""
    replica_id: str = ""

    @classmethod
    def from_proto(cls, wire: inference_pb2.Resumed) -> Resumed:
        return cls(wire.choice_index, wire.offset, wire.exact, wire.resume_token, wire.replica_id)


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """End of a choice."""

    index: int
    finish_reason: FinishReason
    stop_match: str
    output_tokens: int

    @classmethod
    def from_proto(cls, wire: inference_pb2.ChoiceEnd) -> ChoiceEnd:
        return cls(wire.index, finish_reason_from_wire(wire.finish_reason), wire.stop_match, wire.output_tokens)


@dataclass(frozen=True, slots=True)
class Finished:
    """Last event of a stream."""

    choices: tuple[ChoiceEnd, ...]
    usage: Usage
    receipt: Receipt
    request_id: str
    unenforced: tuple[Unenforced, ...] = ()
    """Keywords of a schema at best effort that were not enforced."""

    @classmethod
    def from_proto(cls, wire: inference_pb2.Finished) -> Finished:
        return cls(
            choices=tuple(map(ChoiceEnd.from_proto, wire.choices)),
            usage=Usage.from_proto(wire.usage),
            receipt=Receipt.from_proto(wire.receipt),
            request_id=wire.request_id,
            unenforced=tuple(map(unenforced_from_wire, wire.unenforced)),
        )


Event = Queued | Started | Delta | Resumed | Finished


def event_from_proto(wire: inference_pb2.StreamGenerateResponse) -> Event | None:
    """Convert an event; None for a kind that a newer router added."""
    match wire.WhichOneof("event"):
        case "delta":
            return Delta.from_proto(wire.delta)
        case "queued":
            return Queued.from_proto(wire.queued)
        case "started":
            return Started.from_proto(wire.started)
        case "resumed":
            return Resumed.from_proto(wire.resumed)
        case "finished":
            return Finished.from_proto(wire.finished)
        case _:
            return None
