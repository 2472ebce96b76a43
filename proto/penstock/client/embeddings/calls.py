"""Calls to models that embed or classify, for both clients."""

from __future__ import annotations

from penstock.client.calls import UnaryCall
from penstock.v1 import embeddings_pb2 as api
from penstock.values.embeddings import Classifications, Embeddings, Inputs, PoolingOptions, Scores, inputs_to_proto
from penstock.values.fields import build, unfit


def embed(
    model: str, inputs: Inputs, dimensions: int | None, normalize: bool | None, options: PoolingOptions | None
) -> UnaryCall[Embeddings]:
    request = build(
        api.EmbedRequest,
        model=model,
        inputs=inputs_to_proto("inputs", inputs),
        dimensions=dimensions,
        normalize=normalize,
        options=_options(options),
    )
    return UnaryCall(lambda stubs: stubs.embeddings.Embed, request, Embeddings.from_proto)


def classify(
    model: str, inputs: Inputs, probabilities: bool | None, options: PoolingOptions | None
) -> UnaryCall[Classifications]:
    request = build(
        api.ClassifyRequest,
        model=model,
        inputs=inputs_to_proto("inputs", inputs),
        probabilities=probabilities,
        options=_options(options),
    )
    return UnaryCall(lambda stubs: stubs.embeddings.Classify, request, Classifications.from_proto)


def score(
    model: str, queries: Inputs, documents: Inputs, probabilities: bool | None, options: PoolingOptions | None
) -> UnaryCall[Scores]:
    request = build(
        api.ScoreRequest,
        model=model,
        queries=inputs_to_proto("queries", queries),
        documents=inputs_to_proto("documents", documents),
        probabilities=probabilities,
        options=_options(options),
    )
    return UnaryCall(lambda stubs: stubs.embeddings.Score, request, Scores.from_proto)


def _options(options: PoolingOptions | None) -> api.PoolingOptions | None:
    if options is None:
        return None
    if not isinstance(options, PoolingOptions):
        raise unfit("options", "PoolingOptions", options)
    return options.to_proto()
