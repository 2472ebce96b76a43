"""The responses that a router runs without a connection: those in the background, and streams that were cut off."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from cluster.errors import (
    PenstockError,
    QueueUnavailableError,
    ResponseLimitError,
    ResponseNotFoundError,
    ShuttingDownError,
)
from cluster.lifecycle import TaskOwner
from cluster.responses.contract import Followed, ResponseClaim, ResponseName, ResponseRecord, ResponseStore
from cluster.responses.settings import response_limits_from
from cluster.settings import Settings
from router.http.responses.answer import collected, stopped
from router.http.responses.events import Events
from router.http.responses.pieces import unpack_pieces
from router.http.responses.run import FLUSH_S, ResponseRun, ResponseTools
from router.http.responses.stored import StoredRequest, StoredResult
from router.identity import Caller
from router.identity.revocations import Revocations
from router.inference.keyed_generation import OpenGenerations
from router.validation import RequestLimits, check_request

_LOG = logging.getLogger(__name__)
_SURELY_BEGUN_S = 30.0
"""Age in seconds at which a response is in line, if it ever will be."""
_RETRY_S = 1.0
"""Pause before Redis is told again to delete a response."""
_LOOKS = 4
"""Number of looks for silent owners in a lease."""


def response_tools(
    settings: Settings, store: ResponseStore, generations: OpenGenerations, limits: RequestLimits
) -> ResponseTools:
    """Return what the responses of a router share."""
    lease_s = response_limits_from(settings).lease_ms / 1000
    return ResponseTools(store, generations, limits, lease_s, settings.queue.attach_grace_s)


class ResponseRuns:
    """All of them. A response whose router is gone continues at another one."""

    def __init__(self, tools: ResponseTools, revocations: Revocations) -> None:
        """`revocations` end the responses of revoked keys."""
        self._tools, self._revocations = tools, revocations
        self._owner = TaskOwner("responses")
        self._runs: dict[str, ResponseRun] = {}
        self._left: deque[ResponseClaim] = deque()
        """Responses to delete when Redis answers."""
        self._forgetting: asyncio.Task[None] | None = None
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def store(self) -> ResponseStore:
        return self._tools.store

    @property
    def limits(self) -> RequestLimits:
        return self._tools.limits

    def start(self) -> None:
        """Start to look for responses whose router is gone."""
        self._owner.spawn(self._look(), "look")

    async def drain(self, seconds: float) -> None:
        """Take no more. Return when all have ended, or after `seconds`."""
        self._draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            _LOG.warning("responses.drain_over", extra={"responses": len(self._runs)})

    async def close(self) -> None:
        """Stop, and close the store. What has not ended is left to other routers. May be called twice."""
        await self._owner.close()
        await self._tools.store.close()

    # --- begin --------------------------------------------------------------------------------------------------------

    async def create(self, stored: StoredRequest, caller: Caller) -> ResponseRun | None:
        """Run a new response in the background. It is in line when this returns. Return None where one has its id.

        Raises:
            PenstockError: it can't be served. Then nothing is kept of it.
        """
        if self._draining:
            raise ShuttingDownError("this router is shutting down", 0.1)
        name = ResponseName(caller.tenant, stored.response_id)
        claim = ResponseClaim(name, secrets.token_hex(12))
        if not await self.begin(claim, stored, leased=True):
            return None
        run = self._spawn(claim, stored, caller)
        try:
            await asyncio.shield(run.opened)
        except PenstockError:
            await self.forget(claim)
            raise
        return run

    async def begin(self, claim: ResponseClaim, stored: StoredRequest, *, leased: bool) -> bool:
        """Store a new response. Return False where one has its id.

        Raises:
            QueueUnavailableError: Redis does not answer. Then nothing is kept of it.
            ResponseLimitError: the tenant's running responses take all that it may store.
        """
        try:
            return await self.store.create(claim, stored.packed(), leased=leased)
        except QueueUnavailableError:
            # Only the answer may be lost. Its client, who sends it again, would pay for two.
            await self.forget(claim)
            raise

    async def forget(self, claim: ResponseClaim) -> None:
        """Delete a response whose client gets an error, so that no router takes it up; later, while Redis does not
        answer. What a repeat under the same key has taken up or stored meanwhile stays.
        """
        # One task for all: each request of an outage may leave one.
        if self._forgetting is None or self._forgetting.done():
            try:
                await self.store.delete(claim.name, claim=claim)
                return
            except QueueUnavailableError:
                _LOG.warning("response.not_deleted", extra={"response": claim.name.response_id})
        self._left.append(claim)
        if (self._forgetting is None or self._forgetting.done()) and not self._owner.closed:
            self._forgetting = self._owner.spawn(self._forget_all(), "forget")

    async def _forget_all(self) -> None:
        while self._left:
            await asyncio.sleep(_RETRY_S)
            with contextlib.suppress(QueueUnavailableError):
                while self._left:
                    await self.store.delete(self._left[0].name, claim=self._left[0])
                    self._left.popleft()

    def note(self, claim: ResponseClaim, request_id: str, place: bytes) -> None:
        """Note which request of the cluster makes the output of a stream, and its resume token."""
        self._owner.spawn_unless_closed(self._note(claim, request_id, place), "note")

    async def _note(self, claim: ResponseClaim, request_id: str, place: bytes) -> None:
        # Without it another run may follow after the loss of the first.
        with contextlib.suppress(QueueUnavailableError):
            await self.store.note(claim, 0, 0, b"", started=bool(place), run=request_id, place=place)

    async def keep(self, claim: ResponseClaim, result: bytes, new_run: str = "") -> bool:
        """Store the result of a response that has ended; later, while Redis does not answer. Return whether it is
        stored now. `new_run`: id of the cluster's request, where nothing was stored of the response yet.
        """
        begun = not new_run
        try:
            if new_run:
                await self._begin_ended(claim)
                begun = True
            return await self.store.finish(claim, result, run=new_run) or await self.store.get(claim.name) is not None
        except QueueUnavailableError:
            if begun and not self._owner.closed:
                # Its record would say that it runs.
                self._owner.spawn(self._finish_later(claim, result, new_run), "finish")
        except ResponseLimitError:
            pass
        return False

    async def _begin_ended(self, claim: ResponseClaim) -> None:
        if await self.store.create(claim, b"", leased=False):
            return
        record = await self.store.get(claim.name)
        if record is not None and not record.known:
            # Of an earlier call under the same key, whose result Redis did not take. It may never come.
            await self.store.delete(claim.name)
            await self.store.create(claim, b"", leased=False)

    async def _finish_later(self, claim: ResponseClaim, result: bytes, run: str) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            with contextlib.suppress(QueueUnavailableError):
                await self.store.finish(claim, result, run=run)
                return

    def take_up(self, name: ResponseName) -> None:
        """Go on with a response whose connection has ended."""
        if not self._draining:
            self._owner.spawn(self.adopt(name), "adopt")

    async def adopt(self, name: ResponseName) -> ResponseRun | None:
        """Run a response here that nobody runs. Return None if somebody does, or it has ended."""
        if self._draining:
            return None
        claim = await self.store.claim(name)
        if claim is None:
            return None
        record = await self.store.get(name)
        if record is None or record.ended:
            return None
        stored = StoredRequest.unpack(record.request)
        _LOG.info("response.adopted", extra={"response": name.response_id, "journal": record.journal})
        run = self._spawn(claim, stored, Caller(name.tenant), record)
        run.opened.set_result({})
        return run

    def _spawn(
        self, claim: ResponseClaim, stored: StoredRequest, caller: Caller, record: ResponseRecord | None = None
    ) -> ResponseRun:
        run = self._runs[stored.response_id] = ResponseRun(claim, stored, caller, self._tools, record)
        self._idle.clear()
        self._owner.spawn(self._run(run), "run")
        return run

    async def _run(self, run: ResponseRun) -> None:
        stored = run.stored
        work = self._revocations.began(stored.api_key, 1000 * int(stored.base["created_at"]), run.revoke)
        try:
            await run.run()
        finally:
            work.close()
            if self._runs.get(run.stored.response_id) is run:
                del self._runs[run.stored.response_id]
            if not self._runs:
                self._idle.set()

    async def _look(self) -> None:
        takeover_from = 0.0
        while not self._draining:
            await asyncio.sleep(self._tools.lease_s / _LOOKS)
            try:
                silent = await self.store.sweep()
                if time.monotonic() >= takeover_from:
                    await asyncio.gather(*(self.adopt(name) for name in silent))
            except QueueUnavailableError:
                # The other owners could not renew their leases either. Leave them time to do it.
                takeover_from = time.monotonic() + self._tools.lease_s
            except PenstockError:
                _LOG.exception("responses.look_failed")

    async def settled(self, record: ResponseRecord) -> ResponseRecord:
        """Return a response as it is, and end it first where its connection and its request are both gone."""
        if record.ended or record.leased or record.age_s < _SURELY_BEGUN_S:
            return record
        stored = StoredRequest.unpack(record.request)
        checked = check_request(stored.request(), self._tools.limits)
        if await self._tools.generations.knows(checked, record.name.tenant):
            return record
        if (claim := await self.store.claim(record.name)) is not None:
            response = stopped(collected(stored.base, ()), int(time.time()))[1]
            result = StoredResult(response, stored.items, stored.digest, started=False)
            await self.store.finish(claim, result.packed())
        return await self.store.get(record.name) or record

    # --- read ---------------------------------------------------------------------------------------------------------

    def here(self, response_id: str) -> ResponseRun | None:
        """Return the run of a response that runs here."""
        return self._runs.get(response_id)

    async def follow(self, name: ResponseName, reader: ResponseReader) -> AsyncGenerator[str, None]:
        """Yield the events of a response that a reader lacks, to its end, wherever it runs.

        Raises:
            ResponseNotFoundError: it was deleted.
            QueueUnavailableError: Redis does not answer.
        """
        while not reader.ended:
            run = self.here(name.response_id)
            if run is None:
                found = await self.store.follow(name, reader.journal, reader.chunks, request=not reader.knows)
                if found is None:
                    raise ResponseNotFoundError(name.response_id)
                if not found.record.ended and not found.owned:
                    run = await self.adopt(name)
                if run is None:
                    if lines := reader.from_store(found):
                        yield lines
                    if not reader.ended:
                        await asyncio.sleep(FLUSH_S)
                    continue
            run.readers += 1
            try:
                while not (reader.ended or run.over):
                    if lines := reader.from_run(run):
                        yield lines
                    if not (reader.ended or run.over):
                        await run.changed()
                if lines := reader.from_run(run):
                    yield lines
            finally:
                run.readers -= 1

    async def result(self, name: ResponseName) -> StoredResult:
        """Wait for the end of a response.

        Raises:
            PenstockError: for the reasons of `follow`.
        """
        async for _ in self.follow(name, ResponseReader(0)):
            pass
        record = await self.store.get(name)
        if record is None or not record.ended:
            raise ResponseNotFoundError(name.response_id)
        return StoredResult.unpack(record.result)


class ResponseReader:
    """What one reader has been told."""

    def __init__(self, after: int) -> None:
        self.ended = False
        self.journal, self.chunks = 0, 0
        """Journal that is read, and how many chunks of it are told."""
        self._after = after
        self._events: Events | None = None
        self._base: Mapping[str, Any] | None = None
        """Fields of the response that do not change; None until the store has told them."""
        self._source: object = None
        self._pieces = 0
        self._started = False

    @property
    def knows(self) -> bool:
        """Whether what the response asked for need not be read again."""
        return self._base is not None

    @property
    def last(self) -> int:
        """Number up to which everything was told."""
        return max(self._after, self._events.last if self._events is not None else self._after)

    def from_run(self, run: ResponseRun) -> str:
        """Return what a run here adds."""
        if run.result is not None:
            return self._end(run.result)
        events, lines = self._at((run, run.version), run.stored.base)
        if run.started:
            lines += self._start(events)
        new = run.told[self._pieces :]
        self._pieces += len(new)
        return lines + "".join(map(events.add, new))

    def from_store(self, found: Followed) -> str:
        """Return what the store adds."""
        record = found.record
        if record.ended:
            return self._end(StoredResult.unpack(record.result))
        if record.journal != self.journal:
            self.journal, self.chunks = record.journal, 0
        if self._base is None:
            self._base = StoredRequest.unpack(record.request).base
        events, lines = self._at(record.journal, self._base)
        if record.started:
            lines += self._start(events)
        self.chunks += len(found.chunks)
        return lines + "".join(events.add(piece) for chunk in found.chunks for piece in unpack_pieces(chunk))

    def _at(self, source: object, base: Mapping[str, Any]) -> tuple[Events, str]:
        """Return the writer of events for a source; for another one than before it tells only what is new."""
        if self._events is None or source != self._source:
            self._after = self.last
            self._events = Events(str(base["id"]), base, self._after)
            self._source, self._pieces, self._started = source, 0, False
            return self._events, self._events.begin(queued=bool(base["background"]))
        return self._events, ""

    def _start(self, events: Events) -> str:
        if self._started:
            return ""
        self._started = True
        return events.started()

    def _end(self, result: StoredResult) -> str:
        if self.ended:
            return ""
        self._after = self.last
        self.ended = True
        return result.told(self._after)
