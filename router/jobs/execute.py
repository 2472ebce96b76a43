"""Execution of one item of a job, with the same admission, queue and dispatch as a client's call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from penstock.v1 import inference_pb2 as api
from router.identity import Caller
from router.inference.admit import Admission
from router.inference.collect import Collector
from router.inference.servicer import raise_if_stopped
from router.metrics import RouterMetrics
from router.validation import RequestLimits, check_request

Execute: TypeAlias = Callable[[str, api.GenerateRequest], Awaitable[api.GenerateResponse]]
"""Executes a request of a tenant. Raises the error that a call of Generate would end with."""


class Executor:
    """`Execute` on this router's own pools. Cancelling it cancels the generation."""

    def __init__(self, admission: Admission, limits: RequestLimits, metrics: RouterMetrics) -> None:
        self._admission = admission
        self._limits = limits
        self._metrics = metrics

    async def __call__(self, tenant: str, request: api.GenerateRequest) -> api.GenerateResponse:
        checked = check_request(request, self._limits)
        generation = await self._admission.open(checked, caller=Caller(tenant), time_left_s=None, counted=False)
        if isinstance(generation, bytes):
            raise TypeError("an item of a job has no idempotency key, so there is no stored result for it")
        try:
            collector = Collector()
            async for event in generation.unhurried():
                collector.add(event)
        finally:
            self._metrics.left(generation)
            generation.close()
        self._metrics.finished(generation, collector.finished)
        raise_if_stopped({choice.finish_reason for choice in collector.finished.choices})
        return collector.response()
