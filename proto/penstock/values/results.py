"""Results of calls: plain values with `from_proto` beside the fields it fills. All times are seconds."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from penstock.models import (
    NOT_POOLING,
    Capabilities,
    FinishReason,
    ModelTask,
    PoolingFeatures,
    PositionLogprobs,
    ToolCall,
    Unenforced,
)
from penstock.v1 import admin_pb2, inference_pb2, types_pb2
from penstock.wire import (
    capabilities_from_wire,
    duration_from_wire,
    finish_reason_from_wire,
    logprobs_from_wire,
    model_task_from_wire,
    pooling_from_wire,
    unenforced_from_wire,
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of tokens."""

    prompt_tokens: int
    output_tokens: int
    """Sum over all choices, end-of-sequence tokens included."""
    cached_tokens: int
    """Prompt tokens found in a prefix cache."""
    reasoning_tokens: int = 0
    """Output tokens that are reasoning, over all choices."""

    @classmethod
    def from_proto(cls, wire: types_pb2.Usage) -> Usage:
        return cls(wire.prompt_tokens, wire.output_tokens, wire.cached_tokens, wire.reasoning_tokens)


@dataclass(frozen=True, slots=True)
class AttemptReceipt:
    """Latency and cost of one execution of one choice on one replica."""

    choice_index: int
    replica_id: str
    group_id: str
    queue_time: float
    prefill_time: float
    """Time from the grant of a slot to the first token."""
    decode_time: float
    engine_wait_time: float
    """Part of prefill_time that was spent waiting inside the engine."""
    output_tokens: int
    cached_tokens: int
    gpu_seconds: float
    lost_time: float = 0.0
    """Time from the last output of a lost attempt, or from its grant, until the loss was noticed."""

    @classmethod
    def from_proto(cls, wire: types_pb2.AttemptReceipt) -> AttemptReceipt:
        return cls(
            choice_index=wire.choice_index,
            replica_id=wire.replica_id,
            group_id=wire.group_id,
            queue_time=duration_from_wire(wire.queue_time),
            prefill_time=duration_from_wire(wire.prefill_time),
            decode_time=duration_from_wire(wire.decode_time),
            engine_wait_time=duration_from_wire(wire.engine_wait_time),
            output_tokens=wire.output_tokens,
            cached_tokens=wire.cached_tokens,
            gpu_seconds=wire.gpu_seconds,
            lost_time=duration_from_wire(wire.lost_time),
        )


@dataclass(frozen=True, slots=True)
class Receipt:
    """Latency and cost of a request."""

    attempts: tuple[AttemptReceipt, ...]
    """Attempts; several per choice only where a choice was resumed."""
    total_time: float
    """Time from the arrival of the call to the end. For a client that reconnected to a request that waited or ran,
    it counts from its first call."""
    time_to_first_token: float | None
    """Time from the arrival of the call to the first token; None when no token came."""
    admission_time: float
    gpu_seconds: float
    cost: float
    exact: bool
    """Whether the output is what an undisturbed request would have given, up to the engine's rounding."""
    router_id: str
    model: str = ""
    """Model that served the request; another one than that of the request where that was an alias."""
    lora_adapter: str = ""
    """LoRA adapter that served it; empty for the base model."""

    @classmethod
    def from_proto(cls, wire: types_pb2.Receipt) -> Receipt:
        first = duration_from_wire(wire.time_to_first_token) if wire.HasField("time_to_first_token") else None
        return cls(
            attempts=tuple(map(AttemptReceipt.from_proto, wire.attempts)),
            total_time=duration_from_wire(wire.total_time),
            time_to_first_token=first,
            admission_time=duration_from_wire(wire.admission_time),
            gpu_seconds=wire.gpu_seconds,
            cost=wire.cost,
            exact=wire.exact,
            router_id=wire.router_id,
            model=wire.model,
            lora_adapter=wire.lora_adapter,
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """One finished output."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...]
    """One entry per token, when asked for."""
    finish_reason: FinishReason
    stop_match: str
    """Stop string, or stop token id in decimal, that ended the choice; empty otherwise."""
    reasoning: str = ""
    """Reasoning of the model, which is no part of `text`."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls of tools, in order."""

    @classmethod
    def from_proto(cls, wire: inference_pb2.Choice) -> Choice:
        return cls(
            index=wire.index,
            text=wire.text,
            token_ids=tuple(wire.token_ids),
            logprobs=tuple(map(logprobs_from_wire, wire.logprobs)),
            finish_reason=finish_reason_from_wire(wire.finish_reason),
            stop_match=wire.stop_match,
            reasoning=wire.reasoning,
            tool_calls=tuple(ToolCall(call.id, call.name, call.arguments) for call in wire.tool_calls),
        )


@dataclass(frozen=True, slots=True)
class Completion:
    """Complete result of a generation."""

    request_id: str
    choices: tuple[Choice, ...]
    usage: Usage
    receipt: Receipt
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()
    """One entry per prompt token, when asked for. The first token has no probability: its entry has -9999 and no
    alternatives."""
    unenforced: tuple[Unenforced, ...] = ()
    """Keywords of a schema at best effort that were not enforced."""

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @classmethod
    def from_proto(cls, wire: inference_pb2.GenerateResponse) -> Completion:
        return cls(
            request_id=wire.request_id,
            choices=tuple(map(Choice.from_proto, wire.choices)),
            usage=Usage.from_proto(wire.usage),
            receipt=Receipt.from_proto(wire.receipt),
            prompt_logprobs=tuple(map(logprobs_from_wire, wire.prompt_logprobs)),
            unenforced=tuple(map(unenforced_from_wire, wire.unenforced)),
        )


@dataclass(frozen=True, slots=True)
class TokenCount:
    """A prompt as the model sees it."""

    tokens: int
    token_ids: tuple[int, ...]

    @classmethod
    def from_proto(cls, wire: inference_pb2.CountTokensResponse) -> TokenCount:
        return cls(wire.tokens, tuple(wire.token_ids))


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model and the features of its engines."""

    name: str
    max_context_tokens: int
    """Longest prompt plus output; 0 until a replica has reported."""
    vocabulary_size: int
    lora_adapters: tuple[str, ...]
    capabilities: Capabilities
    chat: bool
    """Whether conversations can be rendered."""
    ready_replicas: int
    digest: str
    task: ModelTask | None = None
    """What the model makes of its input; None until a replica has reported."""
    pooling: PoolingFeatures = NOT_POOLING
    """Features of a model that embeds or classifies."""
    alias_of: tuple[str, ...] = ()
    """Models that an alias stands for, the one with the largest weight first; empty for a model."""

    @classmethod
    def from_proto(cls, wire: inference_pb2.Model) -> ModelDescription:
        return cls(
            name=wire.name,
            max_context_tokens=wire.max_context_tokens,
            vocabulary_size=wire.vocabulary_size,
            lora_adapters=tuple(wire.lora_adapters),
            capabilities=capabilities_from_wire(wire.capabilities),
            chat=wire.capabilities.chat,
            ready_replicas=wire.ready_replicas,
            digest=wire.digest,
            task=model_task_from_wire(wire.task),
            pooling=pooling_from_wire(wire.pooling),
            alias_of=tuple(wire.alias_of),
        )


@dataclass(frozen=True, slots=True)
class UsageLine:
    """Usage of a pool by one tenant on one day, or in one hour."""

    day: datetime.date
    """Day in UTC."""
    pool: str
    tenant: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    gpu_seconds: float
    cost: float
    """Cost in the operator's currency."""
    hour: datetime.datetime | None = None
    """Begin of the hour in UTC; None for a whole day."""

    @classmethod
    def from_proto(cls, wire: admin_pb2.UsageLine) -> UsageLine:
        return cls(
            datetime.date.fromisoformat(wire.day),
            wire.pool,
            wire.tenant,
            wire.requests,
            wire.prompt_tokens,
            wire.output_tokens,
            wire.cached_tokens,
            wire.gpu_seconds,
            wire.cost,
            datetime.datetime.fromisoformat(wire.hour.replace("Z", "+00:00")) if wire.hour else None,
        )


@dataclass(frozen=True, slots=True)
class Budget:
    """A tenant's budget in a pool."""

    pool: str
    tenant: str
    name: str
    """"cost_per_day" or "cost_per_month"."""
    limit: float
    """Most that may be charged before requests are refused, in the operator's currency."""
    used: float
    renews: datetime.datetime
    """First moment of the next day or month, in UTC."""
    warned: bool = False
    """Whether so much is used that clients are warned."""

    @classmethod
    def from_proto(cls, wire: admin_pb2.Budget) -> Budget:
        renews = datetime.datetime.fromisoformat(wire.renews.replace("Z", "+00:00"))
        return cls(wire.pool, wire.tenant, wire.name, wire.limit, wire.used, renews, wire.warned)


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Usage by day, pool and tenant."""

    lines: tuple[UsageLine, ...]
    truncated: bool
    """Whether there are more lines than were sent: ask for fewer days."""
    budgets: tuple[Budget, ...] = ()
    """Budgets of the tenants, today and this month."""

    @classmethod
    def from_proto(cls, wire: admin_pb2.GetUsageResponse) -> UsageReport:
        lines = tuple(map(UsageLine.from_proto, wire.lines))
        return cls(lines, wire.truncated, tuple(map(Budget.from_proto, wire.budgets)))
