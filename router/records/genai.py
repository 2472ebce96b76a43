"""Measurements of a call by OpenTelemetry's conventions for generative AI. Pure: from the record of a call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.v1 import records_pb2 as api
from penstock.v1 import types_pb2 as types
from penstock.wire import duration_from_wire

PROVIDER = "penstock"
OPERATION = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 - the name of an attribute
ERROR_TYPE = "error.type"
CHAT, TEXT_COMPLETION, EMBEDDINGS = "chat", "text_completion", "embeddings"
"""Names of operations. Classes and scores are embeddings."""
_EMBEDS = (types.MODEL_TASK_EMBED, types.MODEL_TASK_CLASSIFY)
_COMMON = (OPERATION, PROVIDER_NAME, REQUEST_MODEL, RESPONSE_MODEL)


@dataclass(frozen=True, slots=True)
class GenAiMetric:
    """A histogram of the conventions. Its buckets are those that they recommend."""

    name: str
    unit: str
    """Unit by UCUM."""
    text: str
    attributes: tuple[str, ...]
    buckets: tuple[float, ...]


DURATION = GenAiMetric(
    "gen_ai.server.request.duration",
    "s",
    "Arrival of a call to its end. error.type is the reason of an error, and empty without one.",
    (*_COMMON, ERROR_TYPE),
    (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
FIRST_TOKEN = GenAiMetric(
    "gen_ai.server.time_to_first_token",
    "s",
    "Arrival of a call to its first token, of calls that ended well.",
    _COMMON,
    (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
PER_TOKEN = GenAiMetric(
    "gen_ai.server.time_per_output_token",
    "s",
    "Mean time between the tokens of a choice after its first one, of calls that ended well.",
    _COMMON,
    (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)
TOKENS = GenAiMetric(
    "gen_ai.client.token.usage",
    "{token}",
    "Tokens of a request that is over, input and output. The conventions have no metric of the server for it.",
    (*_COMMON, TOKEN_TYPE),
    tuple(float(4**power) for power in range(14)),
)
METRICS = (DURATION, FIRST_TOKEN, PER_TOKEN, TOKENS)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One value for one histogram."""

    metric: GenAiMetric
    value: float
    attributes: Mapping[str, str]


def operation_of(record: api.RequestRecord) -> str:
    """Return the operation's name by the conventions."""
    if _embeds(record):
        return EMBEDDINGS
    return TEXT_COMPLETION if record.plain_prompt else CHAT


def refusal(operation: str, model: str, seconds: float, reason: str) -> Measurement:
    """Return what a request is worth that was refused before it was in line.

    Args:
        operation: name of what it asked for.
        model: its model; empty for one that the cluster does not serve, so that no caller can make series.
        seconds: time from its arrival.
        reason: reason of the error.
    """
    common = {OPERATION: operation, PROVIDER_NAME: PROVIDER, REQUEST_MODEL: model, RESPONSE_MODEL: ""}
    return Measurement(DURATION, seconds, {**common, ERROR_TYPE: reason})


def measurements(record: api.RequestRecord) -> Iterator[Measurement]:
    """Yield what one call is worth.

    A request whose client came back has several calls. Each has its duration. Tokens count with the call that saw
    them end, and the first token with the call that it was sent to.
    """
    common = {
        OPERATION: operation_of(record),
        PROVIDER_NAME: PROVIDER,
        REQUEST_MODEL: record.alias or record.pool,
        RESPONSE_MODEL: record.pool,
    }
    duration_s = duration_from_wire(record.total_time)
    yield Measurement(DURATION, duration_s, {**common, ERROR_TYPE: record.error_reason})
    if all(choice.finish_reason != types.FINISH_REASON_UNSPECIFIED for choice in record.choices):
        yield Measurement(TOKENS, record.usage.prompt_tokens, {**common, TOKEN_TYPE: "input"})
        yield Measurement(TOKENS, record.usage.output_tokens, {**common, TOKEN_TYPE: "output"})
        if not record.error_reason:
            for choice in record.choices:
                if (per_token_s := _per_token_s(choice)) is not None:
                    yield Measurement(PER_TOKEN, per_token_s, common)
    if record.HasField("time_to_first_token") and not (record.error_reason or record.resumed or _embeds(record)):
        yield Measurement(FIRST_TOKEN, duration_from_wire(record.time_to_first_token), common)


def _embeds(record: api.RequestRecord) -> bool:
    return record.task in _EMBEDS


def _per_token_s(choice: api.ChoiceRecord) -> float | None:
    """Return seconds per token after the first, pauses between attempts included; None for a choice without them."""
    first = next((ran.first_token_at for ran in choice.attempts if ran.HasField("first_token_at")), None)
    if first is None or choice.output_tokens < 2:
        return None
    decode_s = duration_from_wire(choice.attempts[-1].ended_at) - duration_from_wire(first)
    return max(0.0, decode_s) / (choice.output_tokens - 1)
