"""One link. Commands of one router come in, frames go out."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Protocol

from cluster.lifecycle import TaskOwner
from cluster.models import GenerationSpec
from cluster.wire.output_parsing import parsed_to_wire, parsing_from_wire
from cluster.wire.pooling import pooling_from_start
from cluster.wire.resume_record import resume_record_from_wire
from deployments.replica.attempts import AttemptTable, Refused
from deployments.replica.links.frames import fill_frame
from deployments.replica.links.prompt_images import images_from_wire, places_problem
from deployments.replica.output_log import OutputLog
from penstock.internal.v1 import replica_pb2 as pb
from penstock.models import FinishReason
from penstock.v1 import types_pb2 as types
from penstock.wire import sampling_from_wire

_LOG = logging.getLogger(__name__)

MOST_WAITING = 1 << 20
"""Bytes of commands that may wait; beyond it nothing more is read from the router."""


class Wire(Protocol):
    """Connection that carries a session."""

    def write(self, frame: pb.LinkResponse) -> None:
        """Send a frame. `LinkSession.pause` is called where the router does not keep up."""
        ...

    def hold(self) -> None:
        """Read nothing until `go_on`."""
        ...

    def go_on(self) -> None:
        """Read again."""
        ...

    def break_off(self, failure: Exception) -> None:
        """End the connection because of an error."""
        ...


class LinkSession:
    """Outlet of one link. It sends the output of one turn of the loop as one frame, at the turn's end.

    While the router reads slowly (`pause`), deltas pile up in the logs and are merged in the next frame.
    """

    def __init__(
        self,
        table: AttemptTable,
        router_id: str,
        wire: Wire,
        tokenizer_digest: str = "",
        *,
        reads_text_deltas: bool = False,
    ) -> None:
        """Open a link.

        Args:
            table: attempts of the replica.
            router_id: the router's id.
            wire: what carries the link.
            tokenizer_digest: the link refuses starts with ids of another tokenizer. Empty where it is not known.
            reads_text_deltas: what the router's hello says.
        """
        self._table = table
        self._reads_text_deltas = reads_text_deltas
        self._router_id = router_id
        self._wire = wire
        self._tokenizer_digest = tokenizer_digest
        self._keys: dict[int, tuple[str, str]] = {}
        """Request id and attempt of each receiver, by its number."""
        self._dirty: list[OutputLog] = []
        self._extra = pb.LinkResponse()
        """Parts of the next frame that are not output."""
        self._due = False
        """Whether a frame will be sent at the end of this turn, or after the pause."""
        self._paused = False
        self._ended = False
        self._requests: deque[tuple[pb.LinkRequest, int]] = deque()
        """Commands to carry out, each with its size in bytes."""
        self._waiting = 0
        """Bytes of `_requests`."""
        self._held = False
        self._came = asyncio.Event()
        self._owner = TaskOwner(f"link.{router_id}")
        self._owner.spawn(self._obey_all(), "obey")
        _LOG.info("link.opened", extra={"router": router_id})

    # --- outlet -------------------------------------------------------------------------------------------------------

    def mark(self, log: OutputLog) -> None:
        """Send the new output of this log with the next frame."""
        self._dirty.append(log)
        if not self._due:
            self._touch()

    def detach(self, sink: int) -> None:
        """Tell the router that another one took over."""
        self._forget(sink)
        self._extra.detached.append(sink)
        self._touch()

    def _touch(self) -> None:
        if self._due:
            return
        self._due = True
        if not self._paused:
            asyncio.get_running_loop().call_soon(self._flush)

    def pause(self) -> None:
        """Send nothing until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """Send what came meanwhile."""
        self._paused = False
        if self._due:
            asyncio.get_running_loop().call_soon(self._flush)

    def flush(self) -> None:
        """Send now what is due, also in a pause."""
        while self._due and not self._ended:
            # A write that fills the connection pauses anew.
            self._paused = False
            self._flush()

    def _flush(self) -> None:
        if self._paused or self._ended or not self._due:
            return
        self._due = False
        try:
            self._wire.write(self._next_frame())
        except Exception as error:  # noqa: BLE001 - the router connects again, and attaches where it is
            _LOG.exception("link.frame_failed", extra={"router": self._router_id})
            self._wire.break_off(error)

    def _next_frame(self) -> pb.LinkResponse:
        frame, self._extra = self._extra, pb.LinkResponse()
        dirty, self._dirty = self._dirty, []
        left = fill_frame(frame, dirty, self, text_deltas=self._reads_text_deltas)
        if left:
            self._dirty.extend(left)
            self._touch()
        return frame

    # --- end ----------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Park the requests of the link, whose connection is over. Call `close` next."""
        self._ended = True
        parked = self._table.park(self)
        # A router that closes its link acknowledges with its last words.
        for request, _size in self._requests:
            for command in request.commands:
                if command.HasField("acknowledge"):
                    self._acknowledge(command.acknowledge.sink)
        self._requests.clear()
        _LOG.info("link.closed", extra={"router": self._router_id, "parked": parked})

    async def close(self) -> None:
        """End what still runs for the link."""
        await self._owner.close()

    # --- commands -----------------------------------------------------------------------------------------------------

    def take(self, request: pb.LinkRequest, size: int) -> None:
        """Carry out commands after those that came before. `size` is in bytes."""
        self._requests.append((request, size))
        self._waiting += size
        self._came.set()
        if self._waiting > MOST_WAITING and not self._held:
            self._held = True
            self._wire.hold()

    async def _obey_all(self) -> None:
        try:
            while True:
                await self._came.wait()
                self._came.clear()
                while self._requests:
                    request, size = self._requests.popleft()
                    await self._obey(request)
                    self._waiting -= size
                    if self._held and self._waiting <= MOST_WAITING // 2:
                        self._held = False
                        self._wire.go_on()
        except Exception as error:  # noqa: BLE001 - as above
            _LOG.exception("link.command_failed", extra={"router": self._router_id})
            self._wire.break_off(error)

    async def _obey(self, request: pb.LinkRequest) -> None:
        aborts: dict[tuple[FinishReason, bool], list[tuple[str, str]]] = {}
        for command in request.commands:
            kind = command.WhichOneof("command")
            if kind == "start":
                await self._start(command.start)
            elif kind == "acknowledge":
                self._acknowledge(command.acknowledge.sink)
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

    def _acknowledge(self, sink: int) -> None:
        if (key := self._forget(sink)) is not None:
            self._table.acknowledge(*key)

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
        spec = spec_from_wire(start)
        if (problem := places_problem(spec.images, len(spec.prompt_token_ids))) is not None:
            self._refuse(start.sink, Refused.INVALID, problem)
            return
        self._keys[start.sink] = key
        interactive = start.request_class == types.REQUEST_CLASS_INTERACTIVE
        refusal = await self._table.start(
            *key,
            spec,
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
        elsewhere = reason is Refused.ELSEWHERE
        number = (Refused.INVALID if elsewhere else reason).value
        self._extra.refusals.add(
            sink=sink, reason=pb.RefusalReason.ValueType(number), detail=detail, elsewhere=elsewhere
        )
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
        images=images_from_wire(start.images),
    )
