"""One attempt of a choice: where it runs, since when, and what is known of it when it is over."""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Awaitable, Callable, Sequence

from cluster.errors import EngineRequestError, InvalidRequestError, PenstockError, UnavailableError
from cluster.telemetry.tracing.context import attempt_parent
from cluster.trust.resume_token import ResumeTokenChoice
from penstock.internal.v1 import replica_pb2 as pb
from penstock.v1 import types_pb2 as types
from router.generation.metering import AttemptOutcome, AttemptTimes, FinishedAttempt
from router.links.placement import Placement
from router.links.receiver import Receiver

Again = Callable[[str], Awaitable[pb.Start]]
"""Function that makes a start anew for the replica of an id, which has another tokenizer."""


class Attempt:
    """One attempt on one replica, on its link from `start` to `close`. Moments are of the monotonic clock."""

    __slots__ = ("_queued_at", "began_at", "granted_at", "name", "place", "sink", "tokens_before")

    def __init__(self, name: str, place: Placement, queued_at: float, tokens_before: int, *, granted: bool) -> None:
        """`queued_at`: since when its choice waited for the slot; `granted`: whether this router got it."""
        self.name = name
        self.place = place
        self.sink = 0
        """0 while it has none."""
        self.tokens_before = tokens_before
        """Output tokens of the choice before this attempt."""
        self.granted_at = time.monotonic() if granted else 0.0
        """0 where another router got the slot."""
        self.began_at = 0.0
        """First token; 0 before that."""
        self._queued_at = queued_at

    # --- on the link --------------------------------------------------------------------------------------------------

    def start(self, receiver: Receiver, request_id: str, start: pb.Start) -> None:
        """Start it on the replica; `start` is changed."""
        self.sink = self.place.link.open_sink(receiver, request_id, self.name, self.tokens_before)
        start.trace_parent = attempt_parent(start.trace_parent, self.name)
        self.place.link.send_start(self.sink, start)

    def attach(self, receiver: Receiver, request_id: str, deadline: float | None) -> None:
        """Take over what another router, or another call, has started."""
        until = math.inf if deadline is None else deadline
        self.sink = self.place.link.open_sink(receiver, request_id, self.name, self.tokens_before, deadline=until)
        self.place.link.send_attach(self.sink)

    def abort(self, *, final: bool = False) -> None:
        """Ask the replica to stop it; its end still comes. `final`: its choice does not go on elsewhere."""
        self.place.link.send_abort(self.sink, final=final)

    def close(self, *, acknowledge: bool) -> None:
        """Receive nothing more; `acknowledge`: the client has everything, and the replica may forget it."""
        if self.sink:
            self.place.link.close_sink(self.sink, acknowledge=acknowledge)
            self.sink = 0

    def where(self) -> ResumeTokenChoice:
        """Say where it runs."""
        link = self.place.link
        return ResumeTokenChoice(self.name, link.replica_id, link.address, self.place.group_id)

    # --- its times ----------------------------------------------------------------------------------------------------

    @property
    def queue_s(self) -> float:
        """How long its choice waited for the slot; 0 where another router got it."""
        return self.granted_at - self._queued_at if self.granted_at else 0.0

    @property
    def silent_s(self) -> float:
        """Seconds since the last sign of it."""
        heard_at = self.place.link.output_at if self.began_at else self.granted_at
        return max(0.0, time.monotonic() - heard_at) if heard_at else 0.0

    def over(
        self, end: pb.AttemptEnd | None, tokens: int, outcome: AttemptOutcome, failure: str = ""
    ) -> FinishedAttempt:
        """Describe it at its end. Where its replica does not (`end` is None), what it used of the accelerator is not
        known, and counts as none. `tokens` are the choice's by now.
        """
        timed = self.granted_at and self.began_at
        place, known = self.place, end or self._guessed_end(tokens)
        return FinishedAttempt(
            replica_id=place.link.replica_id,
            group_id=place.group_id,
            queue_s=self.queue_s,
            prefill_s=self.began_at - self.granted_at if timed else known.prefill_s,
            end=known,
            price_per_s=place.price_per_s,
            lost_s=self.silent_s if end is None and outcome is AttemptOutcome.LOST else 0.0,
            name=self.name,
            outcome=outcome,
            failure=failure,
            times=AttemptTimes(self._queued_at, self.granted_at, self.began_at, time.monotonic()),
            record=place.record,
        )

    def _guessed_end(self, tokens: int) -> pb.AttemptEnd:
        return pb.AttemptEnd(
            finish_reason=types.FINISH_REASON_ERROR,
            output_tokens=tokens - self.tokens_before,
            decode_s=max(0.0, self.place.link.output_at - self.began_at) if self.began_at else 0.0,
        )


Images = Sequence[tuple[str, bytes]]
"""Images of a prompt: the field of each in the request, and the content of its file."""
_IMAGE = re.compile(r"images\[(\d+)\]: ")


def whole(start: pb.Start, images: Images) -> pb.Start:
    """Return a copy of a start with the contents of its images. A choice has them once, however often it starts."""
    copy = pb.Start()
    copy.CopyFrom(start)
    for image, (_field, content) in zip(copy.images, images, strict=True):
        image.data = content
    return copy


def refused_by_engine(start: pb.Start, images: Images, detail: str, *, elsewhere: bool = False) -> PenstockError:
    """Turn an engine's objection to a start into an error of the call: what it objects to passed our own checks.

    `elsewhere`: another replica could do it, or this one later.
    """
    if elsewhere:
        return UnavailableError(detail)
    # A request for vectors has no such field, and the engine does not say which of its inputs it was.
    field, told = "" if start.HasField("pooling") else "sampling", detail
    if (named := _IMAGE.match(detail)) and int(named[1]) < len(images):
        field, told = images[int(named[1])][0], detail[named.end() :]
    return InvalidRequestError.of(field, f"refused by the engine: {EngineRequestError(told)}")


def content_digest(start: pb.Start, images: Images) -> bytes:
    """Return a digest of what is generated, the same for all tenants."""
    digests = [(field, hashlib.blake2b(content, digest_size=16).digest()) for field, content in images]
    same = whole(start, digests)
    same.ClearField("cache_salt")
    # Routers of the last release leave it out, and have the same marks.
    same.ClearField("tokenizer_digest")
    same.ClearField("trace_parent")
    return hashlib.blake2b(same.SerializeToString(deterministic=True), digest_size=16).digest()


def cancelled() -> pb.AttemptEnd:
    """Return the end of an attempt that was stopped."""
    return pb.AttemptEnd(finish_reason=types.FINISH_REASON_CANCELLED)


def nothing() -> None:
    """Do nothing: what a choice calls until its request is bound."""
