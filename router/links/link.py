"""The router's end of a link: one stream to one replica that carries everything between the two."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from array import array
from collections.abc import Callable, Mapping, Sequence

from cluster.errors import LinkError
from cluster.lifecycle import TaskOwner, slept_awake, timeout_awake
from cluster.models import Judgement
from cluster.trust.secret import ClusterSecret
from cluster.trust.tls import LinkDialer
from cluster.wire.framing import OtherProtocolError
from penstock.internal.v1 import replica_pb2 as pb
from router.links.ends import LinkEnds, Wire, WireNews
from router.links.failure import Failure
from router.links.former import open_former
from router.links.outbox import Outbox
from router.links.questions import Constrained, expand_images, fetch_tokenizer, judge
from router.links.receiver import Receiver
from router.links.safeguards import LinkSafeguards
from router.links.sinks import Sinks
from router.links.stall import WatchedAttempt, stalled
from router.links.stream import open_stream

_LOG = logging.getLogger(__name__)

RETRY_S = 0.2
"""Pause between two tries to connect."""
FLUSH_S = 1.0
"""Longest wait for the last commands of a link that is closed."""
_FLUSH_LOOK_S = 0.005
_Told = tuple[str, bool]
"""Last reason in the log why a link is down, and whether it was told as a lasting one."""


class ReplicaLink:
    """Link to one replica: connects, reconnects, and moves commands out and frames in.

    Call `start` once and `close` once. While the stream is broken, the link keeps trying to connect. When
    `attach_grace_s` is over or the replica's lease is lost, every receiver gets `on_lost`. The link still tries until
    it is closed, for later requests.
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
        safeguards: LinkSafeguards,
    ) -> None:
        """Prepare a link; it does nothing before `start`.

        Args:
            replica_id: of the replica that must answer.
            address: host:port of the replica.
            router_id: of this router.
            secret: proves to each side that the other belongs to the cluster.
            dialer: connects, with TLS where the cluster has it.
            ping_s: pause between pings, and the longest wait for an answer, seconds.
            attach_grace_s: how long a broken stream may stay broken until its attempts are lost, seconds.
            on_change: called whenever `up` or `suspect` changes.
            safeguards: those of all links of the pool.
        """
        self.replica_id = replica_id
        self.address = address
        self.up = False
        """Whether the stream is open and welcomed."""
        self.down_because = "it was not dialled yet"
        """Why the newest try to open the stream failed, or why it ended."""
        self.suspect = False
        """Whether the replica should get no new attempts: it had work, was silent for too long, and has produced
        nothing since; or it said that its engine died.
        """
        self._engine_died = False
        """Whether the replica said so over this stream."""
        self.output_at = 0.0
        """When output came last; monotonic seconds."""
        self._listening_since = 0.0
        """When silence began to count against the replica; monotonic seconds."""
        self._lease_lost = False
        self._safeguards = safeguards
        self._ends = LinkEnds(replica_id, address, router_id, secret, dialer, ping_s)
        self._grace_s = attach_grace_s
        self._on_change = on_change
        self._wire: Wire | None = None
        """Connection that carries work; None while the link is down."""
        self._outbox = Outbox()
        self._sinks = Sinks(replica_id, self._outbox, safeguards)
        self._heard_at = 0.0
        self._owner = TaskOwner(f"link.{replica_id}")
        self._opened = asyncio.Event()

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect in the background, from now until `close`."""
        self._owner.spawn(self._keep_open(), "open")

    async def wait_up(self, seconds: float) -> bool:
        """Wait until the link is up; return False when it is not within this time."""
        try:
            async with timeout_awake(seconds):
                await self._opened.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """End the stream; the receivers that remain get `on_lost`."""
        if self._wire is not None and not await self._flush(self._wire):
            # The replica keeps some output until its grace is over, although it could forget it now.
            _LOG.debug("link.not_flushed", extra={"replica": self.replica_id})
        await self._owner.close()
        self._set_up(False)
        self._sinks.lose_all(Failure.LINK)

    async def _flush(self, wire: Wire) -> bool:
        deadline = time.monotonic() + FLUSH_S
        self._outbox.flush()
        while self._wire is wire and (wire.unsent or self._outbox):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_FLUSH_LOOK_S)
        return True

    def lease_lost(self) -> None:
        """Note that the replica has no lease. If the link is broken too, nothing shows that the replica lives: it
        counts as dead.
        """
        self._lease_lost = True
        if not self.up and self._sinks.open:
            self._sinks.lose_all(Failure.LINK)

    def lease_found(self) -> None:
        """Note that the replica has a lease."""
        self._lease_lost = False

    @property
    def busy(self) -> int:
        """Number of receivers on this link."""
        return len(self._sinks.open)

    # --- commands -----------------------------------------------------------------------------------------------------

    def open_sink(
        self, receiver: Receiver, request_id: str, attempt: str, offset: int = 0, *, deadline: float | None = None
    ) -> int:
        """Register a receiver and return its number, which is valid on this link only.

        Args:
            receiver: gets the attempt's output.
            request_id: of the attempt's request.
            attempt: id of the attempt.
            offset: output tokens of the attempt that arrived before.
            deadline: monotonic seconds, infinite for none. Given only where the receiver takes over an attempt of
                another receiver; it lacks the output before the offset then.
        """
        return self._sinks.add(receiver, request_id, attempt, offset, deadline)

    def send_start(self, sink: int, start: pb.Start) -> None:
        """Start the attempt of a sink."""
        item = self._sinks.open[sink]
        start.sink, start.request_id, start.attempt = sink, item.request_id, item.attempt
        self._outbox.send(pb.LinkCommand(start=start))

    def send_attach(self, sink: int) -> None:
        """Have the replica send the output of a sink's attempt here."""
        item = self._sinks.open[sink]
        attach = pb.Attach(sink=sink, request_id=item.request_id, attempt=item.attempt, from_offset=item.offset)
        attach.want_history = item.want_history
        if item.deadline is not None:
            left_s = item.deadline - time.monotonic()
            attach.time_left_ms = max(1, int(1000 * left_s)) if left_s < math.inf else 0
        self._outbox.send(pb.LinkCommand(attach=attach))

    def send_abort(self, sink: int, *, final: bool = False) -> None:
        """Stop the attempt of a sink; its end still comes. `final`: no other attempt continues from its output."""
        if (item := self._sinks.open.get(sink)) is not None:
            item.abort = pb.Abort(sink=sink, final=final)
            self._outbox.send(pb.LinkCommand(abort=item.abort))

    def stop(self, request_id: str, attempt: str) -> None:
        """Stop an attempt that has no receiver here, unless another router receives it."""
        self._outbox.send(pb.LinkCommand(abort=pb.Abort(request_id=request_id, attempt=attempt)))

    def close_sink(self, sink: int, *, acknowledge: bool) -> None:
        """Forget a receiver. `acknowledge`: the client has everything, so the replica can forget the attempt too."""
        if self._sinks.open.pop(sink, None) is not None and acknowledge:
            self._outbox.send_soon(pb.LinkCommand(acknowledge=pb.Acknowledge(sink=sink)))

    async def fetch_tokenizer(self, digest: str) -> Mapping[str, bytes]:
        """Return the replica's tokenizer files by name.

        Raises:
            LinkError: the replica is gone or has another tokenizer.
        """
        return await fetch_tokenizer(self._ends, digest)

    async def judge(self, asked: Constrained) -> Judgement:
        """Return what the replica's compiler says of a constraint, or of demanded calls.

        Raises:
            LinkError: the replica is gone, took too long, or is too old to know the question.
        """
        return await judge(self._ends, asked)

    async def expand_images(self, sizes: Sequence[tuple[int, int]]) -> tuple[tuple[array[int], ...], str]:
        """Return the tokens of each image of a prompt by the images' widths and heights, and why the model can't take
        them; empty where it can.

        Raises:
            LinkError: the replica is gone, took too long, or is too old to know the question.
        """
        return await expand_images(self._ends, sizes)

    # --- the stream ---------------------------------------------------------------------------------------------------

    async def _keep_open(self) -> None:
        lost_at: float | None = None
        told: _Told = ("", False)
        while True:
            try:
                await self._session()
            except LinkError as error:
                self.down_because = str(error)
                told = self._tell_down(str(error), told, lost_at)
            except Exception as error:  # noqa: BLE001 - otherwise the link would look up and carry nothing
                self.down_because = type(error).__name__
                _LOG.exception("link.failed", extra={"replica": self.replica_id})
            was_up = self.up
            self._set_up(False)
            now = time.monotonic()
            if was_up or lost_at is None:
                lost_at = now
            if self._lease_lost or now - lost_at > self._grace_s:
                self._sinks.lose_all(Failure.LINK)
            await asyncio.sleep(RETRY_S)

    def _tell_down(self, error: str, told: _Told, lost_at: float | None) -> _Told:
        """Log why the link is down: each reason once, and once more as a warning when it lasts. Return what is told."""
        lasts = not self.up and lost_at is not None and time.monotonic() - lost_at > self._grace_s
        if self.up or (error, lasts) != told:
            level = logging.WARNING if lasts else logging.INFO
            _LOG.log(level, "link.down", extra={"replica": self.replica_id, "error": error})
        return error, lasts

    async def _session(self) -> None:
        wire = await self._connect()
        tasks = TaskOwner(f"link.{self.replica_id}.session")
        try:
            self._begin(wire)
            tasks.spawn(self._ping(wire), "ping")
            await wire.wait_closed()
        finally:
            self._wire = None
            self._outbox.detach()
            wire.break_off()
            await tasks.close()

    async def _connect(self) -> Wire:
        try:
            return await open_stream(self._ends, self._ends.ping_s)
        except OtherProtocolError:
            return await open_former(self._ends)

    def _begin(self, wire: Wire) -> None:
        self._heard_at = time.monotonic()
        # Commands that the old stream did not send belong to sinks that attach below. New starts are the exception.
        waiting = [c for c in self._outbox.clear() if c.WhichOneof("command") in ("start", "acknowledge")]
        fresh = {c.start.sink for c in waiting if c.HasField("start")}
        for request_id, attempt in self._safeguards.abandoned.take(self.replica_id):
            self.stop(request_id, attempt)
        for command in waiting:
            self._outbox.send(command)
        self._safeguards.orphaned_output.forget(self.replica_id)
        self._engine_died = False
        self._set_suspect(False)
        self._listening_since = self._heard_at
        for sink, item in self._sinks.open.items():
            if sink not in fresh:
                self.send_attach(sink)
            if item.abort is not None:
                self._outbox.send(pb.LinkCommand(abort=item.abort))
        wire.carry(WireNews(self._deliver, self._outbox.pause, self._outbox.resume))
        self._wire = wire
        self._outbox.attach(wire.write)
        self._set_up(True)

    async def _ping(self, wire: Wire) -> None:
        while True:
            self._outbox.send(pb.LinkCommand(ping=pb.Ping(nonce=time.monotonic_ns())))
            sent = time.monotonic()
            if not await slept_awake(self._ends.ping_s):
                self._listening_since = time.monotonic()
                continue
            if self._heard_at < sent:
                _LOG.warning("link.silent", extra={"replica": self.replica_id, "seconds": self._ends.ping_s})
                wire.break_off()
                return
            self._look_for_progress()

    def _look_for_progress(self) -> None:
        live = {sink: item for sink, item in self._sinks.open.items() if not item.ended}
        watched = (WatchedAttempt(item.since, item.begun) for item in live.values())
        quiet_since = max(self.output_at, self._listening_since)
        if not stalled(watched, quiet_since, time.monotonic(), self._safeguards.limits):
            return
        _LOG.error("replica.stalled", extra={"replica": self.replica_id, "attempts": len(live)})
        self._set_suspect(True)
        for sink, item in live.items():
            # If the replica ever goes on, it must not produce output without a receiver.
            self.send_abort(sink)
            self._sinks.lose(sink, item, Failure.STALLED)

    def _set_suspect(self, suspect: bool) -> None:
        if self.suspect != suspect:
            self.suspect = suspect
            self._on_change()

    # --- frames -------------------------------------------------------------------------------------------------------

    def _deliver(self, frame: pb.LinkResponse) -> None:
        self._heard_at = time.monotonic()
        sinks = self._sinks
        if frame.histories:
            sinks.deliver_histories(frame)
        if frame.adapters:
            sinks.deliver_adapters(frame)
        if frame.prompts:
            sinks.deliver_prompts(frame)
        if frame.sinks or frame.ends or frame.prompts:
            self.output_at = self._heard_at
            # Before receivers learn of the ends: each chooses at once where to go on, and must not choose this replica.
            self._engine_died = self._engine_died or any(ended.engine_died for ended in frame.ends)
            self._set_suspect(self._engine_died)
        if frame.sinks:
            sinks.deliver_output(frame, self._heard_at)
        if frame.ends or frame.refusals or frame.detached:
            sinks.deliver_ends(frame)

    def _set_up(self, up: bool) -> None:
        if self.up == up:
            return
        self.up = up
        if up:
            self._opened.set()
        else:
            self._opened.clear()
        _LOG.info(
            "link.up" if up else "link.broken", extra={"replica": self.replica_id, "sinks": len(self._sinks.open)}
        )
        self._on_change()
