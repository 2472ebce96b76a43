"""Writes of one generation's events to its client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from penstock.v1 import inference_pb2 as api
from router.call_context import CallContext, ClientGoneError, Metadata, text_event
from router.generation.generation import Generation
from router.inference.coalescing import AT_ONCE, StreamCoalescing
from router.inference.idempotency import IdempotentResult
from router.metrics import RouterMetrics


class EventWriter:
    """Writer of one streaming call. Most output goes through `write`, which never waits. `run` writes the rest."""

    __slots__ = ("_coalescing", "_context", "_direct", "_generation", "_metrics", "_result", "ready")

    def __init__(
        self,
        generation: Generation,
        result: IdempotentResult | None,
        context: CallContext,
        coalescing: StreamCoalescing,
        metrics: RouterMetrics,
    ) -> None:
        """`result` collects every event for the request's key; None without a key."""
        self._generation = generation
        self._result = result
        self._context = context
        self._coalescing = coalescing
        self._metrics = metrics
        self._direct = direct = context.direct
        # The method of the connection itself, because it is asked per token.
        self.ready: Callable[[], bool] = direct.can_write if direct is not None else _never

    async def run(self, metadata: Metadata = ()) -> None:
        """Write everything, to the last event; `metadata` comes first, where there is any.

        Raises:
            PenstockError: the generation failed.
            asyncio.CancelledError: the client is gone.
        """
        generation = self._generation
        try:
            if metadata:
                await self._context.send_initial_metadata(metadata)
            if self._direct is not None:
                # Most tokens go from the link to the client's connection, and this coroutine sleeps on.
                generation.write_through(self)
            # Let the link send a start first: its way is longer than the one to the client.
            await asyncio.sleep(0)
            while not generation.finished:
                await generation.wait()
                # In a frame of its own: while a stream waits it keeps no event, which takes a kilobyte.
                await self._send(generation.take())
        except ClientGoneError:
            raise asyncio.CancelledError from None
        finally:
            generation.write_through(None)
            self._coalescing.close()

    # --- past the coroutine (DirectWriter) ---

    def write(self, event: api.StreamGenerateResponse, tokens: int) -> None:
        """Send output while `ready`."""
        if (collecting := self._coalescing.wrote(tokens)) is not AT_ONCE:
            self._generation.collect(*collecting)
        if self._result is not None:
            self._result.add(event)
        try:
            self._direct.write_now(event)  # type: ignore[union-attr]
        except ValueError:
            # The core takes nothing more for this call. Its coroutine hears of it at its next write. The link that
            # brought the output has other streams to serve.
            self._context.gone = True

    def write_text(self, index: int, offset: int, token_ids: Sequence[int], text: str) -> None:
        """Send output that is only text while `ready`. Nearly every token comes through here."""
        if (collecting := self._coalescing.wrote(len(token_ids))) is not AT_ONCE:
            self._generation.collect(*collecting)
        if self._result is not None:
            self._result.add(text_event(index, offset, token_ids, text))
        try:
            self._direct.write_text(index, offset, token_ids, text)  # type: ignore[union-attr]
        except ValueError:
            self._context.gone = True

    # --- in the coroutine ---------------------------------------------------------------------------------------------

    async def _send(self, events: Sequence[api.StreamGenerateResponse]) -> None:
        # Note all of them first: a client that leaves during a write must not cut off what the key or the metrics get.
        for event in events:
            self._note(event)
        for event in events:
            await self._context.write(event)

    def _note(self, event: api.StreamGenerateResponse) -> None:
        if event.HasField("delta"):
            collecting = self._coalescing.wrote(len(event.delta.token_ids))
            if collecting is not AT_ONCE or self._generation.collects:
                self._generation.collect(*collecting)
        elif event.HasField("finished"):
            self._metrics.finished(self._generation, event.finished)
        if self._result is not None:
            self._result.add(event)


def _never() -> bool:
    return False
