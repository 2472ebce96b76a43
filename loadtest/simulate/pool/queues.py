"""What a simulated pool needs of its queue, and production's queue behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from cluster.errors import RequestError
from cluster.queue.entries import Grant, Mail, QueueEntry, Settlement
from cluster.queue.heartbeats import RouterBeat, RouterBeatReply
from cluster.queue.redis.queue import RedisQueue
from loadtest.simulate.engine.replica import SimReplica, SimRequest
from loadtest.simulate.pool.loop import now
from penstock.models import RequestClass
from penstock.values.steps import Relief


class Submission(NamedTuple):
    """One request as a router puts it in line."""

    item: SimRequest
    request_class: RequestClass
    expected_tokens: int
    kv_tokens: int
    late_after_ms: int = 0
    preferred: tuple[str, ...] = ()


class SimQueue(Protocol):
    """Queue of a simulated pool. Grants come back for the calling router; others are rung."""

    name: str
    """What runs it, in words."""

    def submit(self, router: str, what: Submission) -> tuple[Grant | None, int] | None:
        """Put a request in line. Return its grant, or how many are ahead; None where the line is full."""
        ...

    def collect(self, router: str) -> Mail:
        """Read a router's mail after its bell rang."""
        ...

    def release(self, router: str, item: SimRequest, output_tokens: int) -> Sequence[Grant]:
        """End an attempt."""
        ...

    def requeue(self, router: str, item: SimRequest, output_tokens: int) -> Sequence[Grant]:
        """Put a request back in line."""
        ...

    def refuse(self, router: str, grant: Grant) -> Sequence[Grant]:
        """Give back a grant that can't be used."""
        ...

    def withdraw(self, router: str, item: SimRequest) -> Sequence[Grant]:
        """Take a request out of the line."""
        ...

    def beat_replica(self, replica: SimReplica, now_s: float, *, progress: bool) -> Relief:
        """Send a replica's heartbeat. Return the pool's relief."""
        ...

    def beat_router(self, router: str, linked: tuple[str, ...], started: Sequence[tuple[str, str]]) -> RouterBeatReply:
        """Send a router's heartbeat."""
        ...

    def retire_replica(self, name: str) -> None:
        """Forget a replica that is gone."""
        ...

    def relieve(self, relief: Relief, until_ms: int) -> None:
        """Hear of a decision about relief. Where there is a store, it has it already."""
        ...


class ScriptQueue:
    """Production's queue.

    Args:
        queue: on a server in this process.
        start_within_ms: time within which a request must start, 0 for no bound.
    """

    name = "production's scripts"

    def __init__(self, queue: RedisQueue, start_within_ms: int) -> None:
        self._queue = queue
        self._start_within_ms = start_within_ms

    def submit(self, router: str, what: Submission) -> tuple[Grant | None, int] | None:
        item, request = what.item, what.item.request
        entry = QueueEntry(
            item.request_id,
            f"a{request.number}",
            request.tenant or "tenant",
            what.request_class,
            request.prompt_tokens,
            what.expected_tokens,
            what.kv_tokens,
            start_within_ms=self._start_within_ms,
            preferred_replicas=what.preferred,
            late_after_ms=what.late_after_ms,
        )
        try:
            answer = now(self._queue.submit(router, entry))
        except RequestError:
            return None
        return answer.grant, answer.position

    def collect(self, router: str) -> Mail:
        return now(self._queue.collect(router))

    def release(self, router: str, item: SimRequest, output_tokens: int) -> Sequence[Grant]:
        call = self._queue.release(router, item.request_id, item.attempt, Settlement(output_tokens))
        return now(call).grants

    def requeue(self, router: str, item: SimRequest, output_tokens: int) -> Sequence[Grant]:
        call = self._queue.requeue(router, item.request_id, item.attempt, Settlement(output_tokens))
        return now(call).grants

    def refuse(self, router: str, grant: Grant) -> Sequence[Grant]:
        return now(self._queue.refuse(router, grant.request_id, grant.attempt)).grants

    def withdraw(self, router: str, item: SimRequest) -> Sequence[Grant]:
        return now(self._queue.withdraw(router, item.request_id, None)).grants

    def beat_replica(self, replica: SimReplica, now_s: float, *, progress: bool) -> Relief:
        return Relief.of(now(self._queue.heartbeat_replica(replica.beat(now_s, progress=progress))).relief)

    def beat_router(self, router: str, linked: tuple[str, ...], started: Sequence[tuple[str, str]]) -> RouterBeatReply:
        return now(self._queue.heartbeat_router(RouterBeat(router, linked, tuple(started))))

    def retire_replica(self, name: str) -> None:
        now(self._queue.retire_replica(name))

    def relieve(self, relief: Relief, until_ms: int) -> None:
        """Do nothing: the scripts read what is stored."""
