"""InferenceService: generations, cancels, and questions about models."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager

from cluster.errors import CancelledError, DeadlineError, PenstockError, RequestNotFoundError, ShuttingDownError
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.call_context import CallContext
from router.catalog import Catalog
from router.dispatch.pool import Pool
from router.identity import Caller
from router.images.room import ImageRoom
from router.inference.coalescing import Coalescing, StreamCoalescing
from router.inference.collect import Collector
from router.inference.forward import answer_metadata
from router.inference.idempotency import read_result, replay
from router.inference.keyed_generation import KeyedGeneration, OpenGenerations
from router.inference.writer import EventWriter
from router.metrics import RouterMetrics
from router.turns import LoopTurns
from router.validation import (
    RequestLimits,
    check_cancel,
    check_count,
    check_detokenize,
    check_get_model,
    check_request,
    check_stream,
)

REQUEST_ID_HEADER = "penstock-request-id"
RESUME_TOKEN_HEADER = "penstock-resume-token-bin"  # noqa: S105 - a header's name

RESUMED_PER_TURN = 1
"""Streams that a turn of the event loop begins to continue. New requests do not wait for them. Each takes about a
millisecond, spread over the turns until it is attached, so this is what a turn has of them."""


class InferenceServicer:
    """The inference service. It opens generations, and writes what they bring to their clients."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        catalog: Catalog,
        generations: OpenGenerations,
        limits: RequestLimits,
        metrics: RouterMetrics,
        coalescing: Coalescing,
        *,
        room: ImageRoom,
    ) -> None:
        self._pools = pools
        self._room = room
        self._catalog = catalog
        self._generations = generations
        self._limits = limits
        self._metrics = metrics
        self._coalescing = coalescing
        self._resumed = LoopTurns(RESUMED_PER_TURN)
        self.open_calls = 0
        """Calls that have not ended, of Generate, StreamGenerate and those of EmbeddingService."""
        self.idle = asyncio.Event()
        """Set while there are no such calls."""
        self.idle.set()
        self._entered = _Entered(self)

    # --- generation ---------------------------------------------------------------------------------------------------

    async def StreamGenerate(  # noqa: N802
        self, request: api.StreamGenerateRequest, context: CallContext, caller: Caller
    ) -> None:
        with self.entered():
            if request.HasField("resume"):
                # All clients of a dead router come at once. Until others have their first tokens, these can wait.
                await self._resumed.wait()
            checked = check_stream(request, self._limits)
            # What was checked has all that is needed, and a stream lives long.
            del request
            resume, flush_interval_s = checked.resume, checked.flush_interval_s
            opening = self._generations.open(checked.generate, caller, context.time_remaining(), resume=resume)
            # The generation has what it needs of both.
            del checked
            opened = await opening
            del opening
            if isinstance(opened, bytes):
                received = resume.received_tokens if resume is not None else ()
                context.opened(read_result(opened)[0].request_id)
                for event in replay(opened, received):
                    await context.write(event)
                return
            context.opened(opened.generation.request_id)
            told = answer_metadata(opened.generation)
            metadata = ((REQUEST_ID_HEADER, opened.generation.request_id), *told) if told else ()
            coalescing = StreamCoalescing(self._coalescing, flush_interval_s)
            writer = EventWriter(opened.generation, opened.result, context, coalescing, self._metrics)
            await opened.deliver(writer.run(metadata))

    async def Generate(  # noqa: N802
        self, request: api.GenerateRequest, context: CallContext, caller: Caller
    ) -> api.GenerateResponse:
        checked = check_request(request, self._limits)
        with self.entered():
            opened = await self._generations.open(checked, caller, context.time_remaining())
            if isinstance(opened, bytes):
                return read_result(opened)[0]
            collector = Collector()
            await opened.deliver(self._collect(opened, collector, context))
            raise_if_stopped({choice.finish_reason for choice in collector.finished.choices})
            return collector.response()

    async def _collect(self, opened: KeyedGeneration, collector: Collector, context: CallContext) -> None:
        generation, result = opened.generation, opened.result
        # As in EventWriter.run: let the link send a start first.
        await asyncio.sleep(0)
        names = ((REQUEST_ID_HEADER, generation.request_id), (RESUME_TOKEN_HEADER, generation.token()))
        await context.send_initial_metadata((*names, *answer_metadata(generation)))
        async for event in generation.unhurried():
            collector.add(event)
            if result is not None:
                result.add(event)
        self._metrics.finished(generation, collector.finished)

    # --- stop ---------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Refuse new generations. Open ones go on, but none outlives its call any more."""
        self._generations.draining = True

    def park(self) -> int:
        """Leave every generation to the routers that their clients turn to now. Return how many there were."""
        return self._generations.park()

    async def close(self) -> None:
        """End everything that goes on without a client."""
        await self._generations.close()

    def entered(self) -> AbstractContextManager[None]:
        """Count a call as open.

        Raises:
            ShuttingDownError: this router takes no new calls. Raised on entry.
        """
        return self._entered

    def enter(self) -> None:
        """Count a call; see `entered`."""
        if self._generations.draining:
            raise ShuttingDownError("this router is shutting down", 0.1)
        self.open_calls += 1
        self.idle.clear()

    def leave(self) -> None:
        """Count the end of a call."""
        self.open_calls -= 1
        if self.open_calls == 0:
            self.idle.set()

    # --- control ------------------------------------------------------------------------------------------------------

    async def Cancel(self, request: api.CancelRequest, context: CallContext, caller: Caller) -> api.CancelResponse:  # noqa: N802
        """Cancel one request, on whichever router and replica it runs."""
        target = check_cancel(request)
        by_key = bool(target.idempotency_key)
        name = target.idempotency_key or target.request_id
        pools = self._pools.values()
        found = await asyncio.gather(
            *(pool.cancel(caller.tenant, name, by_key=by_key) for pool in pools), return_exceptions=True
        )
        request_id = next((one for one in found if isinstance(one, str)), None)
        failure = next((one for one in found if isinstance(one, BaseException)), None)
        # A request id is in one pool only, so other pools may fail. A key may be in several pools.
        if failure is not None and (request_id is None or by_key):
            raise failure
        if request_id is not None:
            return api.CancelResponse(request_id=request_id)
        raise RequestNotFoundError(name)

    # --- models -------------------------------------------------------------------------------------------------------

    async def ListModels(  # noqa: N802
        self, request: api.ListModelsRequest, context: CallContext, caller: Caller
    ) -> api.ListModelsResponse:
        return api.ListModelsResponse(models=[await self._describe(name) for name in self._catalog.names(caller)])

    async def GetModel(  # noqa: N802
        self, request: api.GetModelRequest, context: CallContext, caller: Caller
    ) -> api.GetModelResponse:
        name = check_get_model(request)
        pool = self._catalog.pool(name, caller)
        model = await self._describe(name if self._catalog.pools(name) else pool.name)
        if not request.tokenizer_config:
            return api.GetModelResponse(model=model)
        _info, tokenizer = await self._catalog.model(pool)
        return api.GetModelResponse(model=model, tokenizer_config=tokenizer.config)

    def digest(self, model: str) -> str:
        """Return the digest of a model's weights and tokenizer; empty while it is not known."""
        pool = self._pools.get(model)
        info = self._catalog.known(pool) if pool is not None else None
        return info.digest if info is not None else ""

    async def _describe(self, name: str) -> api.Model:
        for pool in self._catalog.pools(name):
            if self._catalog.known(pool) is not None:
                try:
                    await self._catalog.model(pool)
                except PenstockError:
                    # All but whether there is a chat template is known.
                    continue
        return self._catalog.describe(name)

    async def CountTokens(  # noqa: N802
        self, request: api.CountTokensRequest, context: CallContext, caller: Caller
    ) -> api.CountTokensResponse:
        checked = check_count(request, self._limits)
        pool = self._catalog.pool(checked.model, caller)
        with self._room.during(checked.prompt):
            _info, encoded = await self._catalog.encode(pool, checked.prompt, caller.tenant, whole=True)
        ids = encoded.ids
        found = api.CountTokensResponse(tokens=len(ids), token_ids=ids)
        if checked.names:
            found.names.extend(await (await self._catalog.model(pool))[1].names(ids))
        return found

    async def Detokenize(  # noqa: N802
        self, request: api.DetokenizeRequest, context: CallContext, caller: Caller
    ) -> api.DetokenizeResponse:
        model, token_ids = check_detokenize(request)
        _info, tokenizer = await self._catalog.model(self._catalog.pool(model, caller))
        return api.DetokenizeResponse(text=await tokenizer.decode(token_ids))


class _Entered(AbstractContextManager[None]):
    """Time that a call is open. One object for all calls: a generator would take half a kilobyte of each stream."""

    __slots__ = ("_servicer",)

    def __init__(self, servicer: InferenceServicer) -> None:
        self._servicer = servicer

    def __enter__(self) -> None:
        self._servicer.enter()

    def __exit__(self, *_error: object) -> None:
        self._servicer.leave()


def raise_if_stopped(reasons: set[types.FinishReason.ValueType]) -> None:
    """Raise the error of a unary call that was stopped from outside: a partial answer must not look complete.

    Raises:
        DeadlineError, CancelledError: a choice was stopped by its deadline, or by a cancel.
    """
    if types.FINISH_REASON_DEADLINE in reasons:
        raise DeadlineError
    if types.FINISH_REASON_CANCELLED in reasons:
        raise CancelledError
