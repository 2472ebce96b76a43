"""Execution of one item of a job, with the same admission, queue and dispatch as a client's call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from penstock.v1 import embeddings_pb2 as embeddings
from penstock.v1 import inference_pb2 as api
from router.embeddings.admit import PoolingAdmission
from router.generation.generation import Generation
from router.identity import Caller
from router.inference.collect import Collector
from router.inference.routed import RoutedAdmission
from router.inference.servicer import raise_if_stopped
from router.metrics import RouterMetrics
from router.validation import RequestLimits, check_request
from router.validation.pooling import check_embed

Asked: TypeAlias = api.GenerateRequest | embeddings.EmbedRequest
Answer: TypeAlias = api.GenerateResponse | embeddings.EmbedResponse
Execute: TypeAlias = Callable[[str, Asked], Awaitable[Answer]]
"""Executes a request of a tenant. Raises the error that a call would end with."""


class Executor:
    """`Execute` on this router's own pools. Cancelling it cancels the generation."""

    def __init__(
        self,
        admission: RoutedAdmission,
        pooling: PoolingAdmission,
        limits: RequestLimits,
        metrics: RouterMetrics,
        closed: Callable[[Generation], None],
    ) -> None:
        """`closed` is told every generation at its end."""
        self._admission = admission
        self._pooling = pooling
        self._limits = limits
        self._metrics = metrics
        self._closed = closed

    async def __call__(self, tenant: str, request: Asked) -> Answer:
        if isinstance(request, embeddings.EmbedRequest):
            return await self._embed(tenant, request)
        checked = check_request(request, self._limits)
        generation = await self._admission.open(checked, caller=Caller(tenant), time_left_s=None, counted=False)
        if isinstance(generation, bytes):
            raise TypeError("an item of a job has no idempotency key, so there is no stored result for it")
        return (await self._collected(generation)).response()

    async def _embed(self, tenant: str, request: embeddings.EmbedRequest) -> embeddings.EmbedResponse:
        checked = check_embed(request, self._limits)
        opened = await self._pooling.open(checked, caller=Caller(tenant), time_left_s=None, counted=False)
        end = (await self._collected(opened.generation)).finished
        return embeddings.EmbedResponse(
            request_id=end.request_id, vectors=opened.vectors(), usage=end.usage, receipt=end.receipt
        )

    async def _collected(self, generation: Generation) -> Collector:
        try:
            collector = Collector()
            async for event in generation.unhurried():
                collector.add(event)
        finally:
            self._metrics.left(generation)
            generation.close()
            self._closed(generation)
        self._metrics.finished(generation, collector.finished)
        raise_if_stopped({choice.finish_reason for choice in collector.finished.choices})
        return collector
