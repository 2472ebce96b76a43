"""The router's end of a link: one stream to one replica that carries everything between the two."""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from cluster.errors import LinkError, LinkLostError, LinkRefusedError
from cluster.grpc_options import INNER_CHANNEL_OPTIONS
from cluster.lifecycle import TaskOwner, slept_awake
from cluster.trust.link_proof import caller_metadata
from cluster.trust.secret import ClusterSecret
from cluster.trust.tls import LinkDialer
from penstock.v1 import replica_pb2 as pb
from penstock.v1 import replica_pb2_grpc as pb_grpc
from router.links.abandoned import AbandonedAttempts
from router.links.failure import NO_LIMITS, Failure, RecoveryLimits
from router.links.orphaned_output import OrphanedOutput
from router.links.outbox import Outbox
from router.links.receiver import Receiver
from router.links.stall import Watched, stalled

_LOG = logging.getLogger(__name__)

PROTOCOL_VERSIONS = (1,)
"""Frame versions that this router speaks, newest first."""
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs
FETCH_TIMEOUT_S = 60.0
"""For a tokenizer; a router that opens thousands of streams at the same time may be slow to read it."""
RETRY_S = 0.2
"""Pause between attempts to connect."""
FLUSH_S = 1.0
"""For what a link has to say when it is closed."""


@dataclass(slots=True)
class _Sink:
    receiver: Receiver
    request_id: str
    attempt: str
    offset: int = 0
    """Output tokens that arrived here; where a re-attach continues."""
    want_history: bool = False
    """Whether the output before the offset is still to come."""
    deadline: float | None = None
    """Of who takes it over, monotonic seconds; infinite for none. None: it is not taken over."""
    abort: pb.Abort | None = None
    """Sent, and not yet answered by the end: a stream that breaks may have swallowed it."""
    since: float = 0.0
    """When it was opened; monotonic seconds."""
    begun: bool = False
    """Whether it had output."""
    ended: bool = False


class ReplicaLink:
    """Connects, reconnects, and moves commands out and frames in.

    Life: `start` once; `close` once. While the stream is broken it tries again until `attach_grace` is over or the
    replica's lease is lost, then every receiver gets `on_lost`; it goes on trying for the sake of later requests until
    it is closed.
    """

    def __init__(
        self,
        replica_id: str,
        address: str,
        router_id: str,
        secret: ClusterSecret,
        dialer: LinkDialer,
        *,
        ping_s: float,
        attach_grace_s: float,
        on_change: Callable[[], None],
        limits: RecoveryLimits = NO_LIMITS,
        left: AbandonedAttempts | None = None,
        strays: OrphanedOutput | None = None,
    ) -> None:
        """`on_change` is called whenever `up` or `suspect` changes."""
        self.replica_id = replica_id
        self.address = address
        self.up = False
        """Whether the stream is open and welcomed."""
        self.suspect = False
        """Whether nothing should start there: the replica had work, was silent for too long, and has produced nothing
        since; or it said that its engine died.
        """
        self._engine_died = False
        """Said over this stream."""
        self.output_at = 0.0
        """When output came last; monotonic seconds."""
        self._listening_since = 0.0
        """Since when silence says something about the replica; monotonic seconds."""
        self._lease_lost = False
        self._limits = limits
        self._abandoned = left if left is not None else AbandonedAttempts()
        self._orphaned_output = strays if strays is not None else OrphanedOutput(attach_grace_s)
        self._router_id = router_id
        self._secret = secret
        self._ping_s = ping_s
        self._grace_s = attach_grace_s
        self._on_change = on_change
        self._dialer = dialer
        self._dial()
        self._sinks: dict[int, _Sink] = {}
        self._next_sink = 1
        self._outbox = Outbox()
        self._heard_at = 0.0
        self._owner = TaskOwner(f"link.{replica_id}")
        self._opened = asyncio.Event()

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect."""
        self._owner.spawn(self._keep_open(), "open")

    def _dial(self) -> None:
        self._dialled_with = self._dialer.version
        self._channel = self._dialer.dial(self.address, INNER_CHANNEL_OPTIONS)
        self._stub: Any = pb_grpc.ReplicaServiceStub(self._channel)

    async def wait_up(self, seconds: float) -> bool:
        """Wait until the link is up; False when it is not within this time."""
        try:
            async with asyncio.timeout(seconds):
                await self._opened.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """End the stream; receivers that are left get `on_lost`."""
        if self.up and not await self._outbox.flush(FLUSH_S):
            # The replica keeps for its grace what it could have forgotten.
            _LOG.debug("link.not_flushed", extra={"replica": self.replica_id})
        await self._owner.close()
        self._set_up(False)
        self._lose_all(Failure.LINK)
        await self._channel.close(None)

    def lease_lost(self) -> None:
        """Learn that the replica has no lease. If the link is broken too, nobody vouches for it: it is dead."""
        self._lease_lost = True
        if not self.up and self._sinks:
            self._lose_all(Failure.LINK)

    def lease_found(self) -> None:
        """Learn that the replica has a lease."""
        self._lease_lost = False

    @property
    def busy(self) -> int:
        """Receivers on this link."""
        return len(self._sinks)

    # --- commands -----------------------------------------------------------------------------------------------------

    def open_sink(
        self, receiver: Receiver, request_id: str, attempt: str, offset: int = 0, *, deadline: float | None = None
    ) -> int:
        """Register a receiver; its number is valid on this link only. `deadline`: given, infinite for none, where it
        takes over what another one had; it lacks the output before the offset then.
        """
        sink = self._next_sink
        self._next_sink += 1
        self._sinks[sink] = _Sink(
            receiver,
            request_id,
            attempt,
            offset,
            want_history=deadline is not None and offset > 0,
            deadline=deadline,
            since=time.monotonic(),
        )
        return sink

    def send_start(self, sink: int, start: pb.Start) -> None:
        """Start the attempt of this sink."""
        item = self._sinks[sink]
        start.sink, start.request_id, start.attempt = sink, item.request_id, item.attempt
        self._outbox.send(pb.LinkCommand(start=start))

    def send_attach(self, sink: int) -> None:
        """Take over the output of this sink's attempt."""
        item = self._sinks[sink]
        attach = pb.Attach(sink=sink, request_id=item.request_id, attempt=item.attempt, from_offset=item.offset)
        attach.want_history = item.want_history
        if item.deadline is not None:
            left_s = item.deadline - time.monotonic()
            attach.time_left_ms = max(1, int(1000 * left_s)) if left_s < math.inf else 0
        self._outbox.send(pb.LinkCommand(attach=attach))

    def send_abort(self, sink: int, *, final: bool = False) -> None:
        """Stop the attempt of this sink; its end still comes. `final`: nobody goes on with its output."""
        if (item := self._sinks.get(sink)) is not None:
            item.abort = pb.Abort(sink=sink, final=final)
            self._outbox.send(pb.LinkCommand(abort=item.abort))

    def stop(self, request_id: str, attempt: str) -> None:
        """Stop an attempt that nobody receives here, unless another router does."""
        self._outbox.send(pb.LinkCommand(abort=pb.Abort(request_id=request_id, attempt=attempt)))

    def close_sink(self, sink: int, *, acknowledge: bool) -> None:
        """Forget a receiver; `acknowledge` says that the client has everything, so that the replica can forget too."""
        if self._sinks.pop(sink, None) is not None and acknowledge:
            self._outbox.send_soon(pb.LinkCommand(acknowledge=pb.Acknowledge(sink=sink)))

    async def fetch_tokenizer(self, digest: str) -> Mapping[str, bytes]:
        """Get the tokenizer files.

        Raises:
            LinkError: the replica is gone or has another tokenizer.
        """
        metadata, _answer = caller_metadata(self._secret, self._router_id, self.replica_id)
        try:
            reply = await self._stub.GetTokenizer(
                pb.GetTokenizerRequest(digest=digest), metadata=metadata, timeout=FETCH_TIMEOUT_S, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            raise LinkLostError(f"tokenizer of {self.replica_id}: {error.code().name}: {error.details()}") from error
        return {file.name: file.content for file in reply.files}

    # --- the stream ---------------------------------------------------------------------------------------------------

    async def _keep_open(self) -> None:
        lost_at: float | None = None
        while True:
            try:
                await self._session()
            except LinkError as error:
                _LOG.info("link.down", extra={"replica": self.replica_id, "error": str(error)})
            except Exception:  # noqa: BLE001 - left alone, the link would look up and carry nothing
                _LOG.exception("link.failed", extra={"replica": self.replica_id})
            was_up = self.up
            self._set_up(False)
            now = time.monotonic()
            if was_up or lost_at is None:
                lost_at = now
            if self._lease_lost or now - lost_at > self._grace_s:
                self._lose_all(Failure.LINK)
            self._renew_channel()
            await asyncio.sleep(RETRY_S)

    def _renew_channel(self) -> None:
        # A channel keeps the certificates that it was made with.
        if self._dialer.version != self._dialled_with:
            self._owner.spawn(self._channel.close(FETCH_TIMEOUT_S), "old_channel")
            self._dial()

    async def _session(self) -> None:
        metadata, answer = caller_metadata(self._secret, self._router_id, self.replica_id)
        call = self._stub.Link(metadata=metadata)
        tasks = TaskOwner(f"link.{self.replica_id}.session")
        try:
            first = await self._shake_hands(call)
            if first is _EOF or not first.HasField("welcome"):
                raise LinkRefusedError(f"{self.replica_id} did not welcome us")
            if not hmac.compare_digest(first.welcome.proof, answer) or first.welcome.replica_id != self.replica_id:
                raise LinkRefusedError(f"{self.address} is not {self.replica_id} of this cluster")
            self._begin(first)
            tasks.spawn(self._write(call), "write")
            tasks.spawn(self._ping(call), "ping")
            while (frame := await call.read()) is not _EOF:
                self._deliver(frame)
            raise LinkLostError(f"{self.replica_id} closed the link: {await call.code()}")
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError) as error:
            raise LinkLostError(f"{self.replica_id}: {error}") from error
        except asyncio.CancelledError:
            # gRPC raises this also when the call was cancelled (by the ping or the writer); only our own task's
            # cancellation may end the loop above.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise LinkLostError(f"{self.replica_id}: the stream broke") from None
        finally:
            call.cancel()
            await tasks.close()

    async def _shake_hands(self, call: Any) -> Any:
        hello = pb.LinkCommand(hello=pb.Hello(protocol_versions=PROTOCOL_VERSIONS, router_id=self._router_id))
        try:
            # A peer that is connected and silent, stopped or behind a dead network, would hold up the grace for ever.
            async with asyncio.timeout(self._ping_s):
                await call.write(pb.LinkRequest(commands=[hello]))
                return await call.read()
        except TimeoutError:
            raise LinkLostError(f"{self.replica_id} did not answer within {self._ping_s} s") from None

    def _begin(self, first: pb.LinkResponse) -> None:
        self._heard_at = time.monotonic()
        # Commands that were not sent over the old stream belong to sinks that attach below, except for new starts.
        waiting = [c for c in self._outbox.clear() if c.WhichOneof("command") in ("start", "acknowledge")]
        fresh = {c.start.sink for c in waiting if c.HasField("start")}
        for request_id, attempt in self._abandoned.take(self.replica_id):
            self.stop(request_id, attempt)
        for command in waiting:
            self._outbox.send(command)
        self._orphaned_output.forget(self.replica_id)
        self._engine_died = False
        self._set_suspect(False)
        self._listening_since = self._heard_at
        for sink, item in self._sinks.items():
            if sink not in fresh:
                self.send_attach(sink)
            if item.abort is not None:
                self._outbox.send(pb.LinkCommand(abort=item.abort))
        self._set_up(True)
        self._deliver(first)

    async def _write(self, call: Any) -> None:
        try:
            while True:
                await call.write(pb.LinkRequest(commands=await self._outbox.batch()))
                self._outbox.wrote()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            call.cancel()

    async def _ping(self, call: Any) -> None:
        while True:
            self._outbox.send(pb.LinkCommand(ping=pb.Ping(nonce=time.monotonic_ns())))
            sent = time.monotonic()
            if not await slept_awake(self._ping_s):
                self._listening_since = time.monotonic()
                continue
            if self._heard_at < sent:
                _LOG.warning("link.silent", extra={"replica": self.replica_id, "seconds": self._ping_s})
                call.cancel()
                return
            self._look_for_progress()

    def _look_for_progress(self) -> None:
        live = {sink: item for sink, item in self._sinks.items() if not item.ended}
        watched = (Watched(item.since, item.begun) for item in live.values())
        quiet_since = max(self.output_at, self._listening_since)
        if not stalled(watched, quiet_since, time.monotonic(), self._limits):
            return
        _LOG.error("replica.stalled", extra={"replica": self.replica_id, "attempts": len(live)})
        self._set_suspect(True)
        for sink, item in live.items():
            # If it ever goes on, it must not do so for nobody.
            self.send_abort(sink)
            self._tell_lost(sink, item, Failure.STALLED)

    def _set_suspect(self, suspect: bool) -> None:
        if self.suspect != suspect:
            self.suspect = suspect
            self._on_change()

    # --- frames -------------------------------------------------------------------------------------------------------

    def _deliver(self, frame: pb.LinkResponse) -> None:
        self._heard_at = time.monotonic()
        sinks = self._sinks
        for history in frame.histories:
            if (item := sinks.get(history.sink)) is not None and item.want_history:
                item.want_history = False
                self._tell(history.sink, item, partial(item.receiver.on_history, history))
        if frame.sinks or frame.ends:
            self.output_at = self._heard_at
            # Before the ends are told: where they go on is decided at once, and the pool may not have heard of it yet.
            self._engine_died = self._engine_died or any(ended.engine_died for ended in frame.ends)
            self._set_suspect(self._engine_died)
        if frame.sinks:
            self._deliver_output(frame)
        for ended in frame.ends:
            if (item := sinks.get(ended.sink)) is not None:
                item.ended = True
                self._tell(ended.sink, item, partial(item.receiver.on_end, ended))
        for refusal in frame.refusals:
            if (item := sinks.pop(refusal.sink, None)) is not None:
                self._tell(refusal.sink, item, partial(item.receiver.on_refused, refusal))
        for sink in frame.detached:
            if (item := sinks.pop(sink, None)) is not None:
                self._tell(sink, item, item.receiver.on_detached)

    def _deliver_output(self, frame: pb.LinkResponse) -> None:
        tokens = list(frame.token_ids)
        logprobs = {item.delta: item.positions for item in frame.logprobs} if frame.logprobs else None
        at = 0
        columns = zip(frame.sinks, frame.offsets, frame.token_counts, frame.texts, strict=True)
        for index, (sink, offset, count, text) in enumerate(columns):
            item = self._sinks.get(sink)
            end = at + count
            if item is None:
                if self._orphaned_output.seen(self.replica_id, sink, self._heard_at):
                    _LOG.warning("link.stray", extra={"replica": self.replica_id, "sink": sink})
                    self._outbox.send(pb.LinkCommand(abort=pb.Abort(sink=sink)))
            else:
                item.offset = offset + count
                item.begun = True
                positions = logprobs.get(index, ()) if logprobs is not None else ()
                try:
                    item.receiver.on_delta(offset, tokens[at:end], text, positions)
                except Exception:  # noqa: BLE001 - as in _tell, which would cost a call per token
                    self._give_up(sink, item)
            at = end

    def _tell(self, sink: int, item: _Sink, news: Callable[[], None]) -> None:
        try:
            news()
        except Exception:  # noqa: BLE001 - the other streams of this link go on
            self._give_up(sink, item)

    def _give_up(self, sink: int, item: _Sink) -> None:
        """Do without a receiver that has just failed."""
        self._log_failure(sink)
        self._outbox.send(pb.LinkCommand(abort=pb.Abort(sink=sink)))
        # It may have closed itself before it failed.
        self._sinks.pop(sink, None)
        self._tell_lost(sink, item, Failure.LINK)

    def _tell_lost(self, sink: int, item: _Sink, failure: Failure) -> None:
        try:
            item.receiver.on_lost(failure)
        except Exception:  # noqa: BLE001 - the others have to hear of their own losses
            self._log_failure(sink)

    def _log_failure(self, sink: int) -> None:
        _LOG.exception("link.receiver_failed", extra={"replica": self.replica_id, "sink": sink})

    def _lose_all(self, failure: Failure) -> None:
        lost, self._sinks = self._sinks, {}
        unsent = {command.start.sink for command in self._outbox.clear() if command.HasField("start")}
        for sink, item in lost.items():
            if sink in unsent:
                # It never ran, so it is no attempt that was lost.
                refusal = pb.Refusal(sink=sink, reason=pb.REFUSAL_REASON_DRAINING)
                self._tell(sink, item, partial(item.receiver.on_refused, refusal))
                continue
            if not item.ended:
                self._abandoned.add(self.replica_id, item.request_id, item.attempt)
            self._tell_lost(sink, item, failure)

    def _set_up(self, up: bool) -> None:
        if self.up == up:
            return
        self.up = up
        if up:
            self._opened.set()
        else:
            self._opened.clear()
        _LOG.info("link.up" if up else "link.broken", extra={"replica": self.replica_id, "sinks": len(self._sinks)})
        self._on_change()
