"""Checks of requests for vectors, classes and scores."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.models import ModelInfo
from penstock.models import ModelTask, RequestClass
from penstock.v1 import embeddings_pb2 as api
from router.validation.fields import MAX_ADAPTER_BYTES, MAX_MODEL_BYTES, check_class, check_queue_timeout
from router.validation.lengths import prompt_too_long
from router.validation.resolve import check_adapter
from router.validation.values import RequestLimits, TextPrompt, TokenPrompt
from router.validation.violations import Violations, utf8_length

MAX_INPUTS = 2_048
MAX_REQUEST_TOKENS = 300_000
"""Most tokens of all inputs of a request."""
PooledInput = TextPrompt | TokenPrompt


class PoolingKind(enum.StrEnum):
    """What a request asks for."""

    EMBED = "embed"
    CLASSIFY = "classify"
    SCORE = "score"


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut of inputs that are too long."""

    max_tokens: int | None
    """Most tokens; None for the context."""
    beginning: bool
    """Whether the beginning is cut off and the end stays."""


@dataclass(frozen=True, slots=True)
class CheckedPooling:
    """Request whose fields are well formed. `check_fits` checks whether its model can serve it."""

    model: str
    kind: PoolingKind
    inputs: tuple[PooledInput, ...]
    """Inputs; of a score, its documents."""
    queries: tuple[PooledInput, ...]
    """Queries of a score: one, or one for each document."""
    dimensions: int | None
    activation: bool | None
    cut: Cut | None
    """None where an input that is too long is an error."""
    request_class: RequestClass
    queue_timeout_s: float | None
    lora_adapter: str


def check_embed(request: api.EmbedRequest, limits: RequestLimits) -> CheckedPooling:
    """Check a request for vectors and convert it to plain values.

    Raises:
        InvalidRequestError: names every wrong field with its limit and the value sent.
    """
    found = Violations()
    inputs = _check_inputs(found, "inputs", request.inputs)
    dimensions = request.dimensions if request.HasField("dimensions") else None
    if dimensions == 0:
        found.add("dimensions", "must be at least 1, got 0")
    activation = request.normalize if request.HasField("normalize") else None
    return _checked(found, request, PoolingKind.EMBED, limits, inputs, dimensions=dimensions, activation=activation)


def check_classify(request: api.ClassifyRequest, limits: RequestLimits) -> CheckedPooling:
    """Check a request for classes, as `check_embed`."""
    found = Violations()
    inputs = _check_inputs(found, "inputs", request.inputs)
    activation = request.probabilities if request.HasField("probabilities") else None
    return _checked(found, request, PoolingKind.CLASSIFY, limits, inputs, activation=activation)


def check_score(request: api.ScoreRequest, limits: RequestLimits) -> CheckedPooling:
    """Check a request for scores, as `check_embed`."""
    found = Violations()
    queries = _check_inputs(found, "queries", request.queries)
    documents = _check_inputs(found, "documents", request.documents)
    if queries and documents and len(queries) not in (1, len(documents)):
        found.add("queries", f"must have 1 or {len(documents)} entries, as many as documents, got {len(queries)}")
    found.count("documents", len(queries) + len(documents), 0, MAX_INPUTS, "entries together with queries")
    activation = request.probabilities if request.HasField("probabilities") else None
    return _checked(found, request, PoolingKind.SCORE, limits, documents, queries, activation=activation)


def check_task(checked: CheckedPooling, model: ModelInfo) -> None:
    """Check whether a model's task and features are those that a request needs.

    Raises:
        InvalidRequestError: they are not; the error names every problem.
    """
    found, features = Violations(), model.pooling
    serves = {
        PoolingKind.EMBED: (ModelTask.EMBED,),
        PoolingKind.CLASSIFY: (ModelTask.CLASSIFY,),
        PoolingKind.SCORE: (ModelTask.EMBED, ModelTask.CLASSIFY),
    }[checked.kind]
    if model.task not in serves:
        names = " or ".join(repr(task.value) for task in serves)
        found.add("model", f"must have the task {names} for this call, and it has {model.task.value!r}")
    elif checked.kind is PoolingKind.SCORE and model.task is ModelTask.CLASSIFY and features.size != 1:
        found.add("model", f"must have 1 class to score pairs, and it has {features.size}")
    elif checked.kind is PoolingKind.SCORE and model.task is ModelTask.EMBED and checked.activation is not None:
        found.add("probabilities", "must be unset for a model with the task 'embed', whose scores are cosines")
    if checked.dimensions not in (None, features.size) and model.task is ModelTask.EMBED:
        _check_dimensions(found, checked.dimensions or 0, model)
    check_adapter(found, "options.lora_adapter", checked.lora_adapter, model.lora_adapters)
    found.raise_any()


def check_lengths(lengths: Sequence[int], model: ModelInfo, field: str) -> None:
    """Check how many tokens the inputs have.

    Raises:
        InvalidRequestError: one has none or more than the context, or all together have too many.
    """
    found, context = Violations(), model.max_context_tokens
    for index, length in enumerate(lengths):
        if length < 1:
            found.add(f"{field}[{index}]", f"must have at least 1 token, got {length}")
        elif length > context:
            found.add(f"{field}[{index}]", prompt_too_long(length, context, context))
    if not found and sum(lengths) > MAX_REQUEST_TOKENS:
        found.add(field, f"must have at most {MAX_REQUEST_TOKENS} tokens together, got {sum(lengths)}")
    found.raise_any()


def check_token_ids(inputs: Sequence[PooledInput], model: ModelInfo, field: str) -> None:
    """Check ids against the vocabulary.

    Raises:
        InvalidRequestError: an id is not in it.
    """
    found, size = Violations(), model.vocabulary_size
    for index, each in enumerate(inputs):
        if not isinstance(each, TokenPrompt) or max(each.ids, default=0) < size:
            continue
        for place, token in enumerate(each.ids):
            if token >= size and not found.full:
                found.add(
                    f"{field}[{index}].tokens.ids[{place}]", f"must be below the vocabulary size {size}, got {token}"
                )
    found.raise_any()


def _check_dimensions(found: Violations, asked: int, model: ModelInfo) -> None:
    features = model.pooling
    if not features.shorter_vectors:
        found.add(
            "dimensions",
            f"is not supported by this model, whose vectors have {features.size} dimensions, got {asked}",
        )
    elif features.dimensions and asked not in features.dimensions:
        allowed = ", ".join(map(str, features.dimensions))
        found.add("dimensions", f"must be one of {allowed} for this model, got {asked}")
    elif asked > features.size:
        found.add("dimensions", f"must be at most {features.size} for this model, got {asked}")


def _checked(
    found: Violations,
    request: api.EmbedRequest | api.ClassifyRequest | api.ScoreRequest,
    kind: PoolingKind,
    limits: RequestLimits,
    inputs: tuple[PooledInput, ...],
    queries: tuple[PooledInput, ...] = (),
    *,
    dimensions: int | None = None,
    activation: bool | None = None,
) -> CheckedPooling:
    options = request.options
    found.size("model", request.model, 1, MAX_MODEL_BYTES)
    if found.count("queries", asked := _text_bytes(queries), 0, limits.max_prompt_bytes, "bytes of text"):
        name, unit = "inputs", "bytes of text"
        if kind is PoolingKind.SCORE:
            name, unit = "documents", f"{unit} together with queries"
        found.count(name, asked + _text_bytes(inputs), 0, limits.max_prompt_bytes, unit)
    found.size("options.lora_adapter", options.lora_adapter, 0, MAX_ADAPTER_BYTES)
    queue_timeout_s = None
    if options.HasField("queue_timeout"):
        queue_timeout_s = check_queue_timeout(found, "options.queue_timeout", options.queue_timeout)
    checked = CheckedPooling(
        model=request.model,
        kind=kind,
        inputs=inputs,
        queries=queries,
        dimensions=dimensions,
        activation=activation,
        cut=_check_cut(found, options.truncation) if options.HasField("truncation") else None,
        request_class=check_class(found, "options.request_class", options.request_class),
        queue_timeout_s=queue_timeout_s,
        lora_adapter=options.lora_adapter,
    )
    found.raise_any()
    return checked


def _text_bytes(inputs: Sequence[PooledInput]) -> int:
    return sum(utf8_length(each.text) for each in inputs if isinstance(each, TextPrompt))


def _check_cut(found: Violations, wire: api.Truncation) -> Cut:
    if wire.HasField("max_tokens") and wire.max_tokens == 0:
        found.add("options.truncation.max_tokens", "must be at least 1, got 0")
    if wire.side not in api.TruncationSide.values():
        found.add("options.truncation.side", f"must be a known side, got {wire.side}")
    most = wire.max_tokens if wire.HasField("max_tokens") else None
    return Cut(most, beginning=wire.side == api.TRUNCATION_SIDE_BEGINNING)


def _check_inputs(found: Violations, field: str, wire: Sequence[api.PoolingInput]) -> tuple[PooledInput, ...]:
    if not found.count(field, len(wire), 1, MAX_INPUTS):
        return ()
    return tuple(_check_input(found, f"{field}[{index}]", each) for index, each in enumerate(wire))


def _check_input(found: Violations, field: str, wire: api.PoolingInput) -> PooledInput:
    match wire.WhichOneof("kind"):
        case "text":
            return TextPrompt(wire.text)
        case "tokens":
            if not wire.tokens.ids:
                found.add(f"{field}.tokens.ids", "must have at least 1 entry, got 0")
            return TokenPrompt(tuple(wire.tokens.ids))
        case _:
            found.add(field, "is required: one of text, tokens")
            return TextPrompt("")
