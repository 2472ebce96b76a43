"""EmbeddingService: vectors, classes and scores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager

from penstock.v1 import embeddings_pb2 as api
from penstock.v1 import inference_pb2
from router.call_context import CallContext
from router.embeddings.admit import OpenPooling, PoolingAdmission
from router.embeddings.results import cosines, numbers_of
from router.generation.generation import Generation
from router.identity import Caller
from router.inference.collect import Collector
from router.inference.forward import answer_metadata
from router.inference.keyed_generation import KeyedGeneration
from router.inference.servicer import REQUEST_ID_HEADER, raise_if_stopped
from router.metrics import RouterMetrics
from router.validation import RequestLimits
from router.validation.pooling import CheckedPooling, check_classify, check_embed, check_score


class EmbeddingServicer:
    """The embedding service."""

    def __init__(
        self,
        admission: PoolingAdmission,
        limits: RequestLimits,
        metrics: RouterMetrics,
        entered: Callable[[], AbstractContextManager[None]],
        keyed: Callable[[Generation], KeyedGeneration],
    ) -> None:
        """`entered` counts an open call of the router; `keyed` gives a generation its life."""
        self._admission = admission
        self._limits = limits
        self._metrics = metrics
        self._entered = entered
        self._keyed = keyed

    async def Embed(self, request: api.EmbedRequest, context: CallContext, caller: Caller) -> api.EmbedResponse:  # noqa: N802
        """Return vectors."""
        opened, end = await self._run(check_embed(request, self._limits), context, caller)
        return api.EmbedResponse(
            request_id=end.request_id,
            vectors=opened.vectors(),
            usage=end.usage,
            receipt=end.receipt,
        )

    async def Classify(  # noqa: N802
        self, request: api.ClassifyRequest, context: CallContext, caller: Caller
    ) -> api.ClassifyResponse:
        """Return the numbers of the model's classes."""
        opened, end = await self._run(check_classify(request, self._limits), context, caller)
        return api.ClassifyResponse(
            request_id=end.request_id,
            results=[api.Classification(values=numbers_of(vector)) for vector in opened.vectors()],
            labels=opened.generation.labels,
            usage=end.usage,
            receipt=end.receipt,
        )

    async def Score(self, request: api.ScoreRequest, context: CallContext, caller: Caller) -> api.ScoreResponse:  # noqa: N802
        """Return how well documents fit queries."""
        checked = check_score(request, self._limits)
        opened, end = await self._run(checked, context, caller)
        vectors = opened.vectors()
        if len(vectors) == len(checked.inputs):
            scores = [numbers_of(vector)[0] for vector in vectors]
        else:
            queries = len(checked.queries)
            scores = list(await asyncio.to_thread(lambda: list(cosines(vectors[:queries], vectors[queries:]))))
        return api.ScoreResponse(request_id=end.request_id, scores=scores, usage=end.usage, receipt=end.receipt)

    async def _run(
        self, checked: CheckedPooling, context: CallContext, caller: Caller
    ) -> tuple[OpenPooling, inference_pb2.Finished]:
        with self._entered():
            opened = await self._admission.open(checked, caller=caller, time_left_s=context.time_remaining())
            collector = Collector()
            await self._keyed(opened.generation).deliver(self._collect(opened.generation, collector, context))
            raise_if_stopped({choice.finish_reason for choice in collector.finished.choices})
            return opened, collector.finished

    async def _collect(self, generation: Generation, collector: Collector, context: CallContext) -> None:
        # Let the link send a start first, as in `InferenceServicer`.
        await asyncio.sleep(0)
        await context.send_initial_metadata(((REQUEST_ID_HEADER, generation.request_id), *answer_metadata(generation)))
        async for event in generation.unhurried():
            collector.add(event)
        self._metrics.finished(generation, collector.finished)
