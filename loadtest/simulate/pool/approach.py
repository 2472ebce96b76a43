"""The way of a granted request into the batch of a replica with parts."""

from __future__ import annotations

from collections.abc import Callable

from loadtest.simulate.engine.replica import SimRequest
from loadtest.simulate.parts.replica import PartsReplica
from loadtest.simulate.pool.fleet import Member
from loadtest.simulate.pool.loop import EventLoop


class Approach:
    """Requests between their grant and the batch.

    Args:
        loop: of the pool.
        drive: plans a replica's steps.
    """

    def __init__(self, loop: EventLoop, drive: Callable[[Member], None]) -> None:
        self._loop = loop
        self._drive = drive

    def bring(self, member: Member, item: SimRequest) -> None:
        """Bring a request into a replica's batch, now or when it can join."""
        ready_at = with_parts(member).bring(item, self._loop.now)
        arrival = (member, item, item.attempt)
        if ready_at <= self._loop.now:
            self._join(arrival)
        else:
            self._loop.at(ready_at, self._join, arrival)

    def _join(self, arrival: tuple[Member, SimRequest, str]) -> None:
        member, item, attempt = arrival
        replica = with_parts(member)
        # Meanwhile the replica may have died, and the request may even be here again.
        if item.attempt == attempt and replica.running.get(item.request_id) is item:
            replica.join(item, self._loop.now)
            self._drive(member)


def with_parts(member: Member) -> PartsReplica:
    """Return a member's replica, which has parts."""
    if not isinstance(member.replica, PartsReplica):
        raise TypeError(f"replica {member.name} has no parts")
    return member.replica
