"""One link. Commands of one router come in, frames go out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from cluster.lifecycle import TaskOwner
from cluster.models import GenerationSpec
from cluster.wire.output_parsing import parsed_to_wire, parsing_from_wire
from cluster.wire.pooling import pooling_from_start
from cluster.wire.resume_record import resume_record_from_wire
from deployments.replica.attempts import AttemptTable, Refused
from deployments.replica.frames import fill_frame
from deployments.replica.output_log import OutputLog
from penstock.internal.v1 import replica_pb2 as pb
from penstock.models import FinishReason
from penstock.v1 import types_pb2 as types
from penstock.wire import sampling_from_wire

_LOG = logging.getLogger(__name__)

PROTOCOL_VERSIONS = (1,)
"""Frame versions that this replica speaks, newest first."""


class LinkSession:
    """Outlet of one link. It collects the output of one turn of the loop and sends it as one frame.

    gRPC allows one outstanding write per stream, so one coroutine (`run`) does all the writing. While a write waits for
    a slow router, deltas pile up in the logs and are merged in the next frame.
    """

    def __init__(self, table: AttemptTable, router_id: str, tokenizer_digest: str = "") -> None:
        """`tokenizer_digest`: the link refuses starts with ids of another tokenizer. Empty where it is not known."""
        self._table = table
        self._router_id = router_id
        self._tokenizer_digest = tokenizer_digest
        self._keys: dict[int, tuple[str, str]] = {}
        """Request id and attempt of each receiver, by its number."""
        self._dirty: list[OutputLog] = []
        self._extra = pb.LinkResponse()
        """Parts of the next frame that are not output."""
        self._wake = asyncio.Event()
        self._owner = TaskOwner(f"link.{router_id}")

    # --- Outlet -------------------------------------------------------------------------------------------------------

    def mark(self, log: OutputLog) -> None:
        """Send the new output of this log with the next frame."""
        self._dirty.append(log)
        self._wake.set()

    def detach(self, sink: int) -> None:
        """Tell the router that another one took over."""
        self._forget(sink)
        self._extra.detached.append(sink)
        self._touch()

    def _touch(self) -> None:
        self._wake.set()

    # --- life ---------------------------------------------------------------------------------------------------------

    async def run(
        self,
        requests: AsyncIterator[pb.LinkRequest],
        write: Callable[[pb.LinkResponse], Awaitable[None]],
        welcome: pb.Welcome,
    ) -> None:
        """Serve the link until the router closes it. However it ends, the requests it carried are parked."""
        self._extra.welcome.CopyFrom(welcome)
        self._touch()
        reader = self._owner.spawn(self._read(requests), "read")
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if reader.done():
                    break
                await write(self._next_frame())
        finally:
            parked = self._table.park(self)
            await self._owner.close()
            _LOG.info("link.closed", extra={"router": self._router_id, "parked": parked})

    def _next_frame(self) -> pb.LinkResponse:
        # Its own function: in `run`, local variables would keep the last frame's logs alive while nothing happens.
        frame, self._extra = self._extra, pb.LinkResponse()
        dirty, self._dirty = self._dirty, []
        left = fill_frame(frame, dirty, self)
        if left:
            self._dirty.extend(left)
            self._wake.set()
        return frame

    async def _read(self, requests: AsyncIterator[pb.LinkRequest]) -> None:
        try:
            async for request in requests:
                await self._obey(request)
        finally:
            # Also after an error: the writer must notice that the link is over.
            self._wake.set()

    # --- commands -----------------------------------------------------------------------------------------------------

    async def _obey(self, request: pb.LinkRequest) -> None:
        aborts: dict[tuple[FinishReason, bool], list[tuple[str, str]]] = {}
        for command in request.commands:
            kind = command.WhichOneof("command")
            if kind == "start":
                await self._start(command.start)
            elif kind == "acknowledge":
                if (key := self._forget(command.acknowledge.sink)) is not None:
                    self._table.acknowledge(*key)
            elif kind == "abort":
                if (key := self._to_abort(command.abort)) is not None:
                    reason = FinishReason.DEADLINE if command.abort.deadline else FinishReason.CANCELLED
                    aborts.setdefault((reason, command.abort.final), []).append(key)
            elif kind == "attach":
                self._attach(command.attach)
            elif kind == "ping":
                self._extra.pong.nonce = command.ping.nonce
                self._touch()
        for (reason, final), keys in aborts.items():
            # Aborting waits for the running step. The next commands must not wait.
            self._owner.spawn(self._table.abort(keys, reason, final=final), "abort")

    def _to_abort(self, abort: pb.Abort) -> tuple[str, str] | None:
        if abort.sink:
            return self._keys.get(abort.sink)
        key = (abort.request_id, abort.attempt)
        outlet = self._table.outlet(*key)
        # Another router may have attached after this one gave the attempt up, or this router on a new link before its
        # old link noticed its end.
        ours = outlet is None or (isinstance(outlet, LinkSession) and outlet._router_id == self._router_id)
        return key if ours else None

    async def _start(self, start: pb.Start) -> None:
        key = (start.request_id, start.attempt)
        if "" != start.tokenizer_digest != self._tokenizer_digest != "":
            detail = f"ids of tokenizer {start.tokenizer_digest}; this replica has {self._tokenizer_digest}"
            self._refuse(start.sink, Refused.OTHER_TOKENIZER, detail)
            return
        self._keys[start.sink] = key
        interactive = start.request_class == types.REQUEST_CLASS_INTERACTIVE
        refusal = await self._table.start(
            *key,
            spec_from_wire(start),
            self,
            start.sink,
            alone=start.alone,
            interactive=interactive,
            time_left_s=start.time_left_ms / 1000 if start.time_left_ms else None,
        )
        if refusal is not None:
            self._refuse(start.sink, *refusal)

    def _forget(self, sink: int) -> tuple[str, str] | None:
        return self._keys.pop(sink, None)

    def _attach(self, attach: pb.Attach) -> None:
        key = (attach.request_id, attach.attempt)
        left_s = (attach.time_left_ms / 1000 or float("inf")) if attach.HasField("time_left_ms") else None
        refusal = self._table.attach(*key, self, attach.sink, attach.from_offset, time_left_s=left_s)
        if refusal is not None:
            self._refuse(attach.sink, *refusal)
            return
        self._keys[attach.sink] = key
        self._extra.attached.append(attach.sink)
        if attach.want_history and attach.from_offset:
            entries, pieces = self._table.history(*key, attach.from_offset)
            self._extra.histories.add(
                sink=attach.sink,
                token_ids=[token for entry in entries for token in entry[1]],
                text="".join(entry[2] for entry in entries),
                delta_tokens=[len(entry[1]) for entry in entries],
                delta_characters=[len(entry[2]) for entry in entries],
                parsed=[parsed_to_wire(index, piece) for index, piece in enumerate(pieces) if piece is not None],
            )
        self._touch()

    def _refuse(self, sink: int, reason: Refused, detail: str) -> None:
        self._forget(sink)
        self._extra.refusals.add(sink=sink, reason=pb.RefusalReason.ValueType(reason.value), detail=detail)
        self._touch()


def spec_from_wire(start: pb.Start) -> GenerationSpec:
    return GenerationSpec(
        prompt_token_ids=list(start.prompt_token_ids),
        sampling=sampling_from_wire(start.sampling, max_tokens=start.sampling.max_tokens),
        lora_adapter=start.lora_adapter,
        cache_salt=start.cache_salt,
        resume=resume_record_from_wire(start.resume) if start.HasField("resume") else None,
        parsing=parsing_from_wire(start.parsing) if start.HasField("parsing") else None,
        pooling=pooling_from_start(start.pooling) if start.HasField("pooling") else None,
        trace_parent=start.trace_parent,
    )
