"""The receivers of a link, and how its frames reach them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from penstock.internal.v1 import replica_pb2 as pb
from router.links.failure import Failure
from router.links.outbox import Outbox
from router.links.receiver import AS_TEXT, Receiver
from router.links.safeguards import LinkSafeguards

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Sink:
    """Receiver of one attempt's output, and what it has so far."""

    receiver: Receiver
    request_id: str
    attempt: str
    offset: int = 0
    """Output tokens that arrived here; a re-attach continues from there."""
    want_history: bool = False
    """Whether the output before the offset is still to come."""
    deadline: float | None = None
    """Deadline of a receiver that takes the attempt over, monotonic seconds; infinite for none. None: it is not taken
    over.
    """
    abort: pb.Abort | None = None
    """Abort that was sent and that no end has answered yet: a stream that breaks may have swallowed it."""
    since: float = 0.0
    """When it was opened; monotonic seconds."""
    begun: bool = False
    """Whether it had output."""
    ended: bool = False


class Sinks:
    """Sinks of one link by number. A receiver that raises is dropped; the others of the link go on."""

    def __init__(self, replica_id: str, outbox: Outbox, safeguards: LinkSafeguards) -> None:
        self.open: dict[int, Sink] = {}
        self._next = 1
        self._replica_id = replica_id
        self._outbox = outbox
        self._abandoned = safeguards.abandoned
        self._orphaned_output = safeguards.orphaned_output

    def add(self, receiver: Receiver, request_id: str, attempt: str, offset: int, deadline: float | None) -> int:
        """Open a sink and return its number. With a deadline it takes an attempt over, and lacks the output before the
        offset.
        """
        sink = self._next
        self._next += 1
        self.open[sink] = Sink(
            receiver,
            request_id,
            attempt,
            offset,
            want_history=deadline is not None and offset > 0,
            deadline=deadline,
            since=time.monotonic(),
        )
        return sink

    # --- frames -------------------------------------------------------------------------------------------------------

    def deliver_histories(self, frame: pb.LinkResponse) -> None:
        """Hand over the output before the offsets of sinks that took an attempt over."""
        for history in frame.histories:
            if (item := self.open.get(history.sink)) is not None and item.want_history:
                item.want_history = False
                self._tell(history.sink, item, partial(item.receiver.on_history, history))

    def deliver_adapters(self, frame: pb.LinkResponse) -> None:
        """Tell receivers which files their attempts' adapters have."""
        for adapter in frame.adapters:
            if (item := self.open.get(adapter.sink)) is not None:
                self._tell(adapter.sink, item, partial(item.receiver.on_adapter, adapter.files))

    def deliver_prompts(self, frame: pb.LinkResponse) -> None:
        """Hand over log probabilities of prompts."""
        for part in frame.prompts:
            if (item := self.open.get(part.sink)) is not None:
                self._tell(part.sink, item, partial(item.receiver.on_prompt_logprobs, part))

    def deliver_output(self, frame: pb.LinkResponse, now: float) -> None:
        """Hand over new output; `now` is in monotonic seconds. Output without a sink is counted as orphaned."""
        tokens = list(frame.token_ids)
        logprobs = {item.delta: item.positions for item in frame.logprobs} if frame.logprobs else None
        parsed = {item.delta: item for item in frame.parsed} if frame.parsed else {}
        if frame.text_deltas:
            parsed.update(dict.fromkeys(frame.text_deltas, AS_TEXT))
        at = 0
        columns = zip(frame.sinks, frame.offsets, frame.token_counts, frame.texts, strict=True)
        for index, (sink, offset, count, text) in enumerate(columns):
            item = self.open.get(sink)
            end = at + count
            if item is None:
                if self._orphaned_output.seen(self._replica_id, sink, now):
                    _LOG.warning("link.stray", extra={"replica": self._replica_id, "sink": sink})
                    self._outbox.send(pb.LinkCommand(abort=pb.Abort(sink=sink)))
            else:
                item.offset = offset + count
                item.begun = True
                positions = logprobs.get(index, ()) if logprobs is not None else ()
                piece = parsed.get(index) if parsed else None
                try:
                    item.receiver.on_delta(offset, tokens[at:end], text, positions, piece)
                except Exception:  # noqa: BLE001 - as in _tell, which would cost a call per token
                    self._drop(sink, item)
            at = end

    def deliver_ends(self, frame: pb.LinkResponse) -> None:
        """Tell receivers about ends, refusals and takeovers by other routers, in this order."""
        for ended in frame.ends:
            if (item := self.open.get(ended.sink)) is None:
                self._orphaned_output.over(self._replica_id, ended.sink)
            else:
                item.ended = True
                self._tell(ended.sink, item, partial(item.receiver.on_end, ended))
        for refusal in frame.refusals:
            if (item := self.open.pop(refusal.sink, None)) is not None:
                self._tell(refusal.sink, item, partial(item.receiver.on_refused, refusal))
        for sink in frame.detached:
            if (item := self.open.pop(sink, None)) is not None:
                self._tell(sink, item, item.receiver.on_detached)

    # --- losses -------------------------------------------------------------------------------------------------------

    def lose(self, sink: int, item: Sink, failure: Failure) -> None:
        """Tell a receiver that its attempt is lost."""
        try:
            item.receiver.on_lost(failure)
        except Exception:  # noqa: BLE001 - the others have to hear of their own losses
            self._log_failure(sink)

    def lose_all(self, failure: Failure) -> None:
        """Close every sink. A start that was never sent counts as refused; every other attempt is lost."""
        lost, self.open = self.open, {}
        unsent = {command.start.sink for command in self._outbox.clear() if command.HasField("start")}
        for sink, item in lost.items():
            if sink in unsent:
                # It never ran, so it is no attempt that was lost.
                refusal = pb.Refusal(sink=sink, reason=pb.REFUSAL_REASON_DRAINING)
                self._tell(sink, item, partial(item.receiver.on_refused, refusal))
                continue
            if not item.ended:
                self._abandoned.add(self._replica_id, item.request_id, item.attempt)
            self.lose(sink, item, failure)

    # --- receivers that fail ------------------------------------------------------------------------------------------

    def _tell(self, sink: int, item: Sink, news: Callable[[], None]) -> None:
        try:
            news()
        except Exception:  # noqa: BLE001 - the other streams of this link go on
            self._drop(sink, item)

    def _drop(self, sink: int, item: Sink) -> None:
        """Close the sink of a receiver that has just raised, and stop its attempt."""
        self._log_failure(sink)
        self._outbox.send(pb.LinkCommand(abort=pb.Abort(sink=sink)))
        # It may have closed itself before it failed.
        self.open.pop(sink, None)
        self.lose(sink, item, Failure.LINK)

    def _log_failure(self, sink: int) -> None:
        _LOG.exception("link.receiver_failed", extra={"replica": self._replica_id, "sink": sink})
