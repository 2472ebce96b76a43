"""One response that runs at this router without a connection of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from cluster.errors import (
    CancelledError,
    InvalidRequestError,
    KeyRevokedError,
    PenstockError,
    QueueUnavailableError,
    ShuttingDownError,
    TakenOverError,
    UnavailableError,
)
from cluster.lifecycle import TaskOwner
from cluster.responses.contract import ResponseClaim, ResponseRecord, ResponseStore
from penstock.v1 import inference_pb2 as api
from router.call_origin import RESPONSES, enter_call
from router.http.errors import HttpError, http_error
from router.http.responses.answer import broken, collected, ended, stopped
from router.http.responses.events import Events
from router.http.responses.pieces import Piece, goes_on, merged, pack_pieces, pieces_of, pieces_of_choice, unpack_pieces
from router.http.responses.stored import StoredRequest, StoredResult
from router.identity import Caller
from router.inference.coalescing import NEVER
from router.inference.forward import answer_metadata
from router.inference.idempotency import read_result
from router.inference.keyed_generation import KeyedGeneration, OpenGenerations
from router.validation import RequestLimits, ResumePoint, check_request

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

FLUSH_S = 0.2
"""Seconds of output that other routers' readers do not know yet."""
_READ_S = 0.02
"""Seconds for which output collects while somebody here reads it."""
_RETRY_S = 0.5
"""Pause before the next call after Redis, or the cluster, did not answer."""
_RENEWALS = 4
"""Number of renewals in a lease."""
_LOST = HttpError(
    500, "server_error", "the output that clients may have read is lost, and another run differs", "output_lost"
)


@dataclass(frozen=True, slots=True)
class ResponseTools:
    """What all responses of a router share."""

    store: ResponseStore
    generations: OpenGenerations
    limits: RequestLimits
    lease_s: float
    grace_s: float
    """Seconds for which a response goes on that nobody reads, and that does not run in the background."""


class ResponseRun:
    """Run of one response. It ends with the response, with the loss of the claim, or when the router stops.

    Readers take what is `told`, from the beginning again whenever `version` has changed.
    """

    def __init__(
        self,
        claim: ResponseClaim,
        stored: StoredRequest,
        caller: Caller,
        tools: ResponseTools,
        record: ResponseRecord | None = None,
    ) -> None:
        """`record`: the response as an earlier run has left it; None for the first run."""
        self.stored = stored
        self.pieces: list[Piece] = []
        """Output so far."""
        self.version = 0
        self.started = False
        """Whether it has left the queue."""
        self.result: StoredResult | None = None
        self.over = False
        """Whether this router does nothing more for it."""
        self.readers = 0
        self.opened: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        """Done when the request is in line for the first time, with what the client is told beside the answer; has the
        error if it can't be."""
        self._claim, self._caller, self._tools = claim, caller, tools
        self._store = tools.store
        self._news = asyncio.Event()
        self._owner = TaskOwner(f"response.{stored.response_id}")
        self._lost = asyncio.Event()
        self._journal, self._chunks, self._written = record.journal if record is not None else 0, 0, 0
        self._noted = False
        """Whether the journal has the beginning of the output."""
        self._same = record.run if record is not None else ""
        """The only request of the cluster whose output readers may get; empty for any."""
        self._place = record.place if record is not None else b""
        """Newest resume token. With it output is found that has ended meanwhile."""
        self._before: Sequence[Piece] = ()
        """Output that readers have, of which it is not known yet whether this run goes on from it."""
        self._output: list[Piece] = []
        self._finished: api.Finished | None = None
        self._fresh = asyncio.Event()
        """Set while there is output that the journal lacks."""
        self._ran = ""
        """Id of the cluster's request that ran last."""
        self._open: KeyedGeneration | None = None
        self._cancelled = False
        self._revoked = False
        """Whether it ends because its key was revoked."""
        self._unread_since = time.monotonic()

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def told(self) -> Sequence[Piece]:
        """Output that readers may see. Its beginning is in the journal: another run that differs is found out."""
        return self.pieces if self._noted else ()

    async def changed(self) -> None:
        """Wait for more output, or another change."""
        await self._news.wait()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    # --- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run it. When it returns nothing of it is in progress here."""
        keep = self._owner.spawn(self._keep_lease(), "lease")
        write = self._owner.spawn(self._write(), "journal")
        work = self._owner.spawn(self._work(), "work")
        lost = self._owner.spawn(self._lost.wait(), "lost")
        try:
            await asyncio.wait((keep, write, work, lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._owner.close()
            self.over = True
            if not self.opened.done():
                self._refuse(ShuttingDownError("this router is shutting down", 0.1))
            self._tell()
            if self.result is None and not self._lost.is_set():
                try:
                    await self._store.release(self._claim)
                except QueueUnavailableError:
                    _LOG.warning("response.lease_left_to_expire", extra={"response": self.stored.response_id})

    def cancel(self) -> None:
        """End the response, with the output so far."""
        self._cancelled = True
        if self._open is not None:
            self._open.generation.cancel()

    def revoke(self) -> None:
        """End the response, because its key was revoked."""
        self._revoked = True
        if self._open is not None:
            self._open.generation.cancel()

    async def _work(self) -> None:
        if self._journal:
            self._before = merged(piece for chunk in await self._journaled() for piece in unpack_pieces(chunk))
        while self.result is None:
            if self._revoked:
                await self._finish(self._ended_by_revocation())
                return
            if self._cancelled:
                await self._finish(stopped(self._said(), int(time.time()))[1])
                return
            try:
                await self._generate()
            except (ShuttingDownError, TakenOverError):
                # Another router has it, or will have it.
                return
            except PenstockError as error:
                await self._failed(error)

    async def _journaled(self) -> Sequence[bytes]:
        """Return the journal that an earlier run has left. One call reads only some of a long one."""
        found: list[bytes] = []
        while True:
            read = partial(self._store.follow, self._claim.name, self._journal, len(found))
            followed = await self._insist(read)
            if followed is None or followed.record.journal != self._journal or not followed.chunks:
                return found
            found += followed.chunks

    async def _failed(self, error: PenstockError) -> None:
        if not self.opened.done():
            # The client that created it is told, and nothing is kept.
            self._refuse(error)
            self._lost.set()
            await asyncio.Event().wait()
        wait_s = getattr(error, "retry_after_s", None)
        if isinstance(error, UnavailableError) or wait_s is not None:
            await asyncio.sleep(max(_RETRY_S, min(wait_s or 0.0, 10.0)))
        elif isinstance(error, CancelledError):
            self._cancelled = True
        elif isinstance(error, InvalidRequestError) and self._place:
            # The model has changed, so the token is another request's. Begin anew.
            self._place = b""
        else:
            await self._finish(broken(self._said(), http_error(error), int(time.time()))[1])

    def _refuse(self, error: PenstockError) -> None:
        self.opened.set_exception(error)
        # Nobody may wait for it, and asyncio would report that.
        self.opened.exception()

    async def _generate(self) -> None:
        checked = check_request(self.stored.request(), self._tools.limits)
        resume = ResumePoint(self._place, ()) if self._place else None
        enter_call(RESPONSES)
        opened = await self._tools.generations.open(checked, self._caller, None, resume)
        if not self.opened.done():
            self.opened.set_result({} if isinstance(opened, bytes) else dict(answer_metadata(opened.generation)))
        self._restart()
        if isinstance(opened, bytes):
            await self._replay(read_result(opened)[0])
            return
        if self._same not in ("", opened.generation.request_id):
            # The client of the stream that was cut off has output of another request, and that is gone.
            opened.generation.close()
            await opened.settle()
            await self._finish(broken(self._said(), _LOST, int(time.time()))[1])
            return
        self._open, self._ran = opened, opened.generation.request_id
        try:
            if self._cancelled or self._revoked:
                opened.generation.cancel()
            await opened.deliver(self._read(opened))
        finally:
            self._open = None
        await self._end()

    async def _replay(self, response: api.GenerateResponse) -> None:
        """Take the stored result of a request that has ended."""
        self._take(list(pieces_of_choice(response.choices[0], response.usage.reasoning_tokens)))
        end = api.ChoiceEnd(finish_reason=response.choices[0].finish_reason)
        self._finished = api.Finished(choices=[end], usage=response.usage, unenforced=response.unenforced)
        await self._end()

    async def _end(self) -> None:
        if (finished := self._finished) is not None and not self._revoked:
            said, now_s = self._said(), int(time.time())
            await self._finish((broken(said, _LOST, now_s) if self._before else ended(said, finished, now_s))[1])

    async def _read(self, opened: KeyedGeneration) -> None:
        generation = opened.generation
        # Let the link send a start first.
        await asyncio.sleep(0)
        while not generation.finished:
            await generation.wait()
            for event in generation.take():
                if opened.result is not None:
                    opened.result.add(event)
                match event.WhichOneof("event"):
                    case "started":
                        self.started, self._place = True, event.started.resume_token
                        self._fresh.set()
                        self._tell()
                    case "resumed":
                        self._place = event.resumed.resume_token
                        self._fresh.set()
                    case "delta":
                        self._take(list(pieces_of(event.delta)))
                    case "finished":
                        self._finished = event.finished
                        self._tools.generations.metrics.finished(generation, event.finished)
            if not generation.finished:
                generation.collect(NEVER, _READ_S if self.readers else FLUSH_S)

    # --- output -------------------------------------------------------------------------------------------------------

    def _restart(self) -> None:
        """Begin the output anew. What readers have must come again."""
        if self.pieces:
            self._before = merged(self.pieces)
        self.pieces, self._written, self._chunks, self._noted = [], 0, 0, False
        self._fresh.clear()
        self._output, self._finished = [], None
        self.version += 1

    def _take(self, pieces: Sequence[Piece]) -> None:
        self.started = True
        if not self._before:
            self.pieces += pieces
        else:
            self._output += pieces
            if not goes_on(self._before, merged(self._output)):
                return
            self._before, self.pieces = (), self._output
        self._fresh.set()
        self._tell()

    async def _write(self) -> None:
        while True:
            await self._fresh.wait()
            pieces = self.pieces[self._written :]
            if not self._chunks:
                self._journal += 1
            number, version = self._chunks, self.version
            self._written += len(pieces)
            self._chunks += 1
            chunk = pack_pieces(merged(pieces))
            note = partial(self._store.note, self._claim, self._journal, number, chunk)
            note = partial(note, started=self.started, place=self._place)
            if not await self._insist(note):
                self._lost.set()
            if version == self.version and self._written:
                self._noted = True
                self._tell()
            await asyncio.sleep(FLUSH_S)
            if self._written == len(self.pieces):
                self._fresh.clear()

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _said(self) -> Events:
        """Return the state of a stream that has told everything."""
        return collected(self.stored.base, self._before or self.pieces)

    def _ended_by_revocation(self) -> dict[str, Any]:
        return broken(self._said(), http_error(KeyRevokedError(self.stored.api_key)), int(time.time()))[1]

    async def _finish(self, response: Mapping[str, Any]) -> None:
        stored = self.stored
        result = StoredResult(response, stored.items, stored.digest, self.started)
        packed = result.packed()
        if await self._insist(lambda: self._store.finish(self._claim, packed, run=self._ran)):
            self.result = result
            self._tell()
        else:
            self._lost.set()
            await asyncio.Event().wait()

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self._tools.lease_s / _RENEWALS)
            held = await self._insist(lambda: self._store.renew(self._claim))
            if held is None:
                self._lost.set()
                return
            if held.cancelled:
                self.cancel()
            if self.readers or self.stored.background:
                self._unread_since = time.monotonic()
            elif min(held.unread_s, time.monotonic() - self._unread_since) > self._tools.grace_s:
                self.cancel()

    async def _insist(self, call: Callable[[], Awaitable[_T]]) -> _T:
        while True:
            try:
                return await call()
            except QueueUnavailableError:
                await asyncio.sleep(_RETRY_S)
